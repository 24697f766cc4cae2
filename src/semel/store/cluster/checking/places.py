"""Compare the objects of a ledger with the object store: does each exist, with the right size?"""

from collections.abc import AsyncIterator
from typing import Any, Final

from semel.store.cluster.bytes.objects import Objects
from semel.store.cluster.checking.findings import TOLD_ROWS, Finding, Progress
from semel.store.cluster.postgres.terms import HAS_TERM
from semel.store.contract import StoreRefused

_ADVICE: Final = (
    "restore the object from a copy or an older version of the object store; nothing else has its records"
)
_ELSEWHERE: Final = (
    "after a failover, use the other server (docs/cluster-operations.md). Only if this one was restored from"
    " a backup on purpose, see 'Restoring' in docs/cluster.md"
)
_LAST: Final = 2**63 - 1


async def open_objects(connection: Any, address: str) -> Objects | None:
    """Open the cluster's objects at this address; None if the ledger has lost their folder's name.

    StoreRefused if they are not at this address.
    """
    meta = dict(await connection.fetch("SELECT name, value FROM meta"))
    if not {"cluster_id", "folder"} <= meta.keys():
        return None
    objects = Objects.open(address)
    try:
        objects.belong_to(f"{meta['cluster_id']}-{meta['folder'][:8]}")
        if "folder_marked" in meta and not await objects.is_marked():
            raise StoreRefused(
                f"this is not the object store of the cluster: {objects.mark_address} is missing. Use the"
                " same --chunks as the brokers; if it is a directory, mount it"
            )
    except OSError as error:
        objects.close()
        raise StoreRefused(str(error)) from error
    except BaseException:
        objects.close()
        raise
    return objects


async def problems(connection: Any, objects: Objects, progress: Progress) -> AsyncIterator[Finding]:
    """Yield objects that are gone or have another size, and a newer term that this server lacks.

    Brokers write and delete objects meanwhile, so each object with a problem is checked again.
    """
    after = listed = 0
    try:
        newest = await objects.newest_term()
        if newest is not None and not await connection.fetchval(HAS_TERM, *newest):
            what = f"the cluster has gone on with term {newest[0]} elsewhere: this server lacks it"
            yield Finding("terms", what, _ELSEWHERE)
        async for page in objects.pages():
            async for finding in _compare(
                connection, objects, after, page[-1].number, {each.number: each.size for each in page}
            ):
                yield finding
            after = page[-1].number
            listed += len(page)
            if listed % TOLD_ROWS < len(page):
                progress(f"{listed} objects listed.")
        async for finding in _compare(connection, objects, after, _LAST, {}):
            yield finding
    except OSError as error:
        raise StoreRefused(str(error)) from error


async def _compare(
    connection: Any, objects: Objects, after: int, last: int, listed: dict[int, int]
) -> AsyncIterator[Finding]:
    rows = await connection.fetch(
        "SELECT object_id, size_bytes FROM objects WHERE object_id > $1 AND object_id <= $2"
        " AND state = 'stored' ORDER BY object_id",
        after,
        last,
    )
    for number, size in rows:
        if listed.get(number) == size:
            continue
        found = await objects.size(number)
        is_needed = await connection.fetchval(
            "SELECT EXISTS (SELECT FROM objects WHERE object_id = $1 AND state = 'stored')", number
        )
        if found == size or not is_needed:
            continue
        what = f"object {number:016x} is gone" if found is None else f"object {number:016x} has {found} bytes"
        yield Finding("object store", f"{what}, but the ledger needs all of its {size} bytes", _ADVICE)
