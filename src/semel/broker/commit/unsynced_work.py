"""Keeps unsynced work: work that was answered before it was flushed.

Work inside an open transaction has no effect before the transaction ends, and the end flushes. So a tick with
only such work is answered when it is written to the operating system, and the next commit that syncs makes it
durable. Until then it is kept here:

- its batches and facts, because readers see only durable data: the commit that flushes them publishes them;
- its facts also because the ledger does not have them yet. A commit that finds the store full undoes its own
  tick and no answered work, so the state is rebuilt from the ledger and these facts.

It is bounded in facts, bytes and time. A tick that would exceed the bounds flushes everything.
"""

from collections.abc import Collection, Sequence
from typing import Final

from semel.broker.reads.tail import BATCH_BYTES_MAX
from semel.core.entities import ENTITIES
from semel.core.facts import BatchAppended, BatchStaged, Put
from semel.core.types import Buffer, Fact, PartitionKey

FACTS_MAX: Final = 4_000
BYTES_MAX: Final = 4 * 1024 * 1024
"""Also what the end of a transaction has to flush at once, while all other commands wait."""
FLUSH_AFTER_SECONDS: Final = 0.1
"""How long work may stay unsynced. Readers that need it sooner request a flush."""


_MAY_STAY: Final = frozenset(
    {BatchAppended, BatchStaged, *(key for key, kind in ENTITIES.items() if kind.may_stay_unsynced)}
)
"""Facts, and keys of new values, that may stay unsynced. What is gone may not."""


def _kind(fact: Fact) -> type:
    if type(fact) is not Put:
        return type(fact)
    return type(fact.key) if fact.value is not None else Put


class UnsyncedWork:
    """The facts and batches that are not flushed. Owned by the commit loop; readers use ``partitions``."""

    def __init__(self) -> None:
        self.facts: list[Fact] = []
        self.batches: list[Buffer | None] = []
        """One for each fact that has bytes; None if readers do not need them in memory."""
        self.partitions: set[PartitionKey] = set()
        """Partitions with batches that are not published. The set is never replaced: others refer to it."""
        self.since = 0.0
        """When the oldest work was written, on the event loop's clock."""
        self._size_bytes = 0

    def __bool__(self) -> bool:
        return bool(self.facts)

    def has_room_for(self, facts: Sequence[Fact], size_bytes: int) -> bool:
        """Whether these facts may stay unsynced and fit within the bounds."""
        if len(self.facts) + len(facts) > FACTS_MAX or self._size_bytes + size_bytes > BYTES_MAX:
            return False
        return _MAY_STAY.issuperset(map(_kind, facts))

    def add(self, facts: Sequence[Fact], batches: Sequence[Buffer], now: float) -> None:
        """Add a tick that was written and not flushed."""
        if not self.facts:
            self.since = now
        self.facts += facts
        nth = iter(batches)
        for fact in facts:
            if type(fact) is BatchAppended:
                self.partitions.add(fact.partition)
                self._keep(next(nth))
            elif type(fact) is BatchStaged:
                # Staging does not change the partition.
                self._size_bytes += len(next(nth))
                self.batches.append(None)

    def _keep(self, batch: Buffer) -> None:
        self._size_bytes += len(batch)
        # A copy, because a small view would pin the frame of a large request.
        self.batches.append(bytes(batch) if len(batch) <= BATCH_BYTES_MAX else None)

    def take_partitions(self, keys: Collection[PartitionKey]) -> tuple[list[Fact], list[Buffer | None]]:
        """Remove and return the facts about these partitions, with their batches."""
        if self.partitions.isdisjoint(keys):
            return [], []
        taken: tuple[list[Fact], list[Buffer | None]] = [], []
        left: tuple[list[Fact], list[Buffer | None]] = [], []
        nth = iter(self.batches)
        for fact in self.facts:
            key = fact.key if type(fact) is Put else getattr(fact, "partition", None)
            facts, batches = taken if key in keys and type(fact) is not BatchStaged else left
            facts.append(fact)
            if isinstance(fact, BatchAppended | BatchStaged):
                batches.append(next(nth))
        self.facts, self.batches = left
        self.partitions.difference_update(keys)
        return taken

    def take(self) -> tuple[list[Fact], list[Buffer | None]]:
        """Remove and return everything, because it is durable and may be published."""
        taken = self.facts, self.batches
        self.facts, self.batches = [], []
        self.partitions.clear()
        self._size_bytes = 0
        return taken
