"""The store of a cluster: a ledger in PostgreSQL, bytes in it or in objects."""

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest
from support.stores.cluster_bytes import Place, age, append, listed, opened, parts, read, states, trim

from semel.config import Settings
from semel.store.cluster.contract import Conflict
from semel.store.contract import StoreRefused

SMALL, LARGE = os.urandom(100), os.urandom(Settings().semel_inline_bytes_max)


@pytest.fixture
def place(postgres_dsn: str, schema: str, tmp_path: Path) -> Place:
    return Place.new(postgres_dsn, tmp_path.as_uri(), schema)


async def test_small_commits_are_in_the_ledger_and_large_ones_in_objects(place: Place, scribe: Any) -> None:
    async with opened(place) as store:
        (key,) = await scribe.create(store.ledger)
        await append(store, scribe, key, SMALL, SMALL[:50])
        assert await listed(store.chunks.objects) == []
        await append(store, scribe, key, LARGE, SMALL)
        assert [size for _, size in await listed(store.chunks.objects)] == [len(LARGE) + len(SMALL)]
        await append(store, scribe, key, SMALL)
        written = [SMALL, SMALL[:50], LARGE, SMALL, SMALL]
        assert await read(store, key) == written
    async with opened(place) as store:
        assert await read(store, key) == written
        # From memory by now.
        assert await read(store, key) == written
        await append(store, scribe, key, LARGE[:-1])
        assert await read(store, key) == [*written, LARGE[:-1]]


async def test_reads_at_once_count_what_they_keep_in_memory_once(place: Place, scribe: Any) -> None:
    async with opened(place) as store:
        (key,) = await scribe.create(store.ledger)
        await append(store, scribe, key, SMALL)
    async with opened(place) as store:
        assert await asyncio.gather(*(read(store, key) for _ in range(5))) == [[SMALL]] * 5
        assert store.chunks.cache.size_bytes == len(SMALL)


async def test_bytes_are_deleted_when_nothing_refers_to_them(place: Place, scribe: Any) -> None:
    async with opened(place) as store:
        (key,) = await scribe.create(store.ledger)
        for batch in (SMALL, LARGE * 2, SMALL, LARGE * 3):
            await append(store, scribe, key, batch)
        await trim(store, scribe, key, 3)
        # A reader of another broker may still want it.
        assert await store.sweep_orphans() == []
        await age(store, "unused")
        (gone,) = await store.sweep_orphans()
        assert await store.sweep_orphans() == []
        ((left, size),) = await listed(store.chunks.objects)
        assert left > gone
        assert size == 3 * len(LARGE)
        assert await read(store, key) == [LARGE * 3]
        assert gone not in await states(store)


async def test_a_commit_without_its_object_does_not_happen(
    place: Place, scribe: Any, monkeypatch: pytest.MonkeyPatch
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
        assert await read(store, key) == []


async def test_uploads_come_before_the_decision_and_at_the_same_time(place: Place, scribe: Any) -> None:
    settings = Settings(semel_object_bytes=5_000)
    async with opened(place, settings) as store:
        (key,) = await scribe.create(store.ledger)
        batches = list(parts(3_000, 2_500, 1_000, 6_000, 100))
        uploads = await asyncio.gather(*(store.chunks.put(batches) for _ in range(4)))
        # Cut to the size of objects; a larger batch is alone.
        assert [[size for _, size in each.objects] for _, each in uploads] == [[3_000, 3_500, 6_000, 100]] * 4
        for locations, contents in reversed(uploads):
            facts = [scribe.append(key, size=len(batch))[0] for batch in batches]
            await store.ledger.commit([*facts, *scribe.changed()], locations, contents)
        assert await read(store, key) == batches * 4
    async with opened(place, settings) as store:
        assert await read(store, key) == batches * 4


async def test_what_is_uploaded_ahead_is_uploaded_once(place: Place, scribe: Any) -> None:
    """Though the first commit conflicts with another broker's."""
    async with opened(place) as store:
        (key,) = await scribe.create(store.ledger)
        await store.put_ahead([LARGE, large := LARGE[1:]])
        facts = [scribe.append(key, size=len(each))[0] for each in (LARGE, SMALL, large)]
        changed = scribe.changed()
        with pytest.raises(Conflict):
            await store.commit([*facts, *changed], [LARGE, SMALL, large], expected={key: 1 << 43})
        await store.commit([*facts, *changed], [LARGE, SMALL, large])
        store.forget_ahead([LARGE, large])
        assert await read(store, key) == [LARGE, SMALL, large]
        assert [size for _, size in await listed(store.chunks.objects)] == [2 * len(LARGE) - 1]
        assert store._ahead == {}
        # The same buffer is written once more by another request.
        await append(store, scribe, key, LARGE, SMALL)
        assert len(await listed(store.chunks.objects)) == 2
    async with opened(place) as store:
        assert await read(store, key) == [LARGE, SMALL, large, LARGE, SMALL]


async def test_a_commit_may_leave_out_what_was_uploaded(place: Place, scribe: Any) -> None:
    """Some batches were refused, because they are duplicates."""
    settings = Settings(semel_object_bytes=5_000)
    async with opened(place, settings) as store:
        (key,) = await scribe.create(store.ledger)
        batches = list(parts(3_000, 2_500, 1_000, 4_000))
        locations, contents = await store.chunks.put(batches)
        fact, _ = scribe.append(key, size=1_000)
        await store.ledger.commit([fact, *scribe.changed()], [locations[2]], contents)
        assert await read(store, key) == [batches[2]]
        # The second object has a batch that counts. The others are deleted in time.
        first, second, third = (number for number, _ in contents.objects)
        known = await states(store)
        assert [known[each] for each in (first, second, third)] == ["uploading", "stored", "uploading"]
        await age(store, "uploading")
        assert {first, third} < set(await store.sweep_orphans())
        assert await read(store, key) == [batches[2]]
        await trim(store, scribe, key, 1)
        assert (await states(store))[second] == "unused"
