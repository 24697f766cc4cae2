"""A standby is promoted and the old primary comes back: no broker uses a server that was left behind."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from support.faults.tcp_proxy import TcpProxy
from support.servers.failover import Pair, cancel_one, pair, waits_again
from support.waiting import until_async

from semel.core.facts import Put
from semel.core.types import Transaction
from semel.store.cluster.bytes.objects import Objects
from semel.store.cluster.contract import TermEnded
from semel.store.cluster.postgres import database, terms
from semel.store.cluster.postgres.database import ConnectionLost, Database
from semel.store.cluster.store import ClusterStore
from semel.store.contract import StoreDamaged, StoreMisconfigured, StoreRefused

PATIENCE = 30.0


@pytest.fixture
def servers() -> Iterator[Pair]:
    with pair() as servers:
        yield servers


@asynccontextmanager
async def opened(dsn: str, tmp_path: Path, broker_id: int = 0) -> AsyncIterator[ClusterStore]:
    (tmp_path / "objects").mkdir(exist_ok=True)
    objects = Objects.open((tmp_path / "objects").as_uri())
    store = await ClusterStore.open(dsn, objects, broker_id=broker_id, lease_seconds=0.5)
    try:
        yield store
    finally:
        await store.close()


def of_id(name: str) -> Put:
    return Put.of(Transaction(name, 0, 0, 1))


async def ids(store: ClusterStore) -> list[str]:
    return [each.transactional_id for each in await store.ledger.transactions()]


async def ports_of(store: ClusterStore, count: int) -> set[int]:
    """The servers that so many connections at once reach, which may have to be made again."""

    async def ports() -> set[int]:
        found: set[int] = set()
        try:
            found = await _ports_of(store.ledger.database, count)
        except* ConnectionLost:
            pass
        return found

    return await until_async(ports, PATIENCE, "an answer by every connection")


async def _ports_of(database: Database, count: int) -> set[int]:
    async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as group:
        barrier = asyncio.Barrier(count)

        async def port() -> int:
            async with database.connection() as connection:
                await barrier.wait()
                return int(await connection.fetchval("SELECT inet_server_port()"))

        tasks = [group.create_task(port()) for _ in range(count)]
    return {each.result() for each in tasks}


async def end_half(dsn: str) -> None:
    """End every other session of a broker."""
    connection: Any = await asyncpg.connect(dsn)
    await connection.execute(
        """
        SELECT pg_terminate_backend(pid) FROM (
            SELECT pid, row_number() OVER () AS number FROM pg_stat_activity WHERE application_name = 'semel'
        ) AS each WHERE number % 2 = 0
        """
    )
    await connection.close()


async def test_a_broker_never_goes_back_to_an_old_primary(servers: Pair, tmp_path: Path) -> None:
    async with opened(servers.address(), tmp_path) as store:
        await store.commit([of_id("before")], [])
        assert await ports_of(store, 4) == {servers.primary.port}
        await asyncio.to_thread(servers.fail_over)
        with pytest.raises(TermEnded):
            await asyncio.wait_for(store.commit([of_id("refused")], []), PATIENCE)
        await store.commit([of_id("after")], [])
        await asyncio.to_thread(servers.return_alone)
        assert await ports_of(store, 8) == {servers.standby.port}
        await end_half(servers.standby.dsn)
        assert await ports_of(store, 8) == {servers.standby.port}
        await store.commit([of_id("later")], [])
        assert await ids(store) == ["after", "before", "later"]


async def test_a_broker_that_starts_takes_the_newest_of_all_servers(servers: Pair, tmp_path: Path) -> None:
    """It remembers nothing, and no broker has begun a term at the new primary."""
    async with opened(servers.primary.dsn, tmp_path) as store:
        await store.commit([of_id("before")], [])
    await asyncio.to_thread(servers.fail_over)
    await asyncio.to_thread(servers.return_alone)
    async with opened(servers.address(), tmp_path) as store:
        assert await ports_of(store, 3) == {servers.standby.port}
        assert await ids(store) == ["before"]
    # The other one comes first here.
    async with opened(servers.address(old_first=False), tmp_path) as store:
        assert await ports_of(store, 3) == {servers.standby.port}


async def test_an_old_primary_is_refused_by_who_has_seen_no_other(
    servers: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the old one can be reached: the object store knows that the cluster has gone on without it."""
    monkeypatch.setattr(terms, "LOOK_SECONDS", 0.05)
    async with opened(servers.primary.dsn, tmp_path, 1) as stale:
        await stale.commit([of_id("before")], [])
        watch = asyncio.create_task(terms.watch(stale.ledger.database, stale.ledger.committer.terms))
        # Nobody has stopped it, and nobody keeps it from taking commits.
        await asyncio.to_thread(servers.promote)
        await asyncio.to_thread(servers.be_alone)
        await stale.commit([of_id("will be lost")], [])
        async with opened(servers.standby.dsn, tmp_path) as store:
            assert await ids(store) == ["before"]
        monkeypatch.setattr(database, "QUERY_PATIENCE_SECONDS", 0.2)
        await until_async(lambda: _is_refused(stale, "does not know the term"), PATIENCE, "a refusal")
        watch.cancel()
    with pytest.raises(StoreMisconfigured, match="left behind: the cluster has gone on with term 2"):
        async with opened(servers.primary.dsn, tmp_path):
            pass
    # It cannot begin that term for itself either.
    servers.primary.stop(mode="immediate")
    await asyncio.to_thread(servers.primary.start)
    with pytest.raises(StoreMisconfigured, match="left behind: the cluster has gone on with term 2"):
        async with opened(servers.primary.dsn, tmp_path):
            pass


