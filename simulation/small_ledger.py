"""The ledger of the small world (``small_world``): the same fold as in simulated histories, copied per state.

``SmallLedger`` is the store that the real commit loop sees while one broker takes a step. It never waits.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from semel.core.entities import ABSENT, VERSIONED
from semel.core.facts import Put
from semel.core.types import (
    Buffer,
    Cluster,
    ClusterKey,
    Fact,
    Key,
    Partition,
    PartitionKey,
    Transaction,
)
from semel.store.cluster.contract import Conflict, Versioned
from semel.store.contract import BatchLocation, StoreFenced
from simulation.shared_ledger import SLOT_SHIFT, VersionedFold

_CONTENTS: Final[dict[bytes, int]] = {}
"""Batches by content, so that equal logs are equal."""


class SmallFold(VersionedFold):
    """A fold that can be copied and compared."""

    _key: object = None
    problems: "list[str] | None" = None
    """What ``explorer`` has found wrong with the logs; None if it has not looked."""

    def copy(self) -> "SmallFold":
        """Return a copy that later folds do not change."""
        other = SmallFold()
        other.values = dict(self.values)
        other.versions = dict(self.versions)
        other.batches = {key: list(batches) for key, batches in self.batches.items()}
        other._aborted = {key: list(aborted) for key, aborted in self._aborted.items()}
        return other

    def key(self) -> object:
        """Return a value that is equal for equal folds. Call it only when nothing more is folded."""
        if self._key is None:
            batches = tuple(tuple(each) for each in self.batches.values())
            self._key = hash((frozenset(self.values.items()), frozenset(self.versions.items()), batches))
        return self._key


class SmallLedger:
    """The store of the broker whose step is taken: what the commit loop uses of ``SharedStore``."""

    term = 1
    has_unsynced = False
    flush_seconds = 0.0

    def __init__(self) -> None:
        self.fold = SmallFold()
        self.epochs: Mapping[int, int] = {}
        self.broker = 0
        self.member: Any = None
        self.world: Any = None

    @property
    def ledger(self) -> "SmallLedger":
        """The ledger."""
        return self

    def initial(self, transactions: Iterable[Transaction], partitions: Iterable[PartitionKey]) -> SmallFold:
        """Return a ledger with transactional ids and empty partitions."""
        fold = SmallFold()
        for key in partitions:
            fold._put(key, Partition())
            fold.batches[key] = []
        fold.fold_commit([Put.of(each) for each in transactions], (), ABSENT + 1)
        return fold

    def use(self, world: Any, broker: int) -> None:
        """Act as the store of one broker."""
        self.fold, self.epochs = world.ledger, world.epochs
        self.broker, self.member = broker, world.members[broker]
        self.world = world

    async def load(self, keys: Sequence[Key], *, locks: bool = False) -> list[Any]:
        """Return entities with their versions."""
        values, versions = self.fold.values, self.fold.versions
        return [
            Versioned(Cluster(), ABSENT)
            if type(key) is ClusterKey
            else Versioned(values.get((type(key), key)), versions.get(key, ABSENT))
            for key in keys
        ]

    async def check_term(self) -> None:
        """Do nothing: this ledger does not crash."""

    async def unlock(self) -> None:
        """Do nothing: a step is not interrupted."""

    async def open_transactions(self, *, after: str = "", limit: int) -> list[Transaction]:
        """Return open transactions."""
        return await self.fold.open_transactions(after=after, limit=limit)

    async def commit(
        self,
        facts: Sequence[Fact],
        batches: Sequence[Buffer],
        *,
        expected: Mapping[Key, int],
        defers_sync: bool = False,
    ) -> int:
        """Commit, if the versions and the epoch are as expected."""
        member, versions = self.member, self.fold.versions
        moved = [
            key
            for key, version in expected.items()
            if type(key) in VERSIONED and versions.get(key, ABSENT) != version
        ]
        if moved:
            raise Conflict(moved)
        if self.epochs[self.broker] != member.epoch:
            raise StoreFenced("another process took the place of the broker")
        member.sequence += 1
        version: int = self.broker << SLOT_SHIFT | member.epoch << (SLOT_SHIFT // 2) | member.sequence
        locations = [
            BatchLocation(_CONTENTS.setdefault(bytes(each), len(_CONTENTS)), 0, len(each)) for each in batches
        ]
        fold = self.world.ledger = self.fold = self.fold.copy()
        fold.fold_commit(facts, locations, version)
        return version


def content_of(chunk_id: int) -> bytes:
    """Return the bytes of a batch."""
    return next(content for content, number in _CONTENTS.items() if number == chunk_id)
