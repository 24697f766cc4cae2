"""Define the contract of a store that several brokers share.

Entities have versions (``core.entities``): ``load`` returns them, and ``commit`` names those that its
decisions were based on. If one has changed, nothing is written (``Conflict``). The same ledger records which
broker owns which shard (``Membership``).
"""

import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Final, Generic, NamedTuple, Protocol, runtime_checkable

from semel.core.types import Buffer, EntityKey, Fact, Key, V
from semel.store.contract import ChunkStore, Ledger

_CLOCK: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def lease_clock() -> float:
    """Return the time of a clock that also runs while the machine is suspended, if the system has one."""
    return time.clock_gettime(_CLOCK)


class Conflict(Exception):
    """Entities have changed since they were loaded. Nothing was written: load them again, decide again."""

    def __init__(self, keys: Sequence[Key] = ()) -> None:
        super().__init__(f"{len(keys)} entities have changed since they were loaded")
        self.keys = tuple(keys)
        """The entities that are known to have changed; empty if unknown."""


class TermEnded(Exception):
    """Unsynced work of any broker may be lost. Nothing was written, and ``Store.term`` is the new term."""


class Versioned(NamedTuple, Generic[V]):
    """An entity (None: it does not exist) and its version."""

    value: V | None
    version: int


class Peer(NamedTuple):
    """A broker of the cluster, as the ledger knows it."""

    broker_id: int
    epoch: int
    """Raised by each start of the broker, and when another broker takes its place."""
    endpoints: Mapping[str, tuple[str, int]]
    """The address that clients of each listener get."""
    internal: tuple[str, int]
    """The address for other brokers."""
    rack: str | None
    is_live: bool
    """Whether it may still serve: its lease is not known to be over."""
    is_leaving: bool = False
    """Whether it gives its shards away and takes no others."""


class Shard(NamedTuple):
    """The owner of a shard, None if it has none, and an epoch that grows with each change."""

    owner: int | None
    epoch: int


class SnapshotAge(NamedTuple):
    """The age of the oldest snapshot of the ledger that no broker holds; zeros if there is none."""

    seconds: float
    """0 if that is not known."""
    transactions: int
    holder: str = ""
    """Who holds it, in words that are the same for all sessions of an application."""


class ClusterView(NamedTuple):
    """The cluster at one moment."""

    peers: Sequence[Peer]
    """Ordered by id. Without brokers that have left."""
    shards: Sequence[Shard]
    """``SHARDS`` of them, by number."""
    notices: Sequence[tuple[int, bytes]]
    """Numbered notices that other brokers left in the ledger, unable to reach this one."""
    time_of_day_ms: int
    """By the clock of the ledger, which is the clock of the cluster."""
    now_ms: int
    """The time from which a new broker counts deadlines: that of the other brokers, whatever the ledger's
    clock says. If no other broker runs, the time of day, but not before the time that brokers last had."""


class Membership(Protocol):
    """The brokers that share a ledger, and the owners of the shards.

    A broker that does not renew its lease in time may be replaced: another broker raises its epoch, after
    which it can commit nothing, and takes its shards. All calls raise StoreFenced in a broker that was
    replaced, and StoreRefused if the ledger does not answer.
    """

    broker_id: int
    lease_seconds: float
    secret: bytes
    """Known only to the brokers of this cluster."""

    @property
    def epoch(self) -> int:
        """The epoch of this broker."""

    async def join(
        self, endpoints: Mapping[str, tuple[str, int]], internal: tuple[str, int], rack: str | None
    ) -> None:
        """Announce the addresses, and begin the lease."""

    async def renew(self, now_ms: int = 0) -> ClusterView:
        """Renew this broker's lease. ``now_ms`` is the time by which it counts deadlines, or 0."""

    async def take_over(self, dead: Peer, owners: Mapping[int, int]) -> bool:
        """Fence a broker whose lease is over, and give its shards to new owners. False if it lives."""

    async def hand_over(self, owners: Mapping[int, int], epochs: Mapping[int, int]) -> None:
        """Give own shards, and those without an owner, to these brokers, if the shards have these epochs.

        Each shard gets the next epoch, even if it is given to this broker.
        """

    async def leave(self, owners: Mapping[int, int]) -> None:
        """Give all own shards away, or leave them without an owner, and end the lease."""

    async def announce_leaving(self) -> None:
        """Ask other brokers to give this one no more shards."""

    async def leave_notice(self, peer: Peer, notice: bytes) -> int:
        """Leave a notice in the ledger for a broker that cannot be reached. Return its number."""

    async def is_noticed(self, peer: Peer, number: int) -> bool:
        """Whether the broker has seen the notice, or will see it before it serves clients again."""

    async def drop_notices(self, numbers: Sequence[int]) -> None:
        """Delete notices to this broker, which were carried out."""


@runtime_checkable
class SharedStore(Protocol):
    """A store that several brokers write to: ``Store``, with versions."""

    flush_seconds: float

    @property
    def ledger(self) -> Ledger:
        """The ledger."""

    @property
    def chunks(self) -> ChunkStore:
        """The chunk store."""

    @property
    def membership(self) -> Membership:
        """The brokers that share the store."""

    @property
    def lost_rows(self) -> int:
        """How often a query needed a row that the ledger has lost."""

    @property
    def cluster_id(self) -> str:
        """The id of the cluster."""

    @property
    def term(self) -> int:
        """Grows when unsynced work of any broker may be lost."""

    @property
    def oldest_snapshot(self) -> SnapshotAge:
        """The oldest snapshot at the last look. It keeps the ledger from removing old versions of rows."""

    @property
    def has_unsynced(self) -> bool:
        """Whether unsynced work of this broker was committed and is not durable yet."""

    async def make_room(self, length: int) -> None:
        """As in ``Store``."""

    async def load(self, keys: Sequence[EntityKey[V]], *, locks: bool = False) -> list[Versioned[V]]:
        """Return entities and their versions, in the order of the keys; version 0 if there is none.

        With ``locks``, no other broker can change them before the next ``commit`` or ``unlock``, which must
        follow soon. Further calls may lock more entities.
        """

    async def check_term(self) -> None:
        """Raise TermEnded if loaded entities may lack acknowledged work that is lost. StoreRefused."""

    async def unlock(self) -> None:
        """Give up all locks, without a commit."""

    async def put_ahead(self, batches: Sequence[Buffer]) -> None:
        """Write the bytes of batches before the commits that they belong to. StoreRefused.

        Until ``forget_ahead``, any number of commits may be tried with these same buffers, or some of them.
        """

    def forget_ahead(self, batches: Sequence[Buffer]) -> None:
        """Forget these batches: their commits are over, or will never come."""

    async def commit(
        self,
        facts: Sequence[Fact],
        batches: Sequence[Buffer],
        *,
        expected: Mapping[Key, int] | None = None,
        defers_sync: bool = False,
    ) -> int:
        """Commit as in ``Store``. Return the new version of all entities that were written.

        ``expected`` has the versions that the decisions were based on. The versions of other written
        entities are not checked. Conflict and TermEnded mean that nothing was written.
        """

    def upkeep(self, is_mine: Callable[[], bool]) -> Mapping[str, Coroutine[Any, Any, None]]:
        """Return background jobs by name. ``is_mine``: whether to do those that one broker does for all."""

    async def checkpoint(self) -> None:
        """As in ``Store``."""

    async def sweep_orphans(self) -> list[int]:
        """As in ``Store``."""

    async def close(self) -> None:
        """Release all resources."""
