"""Bad days of PostgreSQL that are no crashes: what a broker says, waits for, and does not write."""

import asyncio
import os
import signal
import socket
import time
import traceback
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from support.brokers.process import free_port
from support.servers.postgres import PostgresServer, postgres_server, why_not
from support.waiting import until_async

from semel.core.entities import ABSENT
from semel.core.facts import Put
from semel.core.types import Transaction, TransactionKey
from semel.store.cluster import ledger
from semel.store.cluster.bytes.objects import Objects
from semel.store.cluster.contract import Conflict
from semel.store.cluster.postgres import database, opening, reaching
from semel.store.cluster.store import ClusterStore
from semel.store.contract import StoreBroken, StoreDamaged, StoreFenced, StoreFull, StoreRefused

KEY = TransactionKey("t")
PATIENCE = 20.0
"""What happens in time if it happens at all, also on a busy machine."""


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    """A server that these tests may treat badly."""
    if (reason := why_not()) is not None:
        pytest.skip(reason)
    with postgres_server(max_connections="20") as server:
        yield server


class Place:
    """A ledger of its own, and a session of an administrator."""

    def __init__(self, dsn: str, schema: str, objects: str) -> None:
        self.dsn = dsn
        self.schema = schema
        self._objects = objects

    @asynccontextmanager
    async def opened(self, broker_id: int = 0, lease_seconds: float = 30.0) -> AsyncIterator[ClusterStore]:
        objects = Objects.open(self._objects)
        store = await ClusterStore.open(
            self.dsn, objects, schema=self.schema, broker_id=broker_id, lease_seconds=lease_seconds
        )
        try:
            yield store
        finally:
            await store.close()

    async def execute(self, statement: str) -> None:
        settings = {"search_path": self.schema, "default_transaction_read_only": "off"}
        connection: Any = await asyncpg.connect(self.dsn, server_settings=settings)
        await connection.execute(statement)
        await connection.close()

    async def fail_commits(self, body: str) -> None:
        """Let every commit do this in the database."""
        await self.execute(
            f"""
            CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {body}; RETURN NEW; END $$;
            CREATE TRIGGER fail BEFORE INSERT OR UPDATE ON transactions FOR EACH ROW EXECUTE FUNCTION fail();
            """
        )

    async def stop_failing(self) -> None:
        await self.execute("DROP TRIGGER fail ON transactions; DROP FUNCTION fail")


@pytest.fixture
def place(server: PostgresServer, tmp_path: Path) -> Place:
    return Place(server.dsn, f"test_{os.urandom(8).hex()}", tmp_path.as_uri())


def changed(producer_id: int) -> Put:
    return Put.of(Transaction("t", producer_id, 0, 1))


async def value_of(store: ClusterStore) -> int | None:
    ((value, _),) = await store.load([KEY])
    return None if value is None else value.producer_id


# -- at the start -----------------------------------------------------------------------------------------


async def test_a_wrong_password(server: PostgresServer, place: Place) -> None:
    await place.execute("CREATE ROLE guarded LOGIN SUPERUSER PASSWORD 'right-secret'")
    rules = server.data / "pg_hba.conf"
    before = rules.read_text()
    rules.write_text("host all guarded 127.0.0.1/32 scram-sha-256\n" + before)
    await place.execute("SELECT pg_reload_conf()")
    dsn = place.dsn
    place.dsn = dsn.replace("semel@", "guarded:wrong-secret@")
    with pytest.raises(StoreBroken, match="PGPASSWORD") as refused:
        async with asyncio.timeout(PATIENCE), place.opened():
            pass
    _has_no_secret(refused.value, "wrong-secret")
    place.dsn = dsn.replace("semel@", "guarded:right-secret@")
    async with place.opened() as store:
        await store.commit([changed(1)], [])


@pytest.mark.parametrize(
    "dsn",
    [
        "postgresql://semel:sec/ret@127.0.0.1/postgres",
        "postgresql://semel:sec#ret@127.0.0.1/postgres",
        "postgresql://semel:sec?ret@127.0.0.1/postgres",
        "mysql://semel:sec-ret@127.0.0.1/db",
        "postgresql://semel:sec-ret@127.0.0.1:port/postgres",
        "postgresql://semel:sec-ret@127.0.0.1:1/postgres",
        "postgresql://semel:sec-ret@no-such-host.invalid/postgres",
    ],
)
async def test_an_address_that_is_none_does_not_reveal_the_password(dsn: str, place: Place) -> None:
    place.dsn = dsn
    with pytest.raises(StoreBroken, match="PostgreSQL") as refused:
        async with place.opened():
            pass
    _has_no_secret(refused.value, "sec")


