"""An older copy of the PostgreSQL server takes its place, in the same term. That is told, not hidden."""

import asyncio
import shutil
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from support.servers.postgres import PostgresServer, postgres_server, why_not

from semel.core.facts import Put
from semel.core.types import Transaction
from semel.store.cluster.bytes.objects import Objects
from semel.store.cluster.contract import TermEnded
from semel.store.cluster.store import ClusterStore
from semel.store.contract import StoreDamaged

PATIENCE = 30.0
LOST = "PostgreSQL has lost commits that it had confirmed"


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    if (reason := why_not()) is not None:
        pytest.skip(reason)
    with postgres_server() as server:
        yield server


@asynccontextmanager
async def opened(dsn: str, tmp_path: Path) -> AsyncIterator[ClusterStore]:
    store = await ClusterStore.open(
        dsn, Objects.open(tmp_path.as_uri()), schema=f"s_{tmp_path.name}", lease_seconds=60
    )
    try:
        yield store
    finally:
        await store.close()


def of_id(name: str) -> Put:
    return Put.of(Transaction(name, 0, 0, 1))


def restore(server: PostgresServer, copy: Path) -> None:
    server.stop()
    shutil.rmtree(server.data)
    copy.rename(server.data)
    server.start()


async def test_a_server_that_was_replaced_by_an_older_copy_is_refused_at_once(
    server: PostgresServer, tmp_path: Path
) -> None:
    """Nothing is committed, and nothing is read from it either."""
    async with opened(server.dsn, tmp_path) as store:
        await store.commit([of_id("kept")], [])
        server.stop()
        copy = server.data.with_name("copy")
        subprocess.run(["cp", "-a", server.data, copy], check=True)  # noqa: ASYNC221  with its owner
        await asyncio.to_thread(server.start)
        await store.ledger.database.value("SELECT 1")
        await store.commit([of_id("acknowledged")], [])
        await asyncio.to_thread(restore, server, copy)
        with pytest.raises(StoreDamaged, match=LOST):
            await asyncio.wait_for(store.ledger.database.value("SELECT 1"), PATIENCE)
        with pytest.raises(StoreDamaged, match=LOST):
            await asyncio.wait_for(store.commit([of_id("refused")], []), PATIENCE)


@pytest.mark.parametrize("defers_sync", [False, True])
async def test_a_commit_does_not_follow_an_older_one(
    postgres_dsn: str, tmp_path: Path, defers_sync: bool
) -> None:
    """No connection is new, as behind a proxy. Commits without a flush count too, as long as the term."""
    async with opened(postgres_dsn, tmp_path) as store:
        await store.commit([of_id("kept")], [])
        await store.commit([of_id("acknowledged")], [], defers_sync=defers_sync)
        await store.ledger.database.row("UPDATE commits SET sequence = sequence - 1")
        with pytest.raises(StoreDamaged, match=LOST):
            await store.commit([of_id("refused")], [])
        assert [each.transactional_id for each in await store.ledger.transactions()] == [
            "acknowledged",
            "kept",
        ]


async def test_numbers_go_on_when_a_term_has_taken_commits_with_it(postgres_dsn: str, tmp_path: Path) -> None:
    """As a crash does: the term is gone, and the last commit, which was not flushed."""
    async with opened(postgres_dsn, tmp_path) as store:
        number = await store.commit([of_id("unsynced")], [], defers_sync=True)
        await store.ledger.database.row("UPDATE commits SET sequence = sequence - 1")
        await store.ledger.database.row("DELETE FROM term")
        with pytest.raises(TermEnded):
            await store.commit([of_id("refused")], [])
        assert await store.commit([of_id("after")], []) == number + 1
