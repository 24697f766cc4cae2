"""The roller: bytes of small commits move from PostgreSQL to objects, and nobody notices."""

import asyncio
import os
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from support.servers.s3 import S3Server
from support.stores.cluster_bytes import (
    Place,
    age,
    append,
    inline_chunks,
    listed,
    opened,
    parts,
    read,
    set_clock_back,
    states,
    trim,
)

from semel.config import Settings
from semel.store.cluster.bytes import roller
from semel.store.cluster.postgres.database import Database
from semel.store.contract import StoreRefused


@pytest.fixture(params=["directory", "s3"])
def place(request: pytest.FixtureRequest, postgres_dsn: str, schema: str, tmp_path: Path) -> Place:
    if request.param == "directory":
        return Place.new(postgres_dsn, tmp_path.as_uri(), schema)
    server: S3Server = request.getfixturevalue("s3")
    return Place.new(postgres_dsn, server.address, schema, **server.options)


@pytest.fixture
def nearby(postgres_dsn: str, schema: str, tmp_path: Path) -> Place:
    return Place.new(postgres_dsn, tmp_path.as_uri(), schema)


async def test_small_commits_are_gathered_in_one_object(place: Place, scribe: Any) -> None:
    written = list(parts(100, 5_000, 1, 20_000))
    async with opened(place) as store, opened(place, broker_id=1) as other:
        (key,) = await scribe.create(store.ledger)
        for batch in written:
            await append(store, scribe, key, batch)
        # The other one remembers the first bytes, and not where the rest is.
        assert await read(other, key) == written
        assert await store.roller.roll_once() == 4
        assert await inline_chunks(store) == []
        ((number, size),) = await listed(store.chunks.objects)
        assert size == sum(map(len, written))
        assert (await states(store))[number] == "stored"
        assert await store.roller.roll_once() == 0
        assert await read(store, key) == await read(other, key) == written
    async with opened(place) as store:
        assert await read(store, key) == written


async def test_generations_come_round(nearby: Place, scribe: Any) -> None:
    written: list[bytes] = []
    async with opened(nearby) as store:
        (key,) = await scribe.create(store.ledger)
        for _ in range(2 * roller.GENERATIONS + 1):
            written += parts(50, 60)
            await append(store, scribe, key, *written[-2:])
            assert await store.roller.roll_once() == 1
            assert await inline_chunks(store) == []
    async with opened(nearby) as store:
        assert await read(store, key) == written


async def test_it_looks_up_no_chunks_but_those_of_small_commits(nearby: Place, scribe: Any) -> None:
    """Others are many: each commit leaves one, and an old snapshot keeps all versions of their rows."""
    async with opened(nearby) as store:
        (key,) = await scribe.create(store.ledger)
        database = store.ledger.database
        await database.value("SELECT setval('chunk_ids', 10000)")
        await database.value("INSERT INTO objects VALUES (1, 5000, 'stored', clock_timestamp())")
        await database.value(
            "INSERT INTO chunks SELECT number, 1, 1, number FROM generate_series(1, 5000) AS number"
        )
        await database.value("ANALYZE chunks")
        for batch in parts(*[50] * 20):
            await append(store, scribe, key, batch)
        before = await _entries_read(database)
        assert await store.roller.roll_once() == 20
        assert await _entries_read(database) - before < 500


async def _entries_read(database: Database) -> int:
    """Entries of the indexes of chunks that were read by all sessions, which report them first."""
    await database.value("SELECT pg_stat_force_next_flush()")
    found: int = await database.value(
        """
        SELECT sum(idx_tup_read)::bigint FROM pg_stat_user_indexes
        WHERE schemaname = current_schema() AND relname = 'chunks'
        """
    )
    return found


async def test_many_bytes_are_several_objects(nearby: Place, scribe: Any) -> None:
    settings = Settings(semel_roll_interval_ms=0, semel_object_bytes=10_000)
    written = list(parts(*[3_000] * 10, 11_000, 100))
    async with opened(nearby, settings) as store:
        (key,) = await scribe.create(store.ledger)
        for batch in written:
            await append(store, scribe, key, batch)
        assert await store.roller.roll_once() == 12
        sizes = [size for _, size in await listed(store.chunks.objects)]
        assert sizes == [9_000, 9_000, 9_000, 3_000, 11_000, 100]
    async with opened(nearby, settings) as store:
        assert await read(store, key) == written


