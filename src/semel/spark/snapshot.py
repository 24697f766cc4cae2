"""Snapshots: a batch read of all topics and partitions as they were after one commit of the broker.

Every transaction is in a snapshot wholly or not at all, in however many partitions and topics it wrote. A
read of each partition up to its last stable offset cannot promise that: the offsets are of different moments,
and an open transaction hides behind it, in one partition, what is committed and visible in another.

Semel ends a transaction in all its partitions in one commit, and tells where partitions end as they were
after one commit, if one request asks for all of them (the feature `semel.snapshot`). Below such a cut are all
markers of a transaction or none. So what a partition has below the cut is read whatever is open, and:

- up to the last stable offset, taken before the cut, everything had ended: that is read as usual;
- in the *tail* from there to the cut, the records of a transaction wait until its marker is read, in memory
  and beyond a limit on disk (`semel.client.spool`). A commit marker lets them go on; others are dropped.

So the rows of a tail are in the order of commits, not of offsets, and a tail is read by one task. On topics
with `semel.visibility=journal` the log has nothing but what is committed, and nothing waits.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa  # type: ignore[import-untyped]

from semel.client import Client, ClientError, ErrorCode, Isolation, KafkaError, Partition
from semel.client.commit_order import JOURNAL, VISIBILITY
from semel.client.configs import ConfigAdmin
from semel.client.errors import check, is_retriable
from semel.client.fetching import fetch_batches
from semel.client.offsets import list_ends_together
from semel.client.retry import Attempts
from semel.client.spool import Held, Spool
from semel.spark.columns import to_arrow
from semel.spark.errors import DataLoss, OptionError
from semel.spark.options import SourceOptions
from semel.spark.positions import Positions
from semel.spark.reading import Range
from semel.spark.vectors import Vector
from semel.wire.batch import BatchHeader
from semel.wire.columns import ColumnReader
from semel.wire.records import iter_batches, read_marker
from semel.wire.schema import Buffer

FEATURE = "semel.snapshot"
MEMORY_BYTES = 64 << 20
ROWS_MAX = 10_000


@dataclass(frozen=True, slots=True)
class Tail(Range):
    """What lies between the last stable offset and the cut."""

    is_journal: bool = False


def plan(options: SourceOptions, positions: Positions) -> tuple[list[Range], list[Tail]]:
    """What is read of every partition: ranges in which everything has ended, and tails."""
    client = positions.client
    if client.feature(FEATURE) < 1:
        raise OptionError(
            "snapshot=true needs a broker of Semel that can tell where all partitions end after one commit; "
            "this one cannot. Leave the option out to read each partition up to its last stable offset"
        )
    partitions = positions.partitions()
    start = positions.resolve(options.start, partitions, "startingOffsets")
    # In this order: what had ended at the stable offset has its markers below a cut that is taken later.
    stable = positions.ends(partitions)
    cut = list_ends_together(client, partitions)
    ended = [Range(*key, start[key], stable[key]) for key in sorted(cut) if stable[key] > start[key]]
    return ended, _tails(client, start, stable, cut)


def _tails(client: Client, start: Vector, stable: Vector, cut: Vector) -> list[Tail]:
    first = {key: max(stable[key], start[key]) for key in cut}
    open_ended = sorted(key for key in cut if cut[key] > first[key])
    journals = {topic: _is_journal(client, topic) for topic in {topic for topic, _ in open_ended}}
    return [Tail(*key, first[key], cut[key], is_journal=journals[key[0]]) for key in open_ended]


def _is_journal(client: Client, topic: str) -> bool:
    return any(
        each.name == VISIBILITY and each.value == JOURNAL for each in ConfigAdmin(client).of_topic(topic)
    )


def read_tail(
    client: Client, tail: Tail, options: SourceOptions, columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """The records of a tail that count: those outside transactions, and of those that were committed."""
    spool = Spool(MEMORY_BYTES)
    try:
        reader = _TailReader(tail, columns, spool)
        while reader.position < tail.end:
            yield from reader.read(_fetch(client, tail, reader.position, options))
        yield from reader.rest()
    finally:
        spool.close()


class _TailReader:
    """Goes through the batches of a tail."""

    def __init__(self, tail: Tail, columns: Sequence[str], spool: Spool) -> None:
        self.position = tail.start
        self._tail = tail
        self._columns = columns
        self._spool = spool
        self._held: dict[int, Held] = {}  # by producer id
        self._reader = ColumnReader(
            keys="key" in columns, values="value" in columns, headers="headers" in columns
        )

    def read(self, data: Buffer) -> Iterator[pa.RecordBatch]:
        """What these batches of the log let through."""
        for at, header in iter_batches(data):
            if header.last_offset < self.position:
                continue
            if header.base_offset >= self._tail.end:
                break
            if header.is_control:
                yield from self._end(header, data, at)
            elif header.is_transactional and not self._tail.is_journal:
                held = self._held.get(header.producer_id) or self._spool.hold()
                self._held[header.producer_id] = held
                held.add(bytes(memoryview(data)[at : at + header.length]))
            else:
                yield from self._show(data, at, header)
            self.position = header.last_offset + 1

    def rest(self) -> Iterator[pa.RecordBatch]:
        """The rows that did not fill a batch."""
        if self._reader.rows:
            yield to_arrow(self._reader.take(), self._columns, self._tail.topic, self._tail.partition)

    def _end(self, header: BatchHeader, data: Buffer, at: int) -> Iterator[pa.RecordBatch]:
        marker = read_marker(data, at)
        held = self._held.pop(header.producer_id, None) if marker is not None else None
        if marker is None or held is None:
            return
        if marker.commit:
            for batch in held.batches():
                for within, each in iter_batches(batch):
                    yield from self._show(batch, within, each)
        held.drop()

    def _show(self, data: Buffer, at: int, header: BatchHeader) -> Iterator[pa.RecordBatch]:
        self._reader.add(data, at, header, self._tail.start, self._tail.end)
        if self._reader.rows >= ROWS_MAX:
            yield from self.rest()


class _Waiting(ClientError):
    """The broker may take a moment until it serves what another answer spoke of."""


def _fetch(client: Client, tail: Tail, position: int, options: SourceOptions) -> Buffer:
    """Batches from a position on. DataLoss if they are gone: what is missing is no snapshot."""
    key: Partition = (tail.topic, tail.partition)
    where = f"{tail.topic}/{tail.partition} cannot be read at offset {position}"
    for attempt in Attempts(client.timeout_s, also=_may_pass):
        try:
            ((_, data),) = fetch_batches(client, {key: position}, Isolation.READ_UNCOMMITTED, options.limits)
            if data.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
                raise DataLoss(f"{where}: it was deleted while the snapshot was read. Read it again")
            check(data.error_code, where)
            if data.records:
                return data.records
            raise _Waiting(f"{where}: the log ends at {data.high_watermark}, and {tail.end} was there before")
        except (KafkaError, ClientError) as error:
            client.forget_topic(tail.topic)
            attempt.failed(error)
    raise AssertionError("attempts end by an error")


def _may_pass(error: Exception) -> bool:
    if isinstance(error, KafkaError) and error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        return False
    return isinstance(error, _Waiting) or is_retriable(error)
