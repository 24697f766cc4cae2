"""Schemas of ledgers in PostgreSQL, which tests reuse one after another: creating one takes longer."""

import asyncio
import contextlib
import functools
import os
from collections.abc import Iterator

import asyncpg

from semel.store.cluster.postgres.opening import open_database

KEEP = """
DO $$
DECLARE
    name text;
BEGIN
    CREATE SCHEMA kept_{schema};
    CREATE TABLE kept_{schema}.sequences (name text, last_value bigint, is_called boolean);
    FOR name IN SELECT relname FROM pg_class WHERE relnamespace = '{schema}'::regnamespace AND relkind = 'r'
        AND pg_relation_size(oid) > 0
    LOOP
        EXECUTE format('CREATE TABLE kept_{schema}.%I AS TABLE {schema}.%I', name, name);
    END LOOP;
    FOR name IN SELECT relname FROM pg_class WHERE relnamespace = '{schema}'::regnamespace AND relkind = 'S'
    LOOP
        EXECUTE format(
            'INSERT INTO kept_{schema}.sequences SELECT %L, last_value, is_called FROM {schema}.%I',
            name, name
        );
    END LOOP;
END $$
"""
CLEAN = """
DO $$
DECLARE
    name text;
BEGIN
    SET LOCAL lock_timeout = '5s';
    SET LOCAL session_replication_role = replica;
    SET LOCAL synchronous_commit = off;
    SELECT string_agg(format('{schema}.%I', relname), ', ') INTO name FROM pg_class
    WHERE relnamespace = '{schema}'::regnamespace AND relkind = 'r' AND pg_relation_size(oid) > 0;
    EXECUTE 'TRUNCATE ' || name || ' CASCADE';
    FOR name IN SELECT relname FROM pg_class WHERE relnamespace = 'kept_{schema}'::regnamespace
        AND relkind = 'r' AND relname <> 'sequences'
    LOOP
        EXECUTE format(
            'INSERT INTO {schema}.%I OVERRIDING SYSTEM VALUE SELECT * FROM kept_{schema}.%I', name, name
        );
    END LOOP;
    PERFORM setval(format('{schema}.%I', each.name), each.last_value, each.is_called)
    FROM kept_{schema}.sequences AS each;
    UPDATE {schema}.meta AS meta SET value = gen_random_uuid() WHERE meta.name IN ('cluster_id', 'folder');
END $$
"""


class Schemas:
    """The schemas of one database. A test may change all rows, but no tables."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._free: list[str] = []

    @contextlib.contextmanager
    def taken(self) -> Iterator[str]:
        """Lend a schema in the state of a new ledger."""
        schema = asyncio.run(self._take())
        yield schema
        self._free.append(schema)

    async def _take(self) -> str:
        connection = await asyncpg.connect(self._dsn)
        try:
            while self._free:
                schema = self._free.pop()
                # A session that a test has left open may still hold locks. Then the schema is not reused.
                with contextlib.suppress(asyncpg.PostgresError):
                    await connection.execute(CLEAN.format(schema=schema))
                    return schema
            schema = f"test_{os.urandom(8).hex()}"
            await (await open_database(self._dsn, schema, 1)).close()
            await connection.execute(KEEP.format(schema=schema))
            return schema
        finally:
            await connection.close()


@functools.cache
def schemas(dsn: str) -> Schemas:
    """Return the schemas of a database, for all tests of this process."""
    return Schemas(dsn)
