"""Who holds an old snapshot in PostgreSQL, as `semel cluster status` and the metrics of brokers tell."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import pytest
from support.servers.postgres import postgres_server

from semel.store.cluster.ledger import PostgresLedger
from semel.store.cluster.postgres import snapshots
from semel.store.cluster.postgres.snapshots import SnapshotWatch, look


@asynccontextmanager
async def connected(dsn: str, **settings: str) -> AsyncIterator[Any]:
    connection: Any = await asyncpg.connect(dsn, server_settings=settings)
    try:
        yield connection
    finally:
        await connection.close()


@asynccontextmanager
async def holding(dsn: str) -> AsyncIterator[Any]:
    """Somebody reads a report."""
    async with connected(dsn, application_name="report") as connection:
        await connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT")
        yield connection


async def database(postgres_dsn: str) -> str:
    """A database of its own: snapshots elsewhere do not matter."""
    name = f"test_{os.urandom(8).hex()}"
    async with connected(postgres_dsn) as connection:
        await connection.execute(f"CREATE DATABASE {name}")
    return postgres_dsn.rpartition("/")[0] + f"/{name}"


async def test_the_oldest_snapshot_is_named(postgres_dsn: str) -> None:
    dsn = await database(postgres_dsn)
    async with connected(dsn) as connection, holding(postgres_dsn):
        assert await look(connection) == (None, 0)
        async with holding(dsn) as holder, holding(dsn):
            for _ in range(3):
                await connection.execute("SELECT pg_current_xact_id()")
            oldest, hidden = await look(connection)
            assert oldest is not None
            assert (oldest.holder, oldest.name, oldest.user) == ("session", "report", "semel")
            assert oldest.pid == holder.get_server_pid()
            assert oldest.seconds is not None
            assert oldest.seconds > 0
            assert oldest.transactions >= 3
            assert hidden == 0
            assert str(oldest).startswith(f"session 'report' with pid {oldest.pid} of user semel, since ")
        assert (await look(connection)).oldest is None


async def test_a_user_without_the_right_is_told_what_is_hidden(postgres_dsn: str) -> None:
    dsn = await database(postgres_dsn)
    role = f"test_{os.urandom(8).hex()}"
    async with connected(dsn) as admin, holding(dsn):
        await admin.execute(f"CREATE ROLE {role} LOGIN")
        async with connected(dsn.replace("semel@", f"{role}@")) as connection:
            assert await look(connection) == (None, 2)
            await admin.execute(f"GRANT pg_read_all_stats TO {role}")
            oldest, hidden = await look(connection)
            assert oldest is not None
            assert hidden == 0
        await admin.execute(f"DROP ROLE {role}")


async def test_a_broker_knows_and_warns(
    postgres_dsn: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    dsn = await database(postgres_dsn)
    ledger = await PostgresLedger.open(dsn)
    watch = SnapshotWatch(ledger.database)
    await watch.look_once()
    assert watch.age == (0.0, 0, "")
    async with holding(dsn):
        await ledger.database.value("SELECT pg_current_xact_id()")
        await watch.look_once()
        assert watch.age.seconds > 0
        assert watch.age.transactions >= 1
        assert watch.age.holder == "session 'report' of user semel"
        assert not caplog.messages
        monkeypatch.setattr(snapshots, "WARN_SECONDS", 0.0)
        await watch.look_once()
        assert "a snapshot is held for long: session 'report'" in caplog.text
    await ledger.close()


async def test_a_slot_and_its_transactions(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """How long a replication slot or a standby has held it is not known, only for how many transactions."""
    with postgres_server(wal_level="logical") as server:
        ledger = await PostgresLedger.open(server.dsn)
        watch = SnapshotWatch(ledger.database)
        async with connected(server.dsn) as connection:
            await connection.execute("SELECT pg_create_logical_replication_slot('cdc', 'pgoutput')")
            for _ in range(10):
                await connection.execute("SELECT pg_current_xact_id()")
        await watch.look_once()
        assert watch.age.seconds == 0
        assert watch.age.transactions >= 10
        assert watch.age.holder == "replication slot 'cdc'"
        assert not caplog.messages
        monkeypatch.setattr(snapshots, "WARN_TRANSACTIONS", 10)
        for _ in range(2):
            await watch.look_once()
        (message,) = caplog.messages
        assert "a snapshot is held for long: replication slot 'cdc', since 1" in message
        await ledger.close()