async def test_it_waits_until_there_is_enough_or_long_enough(nearby: Place, scribe: Any) -> None:
    settings = Settings(semel_roll_interval_ms=3_600_000, semel_object_bytes=100_000)
    async with opened(nearby, settings) as store:
        (key,) = await scribe.create(store.ledger)
        await append(store, scribe, key, *parts(1_000))
        assert await store.roller.roll_once() == 0
        await append(store, scribe, key, *parts(100_000))
        assert await store.roller.roll_once() == 2
        await append(store, scribe, key, *parts(1_000))
        assert await store.roller.roll_once() == 0
        await store.ledger.database.row("UPDATE inline_generation SET since = since - interval '1 hour'")
        assert await store.roller.roll_once() == 1


async def test_it_does_not_wait_for_a_clock_that_was_set_back(nearby: Place, scribe: Any) -> None:
    settings = Settings(semel_roll_interval_ms=3_600_000)
    async with opened(nearby, settings) as store:
        (key,) = await scribe.create(store.ledger)
        await append(store, scribe, key, *parts(1_000))
        await set_clock_back(store)
        assert await store.roller.roll_once() == 1
        await append(store, scribe, key, *parts(1_000))
        assert await store.roller.roll_once() == 0


async def test_deleted_chunks_are_not_moved(nearby: Place, scribe: Any) -> None:
    async with opened(nearby) as store:
        (key,) = await scribe.create(store.ledger)
        gone, kept = parts(100, 200)
        await append(store, scribe, key, gone)
        await append(store, scribe, key, kept)
        await trim(store, scribe, key, 1)
        assert await store.roller.roll_once() == 1
        assert [size for _, size in await listed(store.chunks.objects)] == [200]
        assert await inline_chunks(store) == []
        assert await read(store, key) == [kept]


