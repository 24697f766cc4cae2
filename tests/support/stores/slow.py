"""Helpers for tests of reading: a store in memory whose calls a test can hold, and a publishing writer."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Any

from semel.broker.metrics import Metrics
from semel.broker.reads.published_log import PublishedLog
from semel.broker.reads.reads import FetchRange, FetchResult, Isolation, Reads
from semel.broker.slices import Slices
from semel.broker.upkeep.damage import Damage
from semel.config import Settings
from semel.core.facts import BatchAppended
from semel.core.types import OpenTransaction, Partition, PartitionKey
from semel.store.contract import BatchLocation, StoredBatch
from semel.wire.records import Codec, Record, decode_batch, encode_batch, iter_batches, read_header

TOPIC_ID = bytes(range(16))
ZERO = PartitionKey(TOPIC_ID, 0)
ONE = PartitionKey(TOPIC_ID, 1)
PLENTY = 1 << 30


class StandInLoop:
    """Stands for the commit loop: its unsynced partitions, and a way to flush them."""

    def __init__(self, partitions: Any = frozenset(), flush: Any = None, turn: Any = None) -> None:
        self.unsynced = self
        self.partitions = partitions
        self._flush = flush
        self._turn = turn

    async def flush(self) -> bool:
        return True if self._flush is None else bool(await self._flush())

    async def turn(self) -> None:
        if self._turn is not None:
            await self._turn()


class PublishedReader:
    """Reads over a store, and the published log that a test writes to."""

    def __init__(self, store: Any, settings: Settings, metrics: Metrics) -> None:
        self.published = PublishedLog(store.ledger, settings)
        damage = Damage(store, metrics)
        self.reads = Reads(store, settings, metrics, damage, Slices(), self.published, StandInLoop())  # type: ignore[arg-type]


class Shelf:
    """Ledger and chunk store in one. Every call is counted; a held call waits until it is released."""

    def __init__(self) -> None:
        self.ledger = self.chunks = self
        self.flush_seconds = 0.0
        self.partitions: dict[PartitionKey, Partition] = {}
        self.rows: dict[PartitionKey, list[StoredBatch]] = {}
        self.aborted_rows: dict[PartitionKey, list[tuple[int, int, int]]] = {}
        """Producer id, first offset and marker offset of each aborted transaction."""
        self.chunk = bytearray()
        self.calls: Counter[str] = Counter()
        self.held: dict[str, asyncio.Event] = {}
        self.reached: dict[str, asyncio.Event] = {}
        self.gone: set[BatchLocation] = set()
        self.error: OSError | None = None
        self.locations_read: list[BatchLocation] = []

    def hold(self, call: str) -> None:
        """Make this call wait until ``let``, after it has read its result."""
        self.held[call] = asyncio.Event()
        self.reached[call] = asyncio.Event()

    def let(self, call: str) -> None:
        self.held.pop(call).set()

    async def _called(self, call: str) -> None:
        self.calls[call] += 1
        held = self.held.get(call)
        if held is not None:
            self.reached[call].set()
            await held.wait()

    async def load(self, keys: Sequence[Any]) -> list[Any]:
        found = [self.partitions.get(key) for key in keys]
        await self._called("load")
        return found

    async def find_batches(
        self, partition: PartitionKey, offset: int, *, before: int, bytes_max: int, batches_max: int
    ) -> list[StoredBatch]:
        found: list[StoredBatch] = []
        size = 0
        for row in self.rows.get(partition, []):
            if row.last_offset < offset or row.base_offset >= before:
                continue
            size += row.location.length
            if found and (size > bytes_max or len(found) == batches_max):
                break
            found.append(row)
        await self._called("find_batches")
        return found

    async def first_batch_since(self, partition: PartitionKey, timestamp: int) -> StoredBatch | None:
        await self._called("first_batch_since")
        start = self.partitions[partition].log_start_offset
        for row in self.rows.get(partition, []):
            if row.max_timestamp >= timestamp and row.last_offset >= start:
                return row
        return None

    async def aborted(self, partition: PartitionKey, first: int, before: int) -> list[tuple[int, int]]:
        rows = self.aborted_rows.get(partition, [])
        found = [(producer, start) for producer, start, end in rows if end >= first and start < before]
        await self._called("aborted")
        return sorted(found, key=lambda each: each[1])

    async def topic_by_id(self, topic_id: bytes) -> None:
        return None

    async def read(self, locations: Sequence[BatchLocation]) -> list[bytearray]:
        self.locations_read = list(locations)
        if self.error is not None:
            raise self.error
        for _, start, length in locations:
            if any(start <= lost.position < start + length for lost in self.gone):
                raise LookupError("gone")
        found = [self.chunk[position : position + length] for _, position, length in locations]
        await self._called("read")
        return found

    async def read_together(self, locations: Sequence[BatchLocation]) -> bytearray:
        return bytearray().join(await self.read(locations))

    def forget(self, location: BatchLocation) -> None:
        """Do nothing: it keeps no copies."""


class Reading:
    """A shelf, the reads over it, and a writer."""

    def __init__(self, **settings: Any) -> None:
        self.shelf = Shelf()
        self.metrics = Metrics()
        self.reader = PublishedReader(self.shelf, Settings(**settings), self.metrics)
        self.reads = self.reader.reads
        self.shelf.partitions[ZERO] = self.shelf.partitions[ONE] = Partition()

    @property
    def published(self) -> PublishedLog:
        return self.reader.published

    def watch(self, partitions: Any, flush: Any = None, turn: Any = None) -> None:
        """Have readers use these instead of a commit loop."""
        self.reads._loop = StandInLoop(partitions, flush, turn)  # type: ignore[assignment]

    def commit(
        self,
        key: PartitionKey = ZERO,
        *,
        timestamps: Sequence[int] = (1_000,),
        value: bytes = b"v",
        codec: Codec = Codec.NONE,
        batch: bytes | None = None,
        opens_transaction: bool = False,
        pad: int = 0,
    ) -> tuple[BatchAppended, memoryview]:
        """Append one batch to the store, as a commit does. Readers do not know of it yet."""
        shelf = self.shelf
        records = [Record(0, timestamp, None, value) for timestamp in timestamps]
        batch = batch or encode_batch(records, codec=codec)
        header = read_header(batch)
        before = shelf.partitions[key]
        base, last = before.high_watermark, before.high_watermark + header.last_offset_delta
        opened = before.open_transactions
        if opens_transaction:
            opened = (*opened, OpenTransaction(base, 7))
        peak = max(before.peak_timestamp, header.max_timestamp)
        shelf.chunk += bytes(pad)
        row = StoredBatch(base, last, header.max_timestamp, BatchLocation(1, len(shelf.chunk), len(batch)))
        shelf.chunk += batch
        shelf.rows.setdefault(key, []).append(row)
        shelf.partitions[key] = Partition(
            before.log_start_offset,
            last + 1,
            peak,
            before.size_bytes + len(batch),
            opened,
            before.last_aborted_offset,
        )
        fact = BatchAppended(
            key, base, last, header.max_timestamp, peak, len(batch), -1, opens_transaction, opens_transaction
        )
        return fact, memoryview(batch)

    def publish(self, *appended: tuple[BatchAppended, memoryview], keys: Sequence[PartitionKey] = ()) -> None:
        touched = {*keys, *(fact.partition for fact, _ in appended)}
        self.reader.published.publish({key: self.shelf.partitions[key] for key in touched}, list(appended))

    def append(self, key: PartitionKey = ZERO, **batch: Any) -> int:
        """Commit and publish; return the size of the batch."""
        fact, buffer = self.commit(key, **batch)
        self.publish((fact, buffer))
        return fact.size_bytes

    def end_transactions(self, key: PartitionKey = ZERO) -> None:
        """End the open transactions, as a marker does to the last stable offset."""
        self.shelf.partitions[key] = self.shelf.partitions[key].but(open_transactions=())
        self.publish(keys=[key])

    def abort(self, producer_id: int, first_offset: int, key: PartitionKey = ZERO) -> None:
        """End a transaction that began at an offset: write a marker, and list it as aborted."""
        fact, buffer = self.commit(key)
        marker = fact.base_offset
        self.shelf.aborted_rows.setdefault(key, []).append((producer_id, first_offset, marker))
        before = self.shelf.partitions[key]
        left = tuple(each for each in before.open_transactions if each.first_offset != first_offset)
        self.shelf.partitions[key] = before.but(open_transactions=left, last_aborted_offset=marker)
        self.publish((fact, buffer))

    def delete_below(self, offset: int, key: PartitionKey = ZERO, *, publish: bool = True) -> None:
        """Move the log start, and release rows and bytes below it."""
        shelf = self.shelf
        kept = [row for row in shelf.rows[key] if row.last_offset >= offset]
        for row in shelf.rows[key]:
            if row not in kept:
                at, length = row.location.position, row.location.length
                shelf.chunk[at : at + length] = bytes(length)
        shelf.rows[key] = kept
        shelf.partitions[key] = shelf.partitions[key].but(
            log_start_offset=offset, size_bytes=sum(row.location.length for row in kept)
        )
        if publish:
            self.publish(keys=[key])

    def compact(self, key: PartitionKey = ZERO) -> None:
        """Move all batches to other locations, and release the bytes at the old ones."""
        shelf = self.shelf
        for at, row in enumerate(shelf.rows[key]):
            _, position, length = row.location
            moved = BatchLocation(1, len(shelf.chunk), length)
            shelf.chunk += shelf.chunk[position : position + length]
            shelf.chunk[position : position + length] = bytes(length)
            shelf.rows[key][at] = row._replace(location=moved)
        partition = shelf.partitions[key]
        shelf.partitions[key] = partition.but(compactions=partition.compactions + 1)
        self.publish(keys=[key])

    async def fetch(
        self,
        offset: int = 0,
        key: PartitionKey = ZERO,
        *,
        isolation: Isolation = Isolation.READ_UNCOMMITTED,
        partition_max_bytes: int = PLENTY,
        min_bytes: int = 0,
        max_bytes: int = PLENTY,
        max_wait_ms: int = 0,
    ) -> FetchResult:
        wanted = FetchRange(key, offset, partition_max_bytes, isolation)
        return (await self.reads.fetch([wanted], min_bytes, max_bytes, max_wait_ms))[0]

    async def park(
        self, offset: int = 0, key: PartitionKey = ZERO, **how: Any
    ) -> "asyncio.Task[FetchResult]":
        """Return a fetch that is waiting."""
        parked = self.reads.parked
        how = {"min_bytes": 1, "max_wait_ms": 60_000, **how}
        task = asyncio.create_task(self.fetch(offset, key, **how))
        await self.until_parked(parked + 1)
        assert not task.done(), "it should wait"
        return task

    async def until_parked(self, count: int = 1) -> None:
        """Let other tasks run until this many fetches wait."""
        for _ in range(1_000):
            if self.reads.parked >= count:
                return
            await asyncio.sleep(0)
        raise AssertionError("no fetch waits")


def offsets(result: FetchResult) -> list[int]:
    """Return the offsets of all records in a result, whose batches must be stamped and complete."""
    return offsets_in(b"".join(result.buffers))


def offsets_in(data: Any) -> list[int]:
    found: list[int] = []
    end = 0
    for at, header in iter_batches(data):
        assert header.leader_epoch == 0
        found += [record.offset for record in decode_batch(data, at)]
        end = at + header.length
    assert end == len(data), "a batch is cut off"
    return found
