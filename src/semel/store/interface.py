"""What a ledger and a chunk store promise. Storage stores; it decides nothing.

``Store.commit`` is one call: bytes and facts become durable together, however a store brings that about. The
embedded one has a WAL that ledger and chunks follow (``wal``). Whoever asks the ledger finds all that
was committed before, and never a row without bytes.

A failed commit is fatal: its outcome is unknown (a write that was refused may still reach the disk), so the
process stops without answering and the next start finds out. That is why these methods raise ``StoreBroken``
and nobody catches it but the one who stops the process. ``StoreFull`` is the exception: it is raised before
anything was written.

Work inside an open transaction may be committed *early*: it is in the hands of the operating system when the
call returns, and becomes durable, and a part of the ledger, with the next ordinary commit. Until then the
ledger's answers do not know of it. A killed process loses nothing of it. If the operating system dies, or the
store gives it up, the *term* ends: ``Store.term`` is another one at the next start, and whoever was answered
in the old one is told so.

Methods are async because a ledger may be at the other end of a network. The embedded implementations do their
work on a thread of their own.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from semel.core.types import (
    Buffer,
    CommittedOffset,
    Fact,
    Key,
    OffsetKey,
    PartitionKey,
    ProducerState,
    Topic,
    Transaction,
    TransactionState,
    Value,
)


class StoreBroken(Exception):
    """The store failed in a way that leaves the outcome unknown. Stop; restart recovers."""


class StoreDamaged(StoreBroken):
    """What is on the disk is not what was written there: parts are missing, old, foreign or damaged.

    A start does not help; somebody has to decide (``semel repair``).
    """


class StoreRefused(Exception):
    """The store cannot do this now. Nothing was written, and everything else goes on."""


class StoreFull(StoreRefused):
    """There is no room to write. Reads go on."""


class LedgerDamaged(StoreRefused):
    """A page of the ledger that this needs is damaged (``semel check-storage``)."""


class StoreLocked(Exception):
    """Another process owns this data directory."""


class BatchLocation(NamedTuple):
    """Where bytes lie."""

    chunk_id: int
    position: int
    length: int


class StoredBatch(NamedTuple):
    """One batch in the log, and where its bytes lie. The base offset in the bytes is not stamped."""

    base_offset: int
    last_offset: int
    max_timestamp: int
    location: BatchLocation


class Counts(NamedTuple):
    """How many there are of what clients can make, and only housekeeping takes away."""

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
    """Where bytes are. A chunk only grows, and is sealed at a size."""

    async def append(self, batches: Sequence[Buffer]) -> list[BatchLocation]:
        """Write these one after another and make them durable. StoreFull, StoreBroken."""

    async def read(self, locations: Sequence[BatchLocation]) -> list[bytearray]:
        """The bytes at these places, each in a buffer of the caller's own. LookupError if one is gone.

        A place may be part of what was appended, or span several appended ones. An OSError of the disk passes
        through: the bytes are there and cannot be had.
        """

    async def read_together(self, locations: Sequence[BatchLocation]) -> bytearray:
        """As `read`, one behind another in a single buffer, without a copy that would join them."""

    async def release(self, locations: Sequence[BatchLocation]) -> None:
        """Nobody points at these ranges any more: give their space back. They may read as zeros from now on.

        Whoever reads must look again, after reading, whether the batch is still there.
        """

    async def delete(self, chunk_id: int) -> None:
        """Remove a chunk. Not an error if it is gone."""

    async def list_chunks(self) -> list[tuple[int, int]]:
        """Every chunk with the bytes of space it takes."""

    async def close(self) -> None:
        """Let go of files and threads."""


class Ledger(Protocol):
    """Where truth is: one SQL commit per tick, and the queries that readers need."""

    async def load(self, keys: Sequence[Key]) -> list[Value | None]:
        """The entities with these keys, None for those that do not exist, in the same order."""

    async def commit(self, facts: Sequence[Fact], locations: Sequence[BatchLocation]) -> int:
        """Write the facts together and durably; its number.

        The i-th batch among them (``BatchAppended``, ``BatchStaged``, all that a ``BatchesReplaced`` rewrote)
        lies at places[i].
        """

    async def find_batches(
        self, partition: PartitionKey, offset: int, *, before: int, bytes_max: int, batches_max: int
    ) -> list[StoredBatch]:
        """Batches from the one that holds ``offset``, or the next, up to (not including) offset ``before``.

        At least one if there is one, then as long as their sizes stay within ``bytes_max``.
        """

    async def first_batch_since(self, partition: PartitionKey, timestamp: int) -> StoredBatch | None:
        """The first batch whose largest timestamp is at or after this one."""

    async def offset_at_size(self, partition: PartitionKey, size_bytes: int) -> int:
        """The smallest offset from which the rest of the partition is no larger; at a batch edge."""

    async def size_below(self, partition: PartitionKey, offset: int) -> tuple[int, int]:
        """The log start, and how many bytes lie in the batches from there that end below an offset."""

    async def topic_by_id(self, topic_id: bytes) -> Topic | None:
        """The topic with this id."""

    async def topics(self, *, after: str = "", limit: int = 10_000) -> list[Topic]:
        """Topics in the order of their names."""

    async def counts(self) -> Counts:
        """How many there are of what clients can make."""

    async def groups(self, *, after: str = "", limit: int = 10_000) -> list[GroupSummary]:
        """Groups in the order of their ids, also those that only have offsets (kind "")."""

    async def group_offsets(self, group_id: str) -> list[tuple[OffsetKey, CommittedOffset]]:
        """Everything a group has committed."""

    async def producers(self, partition: PartitionKey) -> list[tuple[int, ProducerState]]:
        """The producers that a partition remembers."""

    async def producers_unseen_since(self, before_ms: int, *, limit: int) -> list[Key]:
        """Producers without an open transaction that were last seen before this moment."""

    async def aborted(self, partition: PartitionKey, first: int, before: int) -> list[tuple[int, int]]:
        """The aborted transactions with a marker at or after ``first`` that began before ``before``.

        Pairs of producer id and first offset, in the order of the first offsets.
        """

    async def transactions(
        self, *, after: str = "", limit: int = 10_000, state: TransactionState | None = None
    ) -> list[Transaction]:
        """Transactional ids in their order, all or those in one state."""

    async def transactions_unused_since(self, before_ms: int, *, limit: int) -> list[str]:
        """Transactional ids without an open transaction that nobody used after this moment."""

    async def leftovers(self, *, limit: int) -> list[BatchLocation]:
        """Places of up to ``limit`` rows that the next sweep deletes. Nobody can reach them any more."""

    async def sweep(self, *, limit: int) -> list[BatchLocation]:
        """Delete up to ``limit`` rows that nobody can reach any more; places they freed.

        Deleted topics, log starts, aborted transactions and compaction leave such rows behind.
        Nothing is left to sweep when it frees nothing.
        """

    async def chunk_references(self) -> dict[int, int]:
        """How many bytes of each chunk rows point at; chunks that are not in here are orphans."""

    async def close(self) -> None:
        """Let go of files and threads."""


class Store(Protocol):
    """A ledger and a chunk store that commit together."""

    @property
    def ledger(self) -> Ledger:
        """Where truth is."""

    @property
    def chunks(self) -> ChunkStore:
        """Where bytes are."""

    @property
    def term(self) -> int:
        """Grows at a start when something that was committed early may be lost."""

    @property
    def has_unsynced(self) -> bool:
        """Whether something was committed early and is not durable yet."""

    flush_seconds: float
    """How long the flushes of the last commit took."""

    async def make_room(self, length: int) -> None:
        """See to it that a commit finds room for so many bytes. StoreFull, StoreBroken.

        Cheap when there is room already. A commit may still find the store full, but not for want of this.
        """

    async def commit(
        self, facts: Sequence[Fact], batches: Sequence[Buffer], *, defers_sync: bool = False
    ) -> int:
        """Bytes and facts together; the i-th batch among the facts owns batches[i]. StoreFull, StoreBroken.

        Durable when it returns, with everything that was committed early before; with nothing of its own it
        is a flush. Who reads the ledger from then on finds it there. The answer is the number of the commit.

        ``defers_sync``: need not be durable when it returns. It may be all the same, if it is large;
        ``has_unsynced`` tells.

        After ``StoreFull`` nothing of this commit happened, and what was committed early waits as before.
        """

    async def checkpoint(self) -> None:
        """Before space is given back: nothing that was committed needs the bytes that were released."""

    async def close(self) -> None:
        """Let go of everything."""