def _has_no_secret(error: BaseException, secret: str) -> None:
    """Neither the message nor what caused it, which may be logged too."""
    lines = [line for line in traceback.format_exception(error) if not line.startswith("  File")]
    assert secret not in "".join(lines)


async def test_a_server_that_accepts_and_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reaching, "CONNECT_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        dsn = f"postgresql://semel@127.0.0.1:{silent.getsockname()[1]}/postgres"
        with pytest.raises(StoreRefused, match="PostgreSQL cannot be reached: no answer in time"):
            await reaching.connect(dsn, "semel", "semel cluster")


async def test_waiting_for_a_server_is_told_again_and_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(reaching, "SAY_SECONDS", 0.0)
    monkeypatch.setattr(reaching, "PAUSE_SECONDS", 0.01)
    nobody = f"postgresql://semel@127.0.0.1:{free_port()}/postgres"
    waiting = asyncio.create_task(reaching.wait_for_server(nobody))

    async def is_told_often() -> bool:
        return caplog.text.count("waiting for PostgreSQL since") >= 3

    await until_async(is_told_often)
    assert not waiting.done()
    waiting.cancel()


async def test_a_server_that_is_too_old(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "SERVER_VERSION_MIN", 990_000)
    with pytest.raises(StoreBroken, match=" 14 "):
        async with place.opened():
            pass


async def test_a_user_that_may_not_make_tables(place: Place) -> None:
    await place.execute("CREATE ROLE humble LOGIN")
    place.dsn = place.dsn.replace("semel@", "humble@")
    with pytest.raises(StoreBroken, match="permission denied"):
        async with place.opened():
            pass


async def test_a_ledger_of_a_newer_semel(place: Place) -> None:
    async with place.opened():
        pass
    await place.execute("UPDATE meta SET value = '99' WHERE name = 'schema_version'")
    with pytest.raises(StoreDamaged, match="version 99"):
        async with place.opened():
            pass


async def test_too_many_connections_at_the_start_are_waited_for(place: Place) -> None:
    held = await _all_connections(place.dsn)
    opened = asyncio.create_task(_open_and_commit(place))
    await asyncio.wait([opened], timeout=0.5)
    assert not opened.done()
    await held.pop().close()
    await held.pop().close()
    await asyncio.wait_for(opened, PATIENCE)
    for each in held:
        await each.close()


async def test_too_many_connections_for_long(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "CONNECT_SECONDS", 0.5)
    held = await _all_connections(place.dsn)
    with pytest.raises(StoreBroken, match="too many clients"):
        await _open_and_commit(place)
    for each in held:
        await each.close()


async def _open_and_commit(place: Place) -> None:
    async with place.opened() as store:
        await store.commit([changed(1)], [])


async def _all_connections(dsn: str) -> list[Any]:
    held: list[Any] = []
    refused = 0
    while refused < 3:
        try:
            held.append(await asyncpg.connect(dsn))
            refused = 0
        except asyncpg.TooManyConnectionsError:
            # Sessions that were closed just now may not have ended.
            refused += 1
            await asyncio.sleep(0.1)
    return held


# -- later ------------------------------------------------------------------------------------------------


async def test_too_many_connections_later_are_waited_for(place: Place) -> None:
    async with place.opened() as store:
        version = await store.commit([changed(1)], [])
        # This takes the only connection that the store has so far.
        await store.load([KEY], locks=True)
        held = await _all_connections(place.dsn)
        loaded = asyncio.create_task(store.load([KEY]))
        await asyncio.wait([loaded], timeout=0.5)
        assert not loaded.done()
        for each in held:
            await each.close()
        assert (await asyncio.wait_for(loaded, PATIENCE))[0].version == version


