"""Fold the facts of one commit into as few rows as possible.

A tick may hold a thousand batches for ten partitions and ten producers. Only the last value of an entity has
to be written, so facts are gathered first: each partition, producer, offset, group and transactional id is
written once, and batches are written many at a time (``partition_fold``).

Facts that change more than one entity (a topic or a group was deleted) are not gathered. Everything gathered
so far is written before them, to keep the order of the facts.

This module contains no rules. A fact carries the complete new value of its entity.

Fold the facts of one commit that change partitions: batches, staged batches, markers, producers.

See ``fold``. Only the last value of a partition in the facts is written. Batches are gathered per partition,
because that is the order of their table.

Staged batches are gathered per partition and producer. If a transaction begins and ends within one commit, as
it does when its work was unsynced, all of its batches are in memory at the end. They go directly to their
final table, without ever being rows of ``staged``.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any, Final

from semel.core.facts import (
    DURABLE,
    BatchAppended,
    BatchesReplaced,
    BatchStaged,
    FeatureChanged,
    GroupChanged,
    GroupDeleted,
    LogStartAdvanced,
    OffsetCommitted,
    OffsetDeleted,
    PartitionChanged,
    PendingChanged,
    PolicyChanged,
    ProducerAdvanced,
    ProducerExpired,
    ProducerIdAllocated,
    ShareChanged,
    ShareDeleted,
    StagedCommitted,
    StagedDropped,
    TopicChanged,
    TopicCreated,
    TopicDeleted,
    TransactionChanged,
    TransactionForgotten,
)
from semel.core.types import (
    CommittedOffset,
    Fact,
    OffsetKey,
    Partition,
    PartitionKey,
    PendingOffset,
    ProducerKey,
    ProducerState,
    Transaction,
)
from semel.store.contract import BatchLocation
from semel.store.embedded.queries import ManyRows, Statements
from semel.store.rows import (
    pack_configs,
    pack_open_transactions,
    pack_sent_batches,
    pack_staged,
    row_of_share,
    row_of_transaction,
)

_ADD_BATCHES: Final = ManyRows("add_batches")
_STAGE_BATCHES: Final = ManyRows("stage_batches")
_DROP_BATCHES: Final = ManyRows("drop_batches")
_ADD_ABORTED: Final = ManyRows("add_aborted")
_PUT_PARTITIONS: Final = ManyRows("put_partitions")
_PUT_PRODUCERS: Final = ManyRows("put_producers")
_DELETE_PRODUCERS: Final = ManyRows("delete_producers")
_LEAVE_BATCHES: Final = ManyRows("leave_batches")
_LEAVE_REPLACED: Final = ManyRows("leave_replaced")
_REWRITE_BATCHES: Final = ManyRows("rewrite_batches")
_REMOVE_BATCHES: Final = ManyRows("remove_batches")
_FORGET_ABORTED: Final = ManyRows("forget_aborted")

PARTITIONS_MAX: Final = 50_000
"""Ids of partitions that are cached between commits."""
_EMPTY: Final = Partition()

_StagedRow = tuple[int, int, int, int, int]
"""Offsets, max_timestamp, chunk_id, position, length."""


class PartitionFold:
    """Gathers changes of partitions and writes them."""

    def __init__(self, statements: Statements) -> None:
        self._sql = statements
        self.ids: dict[PartitionKey, int] = {}
        """Kept between commits."""
        self._locations: Sequence[BatchLocation] = ()
        self._places_taken = 0
        self._partitions: dict[PartitionKey, Partition] = {}
        self._batches: defaultdict[int, list[int]] = defaultdict(list)
        self._staged: dict[tuple[int, int], list[_StagedRow]] = {}
        self._dropped: list[int] = []
        self._aborted: list[int] = []
        self._producers: dict[ProducerKey, ProducerState | None] = {}
        self._left_below: dict[int, int] = {}

    def begin(self, locations: Sequence[BatchLocation]) -> None:
        """Begin a commit, with these locations for the batches in its facts."""
        self._locations = locations
        self._places_taken = 0

    def end(self) -> None:
        """End a commit after its last fact."""
        self.flush()
        assert self._places_taken == len(self._locations), "every place belongs to a batch"
        self._locations = ()
        if len(self.ids) > PARTITIONS_MAX:
            # Evict more than necessary, oldest first, so that this does not happen at every commit.
            self.ids = dict(list(self.ids.items())[-PARTITIONS_MAX // 2 :])

    def forget(self) -> None:
        """Discard cached state after a rollback."""
        self.ids.clear()
        for gathered in (self._partitions, self._batches, self._staged, self._producers, self._left_below):
            gathered.clear()
        self._dropped.clear()
        self._aborted.clear()
        self._locations = ()

    # -- facts --------------------------------------------------------------------------------------------

    def partition_changed(self, fact: PartitionChanged) -> None:
        """Replace the value of the partition. Only the last one is written."""
        self._partitions[fact.key] = fact.partition

    def batch_appended(self, fact: BatchAppended) -> None:
        """Append the batch to its log."""
        partition_id = self.ids.get(fact.partition) or self._id(fact.partition)
        chunk_id, position, length = self._locations[self._places_taken]
        self._places_taken += 1
        closes = fact.closes
        if closes is not None and not closes.is_commit:
            self._aborted += (
                partition_id,
                fact.base_offset,
                closes.first_offset,
                fact.producer_id,
                closes.last_stable_offset,
            )
        row = (
            partition_id,
            fact.base_offset,
            fact.last_offset,
            fact.max_timestamp,
            fact.peak_timestamp,
            chunk_id,
            position,
            length,
        )
        self._batches[partition_id].extend(row)

    def batch_staged(self, fact: BatchStaged) -> None:
        """Keep the batch until the outcome is known."""
        location = self._locations[self._places_taken]
        self._places_taken += 1
        gathered = self._staged.setdefault((self._id(fact.partition), fact.producer_id), [])
        gathered.append((fact.offsets, fact.max_timestamp, *location))

    def staged_committed(self, fact: StagedCommitted) -> None:
        """Append the staged batches to the log."""
        partition_id = self._id(fact.partition)
        peak_timestamp = fact.peak_before
        gathered = self._staged.get((partition_id, fact.producer_id), [])
        # Each batch takes an offset, so equal sums mean that none was staged by an earlier commit.
        if gathered and sum(each[0] for each in gathered) == fact.last_offset + 1 - fact.base_offset:
            del self._staged[partition_id, fact.producer_id]
            base_offset = fact.base_offset
            batches = self._batches[partition_id]
            for offsets, max_timestamp, *location in gathered:
                peak_timestamp = max(peak_timestamp, max_timestamp)
                last_offset = base_offset + offsets - 1
                batches += (partition_id, base_offset, last_offset, max_timestamp, peak_timestamp)
                batches += location
                base_offset = last_offset + 1
            assert peak_timestamp == fact.peak_timestamp, "the core counts as the ledger does"
            return
        self._flush_staged()
        bindings = {
            "partition_id": partition_id,
            "producer_id": fact.producer_id,
            "base_offset": fact.base_offset,
            "peak_timestamp": peak_timestamp,
        }
        self._sql.run("commit_staged", bindings)
        self._sql.run("delete_staged", (partition_id, fact.producer_id))
        last = self._sql.rows("batch_at", (partition_id, fact.last_offset))
        assert last, "the core commits only what was staged"
        assert last[0][1:] == (fact.last_offset, fact.peak_timestamp), "the core counts as the ledger does"

    def staged_dropped(self, fact: StagedDropped) -> None:
        """Leave the staged batches to the sweep."""
        partition_id = self._id(fact.partition)
        for *_, chunk_id, position, length in self._staged.pop((partition_id, fact.producer_id), ()):
            self._dropped += (chunk_id, position, length)
        self._sql.run("drop_staged", (partition_id, fact.producer_id))
        self._sql.run("delete_staged", (partition_id, fact.producer_id))

    def log_start_advanced(self, fact: LogStartAdvanced) -> None:
        """Leave batches below the log start to the sweep."""
        self._left_below[self._id(fact.partition)] = fact.log_start_offset

    def batches_replaced(self, fact: BatchesReplaced) -> None:
        """Give rows new locations or delete them. Their old locations are left to the sweep."""
        # The batches may have been appended in the same commit.
        self.flush()
        partition_id = self._id(fact.partition)
        rewritten: list[int] = []
        replaced: list[int] = []
        for batch in fact.rewritten:
            location = self._locations[self._places_taken]
            self._places_taken += 1
            rewritten += (partition_id, batch.base_offset, batch.max_timestamp, *location)
            replaced += (partition_id, batch.base_offset)
        removed = [number for base_offset in fact.removed for number in (partition_id, base_offset)]
        _LEAVE_REPLACED.run(self._sql, replaced + removed)
        _REWRITE_BATCHES.run(self._sql, rewritten)
        _REMOVE_BATCHES.run(self._sql, removed)
        _FORGET_ABORTED.run(self._sql, removed)

    def producer_advanced(self, fact: ProducerAdvanced) -> None:
        """Replace the state of the producer. Only the last one is written."""
        self._producers[fact.key] = fact.state

    def producer_expired(self, fact: ProducerExpired) -> None:
        """Forget the producer."""
        self._producers[fact.key] = None

    def add(self, key: PartitionKey, partition_id: int) -> None:
        """Add a new partition."""
        self.ids[key] = partition_id
        self._partitions[key] = _EMPTY

    # -- rows ---------------------------------------------------------------------------------------------

    def _id(self, key: PartitionKey) -> int:
        partition_id = self.ids.get(key)
        if partition_id is None:
            found = self._sql.rows("partition_row", key.values())
            if not found:
                raise LookupError(f"partition {key.index} of topic {key.topic_id.hex()} is not in the ledger")
            partition_id = self.ids[key] = int(found[0][0])
        return partition_id

    def flush(self) -> None:
        """Write the gathered changes."""
        if self._partitions:
            self._flush_partitions()
        if self._batches:
            _ADD_BATCHES.run(self._sql, list(chain.from_iterable(self._batches.values())))
            self._batches.clear()
        if self._staged:
            self._flush_staged()
        if self._dropped:
            _DROP_BATCHES.run(self._sql, self._dropped)
            self._dropped.clear()
        if self._aborted:
            _ADD_ABORTED.run(self._sql, self._aborted)
            self._aborted.clear()
        if self._producers:
            self._flush_producers()
        if self._left_below:
            values = [number for pair in self._left_below.items() for number in pair]
            _LEAVE_BATCHES.run(self._sql, values)
            self._left_below.clear()

    def _flush_partitions(self) -> None:
        partitions: list[Any] = []
        for key, partition in self._partitions.items():
            partitions += (
                self._id(key),
                key.topic_id,
                key.index,
                partition.log_start_offset,
                partition.high_watermark,
                partition.peak_timestamp,
                partition.size_bytes,
                pack_open_transactions(partition.open_transactions),
                partition.last_aborted_offset,
                partition.cleaned_offset,
                partition.compactions,
            )
        _PUT_PARTITIONS.run(self._sql, partitions)
        self._partitions.clear()

    def _flush_staged(self) -> None:
        staged: list[int] = []
        for owner, gathered in self._staged.items():
            for each in gathered:
                staged += owner
                staged += each
        _STAGE_BATCHES.run(self._sql, staged)
        self._staged.clear()

    def _flush_producers(self) -> None:
        put: list[Any] = []
        gone: list[int] = []
        for key, state in self._producers.items():
            partition_id = self._id(PartitionKey(key.topic_id, key.index))
            if state is None:
                gone += (partition_id, key.producer_id)
                continue
            put += (
                partition_id,
                key.producer_id,
                state.epoch,
                pack_sent_batches(state.batches),
                state.last_timestamp,
                state.seen_ms,
                state.coordinator_epoch,
                state.transaction_first_offset,
                pack_staged(state.staged),
            )
        _PUT_PRODUCERS.run(self._sql, put)
        _DELETE_PRODUCERS.run(self._sql, gone)
        self._producers.clear()


FACTS_AT_ONCE: Final = 128
"""After this many facts the thread yields the GIL. Otherwise the event loop would wait for the GIL longer
than the facts take, and each request needs it several times."""
_PUT_OFFSETS: Final = ManyRows("put_offsets")
_DELETE_OFFSETS: Final = ManyRows("delete_offsets")
_PUT_GROUPS: Final = ManyRows("put_groups")
_PUT_TRANSACTIONS: Final = ManyRows("put_transactions")
_DELETE_TRANSACTIONS: Final = ManyRows("delete_transactions")
_PUT_PENDING: Final = ManyRows("put_pending")
_DELETE_PENDING: Final = ManyRows("delete_pending")


class Counters:
    """The counters of the cluster. They only grow."""

    __slots__ = ("commit_number", "next_partition_id", "next_producer_id")

    def __init__(self, commit_number: int, next_producer_id: int, next_partition_id: int) -> None:
        self.commit_number = commit_number
        self.next_producer_id = next_producer_id
        self.next_partition_id = next_partition_id


class Fold:
    """Gathers the facts of a commit and writes them. Used by the writing connection only."""

    def __init__(self, statements: Statements, counters: Counters) -> None:
        self._sql = statements
        self.counters = counters
        self._partitions = partitions = PartitionFold(statements)
        self._offsets: dict[OffsetKey, CommittedOffset | None] = {}
        self._groups: dict[str, Any] = {}
        self._transactions: dict[str, Transaction | None] = {}
        self._pending: dict[str, tuple[PendingOffset, ...]] = {}
        self._writers: dict[type, Callable[[Any], None]] = {
            PartitionChanged: partitions.partition_changed,
            BatchAppended: partitions.batch_appended,
            BatchStaged: partitions.batch_staged,
            StagedCommitted: partitions.staged_committed,
            StagedDropped: partitions.staged_dropped,
            ProducerAdvanced: partitions.producer_advanced,
            ProducerExpired: partitions.producer_expired,
            LogStartAdvanced: partitions.log_start_advanced,
            BatchesReplaced: partitions.batches_replaced,
            ProducerIdAllocated: self._producer_id_allocated,
            FeatureChanged: self._feature_changed,
            PolicyChanged: self._policy_changed,
            OffsetCommitted: self._offset_committed,
            OffsetDeleted: self._offset_deleted,
            GroupChanged: self._group_changed,
            GroupDeleted: self._group_deleted,
            TransactionChanged: self._transaction_changed,
            TransactionForgotten: self._transaction_forgotten,
            PendingChanged: self._pending_changed,
            ShareChanged: self._share_changed,
            ShareDeleted: self._share_deleted,
            TopicCreated: self._topic_created,
            TopicChanged: self._topic_changed,
            TopicDeleted: self._topic_deleted,
        }
        assert self._writers.keys() == set(DURABLE)

    def write(self, facts: Sequence[Fact], locations: Sequence[BatchLocation]) -> None:
        """Write the durable facts in the open transaction. Other facts are skipped."""
        self._partitions.begin(locations)
        writers = self._writers
        for start in range(0, len(facts), FACTS_AT_ONCE):
            if start:
                time.sleep(0)
            for fact in facts[start : start + FACTS_AT_ONCE]:
                writer = writers.get(type(fact))
                if writer is not None:
                    writer(fact)
        self._flush()
        self._partitions.end()

    def forget(self, counters: Counters) -> None:
        """Discard cached state after a rollback."""
        self.counters = counters
        self._partitions.forget()
        for gathered in (self._offsets, self._groups, self._transactions, self._pending):
            gathered.clear()

    # -- gathered -----------------------------------------------------------------------------------------

    def _producer_id_allocated(self, fact: ProducerIdAllocated) -> None:
        self.counters.next_producer_id = fact.producer_id + 1

    def _offset_committed(self, fact: OffsetCommitted) -> None:
        self._offsets[fact.key] = fact.value

    def _offset_deleted(self, fact: OffsetDeleted) -> None:
        self._offsets[fact.key] = None

    def _group_changed(self, fact: GroupChanged) -> None:
        self._groups[fact.group.group_id] = fact.group

    def _transaction_changed(self, fact: TransactionChanged) -> None:
        self._transactions[fact.transaction.transactional_id] = fact.transaction

    def _transaction_forgotten(self, fact: TransactionForgotten) -> None:
        self._transactions[fact.transactional_id] = None

    def _pending_changed(self, fact: PendingChanged) -> None:
        self._pending[fact.group_id] = fact.pending

    # -- written at once ----------------------------------------------------------------------------------

    def _feature_changed(self, fact: FeatureChanged) -> None:
        self._sql.run("write_features", fact.values())

    def _policy_changed(self, fact: PolicyChanged) -> None:
        if fact.body is None:
            self._sql.run("delete_policy", fact.key.values())
        else:
            self._sql.run("put_policy", (*fact.key.values(), fact.body))

    def _share_changed(self, fact: ShareChanged) -> None:
        self._sql.run("put_share", (*fact.key.values(), *row_of_share(fact.share)))

    def _share_deleted(self, fact: ShareDeleted) -> None:
        self._sql.run("delete_share", fact.key.values())

    def _group_deleted(self, fact: GroupDeleted) -> None:
        self._flush()
        self._sql.run("delete_group", (fact.group_id,))
        self._sql.run("delete_offsets_of_group", (fact.group_id,))
        _DELETE_PENDING.run(self._sql, (fact.group_id,))

    def _topic_created(self, fact: TopicCreated) -> None:
        self._flush()
        name, topic_id, partitions, configs = fact.topic.values()
        self._sql.run("add_topic", (name, topic_id, partitions, pack_configs(configs)))
        self._add_partitions(topic_id, 0, partitions)

    def _topic_changed(self, fact: TopicChanged) -> None:
        self._flush()
        _, topic_id, partitions, configs = fact.topic.values()
        self._sql.run("change_topic", (partitions, pack_configs(configs), topic_id))
        present = self._sql.value("count_partitions", (topic_id,))
        self._add_partitions(topic_id, present, partitions)

    def _topic_deleted(self, fact: TopicDeleted) -> None:
        self._flush()
        topic_id = fact.topic.topic_id
        self._sql.run("drop_staged_of_topic", (topic_id,))
        self._sql.run("delete_staged_of_topic", (topic_id,))
        self._sql.run("leave_partitions", (topic_id,))
        self._sql.run("delete_partitions", (topic_id,))
        self._sql.run("delete_topic", (topic_id,))
        self._sql.run("delete_offsets_of_topic", (fact.topic.name,))
        self._sql.run("delete_pending_of_topic", (fact.topic.name,))
        self._sql.run("delete_shares_of_topic", (topic_id,))
        for index in range(fact.topic.partitions):
            self._partitions.ids.pop(PartitionKey(topic_id, index), None)

    # -- rows ---------------------------------------------------------------------------------------------

    def _add_partitions(self, topic_id: bytes, first: int, end: int) -> None:
        for index in range(first, end):
            self._partitions.add(PartitionKey(topic_id, index), self.counters.next_partition_id)
            self.counters.next_partition_id += 1

    def _flush(self) -> None:
        """Write the gathered facts."""
        self._partitions.flush()
        if self._offsets:
            self._flush_offsets()
        if self._groups:
            self._flush_groups()
        if self._transactions:
            self._flush_transactions()
        if self._pending:
            self._flush_pending()

    def _flush_offsets(self) -> None:
        put: list[Any] = []
        gone: list[Any] = []
        for key, value in self._offsets.items():
            if value is None:
                gone += key.values()
            else:
                put += key.values()
                put += value.values()
        _PUT_OFFSETS.run(self._sql, put)
        _DELETE_OFFSETS.run(self._sql, gone)
        self._offsets.clear()

    def _flush_groups(self) -> None:
        put: list[Any] = []
        for group in self._groups.values():
            put += (
                group.group_id,
                group.kind,
                group.protocol_type,
                group.state_name,
                group.member_count,
                group.pack(),
            )
        _PUT_GROUPS.run(self._sql, put)
        self._groups.clear()

    def _flush_transactions(self) -> None:
        put: list[Any] = []
        gone: list[str] = []
        for transactional_id, transaction in self._transactions.items():
            if transaction is None:
                gone.append(transactional_id)
            else:
                put += row_of_transaction(transaction)
        _PUT_TRANSACTIONS.run(self._sql, put)
        _DELETE_TRANSACTIONS.run(self._sql, gone)
        self._transactions.clear()

    def _flush_pending(self) -> None:
        put: list[Any] = []
        for group_id, pending in self._pending.items():
            for position, each in enumerate(pending):
                key, value = each.key, each.value.values()
                put += (group_id, position, each.producer_id, key.topic, key.partition, *value)
                put.append(each.is_superseded)
        _DELETE_PENDING.run(self._sql, list(self._pending))
        _PUT_PENDING.run(self._sql, put)
        self._pending.clear()
