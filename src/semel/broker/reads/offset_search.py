"""Finds the offset at a timestamp, for ListOffsets.

Latest, earliest and the special values for tiered storage are answered from the partition's value. A real
timestamp, and the largest one, need the first batch that reaches it. The ledger finds it by bisection, and it
is decoded to find the record. No other read decodes batches, so this runs on a thread and decompresses a
bounded size.

Batches may have been produced without validation. If a batch is damaged inside, or no record has the
timestamp that its header claims, the answer is its first offset: the reader begins early and misses nothing.
"""

import asyncio
import logging
from typing import Final, NamedTuple

from semel.broker.reads.published_partitions import Isolation, PublishedPartitions, last_fetchable_offset
from semel.core.types import ErrorCode, Partition, PartitionKey
from semel.store.contract import LedgerDamaged, Store, StoredBatch
from semel.wire.errors import ProtocolError
from semel.wire.records import first_at_or_after, read_header, stamp

log = logging.getLogger("semel.reads")

LATEST: Final = -1
EARLIEST: Final = -2
MAX_TIMESTAMP: Final = -3
EARLIEST_LOCAL: Final = -4
LATEST_TIERED: Final = -5
EARLIEST_PENDING_UPLOAD: Final = -6
COMPACTIONS: Final = -1001
"""Semel's own, far from values that Kafka may add: how often batches of the partition were replaced."""
HOLD_COMPACTION: Final = -1002
"""The same, and hold the partition (``upkeep/compaction``)."""
END_TOGETHER: Final = -1003
"""The high watermark, after the same commit as all others in the response, whichever brokers lead them."""

LOOKS_MAX: Final = 3


class ListedOffset(NamedTuple):
    """An offset and its record's timestamp; -1 if there is none."""

    error: ErrorCode
    timestamp: int = -1
    offset: int = -1


NOTHING: Final = ListedOffset(ErrorCode.NONE)


class OffsetSearch:
    """Finds offsets in published partitions."""

    def __init__(self, store: Store, views: PublishedPartitions) -> None:
        self._store = store
        self._views = views

    async def find(self, key: PartitionKey, timestamp: int, isolation: Isolation) -> ListedOffset:
        """The offset for a timestamp or one of the special values above."""
        try:
            return await self._find(key, timestamp, isolation)
        except LedgerDamaged:
            return ListedOffset(ErrorCode.KAFKA_STORAGE_ERROR)

    async def _find(self, key: PartitionKey, timestamp: int, isolation: Isolation) -> ListedOffset:
        for _ in range(LOOKS_MAX):
            partition = self._views.get(key) or (await self._views.load((key,)))[key]
            if partition is None:
                return ListedOffset(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            listed = await self._find_in(key, partition, timestamp, isolation)
            if listed is not None:
                return listed
        return ListedOffset(ErrorCode.KAFKA_STORAGE_ERROR)

    async def _find_in(
        self, key: PartitionKey, partition: Partition, timestamp: int, isolation: Isolation
    ) -> ListedOffset | None:
        """The answer for this value of the partition; None if the bytes were released meanwhile."""
        bound = last_fetchable_offset(partition, isolation)
        if timestamp == LATEST:
            return ListedOffset(ErrorCode.NONE, -1, bound)
        if timestamp in (EARLIEST, EARLIEST_LOCAL):
            return ListedOffset(ErrorCode.NONE, -1, partition.log_start_offset)
        if timestamp in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD):
            return NOTHING
        if partition.log_start_offset == partition.high_watermark:
            return NOTHING
        if timestamp == MAX_TIMESTAMP:
            batch = await self._latest_in_time(key, partition.peak_timestamp)
            timestamp = batch.max_timestamp if batch is not None else timestamp
        else:
            batch = await self._store.ledger.first_batch_since(key, timestamp)
        # The lookup ignores transactions, so a match may not be readable yet.
        if batch is None or batch.base_offset >= bound:
            return NOTHING
        listed = await self._open(key, partition, batch, timestamp)
        if listed is not None and listed.offset >= bound:
            return NOTHING
        return listed

    async def _latest_in_time(self, key: PartitionKey, peak_timestamp: int) -> StoredBatch | None:
        """The first batch that has the largest timestamp.

        The peak never falls, so its batch may be deleted; then bisection finds the largest time that is left.
        """
        ledger = self._store.ledger
        latest = await ledger.first_batch_since(key, peak_timestamp)
        if latest is not None:
            return latest
        reached, beyond = -2, peak_timestamp
        while beyond - reached > 1:
            middle = (reached + beyond) // 2
            batch = await ledger.first_batch_since(key, middle)
            if batch is None:
                beyond = middle
            else:
                latest, reached = batch, max(middle, batch.max_timestamp)
        return latest if latest is None else await ledger.first_batch_since(key, reached)

    async def _open(
        self, key: PartitionKey, partition: Partition, batch: StoredBatch, timestamp: int
    ) -> ListedOffset | None:
        try:
            (data,) = await self._store.chunks.read([batch.location])
        except (LookupError, OSError) as error:
            log.warning("the batch at offset %d of %s cannot be read: %s", batch.base_offset, key, error)
            return None
        newest = self._views.get(key) or partition
        # A batch that compaction has replaced will do: a fetch at its offset returns the next record.
        if newest.log_start_offset > batch.last_offset or read_header(data).length != batch.location.length:
            return None
        start = newest.log_start_offset
        unsynced = ListedOffset(ErrorCode.NONE, batch.max_timestamp, max(batch.base_offset, start))
        stamp(data, 0, batch.base_offset, 0)
        try:
            record = await asyncio.to_thread(first_at_or_after, data, timestamp, from_offset=start)
        except ProtocolError:
            return unsynced
        if record is None:
            return unsynced
        return ListedOffset(ErrorCode.NONE, record.timestamp, record.offset)
