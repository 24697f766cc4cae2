"""PostgreSQL crashes: what was flushed is there, the term ends for every broker, and all of them go on."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from support.servers.postgres import PostgresServer, postgres_server, why_not

from semel.core.facts import Put
from semel.core.types import Key, Transaction, TransactionKey
from semel.store.cluster.bytes.objects import Objects
from semel.store.cluster.contract import TermEnded
from semel.store.cluster.store import ClusterStore
from semel.store.contract import StoreRefused


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    """A server that flushes nothing by itself, so that a crash loses all unsynced work."""
    if (reason := why_not()) is not None:
        pytest.skip(reason)
    with postgres_server(wal_writer_delay="10s", wal_writer_flush_after="1GB") as server:
        yield server


@asynccontextmanager
async def opened(server: PostgresServer, tmp_path: Path, count: int = 2) -> AsyncIterator[list[ClusterStore]]:
    schema = f"test_{tmp_path.name}"
    stores = [
        await ClusterStore.open(server.dsn, Objects.open(tmp_path.as_uri()), schema=schema, broker_id=each)
        for each in range(count)
    ]
    try:
        yield stores
    finally:
        for store in stores:
            await store.close()


def of_id(name: str, producer_id: int = 0) -> Put:
    return Put.of(Transaction(name, producer_id, 0, 1))


async def ids(store: ClusterStore) -> list[str]:
    return [each.transactional_id for each in await store.ledger.transactions()]


async def crash(server: PostgresServer, how: str) -> None:
    if how == "a backend is killed":
        victim: Any = await asyncpg.connect(server.dsn)
        witness: Any = await asyncpg.connect(server.dsn)
        os.kill(await victim.fetchval("SELECT pg_backend_pid()"), signal.SIGKILL)
        with pytest.raises((asyncpg.PostgresError, asyncpg.InterfaceError, OSError)):
            # The server ends all other sessions too, and recovers.
            await witness.fetchval("SELECT pg_sleep(60)")
        await asyncio.to_thread(server.wait)
    else:
        server.stop(mode="immediate")
        await asyncio.to_thread(server.start)


CRASHES = ["a backend is killed", "the server is killed"]


@pytest.mark.parametrize("how", CRASHES)
async def test_a_crash_ends_the_term_of_every_broker(
    server: PostgresServer, tmp_path: Path, how: str
) -> None:
    async with opened(server, tmp_path) as stores:
        one, other = stores
        versions = [await one.commit([of_id("synced")], [])]
        versions.append(await one.commit([of_id("unsynced")], [], defers_sync=True))
        assert one.has_unsynced
        term = one.term
        await crash(server, how)
        for store in stores:
            with pytest.raises(TermEnded):
                await store.commit([of_id(f"refused{store.membership.broker_id}")], [])
            assert not store.has_unsynced
        assert one.term == other.term > term
        # Unsynced work is lost here, and would be elsewhere if the server had not flushed by itself.
        assert await ids(other) == ["synced"]
        for store in stores:
            versions += [await store.commit([of_id("later")], [], defers_sync=each) for each in (True, False)]
        assert len(set(versions)) == len(versions), "numbers of lost commits are not used again"
        assert await ids(other) == ["later", "synced"]
    async with opened(server, tmp_path) as (again, _):
        assert again.term > term
        assert await ids(again) == ["later", "synced"]


async def test_unsynced_work_that_is_lost_is_no_loss(server: PostgresServer, tmp_path: Path) -> None:
    async with opened(server, tmp_path, 1) as (store,):
        await store.commit([of_id("synced")], [])
        await store.commit([of_id("unsynced")], [], defers_sync=True)
        for _ in range(2):
            await crash(server, "the server is killed")
            with pytest.raises(TermEnded):
                await store.check_term()
        await store.commit([of_id("later")], [])
        assert await ids(store) == ["later", "synced"]


async def test_a_term_that_cannot_be_noted_is_waited_for(server: PostgresServer, tmp_path: Path) -> None:
    """Another server may have begun it. Work of a term that was noted goes on without the object store."""
    async with opened(server, tmp_path, 1) as (store,):
        await store.commit([of_id("before")], [])
        folder, away = (
            Path(store.chunks.objects.mark_address.removeprefix("file://")).parent,
            tmp_path / "away",
        )
        await asyncio.to_thread(folder.rename, away)
        await store.ledger.committer.terms.begin()
        await store.commit([of_id("without")], [])
        for _ in range(2):
            await crash(server, "the server is killed")
            with pytest.raises(StoreRefused, match=r"term \d"):
                await store.commit([of_id("refused")], [])
        await asyncio.to_thread(away.rename, folder)
        with pytest.raises(TermEnded):
            await store.commit([of_id("refused")], [])
        await store.commit([of_id("after")], [])
        assert await ids(store) == ["after", "before", "without"]


async def test_a_crash_is_found_without_a_commit(server: PostgresServer, tmp_path: Path) -> None:
    async with opened(server, tmp_path) as stores:
        one, other = stores
        await one.commit([of_id("unsynced")], [], defers_sync=True)
        term = one.term
        await other.check_term()
        await crash(server, "the server is killed")
        for store in stores:
            with pytest.raises(TermEnded, match=f"term {term}"):
                await store.check_term()
            await store.check_term()
        assert one.term == other.term > term
        assert not one.has_unsynced
        await one.commit([of_id("later")], [])
        assert await ids(other) == ["later"]


async def test_a_term_and_unsynced_work_survive_a_clean_restart(
    server: PostgresServer, tmp_path: Path
) -> None:
    async with opened(server, tmp_path) as (one, other):
        term = one.term
        await one.commit([of_id("unsynced")], [], defers_sync=True)
        server.stop()
        await asyncio.to_thread(server.start)
        await one.commit([of_id("later")], [])
        await other.commit([of_id("other")], [])
        assert (one.term, other.term) == (term, term)
        assert await ids(one) == ["later", "other", "unsynced"]


async def test_a_crash_before_the_flush_of_a_reader_has_it_look_again(
    server: PostgresServer, tmp_path: Path, scribe: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it saw is lost, so it must not be returned: others will write at the same offsets."""
    async with opened(server, tmp_path) as (one, other):
        (key,) = await scribe.create(one)
        durable = scribe.partitions[key]
        fact, _ = scribe.append(key, size=3)
        await one.commit([fact, *scribe.changed()], [b"abc"], defers_sync=True)
        make_durable = other.ledger.committer.make_durable
        flushes = 0

        async def crash_first(*arguments: Any) -> None:
            nonlocal flushes
            flushes += 1
            if flushes == 1:
                await crash(server, CRASHES[1])
            await make_durable(*arguments)

        monkeypatch.setattr(other.ledger.committer, "make_durable", crash_first)
        assert await other.ledger.load([key]) == [durable]


