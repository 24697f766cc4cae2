"""The fold of the facts on the simulated disk, in the simplest possible way.

This is an independent model of the ledger. It shares no code with the broker's state or with SQLite: if the
broker's state after a crash differs from it, one of the three is wrong. It computes partitions from the facts
about their batches, so it detects a core that decides a wrong value of a partition.
"""

from collections.abc import Sequence
from typing import Any

from msgspec.structs import asdict

from semel.core import facts as f
from semel.core.types import (
    Cluster,
    ClusterKey,
    Fact,
    GroupKey,
    Key,
    OffsetKey,
    OpenTransaction,
    Partition,
    PartitionKey,
    PendingKey,
    ProducerKey,
    ShareKey,
    Topic,
    TopicKey,
    Value,
)
from semel.store.contract import BatchLocation, StoredBatch


class FoldedFacts:
    """All entities and all batches, as of the last durable commit."""

    def __init__(self) -> None:
        self.values: dict[tuple[type, Any], Any] = {}
        self.batches: dict[PartitionKey, list[StoredBatch]] = {}
        self._staged: dict[tuple[PartitionKey, int], list[tuple[f.BatchStaged, BatchLocation]]] = {}
        self._aborted: dict[PartitionKey, list[tuple[int, int, int]]] = {}
        """Marker, producer and first offset of aborted transactions."""
        self._unstated: dict[PartitionKey, bool] = {}
        """Changed partitions that lack their new value, and whether compaction changed them."""

    def fold(self, facts: Sequence[Fact], locations: Sequence[BatchLocation]) -> None:
        """Apply a durable commit."""
        nth = iter(locations)
        for fact in facts:
            if isinstance(fact, f.BatchAppended):
                self._append(fact, next(nth))
            elif isinstance(fact, f.BatchStaged):
                self._staged.setdefault((fact.partition, fact.producer_id), []).append((fact, next(nth)))
            elif isinstance(fact, f.BatchesReplaced):
                self._replace(fact, [next(nth) for _ in fact.rewritten])
            else:
                getattr(self, "_" + type(fact).__name__)(fact)
        assert next(nth, None) is None, "every place belongs to a batch"
        assert not self._unstated, "a commit has the new value of every partition that it changed"

    def _put(self, key: Key, value: Value | None) -> None:
        if value is None:
            self.values.pop((type(key), key), None)
        else:
            self.values[type(key), key] = value

    def _get(self, key: Key) -> Any:
        return self.values.get((type(key), key))

    def _computed(self, key: PartitionKey, after: Partition, *, is_compacted: bool = False) -> None:
        self._put(key, after)
        self._unstated[key] = is_compacted or self._unstated.get(key, False)

    def _size(self, key: PartitionKey) -> int:
        return sum(each.location.length for each in self.batches[key])

    def _Put(self, fact: f.Put) -> None:  # noqa: N802 - named after the fact
        if isinstance(fact.value, Partition):
            self._check_partition(fact.key, fact.value)
        elif isinstance(fact.key, ShareKey) and fact.value is not None:
            assert self._get(fact.key.partition) is not None, "a share-partition belongs to a partition"
        self._put(fact.key, fact.value)

    def _check_partition(self, key: Any, value: Partition) -> None:
        own = self._get(key)
        if self._unstated.pop(key, False):
            # The batches do not show how far compaction has come.
            cleaned = value.cleaned_offset
            assert own.cleaned_offset <= cleaned <= own.last_stable_offset, "compaction only proceeds"
            own = own.but(cleaned_offset=cleaned)
        assert value == own, f"the batches say {own}, the core says {value}"

    def _append(self, fact: f.BatchAppended, location: BatchLocation) -> None:
        before = self._get(fact.partition)
        assert fact.base_offset == before.high_watermark, "a batch begins where the log ends"
        opened = before.open_transactions
        if fact.opens_transaction:
            opened = (*opened, OpenTransaction(fact.base_offset, fact.producer_id))
        after = before.but(
            high_watermark=fact.last_offset + 1,
            peak_timestamp=max(before.peak_timestamp, fact.max_timestamp),
            size_bytes=before.size_bytes + location.length,
            open_transactions=opened,
        )
        assert fact.peak_timestamp == after.peak_timestamp, "a peak is the largest timestamp so far"
        if fact.closes is not None:
            after = self._closed(fact, fact.closes, after)
        self._computed(fact.partition, after)
        stored = StoredBatch(fact.base_offset, fact.last_offset, fact.max_timestamp, location)
        self.batches[fact.partition].append(stored)

    def _replace(self, fact: f.BatchesReplaced, locations: Sequence[BatchLocation]) -> None:
        stored = {each.base_offset: each for each in self.batches[fact.partition]}
        for base_offset in fact.removed:
            del stored[base_offset]
        for batch, location in zip(fact.rewritten, locations, strict=True):
            assert stored[batch.base_offset].last_offset == batch.last_offset, "no offset changes"
            stored[batch.base_offset] = StoredBatch(
                batch.base_offset, batch.last_offset, batch.max_timestamp, location
            )
        self.batches[fact.partition] = list(stored.values())
        before = self._get(fact.partition)
        after = before.but(size_bytes=self._size(fact.partition), compactions=before.compactions + 1)
        self._computed(fact.partition, after, is_compacted=True)
        aborted = self._aborted.get(fact.partition, [])
        self._aborted[fact.partition] = [each for each in aborted if each[0] not in fact.removed]

    def _StagedCommitted(self, fact: f.StagedCommitted) -> None:  # noqa: N802
        before = self._get(fact.partition)
        offset, peak = before.high_watermark, before.peak_timestamp
        assert (fact.base_offset, fact.peak_before) == (offset, peak), "batches begin where the log ends"
        for staged, location in self._staged.pop((fact.partition, fact.producer_id)):
            last = offset + staged.offsets - 1
            stored = StoredBatch(offset, last, staged.max_timestamp, location)
            self.batches[fact.partition].append(stored)
            offset, peak = last + 1, max(peak, staged.max_timestamp)
        said = (fact.last_offset + 1, fact.peak_timestamp)
        assert said == (offset, peak), "what is committed is what was staged"
        size = self._size(fact.partition)
        self._computed(
            fact.partition, before.but(high_watermark=offset, peak_timestamp=peak, size_bytes=size)
        )

    def _StagedDropped(self, fact: f.StagedDropped) -> None:  # noqa: N802
        self._staged.pop((fact.partition, fact.producer_id), None)

    def _closed(self, marker: f.BatchAppended, closes: f.Closing, before: Partition) -> Partition:
        rest = tuple(each for each in before.open_transactions if each.producer_id != marker.producer_id)
        assert len(rest) == len(before.open_transactions) - 1, "what is closed was open, once"
        if closes.is_commit:
            return before.but(open_transactions=rest)
        aborted = (marker.base_offset, marker.producer_id, closes.first_offset)
        self._aborted.setdefault(marker.partition, []).append(aborted)
        return before.but(open_transactions=rest, last_aborted_offset=marker.base_offset)

    def _LogStartAdvanced(self, fact: f.LogStartAdvanced) -> None:  # noqa: N802
        start = fact.log_start_offset
        kept = [each for each in self.batches[fact.partition] if each.last_offset >= start]
        self.batches[fact.partition] = kept
        after = self._get(fact.partition).but(log_start_offset=start, size_bytes=self._size(fact.partition))
        self._computed(fact.partition, after)

    def _ProducerIdAllocated(self, fact: f.ProducerIdAllocated) -> None:  # noqa: N802
        cluster = self._get(ClusterKey()) or Cluster()
        assert fact.producer_id >= cluster.next_producer_id, "no producer id is given away twice"
        self._put(ClusterKey(), cluster.but(next_producer_id=fact.producer_id + 1))

    def _FeatureChanged(self, fact: f.FeatureChanged) -> None:  # noqa: N802
        cluster = self._get(ClusterKey()) or Cluster()
        self._put(ClusterKey(), cluster.but(**asdict(fact)))

    def _GroupDeleted(self, fact: f.GroupDeleted) -> None:  # noqa: N802
        self._put(GroupKey(fact.group_id), None)
        self._put(PendingKey(fact.group_id), None)
        for _, key in list(self.values):
            if isinstance(key, OffsetKey) and key.group_id == fact.group_id:
                self._put(key, None)

    def _TopicCreated(self, fact: f.TopicCreated) -> None:  # noqa: N802
        self._put(TopicKey(fact.topic.name), fact.topic)
        self._add_partitions(fact.topic)

    def _TopicChanged(self, fact: f.TopicChanged) -> None:  # noqa: N802
        self._put(TopicKey(fact.topic.name), fact.topic)
        self._add_partitions(fact.topic)

    def _add_partitions(self, topic: Topic) -> None:
        for index in range(topic.partitions):
            key = PartitionKey(topic.topic_id, index)
            if self._get(key) is None:
                self._put(key, Partition())
                self.batches[key] = []

    def _TopicDeleted(self, fact: f.TopicDeleted) -> None:  # noqa: N802
        topic = fact.topic
        self._put(TopicKey(topic.name), None)
        for index in range(topic.partitions):
            key = PartitionKey(topic.topic_id, index)
            self._put(key, None)
            self.batches.pop(key, None)
            self._aborted.pop(key, None)
            self._unstated.pop(key, None)
        for location in [each for each in self._staged if each[0].topic_id == topic.topic_id]:
            del self._staged[location]
        for kind, key in list(self.values):
            is_offset = kind is OffsetKey and key.topic == topic.name
            is_producer = kind in (ProducerKey, ShareKey) and key.topic_id == topic.topic_id
            if is_offset or is_producer:
                self._put(key, None)
            elif kind is PendingKey:
                left = tuple(each for each in self._get(key) if each.key.topic != topic.name)
                self._put(key, left or None)
