"""Transactions: the timeline of open ones, those that ended, one in detail, and aborting one.

A row has age and timeout, the position on the timeline, groups, and the offsets that are held back.
"""

import time
from collections.abc import Iterable, Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from semel.client import Admin, Client, ErrorCode, KafkaError, Partition, TransactionDescription
from semel.client.admin import blocking
from semel.console import forms
from semel.console.access import changes
from semel.console.observing import Observer
from semel.console.rendering import iso, now_iso, page, segment
from semel.console.sampling import Catalogue, Finished, GroupSample, PartitionEnds, ends_of
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


FINISHED_SHOWN = 50
VIEWS = ("open", "finished")
ORDERS = {"age": "oldest first", "blocking": "most waiting first", "name": "by id"}


async def transactions(request: Request) -> Response:
    """List open transactions on a timeline, or those that ended. `q` filters by id or topic."""
    query = request.query_params
    wanted = query.get("q", "").strip()
    view = query.get("view", "open")
    order = query.get("order", "age")
    if view not in VIEWS or order not in ORDERS:
        raise forms.FormError(f"view must be one of {', '.join(VIEWS)}, and order one of {', '.join(ORDERS)}")
    observer: Observer = request.app.state.observers.of(request.state.session)
    sample = await observer.transactions.get()
    size = request.app.state.settings.page_size
    number = forms.page_number(request)
    # While sampling fails, these transactions may have ended, so their age must not grow.
    now_ms = observer.transactions.as_of_ms
    waiting = blocked_by(sample.open, observer.ends.value)
    common = {
        "at": now_iso(),
        "view": view,
        "q": wanted,
        "order": order,
        "orders": ORDERS,
        "open_total": len(sample.open),
        "finished_total": len(sample.finished),
        "states": dict(sample.states),
        "blocking": len(waiting),
    }
    if view == "finished":
        ended = [each for each in sample.finished if _matches(wanted, each.transactional_id, each.partitions)]
        shown, where = forms.paged(ended, number, size)
        rows = {"finished": [finished_row(each) for each in shown]}
        return page(request, "transactions.html", {**common, **rows, **where})
    found = [
        each for each in sample.open.values() if _matches(wanted, each.transactional_id, each.partitions)
    ]
    found.sort(key=_key(order, waiting))
    shown, where = forms.paged(found, number, size)
    finder = GroupFinder(observer.groups.value, observer.catalogue.value)
    listed = [open_row(each, finder, now_ms) for each in shown]
    for row in listed:
        row["waiting"] = waiting.get(row["transactional_id"], 0)
    axis = placed(listed, now_ms)
    return page(request, "transactions.html", {**common, "transactions": listed, "axis": axis, **where})


def _matches(wanted: str, transactional_id: str, partitions: Any) -> bool:
    wanted = wanted.lower()
    return (
        not wanted
        or wanted in transactional_id.lower()
        or any(wanted in f"{topic}/{number}".lower() for topic, number in partitions)
    )


def _key(order: str, waiting: dict[str, int]) -> Any:
    if order == "blocking":
        return lambda each: (-waiting.get(each.transactional_id, 0), each.started_ms)
    if order == "name":
        return lambda each: each.transactional_id
    return lambda each: (each.started_ms, each.transactional_id)


async def transaction(request: Request) -> Response:
    """Show one transactional id, and the partitions in which its open transaction blocks readers."""
    transactional_id: str = request.path_params["transactional_id"]
    observer: Observer = request.app.state.observers.of(request.state.session)
    found, places = await request.app.state.workers.run(request, _describe, transactional_id)
    now_ms = int(time.time() * 1000)
    finder = GroupFinder(observer.groups.value, observer.catalogue.value)
    row = open_row(found, finder, now_ms)
    is_open = found.state == blocking.OPEN_STATE
    sample = observer.transactions.value
    ended = [each for each in sample.finished if each.transactional_id == transactional_id] if sample else []
    pipeline, slash, task = transactional_id.partition("/")
    groups = observer.groups.value
    is_pipeline = bool(slash) and groups is not None and pipeline in groups.pipelines
    data = {
        **row,
        "is_open": is_open,
        "places": places,
        "waiting": sum(each["waiting"] for each in places if each["is_first"]),
        "finished": [finished_row(each) for each in ended[:FINISHED_SHOWN]],
        "pipeline": {"id": pipeline, "task": task} if is_pipeline else None,
    }
    return page(request, "transaction.html", data)


def _describe(client: Client, transactional_id: str) -> tuple[TransactionDescription, list[dict[str, Any]]]:
    client.connection()  # Report an unreachable broker at once; the search for a coordinator takes a while.
    found = Admin(client).transactions.describe(transactional_id)
    keys = data_partitions(found)
    if found.state != blocking.OPEN_STATE or not keys:
        return found, []
    high, stable = ends_of(client, keys)
    begins: dict[tuple[str, int], int] = {}
    for topic in {name for name, _ in high}:
        numbers = [number for name, number in high if name == topic]
        try:
            producers = Admin(client).transactions.producers(topic, numbers)
        except KafkaError as error:
            if error.code is not ErrorCode.TOPIC_AUTHORIZATION_FAILED:
                raise
            continue
        for number, known in producers.items():
            for each in known:
                if each.producer_id == found.producer_id and each.transaction_start_offset >= 0:
                    begins[topic, number] = each.transaction_start_offset
    return found, [
        {
            "topic": key[0],
            "partition": key[1],
            "first_offset": begins.get(key),
            "last_stable_offset": stable.get(key),
            "high_watermark": high.get(key),
            "waiting": high[key] - stable[key] if key in high else 0,
            "is_first": key in begins and begins[key] == stable.get(key),
        }
        for key in keys
    ]


async def abort(request: Request) -> Response:
    """Abort the open transaction of an id, and fence its producer.

    The form sends the `producer_id`, `epoch` and `since_ms` that it showed. The next transaction of the id
    may be open by now, and the user has not asked to abort that one.
    """
    transactional_id: str = request.path_params["transactional_id"]
    fields = await forms.read(request)
    shown = (
        forms.whole(fields, "producer_id"),
        forms.whole(fields, "epoch"),
        forms.whole(fields, "since_ms"),
    )
    began_ms, epoch = await request.app.state.workers.run(request, _abort, transactional_id, shown)
    observer: Observer = request.app.state.observers.of(request.state.session)
    observer.aborted.append((transactional_id, began_ms))
    await observer.refresh("transactions", "ends")
    message = f"Aborted the transaction of {transactional_id}. Its producer is fenced."
    return forms.done(request, f"/transactions/{segment(transactional_id)}", message, {"epoch": epoch})


def _abort(client: Client, transactional_id: str, shown: tuple[int, int, int]) -> tuple[int, int]:
    client.connection()
    found = blocking.open_of(client, transactional_id)
    if (found.producer_id, found.epoch, found.started_ms) != shown:
        raise forms.Conflict(
            f"the transaction of {transactional_id} that the page showed is over. Another one is open, "
            f"since {iso(found.started_ms)}, by producer {found.producer_id} in epoch {found.epoch}. "
            "It was not aborted: look at the page again first."
        )
    return found.started_ms, Admin(client).transactions.fence(transactional_id).epoch


ROUTES = [
    Route("/transactions", transactions),
    changes("/transactions/{transactional_id:path}/abort", abort),
    Route("/transactions/{transactional_id:path}", transaction),
]
