"""Damaged and missing batches: finds the readable batches before them, counts and logs them.

A batch with a wrong checksum, with missing bytes, or that the disk cannot read must not hide the intact
batches before it. ``readable`` returns the batches of a fetch plan that precede the first damaged one.

A batch whose row is lost must not be skipped in silence. Batches follow one another without a gap from the
log start to the high watermark, unless compaction has removed some of them. Compaction explains every gap
below ``Partition.cleaned_offset``; a row that is lost there shows only in the size of the partition.
``gaps_in`` finds the other gaps, and ``is_lost`` decides whether the ledger has lost their rows.

Damage is counted each time it is found, and logged by topic, partition and offset, at a bounded rate: clients
fetch the same batch repeatedly.

**The scrub.** Data that is not read may decay unnoticed, and a copy elsewhere can replace it only while that
copy exists. So the scrub reads partition after partition at a bounded rate
(``semel.scrub.bytes.per.second``), and logs and counts damaged batches. It repairs nothing, because the
broker has no second copy.
"""

import asyncio
import contextlib
import logging
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from semel.broker.metrics import Metrics
from semel.broker.reads.batch_bytes import Piece, count_whole, read_batches
from semel.core.types import ErrorCode, Partition, PartitionKey
from semel.rate_limit import LoggedOnce
from semel.store.contract import LedgerDamaged, Store, StoredBatch, StoreRefused

if TYPE_CHECKING:
    from semel.broker.broker import Broker

STEP_BYTES: Final = 256 * 1024
STEP_BATCHES: Final = 512
"""A step blocks the event loop for as long as it takes to compare these."""
REST_SECONDS: Final = 60.0
"""The pause between two rounds, so that a small log is not read continuously."""


class Scrub:
    """The scrub of one broker."""

    def __init__(self, broker: "Broker") -> None:
        self._broker = broker
        self._rate = broker.settings.semel_scrub_bytes_per_second

    async def run(self) -> None:
        """Run rounds until cancelled."""
        while True:
            await asyncio.sleep(REST_SECONDS)
            # A ledger without room cannot be read. The next round tries again.
            with contextlib.suppress(StoreRefused):
                await self.round()

    async def round(self) -> None:
        """Check every batch of every partition once."""
        for topic in await self._broker.catalog.all():
            for index in range(topic.partitions):
                # Damage in the ledger's rows of one partition must not hide other partitions.
                with contextlib.suppress(LedgerDamaged):
                    await self._partition(PartitionKey(topic.topic_id, index))

    async def _partition(self, key: PartitionKey) -> None:
        offset = 0
        while True:
            partition = await self._broker.reads.partition(key)
            if partition is None or offset >= partition.high_watermark:
                return
            offset = max(offset, partition.log_start_offset)
            batches = await self._broker.store.ledger.find_batches(
                key,
                offset,
                before=partition.high_watermark,
                bytes_max=STEP_BYTES,
                batches_max=STEP_BATCHES,
            )
            if not batches:
                await self._broker.damage.is_missing(key, Gap(offset, partition.high_watermark - 1))
                return
            for gap in gaps_in(batches, offset, partition.cleaned_offset):
                if not await self._broker.damage.is_missing(key, gap):
                    break
            await self._step(key, batches)
            offset = batches[-1].last_offset + 1
            size = sum(batch.location.length for batch in batches)
            self._broker.metrics.scrubbed_bytes += size
            await asyncio.sleep(size / self._rate)

    async def _step(self, key: PartitionKey, batches: Sequence[StoredBatch]) -> None:
        before = await self._broker.reads.partition(key)
        while batches:
            readable = await self._broker.damage.readable(batches)
            if len(readable.batches) == len(batches):
                return
            bad = batches[len(readable.batches)]
            batches = batches[len(readable.batches) + 1 :]
            after = await self._broker.reads.partition(key)
            if before is None or after is None or after.compactions != before.compactions:
                # Compaction has replaced them meanwhile.
                return
            if bad.last_offset >= after.log_start_offset and await self._is_stored(key, bad):
                await self._broker.damage.found(key, bad, readable.reason)

    async def _is_stored(self, key: PartitionKey, batch: StoredBatch) -> bool:
        """Whether a batch is still where it was: a store may move its bytes and delete the old ones."""
        found = await self._broker.store.ledger.find_batches(
            key, batch.base_offset, before=batch.last_offset + 1, bytes_max=0, batches_max=1
        )
        return found == [batch]


log = logging.getLogger("semel.damage")


class Gap(NamedTuple):
    """A range of offsets that no batch has."""

    first: int
    last: int


