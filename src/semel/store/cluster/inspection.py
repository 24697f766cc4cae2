"""Inspect a cluster through its ledger, and ask brokers to give their shards away.

Used by ``semel cluster``. Nothing here creates tables or takes a place among the brokers.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, NamedTuple

import asyncpg

from semel.store.cluster.membership import LEASE_RUNS
from semel.store.cluster.postgres.database import ConnectionLost, confirmed
from semel.store.cluster.postgres.opening import CONNECT_SECONDS
from semel.store.cluster.postgres.reaching import connect
from semel.store.cluster.postgres.sessions import UNSAFE
from semel.store.cluster.postgres.snapshots import Snapshots, look
from semel.store.contract import StoreMisconfigured, StoreRefused

POLL_SECONDS: Final = 0.2

LIVE, DRAINING, DEAD, GONE = "live", "draining", "dead", "gone"
"""States of a broker. *Draining* brokers live and give their shards away; *dead* ones did not renew their
lease and wait to be replaced; *gone* ones have left or were replaced."""

_STATE: Final = f"""
    CASE WHEN NOT is_member THEN 'gone' WHEN NOT ({LEASE_RUNS}) THEN 'dead'
    WHEN is_leaving THEN 'draining' ELSE 'live' END
"""


class BrokerStatus(NamedTuple):
    """A broker, as the ledger knows it."""

    broker_id: int
    state: str
    shards: int
    lease_ms: int
    """How long its lease runs, by the clock of PostgreSQL; 0 if it is over."""
    epoch: int
    commits: int
    notices: int
    """Notices that other brokers wrote to the ledger for it, because they could not reach it."""
    endpoints: Mapping[str, tuple[str, int]]
    internal: tuple[str, int]
    rack: str | None


class BytesStatus(NamedTuple):
    """Where the bytes of batches are."""

    objects: int
    object_bytes: int
    unused_objects: int
    """Objects that are not needed any more, and not deleted yet."""
    unused_bytes: int
    inline_chunks: int
    """Small commits whose bytes are still in PostgreSQL."""
    inline_bytes: int
    inline_since_ms: int | None
    """How long some of them have waited to be moved to an object; None if there are none."""


class TableStatus(NamedTuple):
    """A table of the ledger. PostgreSQL estimates the rows."""

    name: str
    rows: int
    size_bytes: int


class ClusterStatus(NamedTuple):
    """A cluster, as one snapshot of its ledger shows it."""

    cluster_id: str
    term: int | None
    """None after a crash of PostgreSQL, until a broker begins the next term."""
    server_version: str
    unsafe: Sequence[str]
    """Settings of PostgreSQL that endanger durability."""
    shards: int
    unowned_shards: int
    brokers: Sequence[BrokerStatus]
    bytes: BytesStatus
    snapshots: Snapshots
    """Who, apart from brokers, keeps PostgreSQL from removing old versions of rows."""
    tables: Sequence[TableStatus]


async def cluster_status(dsn: str, schema: str) -> ClusterStatus:
    """Return the state of a cluster. StoreMisconfigured if there is none, StoreRefused."""
    async with (
        connected(dsn, schema) as connection,
        connection.transaction(isolation="repeatable_read", readonly=True),
    ):
        return ClusterStatus(
            cluster_id=await connection.fetchval("SELECT value FROM meta WHERE name = 'cluster_id'"),
            term=await connection.fetchval("SELECT term FROM term"),
            server_version=await connection.fetchval("SHOW server_version"),
            unsafe=[name for (name,) in await connection.fetch(UNSAFE)],
            shards=await connection.fetchval("SELECT count(*) FROM shards"),
            unowned_shards=await connection.fetchval("SELECT count(*) FROM shards WHERE owner IS NULL"),
            brokers=[_broker(row) for row in await connection.fetch(_BROKERS)],
            bytes=BytesStatus._make(await connection.fetchrow(_BYTES)),
            snapshots=await look(connection),
            tables=[TableStatus._make(row) for row in await connection.fetch(_TABLES, schema)],
        )


async def set_draining(dsn: str, schema: str, broker_id: int, is_leaving: bool) -> None:
    """Ask a broker to give its shards away and take no others, or to take shards again.

    The broker learns of it at its next renewal. StoreRefused if it does not run, or no other broker can take
    its shards.
    """
    async with connected(dsn, schema) as connection, connection.transaction():
        rows = await connection.fetch(
            f"SELECT broker_id, {_STATE} FROM brokers ORDER BY broker_id FOR UPDATE"
        )
        states: dict[int, str] = dict(rows)
        if states.get(broker_id) not in (LIVE, DRAINING):
            known = ", ".join(str(each) for each, state in states.items() if state in (LIVE, DRAINING))
            raise StoreRefused(f"broker {broker_id} does not run; those that run: {known or 'none'}")
        others = [each for each, state in states.items() if state == LIVE and each != broker_id]
        if is_leaving and not others:
            raise StoreRefused(f"no other broker can take the shards of broker {broker_id}")
        await connection.execute(
            "UPDATE brokers SET is_leaving = $2 WHERE broker_id = $1", broker_id, is_leaving
        )


async def shards_left(dsn: str, schema: str, broker_id: int) -> AsyncIterator[int]:
    """Poll and yield how many shards a broker owns, until none. StoreRefused if it stops draining."""
    async with connected(dsn, schema) as connection:
        while True:
            shards, state = await connection.fetchrow(
                f"""
                SELECT (SELECT count(*) FROM shards WHERE owner = broker_id), {_STATE}
                FROM brokers WHERE broker_id = $1
                """,
                broker_id,
            )
            if state == LIVE:
                raise StoreRefused(f"broker {broker_id} takes shards again: it was restarted or undrained")
            yield shards
            if not shards:
                return
            await asyncio.sleep(POLL_SECONDS)


@asynccontextmanager
async def connected(dsn: str, schema: str) -> AsyncIterator[Any]:
    """Connect to the ledger of a cluster. StoreMisconfigured if there is none, StoreRefused."""
    connection = await connect(dsn, schema, "semel cluster")
    try:
        if await connection.fetchval("SELECT to_regclass('meta') IS NULL"):
            raise StoreMisconfigured(
                "there is no cluster in this database: the first 'semel serve' makes one"
            )
        with confirmed(connection):
            yield connection
        await connection.close(timeout=CONNECT_SECONDS)
    except ConnectionLost as error:
        raise StoreRefused(f"{error}. It may be lost by a failover: look whether it has happened") from error
    except TimeoutError as error:
        raise StoreRefused(
            "PostgreSQL has not answered a query in time: it is overloaded, or another session holds a lock"
            " (pg_stat_activity shows both). Try again"
        ) from error
    except (OSError, asyncpg.PostgresConnectionError, asyncpg.InterfaceError) as error:
        raise StoreRefused(f"the connection to PostgreSQL was lost: {error}. Try again") from error
    except asyncpg.PostgresError as error:
        raise StoreRefused(f"PostgreSQL refuses: {error}") from error
    finally:
        # A silent server would not answer a graceful close either.
        connection.terminate()


def _broker(row: Any) -> BrokerStatus:
    *numbers, endpoints, internal, rack = row
    addresses = {name: (host, port) for name, (host, port) in json.loads(endpoints).items()}
    host, port = json.loads(internal)
    return BrokerStatus._make((*numbers, addresses, (host, port), rack))


_BROKERS: Final = f"""
    SELECT broker_id, {_STATE}, (SELECT count(*) FROM shards WHERE owner = broker_id),
        CASE WHEN {LEASE_RUNS}
            THEN greatest(0, extract(epoch FROM lease_until - clock_timestamp()) * 1000)::bigint ELSE 0 END,
        epoch, last_commit(broker_id), (SELECT count(*) FROM notices WHERE to_broker = broker_id),
        endpoints, internal, rack
    FROM brokers ORDER BY broker_id
"""
_BYTES: Final = """
    SELECT stored.*, unused.*, inline.*, CASE WHEN inline.count > 0 THEN waiting END
    FROM
        (SELECT count(*), coalesce(sum(size_bytes), 0)::bigint FROM objects WHERE state = 'stored') AS stored,
        (
            SELECT count(*), coalesce(sum(size_bytes), 0)::bigint FROM objects
            WHERE state IN ('unused', 'deleting')
        ) AS unused,
        (SELECT count(*), coalesce(sum(octet_length(bytes)), 0)::bigint FROM inline_bytes) AS inline,
        (
            SELECT (extract(epoch FROM clock_timestamp() - since) * 1000)::bigint AS waiting
            FROM inline_generation
        ) AS generation
"""
_TABLES: Final = """
    SELECT relname, n_live_tup, pg_total_relation_size(relid) FROM pg_stat_user_tables
    WHERE schemaname = $1 ORDER BY relname
"""
