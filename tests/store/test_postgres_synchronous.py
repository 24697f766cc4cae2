"""Commits wait for a synchronous standby. One whose wait is cancelled is not acknowledged."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import pytest
from support.servers.failover import Pair, cancel_one, pair, waits_again

from semel.core.facts import Put
from semel.core.types import Transaction, TransactionKey
from semel.store.cluster.ledger import PostgresLedger

PATIENCE = 30.0
KEY = TransactionKey("t")


@pytest.fixture(scope="module")
def servers() -> Iterator[Pair]:
    with pair() as servers:
        yield servers


@asynccontextmanager
async def opened(servers: Pair) -> AsyncIterator[tuple[PostgresLedger, Any]]:
    """A ledger, and a session of an administrator."""
    watching: Any = await asyncpg.connect(servers.primary.dsn)
    ledger = await PostgresLedger.open(servers.primary.dsn)
    try:
        yield ledger, watching
    finally:
        await ledger.close()
        await watching.close()


def changed(producer_id: int) -> Put:
    return Put.of(Transaction("t", producer_id, 0, 1))


@pytest.mark.parametrize("locks", [False, True])
async def test_a_commit_whose_wait_is_cancelled_is_not_acknowledged(servers: Pair, locks: bool) -> None:
    async with opened(servers) as (ledger, watching):
        last = ledger.place.sequence
        servers.standby.stop()
        ((_, version),) = await ledger.load_versioned([KEY], locks=locks)
        committed = asyncio.create_task(ledger.commit([changed(last + 1)], [], expected={KEY: version}))
        await waits_again(watching, await cancel_one(watching), committed)
        await asyncio.to_thread(servers.standby.start)
        assert await asyncio.wait_for(committed, PATIENCE) == last + 1
        assert await ledger.load([KEY]) == [Transaction("t", last + 1, 0, 1)]


async def test_a_reader_whose_flush_is_cancelled_returns_nothing(servers: Pair, scribe: Any) -> None:
    """What it saw was committed without a flush, and may not be at the standby."""
    async with opened(servers) as (ledger, watching):
        (key,) = await scribe.create(ledger)
        servers.standby.stop()
        fact, location = scribe.append(key)
        await ledger.commit([fact, *scribe.changed()], [location], defers_sync=True)
        loaded = asyncio.create_task(ledger.load([key]))
        await waits_again(watching, await cancel_one(watching), loaded)
        await asyncio.to_thread(servers.standby.start)
        assert await asyncio.wait_for(loaded, PATIENCE) == [scribe.partitions[key]]
