"""What a session of PostgreSQL must prove: nobody shares it, and its server keeps what it confirms."""

import asyncio
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import Mock
from urllib.parse import urlsplit

import asyncpg
import pytest
from support.brokers.cluster import query
from support.faults.tcp_proxy import TcpProxy
from support.servers.postgres import PostgresServer, postgres_server, why_not
from support.waiting import until_async

from semel.config import Settings
from semel.store.cluster.bytes.objects import Objects
from semel.store.cluster.inspection import cluster_status
from semel.store.cluster.ledger import PostgresLedger
from semel.store.cluster.postgres import opening, servers, terms
from semel.store.cluster.postgres.reaching import connect
from semel.store.cluster.postgres.servers import Seen, addresses, why_refused
from semel.store.cluster.postgres.sessions import Server, server_of
from semel.store.cluster.store import ClusterStore
from semel.store.contract import StoreMisconfigured

PATIENCE = 20.0
KEY = b"K\x00\x00\x00\x0c"
"""How PostgreSQL tells which process answers, up to its number."""


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    if (reason := why_not()) is not None:
        pytest.skip(reason)
    with postgres_server() as server:
        yield server


def configure(server: PostgresServer, **settings: str | None) -> None:
    for name, value in settings.items():
        statement = f"RESET {name}" if value is None else f"SET {name} = {value}"
        query(server.dsn, f"ALTER SYSTEM {statement}")
    query(server.dsn, "SELECT pg_reload_conf()")


async def store_at(dsn: str, tmp_path: Path, **settings: str) -> ClusterStore:
    chosen = Settings.of({name.replace("_", "."): value for name, value in settings.items()})
    return await ClusterStore.open(dsn, Objects.open(tmp_path.as_uri()), chosen, schema=f"s_{tmp_path.name}")


# -- settings that give durability away -------------------------------------------------------------------


