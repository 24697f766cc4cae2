"""Words for tests of the embedded store: open it, append batches that say their offset, read them back."""

import contextlib
from pathlib import Path
from typing import Any

from semel.config import Settings
from semel.core.types import PartitionKey
from semel.store.embedded import EmbeddedStore, open_store
from semel.store.interface import StoredBatch

SETTINGS = Settings(semel_chunk_bytes_max=64 * 1024, semel_disk_reserve_bytes=0)
EVERYTHING = {"before": 2**62, "bytes_max": 2**40, "batches_max": 100_000}


@contextlib.asynccontextmanager
async def opened(directory: Path | None, settings: Settings = SETTINGS, **options: Any) -> Any:
    store = await open_store(directory, settings, **options)
    try:
        yield store
    finally:
        await store.close()


async def log_of(store: EmbeddedStore, key: PartitionKey) -> list[tuple[StoredBatch, bytes]]:
    """Every batch of a partition with its bytes."""
    batches = await store.ledger.find_batches(key, 0, **EVERYTHING)
    data = await store.chunks.read([batch.place for batch in batches])
    return [(batch, bytes(each)) for batch, each in zip(batches, data, strict=True)]


def bytes_of(offset: int) -> bytes:
    return f"batch {offset} ".encode() * (1 + offset % 50)


async def append(store: EmbeddedStore, scribe: Any, key: PartitionKey, count: int = 1) -> int:
    """Append batches whose bytes say their offset, in one commit."""
    facts, data = [], []
    for _ in range(count):
        each = bytes_of(scribe.partitions[key].high_watermark)
        facts.append(scribe.append(key, size=len(each))[0])
        data.append(each)
    return await store.commit(facts, data)


def assert_dense(log: list[tuple[StoredBatch, bytes]]) -> None:
    for offset, (batch, data) in enumerate(log):
        assert batch.base_offset == offset
        assert data == bytes_of(offset)
