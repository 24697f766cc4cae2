"""The store of a cluster: a ledger in PostgreSQL, and bytes in PostgreSQL or an object store.

A commit writes large bytes to an object first, then everything else in one transaction. A crash in between
leaves an object that the ledger does not know. Nothing deletes such objects yet.
"""

import time
from collections.abc import Sequence

from semel.core.types import Buffer, Fact
from semel.store.objects import Objects
from semel.store.postgres.chunks import ClusterChunks
from semel.store.postgres.ledger import PostgresLedger


class ClusterStore:
    """Created by ``ClusterStore.open``. Implements ``interface.Store``."""

    def __init__(self, ledger: PostgresLedger, chunks: ClusterChunks) -> None:
        self.ledger = ledger
        self.chunks = chunks
        self.term = 0
        self.flush_seconds = 0.0

    @classmethod
    async def open(
        cls, dsn: str, objects: Objects, *, schema: str = "semel", broker_id: int = 0
    ) -> "ClusterStore":
        """Open ledger and chunks. StoreBroken, StoreDamaged."""
        ledger = await PostgresLedger.open(dsn, schema=schema, broker_id=broker_id)
        return cls(ledger, ClusterChunks(ledger.database, objects))

    @property
    def cluster_id(self) -> str:
        """The id of the cluster."""
        return self.ledger.cluster_id

    @property
    def has_unsynced(self) -> bool:
        """Every commit is durable when it returns."""
        return False

    async def make_room(self, length: int) -> None:
        """Nothing: PostgreSQL and the object store say themselves when they are full."""

    async def commit(
        self, facts: Sequence[Fact], batches: Sequence[Buffer], *, defers_sync: bool = False
    ) -> int:
        """Commit bytes and facts together; the i-th batch among the facts owns batches[i]. StoreRefused."""
        begun = time.perf_counter()
        if batches:
            locations, contents = await self.chunks.write(batches)
            number = await self.ledger.commit(facts, locations, contents)
        else:
            number = await self.ledger.commit(facts, ())
        self.flush_seconds = time.perf_counter() - begun
        return number

    async def checkpoint(self) -> None:
        """Nothing: what is committed is durable."""

    async def sweep_orphans(self) -> list[int]:
        """Delete the objects that no chunk is in. Return their numbers."""
        unused = await self.ledger.unused_objects()
        for number in unused:
            await self.chunks.objects.delete(number)
        # Forgotten only when the object store has confirmed.
        await self.ledger.forget_objects(unused)
        return unused

    async def close(self) -> None:
        """Release all resources."""
        await self.ledger.close()
        await self.chunks.close()
