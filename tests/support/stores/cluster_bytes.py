"""Helpers for tests of a cluster's bytes: open a store, append, read, let time pass."""

import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

from semel.config import Settings
from semel.core.types import PartitionKey
from semel.store.cluster.bytes.objects import Objects
from semel.store.cluster.store import ClusterStore

SETTINGS = Settings(semel_roll_interval_ms=0)
"""Settings with which everything that can be rolled is due."""


class Place(NamedTuple):
    """The database, schema and objects of a store."""

    dsn: str
    address: str
    options: dict[str, Any]
    schema: str

    @classmethod
    def new(cls, dsn: str, address: str, schema: str = "", **options: Any) -> "Place":
        """Return a place in this schema, or in a new one."""
        return cls(dsn, address, options, schema or f"test_{os.urandom(8).hex()}")


@asynccontextmanager
async def opened(
    place: Place, settings: Settings = SETTINGS, *, broker_id: int = 0
) -> AsyncIterator[ClusterStore]:
    objects = Objects.open(place.address, patience_seconds=2.0, **place.options)
    store = await ClusterStore.open(place.dsn, objects, settings, schema=place.schema, broker_id=broker_id)
    try:
        yield store
    finally:
        await store.close()


async def append(store: ClusterStore, scribe: Any, key: PartitionKey, *batches: bytes) -> None:
    """Append batches in one commit."""
    facts = [scribe.append(key, size=len(batch))[0] for batch in batches]
    await store.commit([*facts, *scribe.changed()], batches)


async def read(store: ClusterStore, key: PartitionKey) -> list[bytes]:
    """Return every batch of a partition."""
    found = await store.ledger.find_batches(key, 0, before=2**62, bytes_max=2**40, batches_max=100_000)
    return [bytes(each) for each in await store.chunks.read([each.location for each in found])]


async def trim(store: ClusterStore, scribe: Any, key: PartitionKey, offset: int) -> None:
    """Delete what is below an offset, and sweep it."""
    await store.commit([scribe.trim(key, offset), *scribe.changed()], [])
    while await store.ledger.sweep(limit=1_000):
        pass


async def age(store: ClusterStore, *states: str) -> None:
    """Let two days pass in the ledger for objects in these states."""
    await store.ledger.database.row(
        "UPDATE objects SET since = since - interval '2 days' WHERE state = ANY ($1)", list(states)
    )


async def set_clock_back(store: ClusterStore) -> None:
    """Set PostgreSQL's clock back by a day, as far as the ledger's timestamps show it."""
    for table in ("objects", "inline_generation"):
        await store.ledger.database.row(f"UPDATE {table} SET since = since + interval '1 day'")


async def states(store: ClusterStore) -> dict[int, str]:
    """Return the ledger's state of every object that has, or had, bytes."""
    rows = await store.ledger.database.fetch("SELECT object_id, state FROM objects ORDER BY object_id")
    return dict(map(tuple, rows))


async def listed(objects: Objects) -> list[tuple[int, int]]:
    """Return the numbers and sizes of all objects."""
    return [each[:2] async for page in objects.pages() for each in page]


async def inline_chunks(store: ClusterStore) -> list[int]:
    """Return the chunks that have rows with bytes."""
    rows = await store.ledger.database.fetch("SELECT chunk_id FROM inline_bytes ORDER BY chunk_id")
    return [chunk_id for (chunk_id,) in rows]


def parts(*sizes: int) -> Sequence[bytes]:
    return [os.urandom(size) for size in sizes]