async def test_queries_are_refused_if_the_server_is_away_for_long_and_commits_wait(
    server: PostgresServer, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with place.opened(lease_seconds=0.3) as store:
        server.stop()
        with monkeypatch.context() as patch:
            for module in (database, ledger):
                patch.setattr(module, "QUERY_PATIENCE_SECONDS", 0.3)
            for call in (
                store.ledger.load([KEY]),
                store.load([KEY], locks=True),
                store.membership.renew(),
                store.ledger.sweep(limit=1),
            ):
                with pytest.raises(StoreRefused, match="PostgreSQL does not answer"):
                    await asyncio.wait_for(call, PATIENCE)
        committed = asyncio.create_task(store.commit([changed(1)], []))
        await asyncio.wait([committed], timeout=0.5)
        assert not committed.done()
        await asyncio.to_thread(server.start)
        await committed
        assert await value_of(store) == 1


@pytest.mark.parametrize("is_locked", [False, True])
async def test_a_full_disk(place: Place, is_locked: bool) -> None:
    async with place.opened() as store:
        await store.commit([changed(1)], [])
        await place.fail_commits("RAISE EXCEPTION 'no space left on device' USING ERRCODE = '53100'")
        ((_, version),) = await store.load([KEY], locks=is_locked)
        with pytest.raises(StoreFull, match="no space left"):
            await store.commit([changed(2)], [], expected={KEY: version})
        await place.stop_failing()
        assert await value_of(store) == 1
        assert await store.commit([changed(3)], [], expected={KEY: version}) == version + 1


async def test_writes_that_are_forbidden(place: Place) -> None:
    """A service may do so if its disk is almost full, or if this server was a primary until now."""
    name = "postgres"
    async with place.opened() as store:
        await store.commit([changed(1)], [])
        await place.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
        await _end_sessions_of(store)
        with pytest.raises(StoreRefused, match="PostgreSQL allows no writes now"):
            await store.commit([changed(2)], [])
        with pytest.raises(StoreRefused, match="PostgreSQL allows no writes now"):
            await store.membership.renew()
        assert await value_of(store) == 1
        with pytest.raises(StoreBroken, match="default_transaction_read_only"):
            async with place.opened(1):
                pass
        await place.execute(f"ALTER DATABASE {name} RESET default_transaction_read_only")
        await _end_sessions_of(store)
        await store.commit([changed(3)], [])
        assert await value_of(store) == 3


@pytest.mark.parametrize("sqlstate", ["25006", "53100"])
async def test_writes_that_are_refused_after_a_commit_was_lost(place: Place, sqlstate: str) -> None:
    """Whether it happened can only be found out by a write, so that is tried until it is allowed."""
    async with place.opened() as store:
        await store.commit([changed(1)], [])
        await place.execute(
            f"""
            CREATE SEQUENCE refusals;
            CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                PERFORM nextval('refusals');
                RAISE EXCEPTION 'not now' USING ERRCODE = '{sqlstate}';
            END $$;
            CREATE TRIGGER refuse BEFORE UPDATE OF session ON commits
            FOR EACH ROW EXECUTE FUNCTION refuse();
            """
        )
        await place.fail_commits("IF NOT (SELECT is_called FROM refusals) THEN PERFORM pg_sleep(60); END IF")
        committed = asyncio.create_task(store.commit([changed(2)], []))
        await _awaits(
            place, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE wait_event = 'PgSleep'"
        )
        await _awaits(place, "SELECT last_value >= 2 FROM refusals")
        assert not committed.done()
        await place.execute("DROP TRIGGER refuse ON commits")
        await asyncio.wait_for(committed, PATIENCE)
        assert await value_of(store) == 2


async def _awaits(place: Place, query: str) -> None:
    """Wait until a query says yes."""
    connection: Any = await asyncpg.connect(place.dsn, server_settings={"search_path": place.schema})
    await until_async(lambda: connection.fetchval(query), PATIENCE, query)
    await connection.close()


async def _end_sessions_of(store: ClusterStore) -> None:
    await store.ledger.database._pool.expire_connections()


async def test_a_query_that_takes_too_long(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(opening.SESSION, "statement_timeout", "200ms")
    monkeypatch.setattr(database, "QUERY_PATIENCE_SECONDS", 0.5)
    async with place.opened() as store:
        with pytest.raises(StoreRefused, match="canceling statement due to statement timeout"):
            await asyncio.wait_for(store.ledger.database.value("SELECT pg_sleep(60)"), PATIENCE)
        assert await value_of(store) is None


async def test_a_commit_that_takes_too_long_is_repeated(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Making the tables may take longer.
    async with place.opened():
        pass
    monkeypatch.setitem(opening.SESSION, "statement_timeout", "500ms")
    async with place.opened() as store:
        await place.execute("CREATE SEQUENCE tries")
        await place.fail_commits("PERFORM nextval('tries'); PERFORM pg_sleep(60)")
        committed = asyncio.create_task(store.commit([changed(1)], []))
        await _awaits(place, "SELECT last_value >= 2 FROM tries")
        assert not committed.done()
        # The lock on the table waits for the commit that is under way, which is cancelled.
        await place.stop_failing()
        version = await asyncio.wait_for(committed, PATIENCE)
        assert await store.load([KEY]) == [(Transaction("t", 1, 0, 1), version)]


async def test_a_server_that_falls_silent(place: Place) -> None:
    """The lease is over by then, so the broker must know it in time."""
    async with place.opened(lease_seconds=0.5) as store:
        pid = await store.ledger.database.value("SELECT pg_backend_pid()")
        os.kill(pid, signal.SIGSTOP)
        try:
            begun = time.monotonic()
            with pytest.raises(StoreRefused, match="PostgreSQL does not answer: no answer in time"):
                await store.membership.renew()
            assert time.monotonic() - begun < opening.COMMAND_SECONDS / 2
        finally:
            os.kill(pid, signal.SIGCONT)
        await until_async(lambda: _renews(store), PATIENCE, "a renewal")


async def _renews(store: ClusterStore) -> bool:
    """Whether there is an answer within this lease, for which a busy machine may need several tries."""
    with suppress(StoreRefused):
        await store.membership.renew()
        return True
    return False


async def test_a_lock_that_is_held_for_long_is_waited_for(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(opening.SESSION, "lock_timeout", "200ms")
    async with place.opened() as store:
        version = await store.commit([changed(1)], [])
        other: Any = await asyncpg.connect(place.dsn, server_settings={"search_path": place.schema})
        held = other.transaction()
        await held.start()
        await other.execute("SELECT FROM transactions FOR UPDATE")
        committed = asyncio.create_task(store.commit([changed(2)], [], expected={KEY: version}))
        loaded = asyncio.create_task(store.load([KEY]))
        assert (await loaded)[0].version == version
        await asyncio.wait([committed], timeout=1.0)
        assert not committed.done()
        # The renewal of the lease does not wait for the commit.
        await asyncio.wait_for(store.membership.renew(), PATIENCE)
        await held.rollback()
        await other.close()
        await asyncio.wait_for(committed, PATIENCE)


# -- a broker that sleeps ---------------------------------------------------------------------------------


NO_LOCKS = "SELECT NOT EXISTS (SELECT FROM pg_stat_activity WHERE state LIKE 'idle in transaction%')"
"""Sessions that held locks were ended."""


@pytest.fixture
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(opening.SESSION, "idle_in_transaction_session_timeout", "300ms")


@pytest.mark.usefixtures("_impatient")
async def test_a_broker_that_sleeps_with_locks_loses_them(place: Place) -> None:
    async with place.opened() as sleeper, place.opened(1) as other:
        version = await sleeper.commit([changed(1)], [])
        await sleeper.load([KEY], locks=True)
        moved = await asyncio.wait_for(other.commit([changed(2)], [], expected={KEY: version}), PATIENCE)
        with pytest.raises(Conflict) as conflict:
            await sleeper.commit([changed(3)], [], expected={KEY: version})
        assert conflict.value.keys == (KEY,)
        assert (await other.load([KEY]))[0].version == moved


@pytest.mark.usefixtures("_impatient")
async def test_a_broker_that_sleeps_with_locks_and_was_not_missed_goes_on(place: Place) -> None:
    async with place.opened() as sleeper:
        version = await sleeper.commit([changed(1)], [])
        for _ in range(2):
            await sleeper.load([KEY], locks=True)
            await _awaits(place, NO_LOCKS)
        # It takes the locks again, or does without.
        assert (await sleeper.load([TransactionKey("other")], locks=True))[0].version == ABSENT
        await _awaits(place, NO_LOCKS)
        version = await sleeper.commit([changed(2)], [], expected={KEY: version})
        assert (await sleeper.load([KEY]))[0].version == version


@pytest.mark.usefixtures("_impatient")
async def test_a_broker_that_sleeps_longer_than_its_lease_writes_nothing(place: Place) -> None:
    async with place.opened(lease_seconds=0.3) as sleeper, place.opened(1) as other:
        await sleeper.membership.join({}, ("host", 1), None)
        ((_, version),) = await sleeper.load([KEY], locks=True)
        (peer, *_) = (await other.membership.renew()).peers
        await asyncio.sleep(0.6)
        assert await other.membership.take_over(peer, {})
        with pytest.raises(StoreFenced, match="broker 0"):
            await sleeper.commit([changed(1)], [], expected={KEY: version})
        assert await value_of(other) is None


async def test_a_renewal_that_is_under_way_has_perhaps_not_seen_a_notice(place: Place) -> None:
    """The lease looks over. Whoever concludes that the broker finds the notice later would be wrong."""
    async with place.opened() as slow, place.opened(1) as other:
        await slow.membership.join({}, ("host", 1), None)
        (peer,) = (await other.membership.renew()).peers
        await place.execute("UPDATE brokers SET lease = '0' WHERE broker_id = 0")
        renewal: Any = await asyncpg.connect(place.dsn, server_settings={"search_path": place.schema})
        transaction = renewal.transaction()
        await transaction.start()
        await renewal.fetchrow("SELECT * FROM renew_lease(0, $1, '30s', 0)", peer.epoch)
        number = await other.membership.leave_notice(peer, b"notice")
        noticed = asyncio.create_task(other.membership.is_noticed(peer, number))
        await asyncio.wait([noticed], timeout=0.3)
        assert not noticed.done()
        await transaction.commit()
        await renewal.close()
        assert not await noticed
