"""Write the facts of a commit as rows of the ledger (see ``semel.store.fact_batch``)."""

import time
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any, Final

from semel.core import types
from semel.core.entities import ENTITIES
from semel.core.facts import (
    DURABLE,
    BatchesReplaced,
    FeatureChanged,
    GroupDeleted,
    StagedCommitted,
    StagedDropped,
    TopicChanged,
    TopicCreated,
    TopicDeleted,
)
from semel.core.groups import Group
from semel.core.shares.partition import SharePartition
from semel.store.contract import BatchLocation
from semel.store.embedded.queries import ManyRows, Statements
from semel.store.fact_batch import GATHERED, FactBatch
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
_PUT_OFFSETS: Final = ManyRows("put_offsets")
_DELETE_OFFSETS: Final = ManyRows("delete_offsets")
_PUT_GROUPS: Final = ManyRows("put_groups")
_PUT_TRANSACTIONS: Final = ManyRows("put_transactions")
_DELETE_TRANSACTIONS: Final = ManyRows("delete_transactions")
_PUT_PENDING: Final = ManyRows("put_pending")
_DELETE_PENDING: Final = ManyRows("delete_pending")

PARTITIONS_MAX: Final = 50_000
"""Ids of partitions that are cached between commits."""
FACTS_AT_ONCE: Final = 128
"""After this many facts the thread yields the GIL. Otherwise the event loop would wait for the GIL longer
than the facts take, and each request needs it several times."""


class Counters:
    """The counters of the cluster. They only grow."""

    __slots__ = ("commit_number", "next_partition_id", "next_producer_id")

    def __init__(self, commit_number: int, next_producer_id: int, next_partition_id: int) -> None:
        self.commit_number = commit_number
        self.next_producer_id = next_producer_id
        self.next_partition_id = next_partition_id


