"""Two PostgreSQL servers, one of them the synchronous standby of the other."""

import asyncio
import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from support.servers.directories import server_directory
from support.servers.postgres import PostgresServer, binaries, why_not
from support.waiting import until, until_async

END_HALF = """
    SELECT count(pg_terminate_backend(pid)) FROM (
        SELECT pid, row_number() OVER () AS number FROM pg_stat_activity WHERE application_name = 'semel'
    ) AS each WHERE number % 2 = 0
"""
"""Ends every second session of brokers."""


class Pair:
    """A primary and its standby. Commits wait for the standby while it is configured."""

    def __init__(self, directory: Path) -> None:
        found = binaries()
        assert found is not None
        self.primary = _server(directory / "one", found)
        self.standby = _server(directory / "two", found)

    def start(self) -> None:
        self.primary.create()
        self.standby.copy(self.primary)
        _configure(self.primary, "synchronous_standby_names = '*'")
        self.primary.start()
        self.standby.start()

    def promote(self) -> None:
        """Promote the standby; the new primary waits for no standby."""
        assert execute(self.standby.dsn, "SELECT pg_promote()") is True

    def be_alone(self) -> None:
        """Stop the primary from waiting for a standby."""
        _configure(self.primary, "")
        execute(self.primary.dsn, "SELECT pg_reload_conf()")

    def return_alone(self) -> None:
        """Start the old primary again, as if nothing had happened; it waits for no standby."""
        _configure(self.primary, "")
        self.primary.start()

    def fail_over(self) -> None:
        """Crash the primary and promote the standby."""
        self.primary.stop(mode="immediate")
        self.promote()

    def rejoin(self) -> None:
        """Make the old primary the synchronous standby of the new one, after a failover."""
        self.primary.stop(mode="immediate")
        self.primary, self.standby = self.standby, self.primary
        self.standby.follow(self.primary)
        _configure(self.standby, "")
        self.standby.start()
        _configure(self.primary, "synchronous_standby_names = '*'")
        execute(self.primary.dsn, "SELECT pg_reload_conf()")
        until(lambda: execute(self.primary.dsn, _SYNCHRONOUS), what="a synchronous standby")

    def address(self, *, old_first: bool = True) -> str:
        """Return an address with both servers."""
        servers = [self.primary, self.standby] if old_first else [self.standby, self.primary]
        hosts = ",".join(f"127.0.0.1:{each.port}" for each in servers)
        return f"postgresql://semel@{hosts}/postgres?target_session_attrs=read-write"

    def stop(self) -> None:
        for each in (self.primary, self.standby):
            each.stop(mode="immediate")


_SYNCHRONOUS = "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'"


def _configure(server: PostgresServer, settings: str) -> None:
    (server.data / "postgresql.auto.conf").write_text(settings)


def _server(directory: Path, found: Path) -> PostgresServer:
    directory.mkdir()
    directory.chmod(0o755)
    return PostgresServer(directory, found, {"max_connections": "100"})


def execute(dsn: str, statement: str) -> Any:
    """Return the first value of a statement's result."""

    async def ask() -> Any:
        connection = await asyncpg.connect(dsn, timeout=10)
        try:
            return await connection.fetchval(statement)
        finally:
            await connection.close()

    return asyncio.run(ask())


async def cancel_one(session: Any) -> Any:
    """Cancel a query that waits for the standby, as an administrator; return when the query began."""

    async def wait() -> Any:
        return await session.fetchrow(
            "SELECT pid, query_start FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
        )

    pid, begun = await until_async(wait, what="a wait for the standby")
    await session.execute(f"SELECT pg_cancel_backend({pid})")
    return begun


async def waits_again(session: Any, begun: Any, task: asyncio.Task[Any]) -> None:
    """Wait until a query that began later also waits for the standby."""

    async def waits() -> bool:
        return task.done() or await session.fetchval(
            "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND query_start > $1)",
            begun,
        )

    await until_async(waits, what="another wait, or an end")
    assert not task.done(), task.result()


@contextlib.contextmanager
def pair() -> Iterator[Pair]:
    """Run two servers. Skip the test if PostgreSQL cannot run here."""
    if (reason := why_not()) is not None:
        pytest.skip(reason)
    directory = server_directory("pair")
    servers = Pair(directory)
    try:
        servers.start()
        yield servers
    finally:
        servers.stop()
        shutil.rmtree(directory, ignore_errors=True)
