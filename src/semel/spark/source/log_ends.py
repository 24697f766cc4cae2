"""Determines how far a streaming query can read now, and what it can no longer read.

Offsets are only valid within one topic. Before the next end is determined, the layout is compared with the
position of the query. A missing partition, a topic with another id and a log that ends before the position
are data loss. With `failOnDataLoss=false` the query continues with what there is: a topic that was created
again is read from its start.
"""

from collections.abc import Set
from typing import NamedTuple

from semel.client import Isolation, Partition
from semel.spark.errors import DataLoss
from semel.spark.partition_offsets import (
    PartitionOffsets,
    TopicIds,
    recreated,
    recreated_text,
    without_topics,
)
from semel.spark.source.positions import Positions


class Next(NamedTuple):
    """The next batch at its maximum: its start, its possible end, and the ids of the topics."""

    begin: PartitionOffsets
    end: PartitionOffsets
    ids: TopicIds


class _Found(NamedTuple):
    ends: PartitionOffsets
    ids: TopicIds


class LogEnds:
    """The ends of the log, as a query sees them."""

    def __init__(self, positions: Positions, *, fail_on_data_loss: bool) -> None:
        self._positions = positions
        self._fails = fail_on_data_loss
        self._bound: _Found | None = None

    @property
    def is_bounded(self) -> bool:
        """Whether the query stops at a fixed end."""
        return self._bound is not None

    def bound(self) -> None:
        """Fix the end at the current end of the log (Trigger.AvailableNow)."""
        self._bound = self._look()

    def next(self, begin: PartitionOffsets, ids: TopicIds) -> Next:
        """Return what can be read from here. DataLoss if something can no longer be read."""
        found = self._bound or self._look()
        begin = self._still_there(begin, ids, found)
        shorter = self._shorter(begin, found)
        # A query that read uncommitted records before may be ahead of the last stable offset: it waits there.
        end = {
            key: offset if key in shorter else max(offset, begin.get(key, 0))
            for key, offset in found.ends.items()
        }
        return Next(begin, end, {**ids, **found.ids})

    def _look(self) -> _Found:
        partitions, ids = self._positions.layout()
        return _Found(self._positions.ends(partitions), ids)

    def _still_there(self, begin: PartitionOffsets, ids: TopicIds, found: _Found) -> PartitionOffsets:
        anew = recreated(ids, found.ids)
        if anew and self._fails:
            raise DataLoss(recreated_text(anew, ids, found.ids))
        begin = without_topics(begin, anew)
        gone = begin.keys() - found.ends.keys()
        if gone and self._fails:
            raise DataLoss(_gone_text(gone, self._positions.existing(gone)))
        return {key: offset for key, offset in begin.items() if key not in gone}

    def _shorter(self, begin: PartitionOffsets, found: _Found) -> set[Partition]:
        """Return the partitions that end before the query's position, whatever is committed in them."""
        ahead = [key for key, offset in begin.items() if found.ends[key] < offset]
        ends = self._positions.ends(ahead, Isolation.READ_UNCOMMITTED) if ahead else {}
        shorter = {key for key, end in ends.items() if end < begin[key]}
        if shorter and self._fails:
            topic, partition = key = min(shorter)
            raise DataLoss(
                f"records of {topic}/{partition} are lost: the query has read up to offset {begin[key]}, and "
                f"the log ends at {ends[key]}. The topic was deleted and created again, or the broker was "
                "restored from a backup. Set failOnDataLoss=false to go on with what is written from now on"
            )
        return shorter


def _gone_text(gone: Set[Partition], existing: Set[Partition]) -> str:
    if left := gone & existing:
        return (
            f"{_names(left)} is there, and was read by this query before, but its options subscribe, "
            "subscribePattern or assign do not name it any more. Records that come there would not be read. "
            "Name it again, or set failOnDataLoss=false to go on without it"
        )
    return (
        f"{_names(gone)} cannot be read any more: there is no such partition. "
        "Set failOnDataLoss=false to go on without it"
    )


def _names(partitions: Set[Partition]) -> str:
    return ", ".join(f"{topic}/{partition}" for topic, partition in sorted(partitions))