async def _is_refused(store: ClusterStore, why: str) -> bool:
    try:
        await store.ledger.database.value("SELECT 1")
    except StoreRefused as refused:
        return "it was left behind by a failover" in str(refused) and why in str(refused)
    return False


async def test_a_standby_that_lacked_commits_is_called_by_its_name(servers: Pair, tmp_path: Path) -> None:
    async with opened(servers.address(), tmp_path) as store:
        await store.commit([of_id("before")], [])
        await asyncio.to_thread(servers.be_alone)
        servers.standby.stop()
        await store.commit([of_id("lost")], [])
        servers.primary.stop(mode="immediate")
        await asyncio.to_thread(servers.standby.start)
        await asyncio.to_thread(servers.promote)
        with pytest.raises(StoreDamaged, match="PostgreSQL has lost commits that it had confirmed"):
            await asyncio.wait_for(store.commit([of_id("refused")], []), PATIENCE)


async def test_a_term_that_the_standby_lacks_is_not_noted(servers: Pair, tmp_path: Path) -> None:
    """The standby would be refused when it is promoted, although it has all that was acknowledged."""
    async with opened(servers.address(), tmp_path) as store:
        await store.commit([of_id("before")], [])
        servers.standby.stop()
        servers.primary.stop(mode="immediate")
        await asyncio.to_thread(servers.primary.start)
        refused = asyncio.create_task(store.commit([of_id("refused")], []))
        watching: Any = await asyncpg.connect(servers.primary.dsn)
        # The wait of the term for the standby, then the next one.
        await waits_again(watching, await cancel_one(watching), refused)
        await watching.close()
        newest = await store.chunks.objects.newest_term()
        assert newest is not None
        assert newest[0] == 1
        servers.primary.stop(mode="immediate")
        await asyncio.to_thread(servers.standby.start)
        await asyncio.to_thread(servers.promote)
        with pytest.raises((TermEnded, StoreRefused)):
            await asyncio.wait_for(refused, PATIENCE)

        async def commits() -> bool:
            try:
                await store.commit([of_id("after")], [])
            except (TermEnded, StoreRefused):
                return False
            return True

        await until_async(commits, PATIENCE, "a commit at the new primary")
        assert await ids(store) == ["after", "before"]
        async with opened(servers.standby.dsn, tmp_path, 1) as other:
            assert other.term == 2


async def test_a_promotion_beside_a_primary_that_lives_is_noticed(
    servers: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Commits wait for a standby that is none any more, and no connection ends."""
    monkeypatch.setattr(terms, "LOOK_SECONDS", 0.05)
    async with opened(servers.address(), tmp_path) as store:
        await store.commit([of_id("before")], [])
        watch = asyncio.create_task(terms.watch(store.ledger.database, store.ledger.committer.terms))
        await asyncio.to_thread(servers.promote)
        with pytest.raises(TermEnded):
            await asyncio.wait_for(store.commit([of_id("refused")], []), PATIENCE)
        await store.commit([of_id("after")], [])
        assert await ids(store) == ["after", "before"]
        watch.cancel()


async def test_a_name_that_moves_takes_all_connections_with_it(
    servers: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A proxy stands for a virtual IP, which points to the old primary again for a while."""
    monkeypatch.setattr(database, "QUERY_PATIENCE_SECONDS", 0.2)
    old, new = servers.primary, servers.standby
    with TcpProxy(("127.0.0.1", old.port)) as proxy:
        dsn = f"postgresql://semel@127.0.0.1:{proxy.port}/postgres"
        async with opened(dsn, tmp_path) as store:
            assert await ports_of(store, 4) == {old.port}
            await asyncio.to_thread(servers.promote)
            proxy.upstream = ("127.0.0.1", new.port)
            await end_half(old.dsn)
            assert await ports_of(store, 8) == {new.port}
            proxy.upstream = ("127.0.0.1", old.port)
            proxy.drop()
            await until_async(lambda: _is_refused(store, "timeline 1, not 2"), PATIENCE, "a refusal")
            proxy.upstream = ("127.0.0.1", new.port)
            assert await ports_of(store, 4) == {new.port}
