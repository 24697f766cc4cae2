"""Open a ledger in PostgreSQL: connect, check that the server can hold it, create or upgrade the tables."""

import logging
import secrets
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Final

import asyncpg

from semel.store.cluster.postgres.database import ConnectionLost, Database, patiently
from semel.store.cluster.postgres.servers import Servers
from semel.store.contract import StoreBroken, StoreDamaged, StoreMisconfigured, StoreRefused

SCHEMA_VERSION: Final = 1
_UPGRADES: Final[Mapping[int, str]] = {}
"""SQL that upgrades each version to the next. As for a directory, there is none until 0.1.0."""
SERVER_VERSION_MIN: Final = 140_000
CONNECT_SECONDS: Final = 10.0
COMMAND_SECONDS: Final = 20.0
"""A server that is silent for so long is taken for lost."""
SESSION: Final = {
    "application_name": "semel",
    # The warning that a commit was not confirmed must arrive (database.confirmed).
    "client_min_messages": "warning",
    # A broker that sleeps in a transaction must not keep others waiting.
    "idle_in_transaction_session_timeout": "3s",
    # Longer than the timeout above, so that a lock comes free in time.
    "lock_timeout": "5s",
    "statement_timeout": "15s",
    # Everything is looked up by key. A session keeps plans, and one that was made when a table was small must
    # not scan the table after it has grown.
    "enable_seqscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    # Nor may a plan read all old versions of a row (generation in schema.sql), because the index looks too
    # large for its few rows.
    "enable_bitmapscan": "off",
    "enable_sort": "off",
    # Tables without an index are small, but with the settings above the planner takes them for expensive.
    "jit": "off",
    # So that the server ends the sessions of brokers that are gone.
    "tcp_keepalives_idle": "5",
    "tcp_keepalives_interval": "2",
    "tcp_keepalives_count": "3",
}
_HERE: Final = Path(__file__).parent
# The pool logs a traceback whenever it cannot connect. The caller that needs the connection reports that.
logging.getLogger("asyncpg.pool").setLevel(logging.ERROR)
_LOCK: Final = 0x53454D454C
"""An advisory lock around the creation of tables: several brokers may start at once."""


LOST_BASICS: Final = """
    SELECT 'meta ' || name FROM unnest(ARRAY['schema_version', 'cluster_id', 'secret', 'folder']) AS name
    WHERE NOT EXISTS (SELECT FROM meta WHERE meta.name = name.name)
    UNION ALL SELECT 'cluster' WHERE NOT EXISTS (SELECT FROM cluster)
    UNION ALL SELECT 'numbering' WHERE NOT EXISTS (SELECT FROM numbering)
    UNION ALL SELECT 'inline_generation' WHERE NOT EXISTS (SELECT FROM inline_generation)
    UNION ALL
    SELECT 'terms ' || term FROM term WHERE NOT EXISTS (SELECT FROM terms WHERE terms.term = term.term)
    UNION ALL SELECT 'commits of broker ' || broker_id FROM brokers WHERE last_commit(broker_id) IS NULL
"""
"""Returns those rows that every ledger must have and that are lost."""


async def open_database(
    dsn: str, schema: str, connections_max: int, unsafe: Collection[str] | None = None
) -> Database:
    """Connect to a ledger, and create its tables if there are none. StoreBroken, StoreDamaged.

    ``unsafe`` are settings of the server that may endanger durability (``servers``). None allows all.
    """
    try:
        servers = Servers(dsn, unsafe)
        pool = await patiently(lambda: _connect(servers, dsn, schema, connections_max), CONNECT_SECONDS)
    except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, StoreRefused) as error:
        raise StoreBroken(f"PostgreSQL cannot be reached: {_explained(error)}") from error
    except ValueError:
        # The message of such an error has parts of the address, perhaps of the password.
        raise StoreBroken(
            "the address of the ledger is not that of a PostgreSQL database, as in"
            " postgresql://user@host:5432/database: special characters in a password must be percent-encoded"
        ) from None
    try:
        async with pool.acquire() as connection:
            await _prepare(connection, schema)
    except asyncpg.PostgresError as error:
        await pool.close()
        # The user lacks rights, or the schema has tables of another application.
        kind = StoreMisconfigured if isinstance(error, asyncpg.SyntaxOrAccessError) else StoreBroken
        raise kind(f"the tables of the ledger cannot be made or read: {error}") from error
    except BaseException:
        await pool.close()
        raise
    return Database(pool, servers)


