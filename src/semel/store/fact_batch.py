"""Gather the facts of a commit by the rows they become, so that each table is written once.

A tick may hold a thousand batches for ten partitions and ten producers. Only the last value of an entity is
written, and batches are written many at a time.

If a transaction begins and ends within one commit, as it does when its work was unsynced, its staged batches
go directly to the log, without ever being rows of ``staged``.

A fact that changes rows which it does not contain (a deleted topic, staged batches of earlier commits,
compaction) is not gathered. The ledger writes what was gathered before it, and then the fact by itself, to
keep the order of the facts.

There are no rules here. A fact carries the complete new value of its entity.
"""

from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any, Final

from semel.core import facts
from semel.core.entities import ENTITIES
from semel.core.types import Fact, Key, PartitionKey, ProducerKey, Value
from semel.store.contract import BatchLocation

BatchRow = tuple[int, int, int, int, BatchLocation]
"""Base offset, last offset, largest timestamp of the batch, and of all batches up to it."""
StagedRow = tuple[int, int, BatchLocation]
"""Number of offsets, largest timestamp."""
AbortedRow = tuple[int, int, int, int]
"""Offset of the marker, first offset, producer id, last stable offset."""


class FactBatch:
    """What a commit writes, gathered up to the next fact that must be written by itself."""

    def __init__(self, locations: Sequence[BatchLocation]) -> None:
        self._locations = iter(locations)
        self.next_producer_id: int | None = None
        """Set if a producer id was allocated."""
        self.begin()

    def begin(self) -> None:
        """Forget what was gathered, because it has been written."""
        self.is_empty = True
        # Any: each table has the keys and values of its kind.
        self.puts: dict[type, dict[Any, Any]] = {kind: {} for kind in ENTITIES}
        self.batches: dict[PartitionKey, list[BatchRow]] = {}
        self.staged: dict[ProducerKey, list[StagedRow]] = {}
        self.dropped: list[BatchLocation] = []
        """Staged batches of aborted transactions."""
        self.aborted: list[tuple[PartitionKey, AbortedRow]] = []
        self.log_starts: dict[PartitionKey, int] = {}

    def put(self, key: Key, value: Value | None) -> None:
        """Gather the new value of an entity; None: it is gone."""
        self.is_empty = False
        self.puts[type(key)][key] = value

    def add(self, fact: Fact) -> bool:
        """Gather a fact. False: it is of another kind, or refers to batches of earlier commits."""
        if type(fact) is facts.Put:
            self.is_empty = False
            self.puts[type(fact.key)][fact.key] = fact.value
            return True
        gather = _GATHER.get(type(fact))
        return gather is not None and gather(self, fact)

    def take_locations(self, number: int) -> list[BatchLocation]:
        """Return the locations of the next batches."""
        return list(islice(self._locations, number))

    def end(self) -> None:
        """Check that every location was used."""
        assert next(self._locations, None) is None, "every location belongs to a batch"

    def _batch_appended(self, fact: facts.BatchAppended) -> bool:
        self.is_empty = False
        closes = fact.closes
        if closes is not None and not closes.is_commit:
            row = (fact.base_offset, closes.first_offset, fact.producer_id, closes.last_stable_offset)
            self.aborted.append((fact.partition, row))
        rows = self.batches.get(fact.partition)
        if rows is None:
            rows = self.batches[fact.partition] = []
        rows.append(
            (
                fact.base_offset,
                fact.last_offset,
                fact.max_timestamp,
                fact.peak_timestamp,
                next(self._locations),
            )
        )
        return True

    def _batch_staged(self, fact: facts.BatchStaged) -> bool:
        self.is_empty = False
        staged = self.staged.setdefault(fact.partition.of(fact.producer_id), [])
        staged.append((fact.offsets, fact.max_timestamp, next(self._locations)))
        return True

    def _staged_committed(self, fact: facts.StagedCommitted) -> bool:
        producer = fact.partition.of(fact.producer_id)
        staged = self.staged.get(producer, [])
        # Each batch takes an offset, so equal sums mean that none was staged by an earlier commit.
        if not staged or sum(offsets for offsets, *_ in staged) != fact.last_offset + 1 - fact.base_offset:
            return False
        del self.staged[producer]
        base, peak = fact.base_offset, fact.peak_before
        rows = self.batches.setdefault(fact.partition, [])
        for offsets, max_timestamp, location in staged:
            peak = max(peak, max_timestamp)
            rows.append((base, base + offsets - 1, max_timestamp, peak, location))
            base += offsets
        assert peak == fact.peak_timestamp, "the core counts as the ledger does"
        return True

    def _staged_dropped(self, fact: facts.StagedDropped) -> bool:
        staged = self.staged.pop(fact.partition.of(fact.producer_id), ())
        self.dropped += [location for *_, location in staged]
        # Earlier commits may have staged more.
        return False

    def _log_start_advanced(self, fact: facts.LogStartAdvanced) -> bool:
        self.is_empty = False
        self.log_starts[fact.partition] = fact.log_start_offset
        return True

    def _producer_id_allocated(self, fact: facts.ProducerIdAllocated) -> bool:
        self.next_producer_id = fact.producer_id + 1
        return True


_GATHER: Final[dict[type, Callable[[FactBatch, Any], bool]]] = {
    facts.BatchAppended: FactBatch._batch_appended,
    facts.BatchStaged: FactBatch._batch_staged,
    facts.StagedCommitted: FactBatch._staged_committed,
    facts.StagedDropped: FactBatch._staged_dropped,
    facts.LogStartAdvanced: FactBatch._log_start_advanced,
    facts.ProducerIdAllocated: FactBatch._producer_id_allocated,
}
"""Any: each takes the fact of its kind."""
GATHERED: Final = frozenset({facts.Put, *_GATHER})
"""The kinds of facts that can be gathered."""
