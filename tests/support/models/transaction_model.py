"""What readers must see, computed twice: from the facts, as stores and clients do, and from the answers.

`Shelf` keeps logs, staged batches and aborted transactions from the facts alone, and reads them as a client
does. `Expected` knows no rule of the broker: it gets the answers, and says which records may be read.
"""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from semel.core.facts import BatchAppended, BatchStaged, StagedCommitted, StagedDropped, TopicDeleted
from semel.core.types import Fact, Partition, PartitionKey
from semel.wire.records import BatchHeader, decode_batch, read_header
from support.models.transaction_rules import STAGED, TransactionRules


def is_journal(key: PartitionKey) -> bool:
    """Decide by the first byte, so that a recreated topic keeps its visibility."""
    return key.topic_id[:1] == STAGED[:1]


@dataclass
class Batch:
    """A batch at its position in a log."""

    base_offset: int
    last_offset: int
    header: BatchHeader
    data: bytes

    @property
    def values(self) -> list[bytes]:
        return [record.value or b"" for record in decode_batch(self.data)]


class Aborted(NamedTuple):
    """An aborted transaction, as fetch responses list it."""

    first_offset: int
    marker_offset: int
    producer_id: int


class Shelf(TransactionRules):
    """The rules, with the bytes kept as in a store."""

    def __init__(self, term: int = 1) -> None:
        self.logs: dict[PartitionKey, list[Batch]] = {}
        self.staged: dict[tuple[PartitionKey, int], list[tuple[int, bytes]]] = {}
        self.aborted: dict[PartitionKey, list[Aborted]] = {}
        super().__init__(term)

    def keep(self, fact: Fact, data: bytes | None) -> None:
        super().keep(fact, data)
        if isinstance(fact, BatchAppended):
            assert data is not None
            self._append(fact.partition, fact.base_offset, fact.last_offset, data)
            if fact.closes is not None and not fact.closes.is_commit:
                aborted = Aborted(fact.closes.first_offset, fact.base_offset, fact.producer_id)
                self.aborted.setdefault(fact.partition, []).append(aborted)
        elif isinstance(fact, BatchStaged):
            assert data is not None
            self.staged.setdefault((fact.partition, fact.producer_id), []).append((fact.offsets, data))
        elif isinstance(fact, StagedCommitted):
            at = fact.base_offset
            for offsets, staged in self.staged.pop((fact.partition, fact.producer_id)):
                self._append(fact.partition, at, at + offsets - 1, staged)
                at += offsets
            assert at == fact.last_offset + 1
        elif isinstance(fact, StagedDropped):
            del self.staged[fact.partition, fact.producer_id]
        elif isinstance(fact, TopicDeleted):
            self._delete(fact.topic.topic_id)

    def _append(self, key: PartitionKey, base: int, last: int, data: bytes) -> None:
        log = self.logs.setdefault(key, [])
        assert base == (log[-1].last_offset + 1 if log else 0), "a gap"
        log.append(Batch(base, last, read_header(data), data))

    def _delete(self, topic_id: bytes) -> None:
        for table in (self.logs, self.aborted):
            for key in [key for key in table if key.topic_id == topic_id]:
                del table[key]
        for place in [place for place in self.staged if place[0].topic_id == topic_id]:
            del self.staged[place]

    def read_committed(self, key: PartitionKey, partition: Partition) -> list[bytes]:
        """Return what a client delivers: up to the last stable offset, without aborted transactions."""
        stable = partition.last_stable_offset
        fetched = [batch for batch in self.logs.get(key, []) if batch.base_offset < stable]
        waiting = sorted(self.aborted.get(key, []), key=lambda each: each.first_offset)
        dropped: set[int] = set()
        values: list[bytes] = []
        for batch in fetched:
            while waiting and waiting[0].first_offset <= batch.last_offset:
                dropped.add(waiting.pop(0).producer_id)
            header = batch.header
            if header.is_control:
                dropped.discard(header.producer_id)
            elif not (header.is_transactional and header.producer_id in dropped):
                values += batch.values
        return values


@dataclass
class Work:
    """One transaction, as the answers describe it."""

    started_ms: int
    outcome: bool | None = None
    values: dict[PartitionKey, list[bytes]] = field(default_factory=dict)
    offsets: dict[tuple[str, str, int], tuple[int, int]] = field(default_factory=dict)
    """By group, topic and partition: the number of the write, and the offset."""


class Expected:
    """What may be read, derived from the answers."""

    def __init__(self) -> None:
        self.open: dict[str, Work] = {}
        self.logs: dict[PartitionKey, list[tuple[bytes, Work | None]]] = {}
        """Marker visibility: in append order, with the transaction. Journal visibility: what is visible."""
        self.positions: dict[tuple[str, str, int], tuple[int, int]] = {}
        self._writes = 0

    def wrote(self, now: int, transactional_id: str | None, key: PartitionKey, values: list[bytes]) -> None:
        work = None if transactional_id is None else self.open.setdefault(transactional_id, Work(now))
        if work is not None:
            work.values.setdefault(key, []).extend(values)
        if work is None or not is_journal(key):
            self.logs.setdefault(key, []).extend((value, work) for value in values)

    def added(self, now: int, transactional_id: str) -> None:
        self.open.setdefault(transactional_id, Work(now))

    def positioned(
        self, now: int, transactional_id: str | None, place: tuple[str, str, int], offset: int
    ) -> None:
        self._writes += 1
        if transactional_id is None:
            self.positions[place] = (self._writes, offset)
        else:
            work = self.open.setdefault(transactional_id, Work(now))
            work.offsets[place] = (self._writes, offset)

    def ended(self, transactional_id: str, is_commit: bool) -> None:
        work = self.open.pop(transactional_id, None)
        if work is None:
            return
        work.outcome = is_commit
        if not is_commit:
            return
        for key, values in work.values.items():
            if is_journal(key):
                self.logs.setdefault(key, []).extend((value, None) for value in values)
        for place, written in work.offsets.items():
            if written > self.positions.get(place, (-1, -1)):
                self.positions[place] = written

    def topic_deleted(self, name: str, topic_id: bytes) -> None:
        for key in [key for key in self.logs if key.topic_id == topic_id]:
            del self.logs[key]
        for work in self.open.values():
            for key in [key for key in work.values if key.topic_id == topic_id]:
                del work.values[key]
        self.forget_positions(lambda place: place[1] == name)

    def forget_positions(self, is_meant: Any) -> None:
        for table in (self.positions, *(work.offsets for work in self.open.values())):
            for place in [place for place in table if is_meant(place)]:
                del table[place]

    def visible(self, key: PartitionKey) -> list[bytes]:
        values: list[bytes] = []
        for value, work in self.logs.get(key, []):
            if work is not None and work.outcome is None:
                break
            if work is None or work.outcome:
                values.append(value)
        return values

    def unstable(self) -> set[tuple[str, str, int]]:
        return {place for work in self.open.values() for place in work.offsets}
