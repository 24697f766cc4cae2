"""Make a cluster from the data directory of a stopped broker.

The copy is made in a separate schema, ``semel_migration``, with separate objects. When everything was copied,
read back and compared, one statement renames the schema to ``semel``. So brokers find the whole cluster, or
none. After a failure, the next attempt deletes what the interrupted one has left, and starts again. It leaves
objects at another address there, and reports them. The data directory does not change.

Meanwhile an advisory lock keeps brokers from creating a cluster in the same database, and another one
excludes a second migration.
"""

import logging
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

import asyncpg

from semel.config import Settings
from semel.store.cluster.bytes.object_access import check_access
from semel.store.cluster.bytes.objects import Objects
from semel.store.cluster.claiming import folder_of
from semel.store.cluster.copying import Copied, Copy, Progress
from semel.store.cluster.postgres.database import ConnectionLost, confirmed
from semel.store.cluster.postgres.opening import _LOCK as MAKING_TABLES
from semel.store.cluster.postgres.opening import open_database
from semel.store.cluster.postgres.reaching import connect
from semel.store.cluster.store import ClusterStore
from semel.store.contract import BatchLocation, StoreRefused
from semel.store.embedded.examination import LEDGER
from semel.store.embedded.ledger_opening import open_reader
from semel.store.embedded.queries import Statements
from semel.store.embedded.store import EmbeddedStore
from semel.store.opening import Remote, open_store

log = logging.getLogger("semel.store")

MIGRATING: Final = 0x53454D454D
"""An advisory lock: one migration at a time."""


class Migrated(NamedTuple):
    """A migration that is complete."""

    cluster_id: str
    copied: Copied


async def migrate(
    directory: Path, place: Remote, progress: Progress, tell: Callable[[str], None] = log.warning
) -> Migrated:
    """Copy a data directory to a database without a cluster and an object store.

    ``tell`` is called with a sentence if an interrupted migration has left objects at another address.

    StoreRefused, StoreLocked, StoreBroken: nothing has changed for brokers.
    """
    if not (directory / LEDGER).exists():
        raise StoreRefused(f"{directory} is not a data directory: it has no {LEDGER}")
    await check_access(place.chunks)
    guard = await connect(place.ledger, "public", "semel migrate")
    try:
        await _begin(guard, place.schema)
        await _discard(place, _staging(place), guard, tell)
        source = await open_store(directory, Settings())
        try:
            return await _migrate(directory, source, place, guard, progress)
        finally:
            await source.close()
    except asyncpg.PostgresError as error:
        raise StoreRefused(f"PostgreSQL refuses: {error}") from error
    except (asyncpg.InterfaceError, OSError, ConnectionLost) as error:
        raise StoreRefused(f"the connection to PostgreSQL was lost: {error}") from error
    finally:
        guard.terminate()


async def _begin(guard: Any, schema: str) -> None:
    if not await guard.fetchval("SELECT pg_try_advisory_lock($1)", MIGRATING):
        raise StoreRefused("another migration to this database is under way")
    if await guard.fetchval("SELECT to_regclass($1) IS NOT NULL", f'"{schema}".meta'):
        raise StoreRefused(
            f"there is a cluster in this database already (schema {schema}): choose another database, or drop"
            " the schema if nobody needs it"
        )


async def _migrate(
    directory: Path, source: EmbeddedStore, place: Remote, guard: Any, progress: Progress
) -> Migrated:
    staging = _staging(place)
    database = await open_database(place.ledger, staging, 1)
    try:
        # Before the target is opened, because the names of objects may contain the id.
        await database.row("UPDATE meta SET value = $1 WHERE name = 'cluster_id'", source.cluster_id)
    finally:
        await database.close()
    target = await _opened(place, staging)
    try:
        await guard.fetchval("SELECT pg_advisory_lock($1)", MAKING_TABLES)
        await source.checkpoint()
        rows = Statements(open_reader(directory / LEDGER))
        try:
            copy = Copy(source, rows, target, progress)
            copied = await copy.everything()
            await copy.compare(_staged(target))
        finally:
            rows.connection.close(True)
    finally:
        await target.close()
    with confirmed(guard):
        async with guard.transaction():
            await guard.execute(f'DROP SCHEMA IF EXISTS "{place.schema}"')
            await guard.execute(f'ALTER SCHEMA "{staging}" RENAME TO "{place.schema}"')
    return Migrated(source.cluster_id, copied)


def _staging(place: Remote) -> str:
    return f"{place.schema}_migration"


async def _discard(place: Remote, staging: str, guard: Any, tell: Callable[[str], None]) -> None:
    """Delete what an interrupted migration left. Its objects may be gone, or at another address."""
    if await guard.fetchval("SELECT to_regclass($1) IS NULL", f'"{staging}".meta'):
        return
    database = await open_database(place.ledger, staging, 1)
    try:
        cluster_id = await database.value("SELECT value FROM meta WHERE name = 'cluster_id'")
        folder = await folder_of(database, cluster_id)
        numbers = [number for (number,) in await database.fetch("SELECT object_id FROM objects")]
    finally:
        await database.close()
    objects = Objects.open(place.chunks)
    try:
        objects.belong_to(folder)
        if await objects.is_marked():
            await objects.delete(numbers)
            await objects.unmark()
        elif numbers:
            tell(
                f"An interrupted migration wrote to a folder {folder} that is not in {place.chunks}. If it is"
                " elsewhere, delete it there: nothing needs it."
            )
    except OSError as error:
        raise StoreRefused(str(error)) from error
    finally:
        objects.close()
    await guard.execute(f'DROP SCHEMA "{staging}" CASCADE')


async def _opened(place: Remote, staging: str) -> ClusterStore:
    objects = Objects.open(place.chunks)
    try:
        return await ClusterStore.open(place.ledger, objects, schema=staging)
    except BaseException:
        objects.close()
        raise


async def _staged(target: ClusterStore) -> AsyncIterator[tuple[int, int, int, bytearray]]:
    rows = await target.ledger.database.fetch(
        """
        SELECT producer_id, offsets, max_timestamp, chunk_id, position, length FROM staged
        ORDER BY topic_id, partition_index, producer_id, stage_number
        """
    )
    for producer_id, offsets, max_timestamp, *where in rows:
        (data,) = await target.chunks.read([BatchLocation(*where)])
        yield producer_id, offsets, max_timestamp, data
