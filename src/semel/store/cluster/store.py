"""The store of a cluster: a ledger in PostgreSQL, and bytes in PostgreSQL or an object store.

Large bytes are uploaded to objects, then a commit writes everything else in one transaction. A crash in
between leaves an object without a chunk, which is deleted later (``reconciling``).
"""

import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, NamedTuple

from semel.config import Settings
from semel.core.configs import words
from semel.core.types import Buffer, EntityKey, Fact, Key, V
from semel.store.cluster.bytes.chunks import ClusterChunks
from semel.store.cluster.bytes.merging import Merger
from semel.store.cluster.bytes.objects import Objects
from semel.store.cluster.bytes.reconciling import Reconciler
from semel.store.cluster.bytes.roller import Roller
from semel.store.cluster.claiming import connect_objects
from semel.store.cluster.commit_calls import Bytes
from semel.store.cluster.contract import SnapshotAge, Versioned
from semel.store.cluster.ledger import LEASE_SECONDS, NO_BYTES, PostgresLedger
from semel.store.cluster.membership import PostgresMembership
from semel.store.cluster.postgres.snapshots import SnapshotWatch
from semel.store.cluster.postgres.terms import watch
from semel.store.contract import BatchLocation, StoreRefused


class _Ahead(NamedTuple):
    """A batch that was uploaded before its commit."""

    batch: Buffer
    """Kept alive, so that no other buffer gets its ``id``."""
    location: BatchLocation
    object: tuple[int, int]
    """Number and size."""


