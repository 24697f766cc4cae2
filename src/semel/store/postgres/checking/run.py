"""The whole check of a cluster. Used by ``semel cluster check``; brokers may run meanwhile."""

from typing import Any, Final

from semel.core.types import PartitionKey
from semel.store.interface import StoreRefused
from semel.store.postgres.checking import places, rows
from semel.store.postgres.checking.findings import Checked, Findings, Progress
from semel.store.postgres.checking.walk import Walk
from semel.store.postgres.inspection import connected
from semel.store.postgres.opening import SCHEMA_VERSION

PAGE: Final = 500
TOLD_BATCHES: Final = 100_000
"""Rows of batches between two sentences of progress."""


async def check_cluster(dsn: str, schema: str, chunks: str | None, progress: Progress) -> Checked:
    """Check a ledger, and its objects if their address is given. Changes nothing.

    StoreMisconfigured if there is no cluster, StoreRefused if it cannot be checked now.
    """
    async with connected(dsn, schema) as connection:
        await connection.execute("SET default_transaction_read_only = on")
        await _check_version(connection)
        findings = Findings()
        progress("Comparing the tables of the ledger.")
        async for finding in rows.problems(connection):
            findings.add(finding)
        partitions, batches = await _walk_all(connection, findings, progress)
        progress("Adding up the bytes of chunks.")
        async for finding in rows.size_problems(connection):
            findings.add(finding)
        if chunks is not None:
            progress("Comparing the objects with the object store.")
            objects = await places.open_objects(connection, chunks)
            if objects is None:
                progress("The objects are not compared: the ledger has lost where they are.")
            else:
                try:
                    async for finding in places.problems(connection, objects):
                        findings.add(finding)
                finally:
                    objects.close()
        chunk_count = await connection.fetchval("SELECT count(*) FROM chunks")
        object_count = await connection.fetchval("SELECT count(*) FROM objects WHERE state = 'stored'")
        return Checked(
            *(findings.kept, findings.total, partitions, batches),
            *(chunk_count, object_count, chunks is not None),
        )


async def _check_version(connection: Any) -> None:
    found = await connection.fetchval("SELECT value FROM meta WHERE name = 'schema_version'")
    # Without it, the check says what else is lost.
    if found not in (None, str(SCHEMA_VERSION)):
        raise StoreRefused(
            f"the ledger has schema version {found}, and this Semel checks version {SCHEMA_VERSION}: use the"
            " Semel of its brokers, or start one of this version, which upgrades an older ledger"
        )


async def _walk_all(connection: Any, findings: Findings, progress: Progress) -> tuple[int, int]:
    """Go through all partitions. Return how many, and how many rows their batches have."""
    total = await connection.fetchval("SELECT count(*) FROM partitions")
    partitions = batches = told = 0
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
                findings.add(finding)
            partitions += 1
            batches += walk.batches
            if batches - told >= TOLD_BATCHES:
                told = batches
                progress(f"{partitions} of {total} partitions, {batches} rows of batches.")
        after = tuple(page[-1])[:2]
    return partitions, batches
