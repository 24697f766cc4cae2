"""Check that a ledger and an object store belong together.

Each ledger has its own folder in the object store, even if two ledgers have the same cluster id: a data
directory may be migrated twice. The first broker marks the folder with a file, and every broker looks for the
mark before it writes there. If it is missing, the address is wrong or a directory is not mounted, and records
written there would be missed later.

The object store must refuse to create an object twice, because it is the witness of terms (``terms``). The
check tries that with the mark.

A ledger that was restored from a backup may be older than its objects. It would use their numbers again, and
take newer objects for strangers (``reconciling``). So a broker does not start if there are newer objects.
"""

import logging
from functools import partial

from semel.store.cluster.bytes.objects import Objects
from semel.store.cluster.postgres.database import Database
from semel.store.cluster.postgres.terms import Terms
from semel.store.contract import StoreMisconfigured, StoreRefused

log = logging.getLogger("semel.store")


async def folder_of(database: Database, cluster_id: str) -> str:
    """Return the folder of a ledger in its object store. StoreRefused."""
    own: str = await database.value("SELECT value FROM meta WHERE name = 'folder'")
    return f"{cluster_id}-{own[:8]}"


async def connect_objects(
    database: Database, objects: Objects, cluster_id: str, terms: Terms | None = None
) -> None:
    """Use the folder of this ledger. StoreMisconfigured if it is missing, or newer than the ledger.

    If the object store is unreachable, this is checked before the first object is written.
    """
    objects.belong_to(await folder_of(database, cluster_id), partial(_claim, database, objects))
    if terms is not None:
        # Terms first: a server that was left behind also lacks the newest objects, but is no restored backup.
        await terms.check(objects)
    try:
        await objects.claim()
    except StoreRefused as refused:
        log.warning("whether this is the object store of the cluster is checked later: %s", refused)


async def _claim(database: Database, objects: Objects) -> None:
    """Mark the folder if no broker has, then check it. StoreMisconfigured, StoreRefused."""
    try:
        async with database.transaction() as connection:
            # Brokers that start at the same time wait here for the first.
            await connection.execute("SELECT FROM meta WHERE name = 'folder' FOR UPDATE")
            marked = "SELECT EXISTS (SELECT FROM meta WHERE name = 'folder_marked')"
            if not await connection.fetchval(marked):
                await objects.mark()
                await connection.execute("INSERT INTO meta VALUES ('folder_marked', 'yes')")
        if not await objects.is_marked():
            raise StoreMisconfigured(
                f"this is not the object store of the cluster: {objects.mark_address} is missing. Use the"
                " same --chunks as the other brokers; if it is a directory, mount it"
            )
        if not await objects.keeps_mark():
            raise StoreMisconfigured(
                f"the object store does not honour If-None-Match: {objects.mark_address} could be created"
                " twice. Without it, a PostgreSQL server that was left behind is not recognized: use"
                " an object store with conditional writes, and no gateway that drops the conditions"
            )
        await _check_age(database, objects)
    except OSError as error:
        raise StoreRefused(str(error)) from error


async def _check_age(database: Database, objects: Objects) -> None:
    """Raise StoreMisconfigured if objects are newer than the ledger. OSError."""
    newest = 0
    async for page in objects.pages(await _last_number(database)):
        newest = page[-1].number
    # Read it again: other brokers reserve numbers meanwhile.
    if newest > await _last_number(database):
        raise StoreMisconfigured(
            f"the ledger is older than its objects, of which the newest is {newest:016x}. Is this the right"
            " database? If it was restored from a backup, see 'Restoring' in docs/cluster.md"
        )


async def _last_number(database: Database) -> int:
    """Return the largest number that was reserved for an object."""
    last: int = await database.value("SELECT last_object FROM numbering")
    return last