async def _connect(servers: Servers, dsn: str, schema: str, connections_max: int) -> asyncpg.Pool:
    try:
        return await asyncpg.create_pool(
            dsn,
            min_size=1,
            max_size=connections_max,
            timeout=CONNECT_SECONDS,
            command_timeout=COMMAND_SECONDS,
            connect=servers.connect,
            reset=_leave,
            server_settings={"search_path": f'"{schema}"', **SESSION},
        )
    except (
        TimeoutError,
        asyncpg.TooManyConnectionsError,
        asyncpg.CannotConnectNowError,
        asyncpg.TargetServerAttributeNotMatched,
    ) as error:
        raise ConnectionLost(str(error) or "no answer in time") from error


def _explained(error: Exception) -> str:
    if isinstance(error, asyncpg.InvalidAuthorizationSpecificationError):
        return f"{error}. Check the user and the password: in the address, PGPASSWORD or ~/.pgpass"
    return str(error)


async def _leave(connection: Any) -> None:
    """Reset nothing: no statement changes the session, and resetting it would take a round trip."""


async def _prepare(connection: Any, schema: str) -> None:
    """Check the server, and create or upgrade the tables."""
    version = int(await connection.fetchval("SHOW server_version_num"))
    if version < SERVER_VERSION_MIN:
        raise StoreMisconfigured(f"PostgreSQL {version // 10_000} is too old: at least 14 is needed")
    encoding = await connection.fetchval("SHOW server_encoding")
    if encoding != "UTF8":
        raise StoreMisconfigured(f"the database has the encoding {encoding}: create one with UTF8")
    if await connection.fetchval("SELECT pg_is_in_recovery()"):
        raise StoreBroken("this server is a standby, which cannot be written to: connect to the primary")
    if await connection.fetchval("SHOW default_transaction_read_only") == "on":
        raise StoreBroken(
            "PostgreSQL allows no writes (default_transaction_read_only is on): allow them for this user or"
            " database. Some services set it when their disk is almost full"
        )
    async with connection.transaction():
        # Wait for another broker that is creating the tables.
        await connection.execute("SET LOCAL lock_timeout = 0")
        await connection.execute("SELECT pg_advisory_xact_lock($1)", _LOCK)
        if await connection.fetchval("SELECT to_regclass('meta') IS NULL"):
            await _make_tables(connection, schema)
        found = await connection.fetchval("SELECT value FROM meta WHERE name = 'schema_version'")
        if found in map(str, _UPGRADES):
            await _upgrade(connection, int(found))
        elif found not in (None, str(SCHEMA_VERSION)):
            raise StoreDamaged(
                f"the ledger has schema version {found}, and this Semel knows version {SCHEMA_VERSION}: use"
                " the Semel that wrote it, which is newer than this one or older than the first release"
            )
        if lost := await connection.fetch(LOST_BASICS):
            names = ", ".join(name for (name,) in lost)
            raise StoreDamaged(f"the ledger has lost rows that no broker can do without: {names}. Restore it")


async def _upgrade(connection: Any, found: int) -> None:
    """Upgrade an older schema. StoreMisconfigured if brokers run, because they need the older one."""
    if await connection.fetchval(
        "SELECT EXISTS (SELECT FROM brokers WHERE is_member AND lease_until > clock_timestamp())"
    ):
        raise StoreMisconfigured(
            f"the ledger has schema version {found}, and brokers that need it are running: stop all of them,"
            f" and start them again with this Semel, which makes it version {SCHEMA_VERSION}"
        )
    for version in range(found, SCHEMA_VERSION):
        await connection.execute(_UPGRADES[version])
    await connection.execute("UPDATE meta SET value = $1 WHERE name = 'schema_version'", str(SCHEMA_VERSION))


_TABLES: Final = (
    *("schema.sql", "chunks.sql", "numbering.sql", "versions.sql", "shares.sql", "locking.sql"),
    *("writing.sql", "functions.sql", "replacing.sql", "fencing.sql", "membership.sql", "terms.sql"),
    *("views.sql", "references.sql"),
)


async def _make_tables(connection: Any, schema: str) -> None:
    # A user who may create tables in an existing schema need not be allowed to create a schema.
    if not await connection.fetchval("SELECT EXISTS (SELECT FROM pg_namespace WHERE nspname = $1)", schema):
        await connection.execute(f'CREATE SCHEMA "{schema}"')
    for name in _TABLES:
        await connection.execute((_HERE / name).read_text(encoding="utf-8"))
    await connection.execute(
        """
        INSERT INTO meta
        VALUES ('schema_version', $1), ('cluster_id', gen_random_uuid()), ('secret', $2),
            ('folder', gen_random_uuid())
        """,
        str(SCHEMA_VERSION),
        secrets.token_hex(32),
    )
