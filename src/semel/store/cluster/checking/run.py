"""Run all parts of the check of a cluster, for ``semel cluster check``. Brokers may run meanwhile.

Compare the objects of a ledger with the object store: does each exist, with the right size?
"""

from collections.abc import AsyncIterator, Callable
from typing import Any, Final

from semel.core.types import PartitionKey
from semel.store.cluster.bytes.objects import Objects
from semel.store.cluster.checking import rows
from semel.store.cluster.checking.rows import TOLD_ROWS, Checked, Finding, Findings, Progress, not_told
from semel.store.cluster.checking.walk import Walk
from semel.store.cluster.inspection import connected
from semel.store.cluster.postgres.opening import SCHEMA_VERSION
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


PAGE: Final = 500
TABLES, PARTITIONS, SIZES, OBJECTS = (
    "the tables of the ledger",
    "the batches of partitions",
    "the bytes of chunks",
    "the objects",
)


async def check_cluster(
    dsn: str, schema: str, chunks: str | None, progress: Progress, tell: Callable[[Finding], None] = not_told
) -> Checked:
    """Check a ledger, and its objects if their address is given. Changes nothing.

    StoreMisconfigured if there is no cluster, StoreRefused if it cannot be checked now. If the check fails
    after it has begun, it returns what was found until then, why it failed, and what was not checked.
    """
    check = _Check(progress, Findings(tell))
    failure = None
    try:
        async with connected(dsn, schema) as connection:
            await connection.execute("SET default_transaction_read_only = on")
            await _check_version(connection)
            objects = None
            if chunks is not None:
                # First, to report a wrong address at once and not after an hour.
                objects = await open_objects(connection, chunks)
                if objects is None:
                    progress("The objects are not compared: the ledger has lost where they are.")
            try:
                await check.run(connection, objects)
            finally:
                if objects is not None:
                    objects.close()
    except StoreRefused as error:
        if not check.left:
            raise
        failure = str(error)
    return Checked(
        *(check.findings.kept, check.findings.total, check.partitions, check.batches, check.chunks),
        *(check.objects, check.compared_objects, failure, tuple(check.left)),
    )


class _Check:
    """Runs the parts of a check one after another, and counts what they have checked."""

    def __init__(self, progress: Progress, findings: Findings) -> None:
        self._progress = progress
        self.findings = findings
        self.left: list[str] = []
        self.partitions = self.batches = self.chunks = self.objects = 0
        self.compared_objects = False

    async def run(self, connection: Any, objects: Objects | None) -> None:
        """Run all parts. After StoreRefused, or another error, ``left`` has the unfinished ones."""
        self.left = [TABLES, PARTITIONS, SIZES, *([OBJECTS] if objects is not None else ())]
        self.chunks = await connection.fetchval("SELECT count(*) FROM chunks")
        self.objects = await connection.fetchval("SELECT count(*) FROM objects WHERE state = 'stored'")
        async for finding in rows.problems(connection, self._progress):
            self.findings.add(finding)
        self.left.remove(TABLES)
        await self._walk_all(connection)
        self.left.remove(PARTITIONS)
        self._progress("Adding up the bytes of chunks.")
        async for finding in rows.size_problems(connection, self._progress):
            self.findings.add(finding)
        self.left.remove(SIZES)
        if objects is not None:
            self._progress("Comparing the objects with the object store.")
            async for finding in problems(connection, objects, self._progress):
                self.findings.add(finding)
            self.left.remove(OBJECTS)
            self.compared_objects = True

    async def _walk_all(self, connection: Any) -> None:
        """Check the batches of all partitions."""
        total = await connection.fetchval("SELECT count(*) FROM partitions")
        self._progress(f"Going through the batches of {total} partitions.")
        reported = 0
        after: tuple[Any, ...] = (b"", -1)
        while page := await connection.fetch(
            """
            SELECT topic_id, partition_index, coalesce(name, encode(topic_id, 'hex'))
            FROM partitions LEFT JOIN topics USING (topic_id)
            WHERE (topic_id, partition_index) > ($1, $2) ORDER BY 1, 2 LIMIT $3
            """,
            *after,
            PAGE,
        ):
            for topic_id, index, name in page:
                walk = Walk(connection, name, PartitionKey(topic_id, index))
                async for finding in walk.problems():
                    self.findings.add(finding)
                self.partitions += 1
                self.batches += walk.batches
                if self.batches - reported >= TOLD_ROWS:
                    reported = self.batches
                    self._progress(f"{self.partitions} of {total} partitions, {reported} rows of batches.")
            after = tuple(page[-1])[:2]


async def _check_version(connection: Any) -> None:
    found = await connection.fetchval("SELECT value FROM meta WHERE name = 'schema_version'")
    # If the version is lost, go on: the check reports what else is lost.
    if found not in (None, str(SCHEMA_VERSION)):
        raise StoreRefused(
            f"the ledger has schema version {found}, and this Semel checks version {SCHEMA_VERSION}: use the"
            " Semel of its brokers, or start one of this version, which upgrades an older ledger"
        )
