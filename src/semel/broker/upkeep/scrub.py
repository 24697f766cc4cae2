"""The scrub: periodically reads all stored batches and compares their checksums.

Data that is not read may decay unnoticed, and a copy elsewhere can replace it only while that copy exists. So
the scrub reads partition after partition at a bounded rate (``semel.scrub.bytes.per.second``), and logs and
counts damaged batches (``damage``). It repairs nothing, because the broker has no second copy.
"""

import asyncio
import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from semel.broker.upkeep.damage import Gap, gaps_in
from semel.core.types import PartitionKey
from semel.store.contract import LedgerDamaged, StoredBatch, StoreRefused

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
