"""Define the contracts of ledger, chunk store and store. Storage makes no decisions.

One call of ``Store.commit`` makes bytes and facts durable together; each store does this in its own way. The
embedded store writes a WAL, which is applied to ledger and chunks (``wal``). A query of the ledger sees
everything that was committed before, and never a row without its bytes.

A failed commit is fatal. Its outcome is unknown, because a refused write may still reach the disk. So the
process stops without answering, and recovery decides at the next start. These methods raise ``StoreBroken``,
which is caught only where the process is stopped. ``StoreFull`` is different: it is raised before anything is
written.

Work inside an open transaction may be committed *unsynced*: when the call returns, the bytes are in the
operating system's memory. They become durable, and visible in the ledger, with the next ordinary commit. They
survive a killed process. If the operating system crashes, or the store abandons them, the *term* ends:
``Store.term`` is larger at the next start, and clients that were answered in the old term get an error.

The contract of a store that several brokers share is ``cluster.contract``.

Methods are async because a ledger may be across a network. The embedded implementations have their own
threads.
"""

from collections.abc import Sequence
from typing import ClassVar, NamedTuple, Protocol

from semel.core import types


class StoreBroken(Exception):
    """The store failed with an unknown outcome. Stop; a restart recovers."""


class StoreDamaged(StoreBroken):
    """The data on disk is not what was written: parts are missing, old, foreign or damaged.

    A restart does not help; an operator must decide (``semel repair``).
    """


class StoreMisconfigured(StoreBroken):
    """The store is not where the settings say, or refuses the credentials.

    A restart does not help; an operator must change the settings.
    """


class StoreFenced(StoreBroken):
    """Another process took this broker's place, so this one must not write any more."""


class StoreRefused(Exception):
    """The store cannot do this now. Nothing was written, and other calls still work."""

    client_message: ClassVar[str] = "the broker cannot write now; nothing was changed"
    """The error message for clients. The message of the exception is for the broker's log."""


class StoreFull(StoreRefused):
    """There is no room to write. Reads still work."""

    client_message = "the broker's disk is full; nothing was changed"


class LedgerDamaged(StoreRefused):
    """A required part of the ledger is damaged (``semel check-storage``, ``semel cluster check``)."""


class StoreLocked(Exception):
    """Another process owns this data directory."""


class BatchLocation(NamedTuple):
    """Where the bytes of a batch are."""

    chunk_id: int
    position: int
    length: int


class StoredBatch(NamedTuple):
    """A batch of the log and its location. The base offset in the bytes is not stamped."""

    base_offset: int
    last_offset: int
    max_timestamp: int
    location: BatchLocation


class Counts(NamedTuple):
    """Counts of what clients can create and only housekeeping removes."""

    partitions: int
    groups: int
    transactional_ids: int


class GroupSummary(NamedTuple):
    """A row of the list of groups."""

    group_id: str
    kind: str
    protocol_type: str
    state: str


class ChunkStore(Protocol):
    """Holds the bytes of batches. Writing them is not in this contract: each store has its own way."""

    async def read(self, locations: Sequence[BatchLocation]) -> list[bytearray]:
        """Return the bytes at these locations, each in a new buffer. LookupError if one is gone.

        A location may be part of an appended batch, or span several. An OSError of the disk is passed on: the
        bytes exist but are unreadable.
        """

    async def read_together(self, locations: Sequence[BatchLocation]) -> bytearray:
        """Like `read`, but return a single buffer, without a copy to join them."""

    def forget(self, location: BatchLocation) -> None:
        """Drop copies of these bytes from memory. They are damaged; the stored bytes may be intact."""

    async def release(self, locations: Sequence[BatchLocation]) -> None:
        """Release the space of ranges that are no longer referenced. They may read as zeros from now on.

        A reader must check, after reading, that the batch still exists.
        """

    async def delete(self, chunk_id: int) -> None:
        """Remove a chunk. It is no error if the chunk does not exist."""

    async def list_chunks(self) -> list[tuple[int, int]]:
        """Return every chunk and the space that it uses."""

    async def close(self) -> None:
        """Release files and threads."""


