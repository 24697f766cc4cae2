"""Open a ledger in PostgreSQL: connect, check that the server can hold it, make the tables or find them."""

from pathlib import Path
from typing import Any, Final

import asyncpg  # type: ignore[import-untyped]

from semel.store.interface import StoreBroken, StoreDamaged
from semel.store.postgres.database import Database

SCHEMA_VERSION: Final = 1
SERVER_VERSION_MIN: Final = 140_000
CONNECT_SECONDS: Final = 10.0
COMMAND_SECONDS: Final = 30.0
"""A server that is silent for so long is taken for lost."""
_HERE: Final = Path(__file__).parent
_LOCK: Final = 0x53454D454C
"""An advisory lock for those who make the tables: several brokers may start at once."""


async def open_database(dsn: str, schema: str, connections_max: int) -> Database:
    """Connect to a ledger, whose tables are made if there are none. StoreBroken, StoreDamaged."""
    try:
        pool = await asyncpg.create_pool(
            dsn,
            min_size=1,
            max_size=connections_max,
            timeout=CONNECT_SECONDS,
            command_timeout=COMMAND_SECONDS,
            reset=_leave,
            server_settings={"search_path": f'"{schema}"', "application_name": "semel"},
        )
    except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
        raise StoreBroken(f"PostgreSQL cannot be reached: {error}") from error
    try:
        async with pool.acquire() as connection:
            await _prepare(connection, schema)
    except BaseException:
        await pool.close()
        raise
    return Database(pool)


async def _leave(connection: Any) -> None:
    """Give a connection back as it is: nothing changes its session, and resetting it takes a round trip."""


async def _prepare(connection: Any, schema: str) -> None:
    """Check the server, and make the tables if there are none."""
    version = int(await connection.fetchval("SHOW server_version_num"))
    if version < SERVER_VERSION_MIN:
        raise StoreBroken(f"PostgreSQL {version // 10_000} is too old: at least 14 is needed")
    encoding = await connection.fetchval("SHOW server_encoding")
    if encoding != "UTF8":
        raise StoreBroken(f"the database has the encoding {encoding}: create one with UTF8")
    if await connection.fetchval("SELECT pg_is_in_recovery()"):
        raise StoreBroken("this server is a standby, which cannot be written to: connect to the primary")
    async with connection.transaction():
        await connection.execute("SELECT pg_advisory_xact_lock($1)", _LOCK)
        if await connection.fetchval("SELECT to_regclass('meta') IS NULL"):
            await connection.execute(f'CREATE SCHEMA IF NOT EXISTS "{schema}"')
            for name in ("schema.sql", "chunks.sql", "functions.sql"):
                await connection.execute((_HERE / name).read_text(encoding="utf-8"))
            await connection.execute(
                "INSERT INTO meta VALUES ('schema_version', $1), ('cluster_id', gen_random_uuid())",
                str(SCHEMA_VERSION),
            )
        found = await connection.fetchval("SELECT value FROM meta WHERE name = 'schema_version'")
    if found != str(SCHEMA_VERSION):
        raise StoreDamaged(
            f"the ledger has schema version {found}, and this Semel knows version {SCHEMA_VERSION}:"
            " start it with the newer Semel"
        )
