"""Fold the facts of one commit into as few rows as possible.

A tick may hold a thousand batches for ten partitions and ten producers. Only the last value of an entity has
to be written, so facts are gathered first: each partition, producer, offset, group and transactional id is
written once, and batches are written many at a time (``partition_fold``).

Facts that change more than one entity (a topic or a group was deleted) are not gathered. Everything gathered
so far is written before them, to keep the order of the facts.

This module contains no rules. A fact carries the complete new value of its entity.
"""

import time
from collections.abc import Callable, Sequence
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
from semel.core.types import CommittedOffset, Fact, OffsetKey, PartitionKey, PendingOffset, Transaction
from semel.store.contract import BatchLocation
from semel.store.embedded.partition_fold import PartitionFold
from semel.store.embedded.queries import ManyRows, Statements
from semel.store.rows import pack_configs, row_of_share, row_of_transaction

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
