"""Formats transactions as rows: age and timeout, position on a timeline, groups, and offsets held back."""

from collections.abc import Iterable, Mapping
from typing import Any

from semel.client import Partition, TransactionDescription
from semel.console.rendering import iso
from semel.console.sampling import Catalogue, Finished, GroupSample, PartitionEnds
from semel.wire.partitioner import coordinator_partition

OFFSETS_TOPIC = "__consumer_offsets"
OFFSETS_PARTITIONS = 50
#: Partitions of a transaction that a row of a list names (its own page names all), and groups of a partition.
PLACES_MAX = 12
#: Beyond this share of its timeout, a transaction is shown as late.
LATE_SHARE = 0.5


class GroupFinder:
    """Finds the groups whose offsets a transaction may hold.

    Kafka's protocol does not name them. It names only the partition of `__consumer_offsets` that a group
    belongs to, and several groups may share one.
    """

    def __init__(self, groups: GroupSample | None, catalogue: Catalogue | None) -> None:
        topics = catalogue.topics if catalogue is not None else ()
        known = next((each for each in topics if each.name == OFFSETS_TOPIC), None)
        count = len(known.partitions) if known is not None else OFFSETS_PARTITIONS
        self._by_partition: dict[int, list[str]] = {}
        for each in groups.listed if groups is not None else ():
            self._by_partition.setdefault(coordinator_partition(each.group_id, count), []).append(
                each.group_id
            )

    def groups_of(self, partitions: Iterable[Partition]) -> list[dict[str, Any]]:
        """Return the candidate groups for each `__consumer_offsets` partition of a transaction."""
        return [
            {"offsets_partition": number, "groups": self._by_partition.get(number, [])[:PLACES_MAX]}
            for topic, number in partitions
            if topic == OFFSETS_TOPIC
        ]


def data_partitions(each: TransactionDescription | Finished) -> list[Partition]:
    """Return the partitions of a transaction without those of `__consumer_offsets`."""
    return [key for key in each.partitions if key[0] != OFFSETS_TOPIC]


def blocked_by(open_: Mapping[str, TransactionDescription], ends: PartitionEnds | None) -> dict[str, int]:
    """Return how many offsets each transaction holds back, over all partitions that it blocks.

    Partitions whose blocker is unknown are not counted.
    """
    if ends is None:
        return {}
    by_producer = {each.producer_id: each for each in open_.values()}
    found: dict[str, int] = {}
    for key, producer_id in ends.blockers.items():
        each = by_producer.get(producer_id)
        if each is not None and key in each.partitions:
            found[each.transactional_id] = found.get(each.transactional_id, 0) + ends.waiting.get(key, 0)
    return found


def open_row(each: TransactionDescription, finder: GroupFinder, now_ms: int) -> dict[str, Any]:
    """Return the row of an open transaction."""
    age_ms = max(0, now_ms - each.started_ms) if each.started_ms >= 0 else 0
    timeout_ms = None if each.is_two_phase else each.timeout_ms
    share = None if not timeout_ms else age_ms / timeout_ms
    places = data_partitions(each)
    return {
        "transactional_id": each.transactional_id,
        "state": each.state,
        "producer_id": each.producer_id,
        "epoch": each.epoch,
        "since": iso(each.started_ms) if each.started_ms >= 0 else None,
        "since_ms": each.started_ms,
        "age_ms": age_ms,
        "timeout_ms": timeout_ms,
        "two_phase": each.is_two_phase,
        "ends": None if timeout_ms is None or each.started_ms < 0 else iso(each.started_ms + timeout_ms),
        "share": None if share is None else round(share, 4),
        "level": "bad" if share is not None and share >= 1 else "odd" if (share or 0) > LATE_SHARE else "",
        "partitions": [{"topic": topic, "partition": number} for topic, number in places[:PLACES_MAX]],
        "partition_count": len(places),
        "groups": finder.groups_of(each.partitions),
    }


def placed(rows: list[dict[str, Any]], now_ms: int) -> dict[str, Any]:
    """Add to each row its position on a common timeline, in percent; return the axis."""
    first = min((row["since_ms"] for row in rows if row["since_ms"] >= 0), default=now_ms)
    width = max(10_000, int((now_ms - first) * 1.4))
    for row in rows:
        begins = max(0, row["since_ms"] - first)
        until = width if row["timeout_ms"] is None else begins + row["timeout_ms"]
        row["bar"] = {
            "x": round(100 * begins / width, 2),
            "width": round(max(0.4, 100 * row["age_ms"] / width), 2),
            "rest_x": round(100 * min(width, now_ms - first) / width, 2),
            "rest_width": round(max(0.0, 100 * (min(width, until) - (now_ms - first)) / width), 2),
        }
    return {"from": iso(first), "now_at": round(100 * (now_ms - first) / width, 2), "width_ms": width}


def finished_row(each: Finished) -> dict[str, Any]:
    """Return the row of a transaction that has ended."""
    return {
        "transactional_id": each.transactional_id,
        "producer_id": each.producer_id,
        "epoch": each.epoch,
        "since": iso(each.started_ms) if each.started_ms >= 0 else None,
        "ended": iso(each.ended_ms),
        "duration_ms": max(0, each.ended_ms - each.started_ms) if each.started_ms >= 0 else None,
        "outcome": each.outcome,
        "partition_count": len(data_partitions(each)),
    }
