"""The scrub: everything at rest is read once in a while, slowly, and its checksums are compared.

Bits rot where nobody reads, and a copy elsewhere helps only as long as it is there. So the scrub goes from
partition to partition at a bounded rate (``semel.scrub.bytes.per.second``), logs what is damaged, and counts
it (``damage``). It repairs nothing: there is no second copy here.
"""

import asyncio
import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from semel.core.types import PartitionKey
from semel.store.interface import LedgerDamaged, StoredBatch, StoreRefused

if TYPE_CHECKING:
    from semel.broker.broker import Broker

STEP_BYTES: Final = 256 * 1024
STEP_BATCHES: Final = 512
"""A step holds the event loop for as long as it takes to compare these."""
REST_SECONDS: Final = 60.0
"""Between two rounds: a small log is not read all the time."""


class Scrub:
    """The scrub of one broker."""

    def __init__(self, broker: "Broker") -> None:
        self._broker = broker
        self._rate = broker.settings.semel_scrub_bytes_per_second

    async def run(self) -> None:
        """Round after round, until cancelled."""
        while True:
            await asyncio.sleep(REST_SECONDS)
            # A ledger without room answers nobody. The next round finds out whether it has some.
            with contextlib.suppress(StoreRefused):
                await self.round()

    async def round(self) -> None:
        """Every batch of every partition once."""
        for topic in await self._broker.catalog.all():
            for index in range(topic.partitions):
                # What the ledger cannot say of one partition hides no other.
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
                return
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
                # They were replaced while they were read.
                return
            if bad.last_offset >= after.log_start_offset:
                await self._broker.damage.found(key, bad, readable.reason)