def gaps_in(batches: Sequence[StoredBatch], offset: int, cleaned_offset: int) -> Iterator[Gap]:
    """The gaps from ``offset`` to the last batch, without those that compaction explains."""
    for batch in batches:
        if batch.base_offset > max(offset, cleaned_offset):
            yield Gap(offset, batch.base_offset - 1)
        offset = batch.last_offset + 1


def is_lost(newest: Partition, gap: Gap) -> bool:
    """Whether the ledger has lost the batches of a gap. Deletion and compaction leave gaps, too.

    ``newest`` was loaded after the gap was found.
    """
    return newest.log_start_offset <= gap.first and gap.last >= newest.cleaned_offset


class Readable(NamedTuple):
    """The leading intact batches of a list."""

    batches: Sequence[StoredBatch]
    pieces: Sequence[Piece]
    error: ErrorCode
    """The error of the first batch that is not intact."""
    reason: str


class Damage:
    """Finds and reports the damaged batches of one broker."""

    def __init__(self, store: Store, metrics: Metrics) -> None:
        self._store = store
        self._metrics = metrics
        self._logged = LoggedOnce()

    def intact(
        self, batches: Sequence[StoredBatch], pieces: Sequence[Piece], *, checks_crc: bool = True
    ) -> Readable:
        """Of batches that were read, those before the first damaged one. See ``count_whole``."""
        whole = count_whole(batches, pieces, checks_crc=checks_crc)
        if whole < len(batches):
            # Read wrongly, or repaired since: the next read must not get the same bytes from a cache.
            self._store.chunks.forget(batches[whole].location)
            batches = batches[:whole]
            pieces = _cut(pieces, sum(batch.location.length for batch in batches))
        return Readable(batches, pieces, ErrorCode.CORRUPT_MESSAGE, "its checksum is wrong")

    async def readable(self, batches: Sequence[StoredBatch], *, checks_crc: bool = True) -> Readable:
        """Read batches up to the first damaged one."""
        try:
            (pieces,) = await read_batches(self._store.chunks, [batches])
        except (LookupError, OSError) as error:
            if len(batches) <= 1:
                return Readable((), (), ErrorCode.KAFKA_STORAGE_ERROR, str(error))
            # Bisection finds the damaged one with few reads.
            half = len(batches) // 2
            first = await self.readable(batches[:half], checks_crc=checks_crc)
            if len(first.batches) < half:
                return first
            second = await self.readable(batches[half:], checks_crc=checks_crc)
            return second._replace(
                batches=[*first.batches, *second.batches], pieces=[*first.pieces, *second.pieces]
            )
        return self.intact(batches, pieces, checks_crc=checks_crc)

    async def found(self, key: PartitionKey, batch: StoredBatch, reason: str) -> None:
        """Count and log a damaged batch."""
        if self._is_news(key, batch.base_offset):
            log.error(
                "the batch at offsets %d to %d of topic %s partition %d is damaged: %s (chunk %d, byte %d)",
                *(batch.base_offset, batch.last_offset, await self._topic(key), key.index, reason),
                *batch.location[:2],
            )

    async def is_missing(self, key: PartitionKey, gap: Gap) -> bool:
        """Whether the ledger has lost the batches of a gap (``is_lost``). If so, counts and logs it."""
        (newest,) = await self._store.ledger.load([key])
        if newest is None or not is_lost(newest, gap):
            return False
        await self.missing(key, gap)
        return True

    async def missing(self, key: PartitionKey, gap: Gap) -> None:
        """Count and log batches that the ledger has lost."""
        if self._is_news(key, gap.first):
            log.error(
                "the batches at offsets %d to %d of topic %s partition %d are missing: the ledger has lost"
                " their rows. Readers get CORRUPT_MESSAGE there. Restore the ledger, or have readers"
                " continue at offset %d",
                *(*gap, await self._topic(key), key.index, gap.last + 1),
            )

    def _is_news(self, key: PartitionKey, offset: int) -> bool:
        """Count damage. Returns whether to log it."""
        self._metrics.damaged_batches += 1
        return self._logged.is_news((key, offset))

    async def _topic(self, key: PartitionKey) -> str:
        topic = await self._store.ledger.topic_by_id(key.topic_id)
        return topic.name if topic is not None else key.topic_id.hex()


def _cut(pieces: Sequence[Piece], length: int) -> list[Piece]:
    """The first bytes of some pieces."""
    kept: list[Piece] = []
    for piece in pieces:
        if length <= 0:
            break
        kept.append(memoryview(piece)[:length] if len(piece) > length else piece)
        length -= len(piece)
    return kept
