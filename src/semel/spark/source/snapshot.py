"""Reads snapshots: all topics and partitions of a batch read as they were after one commit of the broker.

A snapshot contains every transaction wholly or not at all, in however many partitions and topics it wrote.
Reading each partition up to its last stable offset cannot guarantee that: the offsets are of different
moments, and an open transaction hides, in one partition, records of a transaction that is visible in another.

Semel ends a transaction in all its partitions in one commit, and returns the ends of partitions after one
commit, if one request asks for all of them (the feature `semel.snapshot`). Below such a cut are all markers
of a transaction or none. So each partition is read up to the cut, even if transactions are open there:

- below the last stable offset, which is taken before the cut, every transaction has ended: this part is read
  as usual;
- in the *tail* from there to the cut, the records of a transaction are held until its marker is read, in
  memory and beyond a limit on disk (`semel.client.consume.spool`). A commit marker releases them; others are
  dropped.

So the rows of a tail are in commit order, not in offset order, and a tail is read by one task. On topics with
`semel.visibility=journal` the log contains only committed records, and nothing is held.

Compaction must not overtake a snapshot: it removes records that were the newest of their key at the cut, and
the markers of aborted transactions that a task holds. So the plan holds compaction before it takes the cut,
and every task renews the hold of all partitions, because other tasks may still be waiting to run. Brokers
count the compactions of a partition (`semel.client.consume.compaction`). A task that finds another count than
the plan fails: a tail before it returns rows, a range at its end. The rows of a range were all committed at
the cut; only at its end is it certain that none is missing.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from semel.client import Client, ErrorCode, Isolation, Partition
from semel.client.consume.commit_order_log import CommitOrderBatches
from semel.client.consume.compaction import TopicRules, compactions, tells_compactions
from semel.client.consume.fetch import NoRecordsYet, fetch_batches
from semel.client.consume.offsets import list_ends_together
from semel.client.consume.spool import Spool
from semel.client.errors import check
from semel.client.net.cluster import leader_may_move
from semel.client.net.retry import retrying
from semel.spark.columns import to_arrow
from semel.spark.errors import DataLoss, OptionError, SnapshotOvertaken
from semel.spark.options import SourceOptions
from semel.spark.partition_offsets import PartitionOffsets, TopicIds
from semel.spark.source.positions import Positions
from semel.spark.source.reading import OffsetRange, read_range
from semel.wire.columns import ColumnReader
from semel.wire.schema import Buffer

MEMORY_BYTES = 64 << 20
ROWS_MAX = 10_000
#: Holds are renewed after this share of their time.
RENEWED_AFTER = 1 / 3


@dataclass(frozen=True, slots=True)
class Ended(OffsetRange):
    """The part below the last stable offset."""

    compactions: int = 0  # of the partition, when the snapshot was planned


@dataclass(frozen=True, slots=True)
class Tail(Ended):
    """The part between the last stable offset and the cut."""

    is_journal: bool = False


def can_snapshot(client: Client) -> bool:
    """Whether the broker supports snapshots."""
    return tells_compactions(client)


def plan(options: SourceOptions, positions: Positions) -> tuple[list[Ended], list[Tail]]:
    """Return what to read of every partition: ranges in which all transactions have ended, and tails."""
    client = positions.client
    if not can_snapshot(client):
        raise OptionError(
            "snapshot=true needs a Semel broker that reports the ends of all partitions after one commit, "
            "and how often they were compacted; this one does not (see its setting semel.extensions.enable). "
            "Omit the option to read each partition up to its last stable offset"
        )
    partitions, ids = positions.layout()
    # Hold compaction first: the snapshot would miss whatever it removes from here on.
    counts = {key: each.number for key, each in compactions(client, partitions, hold=True).items()}
    start = positions.resolve(options.start, partitions, "startingOffsets")
    # In this order: a transaction that has ended below the stable offset has its markers below a later cut.
    stable = positions.ends(partitions)
    cut = list_ends_together(client, partitions)
    ended = [
        Ended(*key, start[key], stable[key], ids.get(key[0], ""), counts[key])
        for key in sorted(cut)
        if stable[key] > start[key]
    ]
    first = {key: max(stable[key], start[key]) for key in cut}
    return ended, _tails(client, first, cut, ids, counts)


def _tails(
    client: Client, first: PartitionOffsets, cut: PartitionOffsets, ids: TopicIds, counts: PartitionOffsets
) -> list[Tail]:
    open_ended = sorted(key for key in cut if cut[key] > first[key])
    journals = {topic: TopicRules.of(client, topic).is_journal for topic in {key[0] for key in open_ended}}
    return [
        Tail(*key, first[key], cut[key], ids.get(key[0], ""), counts[key], journals[key[0]])
        for key in open_ended
    ]


def read_snapshot(
    client: Client, wanted: Ended, options: SourceOptions, columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """Return the records of a part of a snapshot. SnapshotOvertaken if compaction has removed any."""
    guard = _Guard(client, wanted, options)
    guard.confirm()
    if isinstance(wanted, Tail):
        yield from _read_tail(client, wanted, options, columns, guard)
    else:
        for batch in read_range(client, wanted, options, columns):
            guard.renew()
            yield batch
    guard.confirm()


class _Guard:
    """Holds compaction while a task reads a snapshot, and detects if that failed."""

    def __init__(self, client: Client, wanted: Ended, options: SourceOptions) -> None:
        self._client = client
        self._wanted = wanted
        self._partitions = Positions(options).partitions()
        self._renew_at = 0.0

    def renew(self) -> None:
        """Renew the hold on all partitions of the snapshot, if it is due."""
        now = time.monotonic()
        if now < self._renew_at:
            return
        found = compactions(self._client, self._partitions, hold=True)
        held_ms = [each.held_ms for each in found.values() if each.held_ms > 0]
        # Topics that are not compacted need no hold.
        self._renew_at = now + min(held_ms) / 1000 * RENEWED_AFTER if held_ms else float("inf")

    def confirm(self) -> None:
        """Raise SnapshotOvertaken if the partition was compacted since the snapshot was planned."""
        self.renew()
        key = (self._wanted.topic, self._wanted.partition)
        if compactions(self._client, [key])[key].number != self._wanted.compactions:
            raise SnapshotOvertaken(
                f"{key[0]}/{key[1]} was compacted while the snapshot was read, so records of it may be "
                "missing. Read it again. If that happens often, the read takes longer than the broker makes "
                "compaction wait: raise its semel.compaction.hold.max.ms"
            )


def _read_tail(
    client: Client, tail: Tail, options: SourceOptions, columns: Sequence[str], guard: _Guard
) -> Iterator[pa.RecordBatch]:
    """Return the committed records of a tail, and those outside transactions."""
    reader = ColumnReader(keys="key" in columns, values="value" in columns, headers="headers" in columns)

    def rows() -> Iterator[pa.RecordBatch]:
        if reader.rows:
            guard.confirm()
            yield to_arrow(reader.take(), columns, tail.topic, tail.partition)

    spool = Spool(MEMORY_BYTES)
    try:
        log = CommitOrderBatches(tail.start, spool, end=tail.end, is_journal=tail.is_journal)
        while log.next_offset < tail.end:
            guard.renew()
            for data, at, header, *_ in log.read(_fetch(client, tail, log.next_offset, options)):
                reader.add(data, at, header, tail.start, tail.end)
                if reader.rows >= ROWS_MAX:
                    yield from rows()
        yield from rows()
    finally:
        spool.close()


def _fetch(client: Client, tail: Tail, position: int, options: SourceOptions) -> Buffer:
    """Return batches from a position. DataLoss if they are gone: a snapshot must be complete."""
    key: Partition = (tail.topic, tail.partition)
    where = f"{tail.topic}/{tail.partition} cannot be read at offset {position}"

    def fetch() -> Buffer:
        ((_, data),) = fetch_batches(client, {key: position}, Isolation.READ_UNCOMMITTED, options.limits)
        if data.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            raise DataLoss(f"{where}: it was deleted while the snapshot was read. Read it again")
        check(data.error_code, where)
        if data.records:
            return data.records
        raise NoRecordsYet(f"{where}: the log ends at {data.high_watermark}, and ended at {tail.end} before")

    return retrying(
        fetch,
        client.patience_s,
        retriable=_may_pass,
        on_failure=lambda: client.forget_topic(tail.topic),
    )


def _may_pass(error: Exception) -> bool:
    return isinstance(error, NoRecordsYet) or leader_may_move(error)