@pytest.mark.parametrize("name", ["fsync", "full_page_writes"])
async def test_a_server_that_does_not_keep_commits_is_refused(
    server: PostgresServer, tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    await asyncio.to_thread(configure, server, **{name: "off"})
    try:
        with pytest.raises(StoreMisconfigured, match=f"semel.ledger.unsafe={name}"):
            await store_at(server.dsn, tmp_path)
        store = await store_at(server.dsn, tmp_path, semel_ledger_unsafe=name)
        await store.close()
        assert f"PostgreSQL runs with {name} off: a crash" in caplog.text
        assert (await cluster_status(server.dsn, f"s_{tmp_path.name}")).unsafe == [name]
    finally:
        await asyncio.to_thread(configure, server, **{name: None})


async def test_a_setting_that_is_turned_off_later_stops_the_broker(
    server: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(terms, "LOOK_SECONDS", 0.05)
    store = await store_at(server.dsn, tmp_path)
    watch = asyncio.create_task(terms.watch(store.ledger.database, store.ledger.committer.terms))
    try:
        await asyncio.to_thread(configure, server, full_page_writes="off")
        with pytest.raises(StoreMisconfigured, match="full_page_writes"):
            await asyncio.wait_for(watch, PATIENCE)
    finally:
        await asyncio.to_thread(configure, server, full_page_writes=None)
        await store.close()


@pytest.mark.parametrize("value", ["off", "local", "remote_write", "remote_apply"])
async def test_commits_wait_for_the_standby_whatever_the_role_says(
    server: PostgresServer, tmp_path: Path, value: str
) -> None:
    query = f"ALTER ROLE semel SET synchronous_commit = {value}"
    connection: Any = await asyncpg.connect(server.dsn)
    await connection.execute(query)
    ledger = await PostgresLedger.open(server.dsn, schema=f"s_{tmp_path.name}")
    found = await ledger.database.value("SHOW synchronous_commit")
    assert found == ("remote_apply" if value == "remote_apply" else "on")
    await ledger.close()
    await connection.execute("ALTER ROLE semel RESET synchronous_commit")
    await connection.close()


@pytest.mark.parametrize(("before", "kept"), [(None, "on"), ("remote_apply", "remote_apply")])
async def test_a_reload_does_not_change_how_open_sessions_commit(
    server: PostgresServer, tmp_path: Path, before: str | None, kept: str
) -> None:
    await asyncio.to_thread(configure, server, synchronous_commit=before)
    ledger = await PostgresLedger.open(server.dsn, schema=f"s_{tmp_path.name}")
    try:
        async with ledger.database.connection() as connection:
            for value in ("local", "off"):
                # Another setting shows that the reload has arrived.
                await asyncio.to_thread(
                    configure, server, synchronous_commit=value, vacuum_cost_limit=str(len(value))
                )

                async def is_reloaded(limit: str = str(len(value))) -> bool:
                    return bool(await connection.fetchval("SHOW vacuum_cost_limit") == limit)

                await until_async(is_reloaded, PATIENCE, "the reload")
                assert await connection.fetchval("SHOW synchronous_commit") == kept
    finally:
        await asyncio.to_thread(configure, server, synchronous_commit=None, vacuum_cost_limit=None)
        await ledger.close()


async def test_a_session_that_commits_too_early_stops_the_broker(
    server: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing does that to a session. If something did after all, it would not be seen otherwise."""
    monkeypatch.setattr(terms, "LOOK_SECONDS", 0.0)
    store = await store_at(server.dsn, tmp_path)
    watch = terms.watch(store.ledger.database, store.ledger.committer.terms)
    try:
        async with store.ledger.database.connection() as connection:
            await connection.execute("SET synchronous_commit = local")
        with pytest.raises(StoreMisconfigured, match="turned synchronous_commit off in a session"):
            await asyncio.wait_for(watch, PATIENCE)
    finally:
        await store.close()


# -- poolers ----------------------------------------------------------------------------------------------


def made_up(data: bytes) -> bytes:
    """A pooler makes up the number of the process that answers: it may be another one each time."""
    before, key, after = data.partition(KEY)
    return before + key + after[:3] + bytes([after[3] ^ 1]) + after[4:] if key else data


async def test_a_pooler_is_refused(postgres_dsn: str) -> None:
    parts = urlsplit(postgres_dsn)
    with TcpProxy((str(parts.hostname), int(parts.port or 0)), made_up) as proxy:
        dsn = parts._replace(netloc=f"{parts.username}@127.0.0.1:{proxy.port}").geturl()
        with pytest.raises(StoreMisconfigured, match=r"connection pooler .*Give the address of PostgreSQL"):
            await connect(dsn, "semel", "semel cluster")
        with pytest.raises(StoreMisconfigured, match="connection pooler"):
            await PostgresLedger.open(dsn)


# -- addresses --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dsn", "each"),
    [
        ("postgresql://u@pg1/db", ["postgresql://u@pg1/db"]),
        ("postgresql:///db", ["postgresql:///db"]),
        (
            "postgresql://u:p%40@pg1,pg2:5433/db?target_session_attrs=read-write",
            [
                "postgresql://u:p%40@pg1/db?target_session_attrs=read-write",
                "postgresql://u:p%40@pg2:5433/db?target_session_attrs=read-write",
            ],
        ),
        (
            "postgresql:///db?host=pg1,pg2&port=1,2",
            ["postgresql:///db?host=pg1&port=1", "postgresql:///db?host=pg2&port=2"],
        ),
        (
            "postgresql:///db?host=pg1,pg2&port=1",
            ["postgresql:///db?host=pg1&port=1", "postgresql:///db?host=pg2&port=1"],
        ),
        ("postgresql://[::1]:1,[::2]:2/db", ["postgresql://[::1]:1/db", "postgresql://[::2]:2/db"]),
    ],
)
def test_an_address_of_several_hosts_is_one_for_each(dsn: str, each: list[str]) -> None:
    # Without a host, the slashes before it may be missing.
    assert [urlsplit(found) for found in addresses(dsn)] == [urlsplit(one) for one in each]


async def test_a_host_that_is_silent_is_not_waited_for(
    server: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(servers, "OTHERS_SECONDS", 0.1)
    monkeypatch.setattr(opening, "CONNECT_SECONDS", 600.0)
    with socket.create_server(("127.0.0.1", 0)) as silent, closed_port() as closed:
        hosts = f"127.0.0.1:{silent.getsockname()[1]},127.0.0.1:{closed},127.0.0.1:{server.port}"
        dsn = f"postgresql://semel@{hosts}/postgres?target_session_attrs=read-write"
        async with asyncio.timeout(60):
            ledger = await PostgresLedger.open(dsn, schema=f"s_{tmp_path.name}")
        await ledger.close()


class Hosts(servers.Servers):
    """Two hosts without a network. Each answers when it is told to."""

    def __init__(self) -> None:
        super().__init__("postgresql://one,two/db")
        self.answers = {"one": HERE, "two": HERE._replace(started="later", timeline=3)}
        self.may_answer = {name: asyncio.Event() for name in self.answers}
        self.asked: list[str] = []

    async def _open(self, address: str, options: Any) -> Any:
        name = str(urlsplit(address).hostname)
        self.asked.append(name)
        await self.may_answer[name].wait()
        return servers._Found(Mock(name=name, is_closed=lambda: False, at=name), self.answers[name], address)


@pytest.mark.parametrize("finds", ["a look around", "a server that was started since"])
async def test_a_host_that_stays_silent_is_left_to_the_next_look_around(
    monkeypatch: pytest.MonkeyPatch, finds: str
) -> None:
    """Connections are made in the path of commits. Another one at the server in use needs no other host."""
    hosts = Hosts()
    hosts.may_answer["one"].set()
    monkeypatch.setattr(servers, "OTHERS_SECONDS", 0.01)
    assert (await hosts.connect(timeout=1)).at == "one"
    monkeypatch.setattr(servers, "OTHERS_SECONDS", 600.0)
    async with asyncio.timeout(PATIENCE):
        assert (await hosts.connect(timeout=1)).at == "one"
        hosts.asked.clear()
        if finds == "a look around":
            found = asyncio.create_task(hosts.look_around())
        else:
            hosts.answers["one"] = HERE._replace(started="now")
            found = asyncio.create_task(hosts.connect(timeout=1))
        await until_async(lambda: asyncio.sleep(0, "two" in hosts.asked), PATIENCE, "a question to the other")
        hosts.may_answer["two"].set()
        await found
        assert (await hosts.connect(timeout=1)).at == "two"


@contextmanager
def closed_port() -> Iterator[int]:
    """A port where nobody listens."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]


async def test_a_service_that_does_not_tell_its_timeline(server: PostgresServer, tmp_path: Path) -> None:
    secret = "FUNCTION pg_control_system(), pg_walfile_name(pg_lsn) FROM PUBLIC"
    admin: Any = await asyncpg.connect(server.dsn)
    await admin.execute(
        f"CREATE ROLE plain LOGIN; GRANT CREATE ON DATABASE postgres TO plain; REVOKE ALL ON {secret}"
    )
    await admin.close()
    ledger = await PostgresLedger.open(
        server.dsn.replace("semel@", "plain@"), schema=f"s_{tmp_path.name}", broker_id=1
    )
    async with ledger.database.connection() as connection:
        told = await server_of(connection)
    assert (told.system, told.timeline) == (None, 0)
    assert len(told.terms) == 1
    await ledger.close()


HERE = Server("a", 2, False, "today", ("t1", "t2"))


@pytest.mark.parametrize(
    ("seen", "server", "why"),
    [
        (Seen(), HERE, None),
        (Seen("a", 2, "t2", 2), HERE, None),
        (Seen("a", 1, "t1", 1), HERE, None),
        (Seen(), HERE._replace(is_standby=True, timeline=0), None),
        (Seen("b", 2, "t2", 2), HERE, "another database system"),
        (Seen("a", 3, "t2", 2), HERE, "timeline 2, not 3"),
        (Seen("a", 2, "t3", 3), HERE, "does not know the term t3"),
        (Seen("a", 2, "t2", 2), HERE._replace(is_standby=True), "a standby"),
        # A service that tells neither.
        (Seen("a", 2, "t2", 2), HERE._replace(system=None, timeline=0), None),
        (Seen(None, 0, "t3", 3), HERE._replace(system=None, timeline=0), "does not know the term t3"),
    ],
)
def test_which_servers_are_refused(seen: Seen, server: Server, why: str | None) -> None:
    found = why_refused(seen, server)
    assert found is None if why is None else why in str(found)
