"""The store of a cluster: a ledger in PostgreSQL, bytes in it or in objects."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from semel.core.facts import LogStartAdvanced
from semel.core.types import PartitionKey
from semel.store.interface import StoreRefused
from semel.store.objects import Objects
from semel.store.postgres.chunks import INLINE_BYTES_MAX
from semel.store.postgres.store import ClusterStore

SMALL, LARGE = os.urandom(100), os.urandom(INLINE_BYTES_MAX)


@pytest.fixture
def place(postgres_dsn: str, tmp_path: Path) -> tuple[str, str, str]:
    return postgres_dsn, tmp_path.as_uri(), f"test_{os.urandom(8).hex()}"


@asynccontextmanager
async def opened(place: tuple[str, str, str]) -> AsyncIterator[ClusterStore]:
    dsn, address, schema = place
    store = await ClusterStore.open(dsn, Objects.open(address), schema=schema)
    try:
        yield store
    finally:
        await store.close()


async def _append(store: ClusterStore, scribe: Any, key: PartitionKey, *batches: bytes) -> None:
    facts = [scribe.append(key, size=len(batch))[0] for batch in batches]
    await store.commit([*facts, *scribe.changed()], batches)


async def _read(store: ClusterStore, key: PartitionKey) -> list[bytes]:
    found = await store.ledger.find_batches(key, 0, before=2**62, bytes_max=2**40, batches_max=1_000)
    return await store.chunks.read([each.location for each in found])  # type: ignore[return-value]


async def test_small_commits_are_in_the_ledger_and_large_ones_in_objects(
    place: tuple[str, str, str], scribe: Any
) -> None:
    async with opened(place) as store:
        (key,) = await scribe.create(store.ledger)
        await _append(store, scribe, key, SMALL, SMALL[:50])
        assert await store.chunks.objects.list_all() == []
        await _append(store, scribe, key, LARGE, SMALL)
        assert [size for _, size in await store.chunks.objects.list_all()] == [len(LARGE) + len(SMALL)]
        await _append(store, scribe, key, SMALL)
        written = [SMALL, SMALL[:50], LARGE, SMALL, SMALL]
        assert await _read(store, key) == written
    async with opened(place) as store:
        assert await _read(store, key) == written
        # From memory by now.
        assert await _read(store, key) == written
        await _append(store, scribe, key, LARGE[:-1])
        assert await _read(store, key) == [*written, LARGE[:-1]]


async def test_reads_at_once_count_what_they_keep_in_memory_once(
    place: tuple[str, str, str], scribe: Any
) -> None:
    async with opened(place) as store:
        (key,) = await scribe.create(store.ledger)
        await _append(store, scribe, key, SMALL)
    async with opened(place) as store:
        assert await asyncio.gather(*(_read(store, key) for _ in range(5))) == [[SMALL]] * 5
        assert store.chunks._inline_bytes == len(SMALL)


async def test_bytes_are_deleted_when_nothing_refers_to_them(
    place: tuple[str, str, str], scribe: Any
) -> None:
    async with opened(place) as store:
        (key,) = await scribe.create(store.ledger)
        for batch in (SMALL, LARGE * 2, SMALL, LARGE * 3):
            await _append(store, scribe, key, batch)
        trimmed: LogStartAdvanced = scribe.trim(key, 3)
        await store.commit([trimmed, *scribe.changed()], [])
        assert await store.sweep_orphans() == []
        while await store.ledger.sweep(limit=2):
            pass
        (gone,) = await store.sweep_orphans()
        assert await store.sweep_orphans() == []
        ((left, size),) = await store.chunks.objects.list_all()
        assert left > gone
        assert size == 3 * len(LARGE)
        assert await _read(store, key) == [LARGE * 3]
        rows = await store.ledger.database.fetch("SELECT chunk_id FROM inline_bytes")
        assert rows == []


async def test_a_commit_without_its_object_does_not_happen(
    place: tuple[str, str, str], scribe: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(place) as store:
        (key,) = await scribe.create(store.ledger)

        async def refuse(*_: Any) -> None:
            raise StoreRefused("the object store is away")

        with monkeypatch.context() as patch:
            patch.setattr(store.chunks.objects, "put", refuse)
            fact, _ = scribe.append(key, size=2 * len(LARGE))
            with pytest.raises(StoreRefused):
                await store.commit([fact, *scribe.changed()], [LARGE * 2])
        assert await _read(store, key) == []