class ClusterStore:
    """Created by ``ClusterStore.open``. Implements ``Store`` and ``SharedStore``."""

    def __init__(
        self,
        ledger: PostgresLedger,
        chunks: ClusterChunks,
        membership: PostgresMembership,
        settings: Settings,
    ) -> None:
        self.ledger = ledger
        self.chunks = chunks
        self.membership = membership
        self.roller = Roller(ledger.database, chunks, settings)
        self.merger = Merger(ledger.database, chunks, settings)
        self.reconciler = Reconciler(ledger.database, chunks.objects, settings)
        self._snapshots = SnapshotWatch(ledger.database)
        self.flush_seconds = 0.0
        self._ahead: dict[int, _Ahead] = {}
        """Uploaded batches, by the identity of their buffers."""

    @classmethod
    async def open(
        cls,
        dsn: str,
        objects: Objects,
        settings: Settings | None = None,
        *,
        schema: str = "semel",
        broker_id: int = 0,
        lease_seconds: float = LEASE_SECONDS,
    ) -> "ClusterStore":
        """Open ledger and chunks. StoreBroken, StoreDamaged; StoreLocked if the broker runs already."""
        ledger = await PostgresLedger.open(
            dsn,
            schema=schema,
            broker_id=broker_id,
            lease_seconds=lease_seconds,
            unsafe=words(settings.semel_ledger_unsafe) if settings is not None else (),
        )
        try:
            terms = ledger.committer.terms
            await connect_objects(ledger.database, objects, ledger.cluster_id, terms)
            await terms.have_noted(objects)
            secret = await ledger.database.value("SELECT value FROM meta WHERE name = 'secret'")
        except BaseException:
            await ledger.close()
            raise
        membership = PostgresMembership(ledger.database, ledger.place, lease_seconds, bytes.fromhex(secret))
        settings = settings or Settings()
        return cls(ledger, ClusterChunks(ledger.database, objects, settings), membership, settings)

    @property
    def lost_rows(self) -> int:
        """How often a query needed a row that the ledger has lost."""
        return self.ledger.lost_rows.met

    @property
    def cluster_id(self) -> str:
        """The id of the cluster."""
        return self.ledger.cluster_id

    @property
    def term(self) -> int:
        """Grows when unsynced work of any broker may be lost, because PostgreSQL crashed."""
        return self.ledger.committer.term

    @property
    def oldest_snapshot(self) -> SnapshotAge:
        """The oldest snapshot at the last look. It keeps PostgreSQL from removing old versions of rows."""
        return self._snapshots.age

    @property
    def has_unsynced(self) -> bool:
        """Whether unsynced work of this broker was committed and is not durable yet."""
        return self.ledger.committer.has_unsynced

    async def make_room(self, length: int) -> None:
        """Do nothing: PostgreSQL and the object store report when they are full."""

    async def load(self, keys: Sequence[EntityKey[V]], *, locks: bool = False) -> list[Versioned[V]]:
        """Return entities and their versions. ``locks``: no other broker changes them before a commit."""
        return await self.ledger.load_versioned(keys, locks=locks)

    async def check_term(self) -> None:
        """Raise TermEnded if PostgreSQL has crashed. StoreRefused."""
        await self.ledger.committer.check_term()

    async def unlock(self) -> None:
        """Give up all locks, without a commit."""
        await self.ledger.committer.locks.give_up()

    async def commit(
        self,
        facts: Sequence[Fact],
        batches: Sequence[Buffer],
        *,
        expected: Mapping[Key, int] | None = None,
        defers_sync: bool = False,
    ) -> int:
        """Commit bytes and facts together; the i-th batch among the facts owns batches[i].

        Return the new version of all entities that were written. Conflict, TermEnded, StoreRefused.
        """
        begun = time.perf_counter()
        locations, contents = await self._placed(batches) if batches else ((), NO_BYTES)
        try:
            with self.ledger.lost_rows.watched():
                number = await self.ledger.commit(
                    facts, locations, contents, expected=expected or {}, defers_sync=defers_sync
                )
        except StoreRefused:
            self.chunks.numbers.forget()
            raise
        self.flush_seconds = time.perf_counter() - begun
        return self.ledger.committer.version(number)

    async def put_ahead(self, batches: Sequence[Buffer]) -> None:
        """Upload batches before the commits that they belong to. StoreRefused."""
        locations, contents = await self.chunks.put(batches)
        sizes = dict(contents.objects)
        for batch, location in zip(batches, locations, strict=True):
            number = location.chunk_id
            self._ahead[id(batch)] = _Ahead(batch, location, (number, sizes[number]))

    def forget_ahead(self, batches: Sequence[Buffer]) -> None:
        """Forget where these batches were uploaded."""
        for batch in batches:
            self._ahead.pop(id(batch), None)

    async def _placed(self, batches: Sequence[Buffer]) -> tuple[Sequence[BatchLocation], Bytes]:
        """Return the locations of batches after a commit. Batches that were uploaded ahead have one."""
        if not self._ahead:
            return await self.chunks.write(batches)
        ahead = [self._ahead.get(id(each)) for each in batches]
        rest = [each for each, done in zip(batches, ahead, strict=True) if done is None]
        locations, contents = await self.chunks.write(rest) if rest else ((), NO_BYTES)
        others = iter(locations)
        objects = dict.fromkeys(each.object for each in ahead if each is not None)
        return (
            [next(others) if each is None else each.location for each in ahead],
            contents._replace(objects=[*contents.objects, *objects]),
        )

    def upkeep(self, is_mine: Callable[[], bool]) -> Mapping[str, Coroutine[Any, Any, None]]:
        """Return the jobs that roll, merge and reconcile bytes, and watch snapshots and the server."""
        return {
            "roller": self.roller.run(is_mine),
            "merger": self.merger.run(is_mine),
            "reconciler": self.reconciler.run(is_mine),
            "snapshots": self._snapshots.run(),
            "server": watch(self.ledger.database, self.ledger.committer.terms),
        }

    async def checkpoint(self) -> None:
        """Do nothing: no WAL has to be applied to ledger and chunks."""

    async def sweep_orphans(self) -> list[int]:
        """Delete the objects that are not needed any more. Return their numbers."""
        return await self.reconciler.delete_unused()

    async def close(self) -> None:
        """Release all resources."""
        await self.chunks.close()
        await self.ledger.close()
