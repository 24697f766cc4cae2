"""The tail: the newest batches of the partitions that consumers follow, in memory and ready to be sent.

Most consumers read at the end of the log. Its batches were in memory a moment ago, so they are kept, stamped,
and served without the ledger or the disk. A partition is followed once a fetch has reached its high
watermark; a partition without readers costs nothing.

Invariant: the kept batches of a partition have no gap up to its high watermark, and none is below its log
start. The tail of a partition starts anew after a batch that does not follow the last one, whose bytes are
not in memory (as with staged batches that are committed), or that is too large to be worth a copy.

Batches are copied, because a commit publishes views of request frames, and a small view would pin a large
frame. Memory is bounded in bytes. The partition that was followed longest ago is evicted first, oldest batch
first.
"""

from bisect import bisect_left
from collections import OrderedDict
from typing import Final, NamedTuple

from semel.core.facts import BatchAppended, StagedCommitted
from semel.core.types import Buffer, PartitionKey
from semel.wire.records import stamp

TAIL_BYTES_MAX: Final = 32 * 1024 * 1024
BATCH_BYTES_MAX: Final = 256 * 1024
"""Larger ones are read from disk: copying would block the event loop, and the page cache has them."""
PARTITIONS_MAX: Final = 10_000
ENTRY_OVERHEAD_BYTES: Final = 128
"""The overhead of a kept batch."""
LEADER_EPOCH: Final = 0
"""The leader epoch stamped into every batch, also in a cluster, where each shard counts its owners."""


class Found(NamedTuple):
    """Consecutive batches from memory, and the offset after them."""

    buffers: list[Buffer]
    size_bytes: int
    next_offset: int


class _Log:
    """The tail of one partition. Lists with a moving head, because offsets are found by bisection."""

    __slots__ = ("batches", "first_offset", "head", "last_offsets", "next_offset")

    def __init__(self, next_offset: int) -> None:
        self.last_offsets: list[int] = []
        self.batches: list[bytearray] = []
        self.head = 0
        self.first_offset = next_offset
        self.next_offset = next_offset

    @property
    def is_empty(self) -> bool:
        return self.head == len(self.batches)

    def drop_oldest(self) -> int:
        """Drop one batch; returns the bytes freed."""
        head = self.head
        freed = len(self.batches[head]) + ENTRY_OVERHEAD_BYTES
        self.first_offset = self.last_offsets[head] + 1
        self.batches[head] = bytearray()
        self.head = head + 1
        if self.head > 64 and self.head * 2 > len(self.batches):
            del self.batches[: self.head]
            del self.last_offsets[: self.head]
            self.head = 0
        return freed


class Tail:
    """Maps partitions to their tails."""

    def __init__(self, bytes_max: int = TAIL_BYTES_MAX, batch_bytes_max: int = BATCH_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._batch_bytes_max = batch_bytes_max
        self._logs: OrderedDict[PartitionKey, _Log] = OrderedDict()
        self.size_bytes = 0

    def follow(self, key: PartitionKey, high_watermark: int) -> None:
        """Keep the next batches, because a fetch has reached the high watermark."""
        if key in self._logs:
            self._logs.move_to_end(key)
            return
        if len(self._logs) >= PARTITIONS_MAX:
            self.forget(next(iter(self._logs)))
        self._logs[key] = _Log(high_watermark)

    def append(self, fact: BatchAppended | StagedCommitted, buffer: Buffer | None) -> None:
        """Keep a committed batch if its partition is followed. Several may come without their bytes."""
        log = self._logs.get(fact.partition)
        if log is None:
            return
        if buffer is None or fact.base_offset != log.next_offset or len(buffer) > self._batch_bytes_max:
            self._empty(log)
            self._logs[fact.partition] = _Log(fact.last_offset + 1)
            return
        batch = bytearray(buffer)
        stamp(batch, 0, fact.base_offset, LEADER_EPOCH)
        log.batches.append(batch)
        log.last_offsets.append(fact.last_offset)
        log.next_offset = fact.last_offset + 1
        self.size_bytes += len(batch) + ENTRY_OVERHEAD_BYTES
        if self.size_bytes > self._bytes_max:
            self._make_room()

    def find(
        self, key: PartitionKey, offset: int, *, before: int, bytes_max: int, at_least_one: bool
    ) -> Found | None:
        """Batches from the one with ``offset`` up to offset ``before``; None if not all are in memory."""
        log = self._logs.get(key)
        if log is None or offset < log.first_offset or before > log.next_offset:
            return None
        last_offsets, batches = log.last_offsets, log.batches
        buffers: list[Buffer] = []
        size = 0
        next_offset = offset
        for index in range(bisect_left(last_offsets, offset, log.head), len(batches)):
            batch = batches[index]
            if last_offsets[index] >= before:
                break
            if size + len(batch) > bytes_max and (buffers or not at_least_one):
                break
            buffers.append(batch)
            size += len(batch)
            next_offset = last_offsets[index] + 1
        return Found(buffers, size, next_offset)

    def trim(self, key: PartitionKey, log_start_offset: int) -> None:
        """Drop the batches below this offset."""
        log = self._logs.get(key)
        if log is None:
            return
        while not log.is_empty and log.last_offsets[log.head] < log_start_offset:
            self.size_bytes -= log.drop_oldest()

    def forget(self, key: PartitionKey) -> None:
        """Drop a partition that was deleted or evicted, or that another broker has changed."""
        log = self._logs.pop(key, None)
        if log is not None:
            self._empty(log)

    def _empty(self, log: _Log) -> None:
        while not log.is_empty:
            self.size_bytes -= log.drop_oldest()

    def _make_room(self) -> None:
        while self.size_bytes > self._bytes_max:
            key, log = next(iter(self._logs.items()))
            if log.is_empty:
                del self._logs[key]
            else:
                self.size_bytes -= log.drop_oldest()
