"""The facts of one commit, folded into as few rows as they come to.

A tick may hold a thousand batches for ten partitions and ten producers. Only the last state of an entity is
worth writing, so facts are first gathered: each partition, producer, offset and group is written once, and
batches are written many at a time. Batches are gathered per partition, because that is the order of their
table.

Facts that change more than one entity (a topic or a group is gone) are not gathered. What was gathered so far
is written before them, so that everything happens in the order in which it became true.

Here is no rule. Each fact says what its entity becomes.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final

from semel.core.facts import (
    DURABLE,
    BatchAppended,
    GroupChanged,
    GroupDeleted,
    LogStartAdvanced,
    OffsetCommitted,
    OffsetDeleted,
    ProducerAdvanced,
    ProducerExpired,
    ProducerIdAllocated,
    TopicChanged,
    TopicCreated,
    TopicDeleted,
)
from semel.core.types import (
    CommittedOffset,
    Fact,
    OffsetKey,
    OpenTransaction,
    PartitionKey,
    ProducerKey,
    ProducerState,
)
from semel.store.interface import Place
from semel.store.queries import ManyRows, Statements
from semel.store.rows import pack_configs, pack_open_transactions, pack_sent_batches

_ADD_BATCHES: Final = ManyRows("add_batches")
_PUT_PARTITIONS: Final = ManyRows("put_partitions")
_PUT_PRODUCERS: Final = ManyRows("put_producers")
_DELETE_PRODUCERS: Final = ManyRows("delete_producers")
_PUT_OFFSETS: Final = ManyRows("put_offsets")
_DELETE_OFFSETS: Final = ManyRows("delete_offsets")
_PUT_GROUPS: Final = ManyRows("put_groups")
_LEAVE_BATCHES: Final = ManyRows("leave_batches")

PARTITIONS_MAX: Final = 50_000
"""Partition rows that stay in memory between commits, so that a commit need not read what it wrote before."""


class Counters:
    """The numbers of the cluster that only grow."""

    __slots__ = ("commit_number", "next_partition_id", "next_producer_id")

    def __init__(self, commit_number: int, next_producer_id: int, next_partition_id: int) -> None:
        self.commit_number = commit_number
        self.next_producer_id = next_producer_id
        self.next_partition_id = next_partition_id


class PartitionRow:
    """A row of partitions as it is about to become, and its new batches."""

    __slots__ = (
        "batches",
        "high_watermark",
        "key",
        "log_start_offset",
        "open_transactions",
        "partition_id",
        "peak_timestamp",
        "size_bytes",
    )

    def __init__(
        self,
        key: PartitionKey,
        partition_id: int,
        log_start_offset: int = 0,
        high_watermark: int = 0,
        peak_timestamp: int = -1,
        size_bytes: int = 0,
        open_transactions: bytes = b"",
    ) -> None:
        self.key = key
        self.partition_id = partition_id
        self.log_start_offset = log_start_offset
        self.high_watermark = high_watermark
        self.peak_timestamp = peak_timestamp
        self.size_bytes = size_bytes
        self.open_transactions = open_transactions
        self.batches: list[int] = []


class Fold:
    """Gathers the facts of a commit and writes them. Belongs to the one writing connection."""

    def __init__(self, statements: Statements, counters: Counters) -> None:
        self._sql = statements
        self.counters = counters
        self._rows: dict[PartitionKey, PartitionRow] = {}
        self._places: Sequence[Place] = ()
        self._places_taken = 0
        self._partitions: dict[PartitionKey, PartitionRow] = {}
        self._producers: dict[ProducerKey, ProducerState | None] = {}
        self._offsets: dict[OffsetKey, CommittedOffset | None] = {}
        self._groups: dict[str, Any] = {}
        self._left_below: dict[int, int] = {}
        self._writers: dict[type, Callable[[Any], None]] = {
            BatchAppended: self._batch_appended,
            ProducerAdvanced: self._producer_advanced,
            ProducerExpired: self._producer_expired,
            LogStartAdvanced: self._log_start_advanced,
            ProducerIdAllocated: self._producer_id_allocated,
            OffsetCommitted: self._offset_committed,
            OffsetDeleted: self._offset_deleted,
            GroupChanged: self._group_changed,
            GroupDeleted: self._group_deleted,
            TopicCreated: self._topic_created,
            TopicChanged: self._topic_changed,
            TopicDeleted: self._topic_deleted,
        }
        assert self._writers.keys() == set(DURABLE)

    def write(self, facts: Sequence[Fact], places: Sequence[Place]) -> None:
        """Write the facts in the transaction that is open; those that are not durable are passed over."""
        self._places = places
        self._places_taken = 0
        writers = self._writers
        for fact in facts:
            writer = writers.get(type(fact))
            if writer is not None:
                writer(fact)
        self._flush()
        assert self._places_taken == len(places), "every place belongs to a batch"
        self._places = ()
        if len(self._rows) > PARTITIONS_MAX:
            # More than needed goes, those that came first, so that this is not done at every commit.
            self._rows = dict(list(self._rows.items())[-PARTITIONS_MAX // 2 :])

    def forget(self, counters: Counters) -> None:
        """The commit was undone: what is kept in memory is not what the ledger holds."""
        self.counters = counters
        self._rows.clear()
        for gathered in (self._partitions, self._producers, self._offsets, self._groups, self._left_below):
            gathered.clear()
        self._places = ()

    # -- gathered -----------------------------------------------------------------------------------------

    def _batch_appended(self, fact: BatchAppended) -> None:
        key, base_offset, last_offset, max_timestamp, peak_timestamp, size_bytes, producer_id, _, opens = fact
        row = self._partitions.get(key) or self._partition(key)
        chunk_id, position, length = self._places[self._places_taken]
        self._places_taken += 1
        row.high_watermark = last_offset + 1
        row.peak_timestamp = peak_timestamp
        row.size_bytes += size_bytes
        if opens:
            row.open_transactions += pack_open_transactions((OpenTransaction(base_offset, producer_id),))
        row.batches += (
            row.partition_id,
            base_offset,
            last_offset,
            max_timestamp,
            peak_timestamp,
            chunk_id,
            position,
            length,
        )

    def _log_start_advanced(self, fact: LogStartAdvanced) -> None:
        row = self._partition(fact.partition)
        row.log_start_offset = fact.log_start_offset
        row.size_bytes = fact.size_bytes
        self._left_below[row.partition_id] = fact.log_start_offset

    def _producer_advanced(self, fact: ProducerAdvanced) -> None:
        self._producers[fact.key] = fact.state

    def _producer_expired(self, fact: ProducerExpired) -> None:
        self._producers[fact.key] = None

    def _producer_id_allocated(self, fact: ProducerIdAllocated) -> None:
        self.counters.next_producer_id = fact.producer_id + 1

    def _offset_committed(self, fact: OffsetCommitted) -> None:
        self._offsets[fact.key] = fact.value

    def _offset_deleted(self, fact: OffsetDeleted) -> None:
        self._offsets[fact.key] = None

    def _group_changed(self, fact: GroupChanged) -> None:
        self._groups[fact.group.group_id] = fact.group

    # -- written at once ----------------------------------------------------------------------------------

    def _group_deleted(self, fact: GroupDeleted) -> None:
        self._flush()
        self._sql.run("delete_group", (fact.group_id,))
        self._sql.run("delete_offsets_of_group", (fact.group_id,))

    def _topic_created(self, fact: TopicCreated) -> None:
        self._flush()
        name, topic_id, partitions, configs = fact.topic
        self._sql.run("add_topic", (name, topic_id, partitions, pack_configs(configs)))
        self._add_partitions(topic_id, 0, partitions)

    def _topic_changed(self, fact: TopicChanged) -> None:
        self._flush()
        _, topic_id, partitions, configs = fact.topic
        self._sql.run("change_topic", (partitions, pack_configs(configs), topic_id))
        present = self._sql.value("count_partitions", (topic_id,))
        self._add_partitions(topic_id, present, partitions)

    def _topic_deleted(self, fact: TopicDeleted) -> None:
        self._flush()
        topic_id = fact.topic.topic_id
        self._sql.run("leave_partitions", (topic_id,))
        self._sql.run("delete_partitions", (topic_id,))
        self._sql.run("delete_topic", (topic_id,))
        self._sql.run("delete_offsets_of_topic", (fact.topic.name,))
        for index in range(fact.topic.partitions):
            self._rows.pop(PartitionKey(topic_id, index), None)

    # -- rows ---------------------------------------------------------------------------------------------

    def _add_partitions(self, topic_id: bytes, first: int, end: int) -> None:
        for index in range(first, end):
            key = PartitionKey(topic_id, index)
            self._partitions[key] = self._keep(PartitionRow(key, self.counters.next_partition_id))
            self.counters.next_partition_id += 1

    def _partition(self, key: PartitionKey) -> PartitionRow:
        """The row to change. It will be written."""
        row = self._partitions[key] = self._row(key)
        return row

    def _row(self, key: PartitionKey) -> PartitionRow:
        row = self._rows.get(key)
        if row is None:
            found = self._sql.rows("partition_row", tuple(key))
            if not found:
                raise LookupError(f"partition {key.index} of topic {key.topic_id.hex()} is not in the ledger")
            row = self._keep(PartitionRow(key, *found[0]))
        return row

    def _keep(self, row: PartitionRow) -> PartitionRow:
        self._rows[row.key] = row
        return row

    def _flush(self) -> None:
        """Write what was gathered."""
        if self._partitions:
            self._flush_partitions()
        if self._producers:
            self._flush_producers()
        if self._offsets:
            self._flush_offsets()
        if self._groups:
            self._flush_groups()
        if self._left_below:
            values = [number for pair in self._left_below.items() for number in pair]
            _LEAVE_BATCHES.run(self._sql, values)
            self._left_below.clear()

    def _flush_partitions(self) -> None:
        partitions: list[Any] = []
        batches: list[int] = []
        for row in self._partitions.values():
            partitions += (
                row.partition_id,
                row.key.topic_id,
                row.key.index,
                row.log_start_offset,
                row.high_watermark,
                row.peak_timestamp,
                row.size_bytes,
                row.open_transactions,
            )
            if row.batches:
                batches += row.batches
                row.batches = []
        _PUT_PARTITIONS.run(self._sql, partitions)
        _ADD_BATCHES.run(self._sql, batches)
        self._partitions.clear()

    def _flush_producers(self) -> None:
        put: list[Any] = []
        gone: list[int] = []
        for (topic_id, index, producer_id), state in self._producers.items():
            partition_id = self._row(PartitionKey(topic_id, index)).partition_id
            if state is None:
                gone += (partition_id, producer_id)
                continue
            epoch, batches, last_timestamp, seen_ms, coordinator_epoch, first_offset = state
            put += (
                partition_id,
                producer_id,
                epoch,
                pack_sent_batches(batches),
                last_timestamp,
                seen_ms,
                coordinator_epoch,
                first_offset,
            )
        _PUT_PRODUCERS.run(self._sql, put)
        _DELETE_PRODUCERS.run(self._sql, gone)
        self._producers.clear()

    def _flush_offsets(self) -> None:
        put: list[Any] = []
        gone: list[Any] = []
        for key, value in self._offsets.items():
            if value is None:
                gone += key
            else:
                put += key
                put += value
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