class Ledger(Protocol):
    """Holds the truth: one SQL commit per tick, and the queries that readers need."""

    async def load(self, keys: Sequence[types.EntityKey[types.V]]) -> list[types.V | None]:
        """Return the entities with these keys in the same order, None for those that do not exist."""

    async def commit(self, facts: Sequence[types.Fact], locations: Sequence[BatchLocation]) -> int:
        """Write the facts together and durably. Return the commit number.

        The i-th batch among them (``BatchAppended``, ``BatchStaged``, all that a ``BatchesReplaced`` rewrote)
        is at locations[i].
        """

    async def find_batches(
        self, partition: types.PartitionKey, offset: int, *, before: int, bytes_max: int, batches_max: int
    ) -> list[StoredBatch]:
        """Return batches from the one that holds ``offset``, or the next, that end below ``before``.

        The first is returned whatever its size; others follow while all fit within ``bytes_max``.
        """

    async def first_batch_since(self, partition: types.PartitionKey, timestamp: int) -> StoredBatch | None:
        """Return the first batch whose largest timestamp is at or after this one."""

    async def offset_at_size(self, partition: types.PartitionKey, size_bytes: int) -> int:
        """Return the smallest batch boundary from which the partition has at most this size."""

    async def size_below(self, partition: types.PartitionKey, offset: int) -> tuple[int, int]:
        """Return the log start, and the size of the batches from there that end below an offset."""

    async def topic_by_id(self, topic_id: bytes) -> types.Topic | None:
        """Return the topic with this id."""

    async def topics(self, *, after: str = "", limit: int = 10_000) -> list[types.Topic]:
        """Return topics, ordered by name."""

    async def policies(
        self, *, after: types.PolicyKey | None = None, limit: int = 10_000
    ) -> list[tuple[types.PolicyKey, str]]:
        """Return policies and their values, ordered by key."""

    async def counts(self) -> Counts:
        """Return the counts of what clients can create."""

    async def groups(self, *, after: str = "", limit: int = 10_000) -> list[GroupSummary]:
        """Return groups, ordered by id, including those that only have offsets (kind "")."""

    async def group_offsets(self, group_id: str) -> list[tuple[types.OffsetKey, types.CommittedOffset]]:
        """Return everything a group has committed."""

    async def producers(self, partition: types.PartitionKey) -> list[tuple[int, types.ProducerState]]:
        """Return the producers that a partition remembers."""

    async def producers_unseen_since(
        self, before_ms: int, *, after: types.ProducerKey | None = None, limit: int
    ) -> list[types.ProducerKey]:
        """Return producers without an open transaction that were last seen before this time.

        The order is unspecified but stable. Pass the last result as ``after`` to get the next page.
        """

    async def aborted(self, partition: types.PartitionKey, first: int, before: int) -> list[tuple[int, int]]:
        """Return the aborted transactions with a marker at or after ``first`` that began before ``before``.

        Pairs of producer id and first offset, ordered by first offset.
        """

    async def transactions(self, *, after: str = "", limit: int = 10_000) -> list[types.Transaction]:
        """Return transactions ordered by transactional id, in any state."""

    async def open_transactions(self, *, after: str = "", limit: int) -> list[types.Transaction]:
        """Return open transactions. The order is as that of ``producers_unseen_since``."""

    async def transactions_unused_since(self, before_ms: int, *, after: str = "", limit: int) -> list[str]:
        """Return transactional ids without an open transaction and not used after this time.

        The order is as that of ``producers_unseen_since``.
        """

    async def leftovers(self, *, limit: int) -> list[BatchLocation]:
        """Return the locations of up to ``limit`` unreachable rows, which the next sweep deletes."""

    async def sweep(self, *, limit: int) -> list[BatchLocation]:
        """Delete up to ``limit`` unreachable rows. Return the locations that they freed.

        Deleted topics, log starts, aborted transactions and compaction leave such rows behind.
        If nothing is freed, there is nothing left to sweep.
        """

    async def chunk_references(self) -> dict[int, int]:
        """Return how many bytes of each chunk are referenced. Chunks that are not listed are orphans."""

    async def close(self) -> None:
        """Release files and threads."""


class Store(Protocol):
    """A ledger and a chunk store that commit together."""

    @property
    def ledger(self) -> Ledger:
        """The ledger."""

    @property
    def chunks(self) -> ChunkStore:
        """The chunk store."""

    @property
    def cluster_id(self) -> str:
        """The id of the cluster."""

    @property
    def term(self) -> int:
        """Grows at a start if unsynced work may be lost."""

    @property
    def has_unsynced(self) -> bool:
        """Whether unsynced work was committed and is not durable yet."""

    flush_seconds: float
    """How long the flushes of the last commit took."""

    async def make_room(self, length: int) -> None:
        """Ensure room for a commit of this many bytes. StoreFull, StoreBroken.

        Cheap if there is room already. The commit may still raise StoreFull, but not for lack of these bytes.
        """

    async def commit(
        self, facts: Sequence[types.Fact], batches: Sequence[types.Buffer], *, defers_sync: bool = False
    ) -> int:
        """Commit bytes and facts together; the i-th batch among the facts owns batches[i]. Return its number.

        Durable when it returns, together with all unsynced work before; without facts it is a flush. Queries
        of the ledger see it from then on. StoreFull, StoreBroken.

        ``defers_sync``: the commit need not be durable when it returns. A large commit may be durable
        anyway; see ``has_unsynced``.

        After ``StoreFull`` this commit has had no effect, and unsynced work is still waiting.
        """

    async def checkpoint(self) -> None:
        """Flush ledger and chunks. Space may be released afterwards: recovery does not need the bytes."""

    async def sweep_orphans(self) -> list[int]:
        """Delete the bytes that no row references. Return their chunks or objects."""

    async def close(self) -> None:
        """Release all resources."""