async def test_a_chunk_that_is_deleted_during_the_upload(
    nearby: Place, scribe: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(nearby) as store:
        (key,) = await scribe.create(store.ledger)
        await append(store, scribe, key, *parts(100))
        put = store.chunks.objects.put

        async def put_and_trim(*arguments: Any) -> None:
            await put(*arguments)
            await trim(store, scribe, key, 1)

        monkeypatch.setattr(store.chunks.objects, "put", put_and_trim)
        assert await store.roller.roll_once() == 0
        ((number, _),) = await listed(store.chunks.objects)
        assert (await states(store))[number] == "uploading"
        await age(store, "uploading")
        assert number in await store.sweep_orphans()
        assert await listed(store.chunks.objects) == []


async def test_two_rollers_at_once_move_each_chunk_once(nearby: Place, scribe: Any) -> None:
    settings = Settings(semel_roll_interval_ms=0, semel_object_bytes=1_000)
    written = list(parts(*[300] * 60))
    async with opened(nearby, settings) as one, opened(nearby, settings, broker_id=1) as other:
        (key,) = await scribe.create(one.ledger)
        for batch in written:
            await append(one, scribe, key, batch)
        moved = await asyncio.gather(one.roller.roll_once(), other.roller.roll_once())
        assert sum(moved) == 60
        await one.roller.roll_once()
        assert await inline_chunks(one) == []
    async with opened(nearby, settings) as one:
        assert await read(one, key) == written
        await age(one, "abandoned")
        await one.sweep_orphans()
        assert await one.reconciler.reconcile_once() == []
        assert len(await listed(one.chunks.objects)) == 20
        assert await read(one, key) == written


async def test_a_commit_that_is_late_is_not_truncated(nearby: Place, scribe: Any) -> None:
    """It has read the generation before the roller changed it, and writes after the roller has moved all."""
    async with opened(nearby) as store:
        (key,) = await scribe.create(store.ledger)
        first, late = parts(100, 200)
        await append(store, scribe, key, first)
        assert await store.roller.roll_once() == 1
        await store.ledger.database.row("UPDATE inline_generation SET generation = 0")
        await append(store, scribe, key, late)
        await store.ledger.database.row("UPDATE inline_generation SET generation = 1")
        assert not await store.roller._is_truncated(0)
        assert await read(store, key) == [first, late]
        assert await store.roller.roll_once() == 1
        assert await inline_chunks(store) == []
    async with opened(nearby) as store:
        assert await read(store, key) == [first, late]


async def test_a_long_reader_delays_the_truncation_and_nothing_else(nearby: Place, scribe: Any) -> None:
    written = list(parts(*[100] * (roller.GENERATIONS + 1)))
    async with opened(nearby) as store:
        (key,) = await scribe.create(store.ledger)
        await append(store, scribe, key, written[0])
        reader: Any = await asyncpg.connect(nearby.dsn, server_settings={"search_path": nearby.schema})
        async with reader.transaction():
            await reader.fetch("SELECT FROM inline_bytes")
            for batch in written[1:]:
                await append(store, scribe, key, batch)
                await store.roller.roll_once()
            assert await inline_chunks(store) != []
            async with opened(nearby) as other:
                assert await read(other, key) == written
        await reader.close()
        while await inline_chunks(store):
            await store.roller.roll_once()
    async with opened(nearby) as store:
        assert await read(store, key) == written


async def test_a_reader_that_finds_the_old_place_empty_looks_again(
    nearby: Place, scribe: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its query began before the truncation and read the table after it."""
    async with opened(nearby) as store, opened(nearby, broker_id=1) as other:
        (key,) = await scribe.create(store.ledger)
        (batch,) = parts(100)
        await append(store, scribe, key, batch)
        (found,) = await store.ledger.find_batches(key, 0, before=1, bytes_max=1, batches_max=1)
        fetch = Database.fetch
        calls = 0

        async def too_early(self: Database, query: str, *arguments: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == 1:
                await store.roller.roll_once()
                return [(found.location.chunk_id, None, None, 0, None)]
            return await fetch(self, query, *arguments)

        monkeypatch.setattr(other.chunks._database, "fetch", too_early.__get__(other.chunks._database))
        assert await other.chunks.read([found.location]) == [batch]


async def test_reads_and_commits_and_rolls_at_the_same_time(nearby: Place, scribe: Any) -> None:
    written: list[bytes] = []
    async with opened(nearby) as store:
        (key,) = await scribe.create(store.ledger)
        is_done = False

        async def roll() -> None:
            while not is_done:
                await store.roller.roll_once()

        async def look() -> None:
            while not is_done:
                count = len(written)
                async with opened(nearby, broker_id=1) as other:
                    assert (await read(other, key))[:count] == written[:count]

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(roll())
            tasks.create_task(look())
            for _ in range(60):
                (batch,) = parts(1_000)
                await append(store, scribe, key, batch)
                written.append(batch)
            is_done = True
    async with opened(nearby) as store:
        assert await read(store, key) == written


async def test_a_roll_without_the_object_store_is_tried_again(
    nearby: Place, scribe: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(nearby) as store:
        (key,) = await scribe.create(store.ledger)
        (batch,) = parts(100)
        await append(store, scribe, key, batch)

        async def refuse(*_: Any) -> None:
            raise StoreRefused("the object store is away")

        with monkeypatch.context() as patch:
            patch.setattr(store.chunks.objects, "put", refuse)
            with pytest.raises(StoreRefused):
                await store.roller.roll_once()
        assert await inline_chunks(store) != []
        assert await store.roller.roll_once() == 1
        assert await read(store, key) == [batch]


async def test_it_runs_by_itself_where_it_is_asked_to(nearby: Place, scribe: Any) -> None:
    settings = Settings(semel_roll_interval_ms=10)
    async with opened(nearby, settings) as store:
        (key,) = await scribe.create(store.ledger)
        await append(store, scribe, key, os.urandom(100))
        idle = asyncio.create_task(store.roller.run(lambda: False))
        await asyncio.sleep(0.1)
        assert await inline_chunks(store) != []
        busy = asyncio.create_task(store.roller.run())
        async with asyncio.timeout(30):
            while await inline_chunks(store):
                pass
        for task in (idle, busy):
            task.cancel()
        await asyncio.gather(idle, busy, return_exceptions=True)
