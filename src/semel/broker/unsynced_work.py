"""Work that was answered before it was flushed.

Inside an open transaction nothing counts before the end, and the end flushes. So a tick that holds only such
work is answered when the operating system has it (*early*), and the next ordinary commit makes it durable.
Until then it is kept here:

- its batches and facts, because readers see nothing that is not durable: they are published by the commit
  that flushes them;
- its facts also because the ledger does not have them yet. A commit that finds the store full takes back its
  own tick and nothing that was answered before; so the state is made anew from the ledger and these.

It is bounded in facts, bytes and time. What would go beyond is an ordinary tick, which flushes everything.
"""

from collections.abc import Sequence
from typing import Final

from semel.broker.tail import BATCH_BYTES_MAX
from semel.core.facts import BatchAppended, BatchStaged, PendingChanged, ProducerAdvanced, TransactionChanged
from semel.core.types import Buffer, Fact, PartitionKey

FACTS_MAX: Final = 4_000
BYTES_MAX: Final = 4 * 1024 * 1024
"""Also what the end of a transaction has to flush at once, while all others wait for it."""
FLUSH_AFTER_SECONDS: Final = 0.1
"""How long early work may stay unflushed. Whoever wants to see it sooner asks for a flush."""

_MAY_STAY_UNSYNCED: Final = frozenset(
    {BatchAppended, BatchStaged, ProducerAdvanced, TransactionChanged, PendingChanged}
)


class UnsyncedWork:
    """What is unflushed. Owned by the commit loop; others look at ``partitions``."""

    def __init__(self) -> None:
        self.facts: list[Fact] = []
        self.batches: list[Buffer | None] = []
        """One for each fact that has bytes; None where readers have no use for them in memory."""
        self.partitions: set[PartitionKey] = set()
        """Those whose logs are longer than readers know. The same set for ever: others hold on to it."""
        self.since = 0.0
        """When the oldest of it was written, on the event loop's clock."""
        self._size_bytes = 0

    def __bool__(self) -> bool:
        return bool(self.facts)

    def has_room_for(self, facts: Sequence[Fact], size_bytes: int) -> bool:
        """Whether these may be added."""
        if len(self.facts) + len(facts) > FACTS_MAX or self._size_bytes + size_bytes > BYTES_MAX:
            return False
        return _MAY_STAY_UNSYNCED.issuperset(map(type, facts))

    def add(self, facts: Sequence[Fact], batches: Sequence[Buffer], now: float) -> None:
        """An early tick was written."""
        if not self.facts:
            self.since = now
        self.facts += facts
        nth = iter(batches)
        for fact in facts:
            kind = type(fact)
            if kind is BatchAppended:
                self.partitions.add(fact.partition)
                self._keep(next(nth))
            elif kind is BatchStaged:
                # The partition is as it was.
                self._size_bytes += len(next(nth))
                self.batches.append(None)

    def _keep(self, batch: Buffer) -> None:
        self._size_bytes += len(batch)
        # A copy, because a small view would pin the frame of a large request.
        self.batches.append(bytes(batch) if len(batch) <= BATCH_BYTES_MAX else None)

    def take(self) -> tuple[list[Fact], list[Buffer | None]]:
        """Everything is durable: what readers may see now."""
        taken = self.facts, self.batches
        self.facts, self.batches = [], []
        self.partitions.clear()
        self._size_bytes = 0
        return taken