class RowWriter:
    """Used by the writing connection only."""

    def __init__(self, statements: Statements, counters: Counters) -> None:
        self._sql = statements
        self.counters = counters
        self._ids: dict[types.PartitionKey, int] = {}
        """Kept between commits."""
        self._batch = FactBatch(())
        # Any: each takes the fact, or the keys and values, of its kind.
        self._write_alone: Final[dict[type, Callable[[Any], None]]] = {
            BatchesReplaced: self._batches_replaced,
            StagedCommitted: self._staged_committed,
            StagedDropped: self._staged_dropped,
            FeatureChanged: self._feature_changed,
            GroupDeleted: self._group_deleted,
            TopicCreated: self._topic_created,
            TopicChanged: self._topic_changed,
            TopicDeleted: self._topic_deleted,
        }
        assert GATHERED | self._write_alone.keys() == set(DURABLE)
        self._write_puts: Final[dict[type, Callable[[Any], None]]] = {
            types.ProducerKey: self._write_producers,
            types.OffsetKey: self._write_offsets,
            types.GroupKey: self._write_groups,
            types.TransactionKey: self._write_transactions,
            types.PendingKey: self._write_pending,
            types.PolicyKey: self._write_policies,
            types.ShareKey: self._write_shares,
        }
        # Partitions are written before their batches, and topics and the cluster by facts of their own.
        assert (
            self._write_puts.keys() | {types.PartitionKey, types.TopicKey, types.ClusterKey}
            == ENTITIES.keys()
        )

    def write(self, facts: Sequence[types.Fact], locations: Sequence[BatchLocation]) -> None:
        """Write the durable facts in the open transaction. Other facts are skipped."""
        batch = self._batch = FactBatch(locations)
        for start in range(0, len(facts), FACTS_AT_ONCE):
            if start:
                time.sleep(0)
            for fact in facts[start : start + FACTS_AT_ONCE]:
                if not batch.add(fact) and (write := self._write_alone.get(type(fact))):
                    self._flush()
                    write(fact)
        self._flush()
        batch.end()
        if batch.next_producer_id is not None:
            self.counters.next_producer_id = batch.next_producer_id
        if len(self._ids) > PARTITIONS_MAX:
            # Evict more than necessary, oldest first, so that this does not happen at every commit.
            self._ids = dict(list(self._ids.items())[-PARTITIONS_MAX // 2 :])

    def forget(self, counters: Counters) -> None:
        """Discard cached state after a rollback."""
        self.counters = counters
        self._ids.clear()

    # -- what was gathered --------------------------------------------------------------------------------

    def _flush(self) -> None:
        """Write what was gathered."""
        batch = self._batch
        if batch.is_empty:
            return
        if batch.puts[types.PartitionKey]:
            self._write_partitions(batch.puts[types.PartitionKey])
        if batch.batches:
            self._write_batches(batch)
        if batch.staged:
            self._write_staged(batch)
        if batch.dropped:
            _DROP_BATCHES.run(self._sql, list(chain.from_iterable(batch.dropped)))
        if batch.aborted:
            rows = [(self._id(key), *row) for key, row in batch.aborted]
            _ADD_ABORTED.run(self._sql, list(chain.from_iterable(rows)))
        if batch.log_starts:
            below = [number for key, start in batch.log_starts.items() for number in (self._id(key), start)]
            _LEAVE_BATCHES.run(self._sql, below)
        for kind, write in self._write_puts.items():
            if batch.puts[kind]:
                write(batch.puts[kind])
        batch.begin()

    def _id(self, key: types.PartitionKey) -> int:
        partition_id = self._ids.get(key)
        if partition_id is None:
            found = self._sql.rows("partition_row", key.values())
            if not found:
                raise LookupError(f"partition {key.index} of topic {key.topic_id.hex()} is not in the ledger")
            partition_id = self._ids[key] = int(found[0][0])
        return partition_id

    def _write_batches(self, batch: FactBatch) -> None:
        batches: list[int] = []
        for key, rows in batch.batches.items():
            partition_id = self._id(key)
            for base, last, max_timestamp, peak, location in rows:
                batches += (partition_id, base, last, max_timestamp, peak, *location)
        _ADD_BATCHES.run(self._sql, batches)

    def _write_staged(self, batch: FactBatch) -> None:
        staged: list[int] = []
        for key, rows in batch.staged.items():
            partition_id = self._id(types.PartitionKey(key.topic_id, key.index))
            for offsets, max_timestamp, location in rows:
                staged += (partition_id, key.producer_id, offsets, max_timestamp, *location)
        _STAGE_BATCHES.run(self._sql, staged)

    def _write_partitions(self, partitions: dict[types.PartitionKey, types.Partition]) -> None:
        put: list[Any] = []
        for key, partition in partitions.items():
            put += (
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
        _PUT_PARTITIONS.run(self._sql, put)

    def _write_producers(self, producers: dict[types.ProducerKey, types.ProducerState | None]) -> None:
        put: list[Any] = []
        gone: list[int] = []
        for key, state in producers.items():
            partition_id = self._id(types.PartitionKey(key.topic_id, key.index))
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

    def _write_offsets(self, offsets: dict[types.OffsetKey, types.CommittedOffset | None]) -> None:
        put: list[Any] = []
        gone: list[Any] = []
        for key, value in offsets.items():
            if value is None:
                gone += key.values()
            else:
                put += key.values()
                put += value.values()
        _PUT_OFFSETS.run(self._sql, put)
        _DELETE_OFFSETS.run(self._sql, gone)

    def _write_groups(self, groups: dict[types.GroupKey, Group]) -> None:
        put: list[Any] = []
        for group in groups.values():
            put += (
                group.group_id,
                group.kind,
                group.protocol_type,
                group.state_name,
                group.pack(),
            )
        _PUT_GROUPS.run(self._sql, put)

    def _write_transactions(self, transactions: dict[types.TransactionKey, types.Transaction | None]) -> None:
        put: list[Any] = []
        gone: list[str] = []
        for key, transaction in transactions.items():
            if transaction is None:
                gone.append(key.transactional_id)
            else:
                put += row_of_transaction(transaction)
        _PUT_TRANSACTIONS.run(self._sql, put)
        _DELETE_TRANSACTIONS.run(self._sql, gone)

    def _write_pending(self, pending: dict[types.PendingKey, tuple[types.PendingOffset, ...] | None]) -> None:
        put: list[Any] = []
        for group, offsets in pending.items():
            for position, offset in enumerate(offsets or ()):
                key = offset.key
                put += (group.group_id, position, offset.producer_id, key.topic, key.partition)
                put += (*offset.value.values(), offset.is_superseded)
        _DELETE_PENDING.run(self._sql, [key.group_id for key in pending])
        _PUT_PENDING.run(self._sql, put)

    def _write_policies(self, policies: dict[types.PolicyKey, str | None]) -> None:
        for key, body in policies.items():
            if body is None:
                self._sql.run("delete_policy", key.values())
            else:
                self._sql.run("put_policy", (*key.values(), body))

    def _write_shares(self, shares: dict[types.ShareKey, SharePartition | None]) -> None:
        for key, share in shares.items():
            if share is None:
                self._sql.run("delete_share", key.values())
            else:
                self._sql.run("put_share", (*key.values(), *row_of_share(share)))

    # -- facts that are written by themselves -------------------------------------------------------------

    def _staged_committed(self, fact: StagedCommitted) -> None:
        partition_id = self._id(fact.partition)
        bindings = {
            "partition_id": partition_id,
            "producer_id": fact.producer_id,
            "base_offset": fact.base_offset,
            "peak_timestamp": fact.peak_before,
        }
        self._sql.run("commit_staged", bindings)
        self._sql.run("delete_staged", (partition_id, fact.producer_id))
        last = self._sql.rows("batch_at", (partition_id, fact.last_offset))
        assert last, "the core commits only what was staged"
        assert last[0][1:] == (fact.last_offset, fact.peak_timestamp), "the core counts as the ledger does"

    def _staged_dropped(self, fact: StagedDropped) -> None:
        """Leave the staged batches to the sweep."""
        partition_id = self._id(fact.partition)
        self._sql.run("drop_staged", (partition_id, fact.producer_id))
        self._sql.run("delete_staged", (partition_id, fact.producer_id))

    def _batches_replaced(self, fact: BatchesReplaced) -> None:
        """Give rows new locations or delete them. Their old locations are left to the sweep."""
        partition_id = self._id(fact.partition)
        rewritten: list[int] = []
        replaced: list[int] = []
        for batch, location in zip(
            fact.rewritten, self._batch.take_locations(len(fact.rewritten)), strict=True
        ):
            rewritten += (partition_id, batch.base_offset, batch.max_timestamp, *location)
            replaced += (partition_id, batch.base_offset)
        removed = [number for base_offset in fact.removed for number in (partition_id, base_offset)]
        _LEAVE_REPLACED.run(self._sql, replaced + removed)
        _REWRITE_BATCHES.run(self._sql, rewritten)
        _REMOVE_BATCHES.run(self._sql, removed)
        _FORGET_ABORTED.run(self._sql, removed)

    def _feature_changed(self, fact: FeatureChanged) -> None:
        self._sql.run("write_features", fact.values())

    def _group_deleted(self, fact: GroupDeleted) -> None:
        self._sql.run("delete_group", (fact.group_id,))
        self._sql.run("delete_offsets_of_group", (fact.group_id,))
        _DELETE_PENDING.run(self._sql, (fact.group_id,))

    def _topic_created(self, fact: TopicCreated) -> None:
        name, topic_id, partitions, configs = fact.topic.values()
        self._sql.run("add_topic", (name, topic_id, partitions, pack_configs(configs)))
        self._add_partitions(topic_id, 0, partitions)

    def _topic_changed(self, fact: TopicChanged) -> None:
        _, topic_id, partitions, configs = fact.topic.values()
        self._sql.run("change_topic", (partitions, pack_configs(configs), topic_id))
        present = self._sql.value("count_partitions", (topic_id,))
        self._add_partitions(topic_id, present, partitions)

    def _add_partitions(self, topic_id: bytes, first: int, end: int) -> None:
        for index in range(first, end):
            key = types.PartitionKey(topic_id, index)
            self._ids[key] = self.counters.next_partition_id
            self.counters.next_partition_id += 1
            self._batch.put(key, types.Partition())

    def _topic_deleted(self, fact: TopicDeleted) -> None:
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
            self._ids.pop(types.PartitionKey(topic_id, index), None)
