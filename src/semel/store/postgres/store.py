"""The store of a cluster: a ledger in PostgreSQL, and bytes in PostgreSQL or an object store.

A commit writes large bytes to an object first, then everything else in one transaction. A crash in between
leaves an object that no chunk is in; it is deleted later (``reconciling``).
"""

import time
from collections.abc import Sequence

from semel.config import Settings
from semel.core.types import Buffer, Fact
from semel.store.interface import StoreRefused
from semel.store.objects import Objects
from semel.store.postgres.chunks import ClusterChunks
from semel.store.postgres.ledger import PostgresLedger
from semel.store.postgres.merging import Merger
from semel.store.postgres.reconciling import Reconciler
from semel.store.postgres.roller import Roller


class ClusterStore:
    """Created by ``ClusterStore.open``. Implements ``interface.Store``."""

    def __init__(self, ledger: PostgresLedger, chunks: ClusterChunks, settings: Settings) -> None:
        self.ledger = ledger
        self.chunks = chunks
        self.roller = Roller(ledger.database, chunks, settings)
        self.merger = Merger(ledger.database, chunks, settings)
        self.reconciler = Reconciler(ledger.database, chunks.objects, settings)
        self.term = 0
        self.flush_seconds = 0.0

    @classmethod
    async def open(
        cls,
        dsn: str,
        objects: Objects,
        settings: Settings | None = None,
        *,
        schema: str = "semel",
        broker_id: int = 0,
    ) -> "ClusterStore":
        """Open ledger and chunks. StoreBroken, StoreDamaged."""
        ledger = await PostgresLedger.open(dsn, schema=schema, broker_id=broker_id)
        objects.belong_to(ledger.cluster_id)
        settings = settings or Settings()
        return cls(ledger, ClusterChunks(ledger.database, objects, settings), settings)

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
            try:
                number = await self.ledger.commit(facts, locations, contents)
            except StoreRefused:
                self.chunks.numbers.forget()
                raise
        else:
            number = await self.ledger.commit(facts, ())
        self.flush_seconds = time.perf_counter() - begun
        return number

    async def checkpoint(self) -> None:
        """Nothing: what is committed is durable."""

    async def sweep_orphans(self) -> list[int]:
        """Delete the objects that nobody needs any more. Return their numbers."""
        return await self.reconciler.delete_unused()

    async def close(self) -> None:
        """Release all resources."""
        await self.chunks.close()
        await self.ledger.close()