@pytest.mark.parametrize("reader", [0, 1])
@pytest.mark.parametrize("how", CRASHES)
async def test_what_a_reader_has_seen_of_a_partition_survives_a_crash(
    server: PostgresServer, tmp_path: Path, scribe: Any, how: str, reader: int
) -> None:
    """It was written unsynced, by the broker of the reader or by another."""
    async with opened(server, tmp_path) as stores:
        (key,) = await scribe.create(stores[0])
        for _ in range(2):
            fact, _ = scribe.append(key, size=3)
            await stores[0].commit([fact, *scribe.changed()], [b"abc"], defers_sync=True)
            (seen,) = await stores[reader].ledger.load([key])
            assert seen == scribe.partitions[key]
            await crash(server, how)
            assert await stores[1 - reader].ledger.load([key]) == [seen]
            for store in stores:
                with pytest.raises(TermEnded):
                    await store.commit([], [])


@pytest.mark.parametrize("how", CRASHES)
async def test_a_flush_makes_unsynced_work_of_all_brokers_durable(
    server: PostgresServer, tmp_path: Path, how: str
) -> None:
    async with opened(server, tmp_path) as (one, other):
        await one.commit([of_id("one")], [], defers_sync=True)
        await other.commit([of_id("other")], [], defers_sync=True)
        await other.commit([], [])
        await crash(server, how)
        assert await ids(one) == ["one", "other"]


async def test_commits_under_way_in_a_crash_happen_once_or_not_at_all(
    server: PostgresServer, tmp_path: Path
) -> None:
    """Every broker counts one of its own up; a commit that was refused with the term is decided again."""

    async def count(store: ClusterStore) -> None:
        key: Key = TransactionKey(f"b{store.membership.broker_id}")
        acknowledged = 0
        while not crashed.is_set() or acknowledged < 100:
            ((value, version),) = await store.load([key])
            before = value.producer_id if value is not None else 0
            assert before == acknowledged
            fact = of_id(f"b{store.membership.broker_id}", before + 1)
            try:
                await store.commit([fact], [], expected={key: version})
            except TermEnded:
                continue
            acknowledged = before + 1

    crashed = asyncio.Event()
    async with opened(server, tmp_path) as stores:
        counting = [asyncio.create_task(count(store)) for store in stores]
        for how in CRASHES:
            await asyncio.sleep(0.2)
            await crash(server, how)
        crashed.set()
        await asyncio.gather(*counting)


async def test_a_standby_is_refused_and_begins_a_term_when_it_is_promoted(tmp_path: Path) -> None:
    if (reason := why_not()) is not None:
        pytest.skip(reason)
    with postgres_server() as server:
        async with opened(server, tmp_path) as (one, _):
            term = one.term
        server.stop()
        (server.data / "standby.signal").touch()
        server.start()
        with pytest.raises(Exception, match="standby"):
            async with opened(server, tmp_path):
                pass
        connection: Any = await asyncpg.connect(server.dsn)
        assert await connection.fetchval("SELECT pg_promote()")
        await connection.close()
        async with opened(server, tmp_path) as (one, _):
            assert one.term > term
