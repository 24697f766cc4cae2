"""Turn the facts of a commit into calls of the database's functions (``functions.sql``).

Almost every commit becomes one call (see ``semel.store.fact_batch``).
"""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from semel.core.entities import ENTITIES, name_shard
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
from semel.core.types import (
    ClusterKey,
    Fact,
    GroupKey,
    OffsetKey,
    Partition,
    PartitionKey,
    PendingKey,
    PendingOffset,
    PolicyKey,
    ProducerKey,
    ProducerState,
    ShareKey,
    TopicKey,
    Transaction,
    TransactionKey,
)
from semel.store.cluster.postgres.database import stored
from semel.store.contract import BatchLocation
from semel.store.fact_batch import GATHERED, FactBatch
from semel.store.rows import (
    pack_configs,
    pack_open_transactions,
    pack_sent_batches,
    pack_staged,
    row_of_share,
    row_of_transaction,
)

Row = tuple[Any, ...]

FIRST: Final = 0
"""The generation of a row that is added (``schema.sql``)."""
NO_PRODUCER: Final = (None,) * 9
"""The columns after the key of a row that is removed."""
NO_OFFSET: Final = (None,) * 6
NO_SHARE: Final = (None,) * 5


def row_of_partition(key: PartitionKey, partition: Partition) -> Row:
    """Return all columns but version and generation."""
    start, end, peak, size, opened, *rest = partition.values()
    return (*key.values(), start, end, peak, size, pack_open_transactions(opened), *rest)


def row_of_producer(key: ProducerKey, state: ProducerState) -> Row:
    """Return all columns but version and generation."""
    epoch, batches, *numbers, staged = state.values()
    return (*key.values(), epoch, pack_sent_batches(batches), *numbers, pack_staged(staged))


def key_of_offset(key: OffsetKey) -> Row:
    """Return the columns of the key."""
    return stored(key.group_id), stored(key.topic), key.partition


def row_of_offset(key: OffsetKey, value: Any) -> Row:
    """Return all columns but shard and generation."""
    offset, leader_epoch, metadata, committed_ms = value.values()
    return (*key_of_offset(key), offset, leader_epoch, stored(metadata), committed_ms)


def rows_of_pending(pending: tuple[PendingOffset, ...]) -> list[Row]:
    """Return the rows of a group, without their version."""
    rows: list[Row] = []
    for position, each in enumerate(pending):
        group, *rest = row_of_offset(each.key, each.value)
        rows.append((group, position, each.producer_id, *rest, each.is_superseded))
    return rows


WRITE_ROWS: Final = "write_rows"
WRITE_SHARES: Final = "write_shares"
_ALONE: Final = (None, None, None)
"""The columns of a run, in the row of a single batch."""


class Call(NamedTuple):
    """A call of a function in the database."""

    function: str
    arguments: tuple[Any, ...]
    returns: Row | None = None
    """The row that the function must return; None if any."""


class Bytes(NamedTuple):
    """Where a commit's chunks are: inline in the ledger, or each in an object of the same number."""

    inline: Sequence[tuple[int, bytes]] = ()
    objects: Sequence[tuple[int, int]] = ()
    """Numbers and sizes."""


class CommitCalls:
    """The calls of one commit. Used once."""

    def __init__(self, locations: Sequence[BatchLocation], contents: Bytes, version: int) -> None:
        self.calls: list[Call] = []
        self._batch = FactBatch(locations)
        self._version = version
        self._bytes = contents
        self._chunks: Counter[int] = Counter()
        for chunk_id, _, length in locations:
            self._chunks[chunk_id] += length

    @property
    def next_producer_id(self) -> int | None:
        """The next producer id, if one was allocated."""
        return self._batch.next_producer_id

    def write(self, facts: Sequence[Fact]) -> list[Call]:
        """Return the calls that write these facts. Facts that are not durable are skipped."""
        batch = self._batch
        for fact in facts:
            if not batch.add(fact) and (write := _WRITE_ALONE.get(type(fact))):
                self._flush()
                write(self, fact)
        self._flush()
        batch.end()
        return self.calls

    # -- facts that are written by themselves -------------------------------------------------------------

    def _staged_committed(self, fact: StagedCommitted) -> None:
        arguments = (*fact.partition.values(), fact.producer_id, fact.base_offset, fact.peak_before)
        self._call("commit_staged", *arguments, returns=(fact.last_offset, fact.peak_timestamp))

    def _staged_dropped(self, fact: StagedDropped) -> None:
        self._call("drop_staged", *fact.partition.values(), fact.producer_id)

    def _batches_replaced(self, fact: BatchesReplaced) -> None:
        key = fact.partition.values()
        locations = self._batch.take_locations(len(fact.rewritten))
        rewritten = [
            # Neither the last offset nor the peak of a batch changes.
            (*key, *batch.values()[:3], 0, *location, *_ALONE)
            for batch, location in zip(fact.rewritten, locations, strict=True)
        ]
        self._call("replace_batches", rewritten, *key, list(fact.removed))

    def _feature_changed(self, fact: FeatureChanged) -> None:
        self._call("write_features", *fact.values())

    def _topic_put(self, fact: TopicCreated | TopicChanged) -> None:
        name, topic_id, partitions, configs = fact.topic.values()
        self._call("put_topic", name, topic_id, partitions, pack_configs(configs), self._version)

    def _topic_deleted(self, fact: TopicDeleted) -> None:
        self._call("delete_topic", *fact.topic.values()[:2], self._version)
        self._call("delete_shares_of_topic", fact.topic.topic_id)

    def _group_deleted(self, fact: GroupDeleted) -> None:
        self._call("delete_group", stored(fact.group_id))

    def _call(self, function: str, *arguments: Any, returns: Row | None = None) -> None:
        self.calls.append(Call(function, arguments, returns))

    # -- what was gathered --------------------------------------------------------------------------------

    def _flush(self) -> None:
        """Write what was gathered."""
        batch = self._batch
        if batch.is_empty and not self._chunks:
            return
        for key, body in batch.puts[PolicyKey].items():
            self._call("write_policy", key.kind, stored(key.name), None if body is None else stored(body))
        if batch.puts[ShareKey]:
            self._call(WRITE_SHARES, *self._rows_of_shares(batch.puts[ShareKey]))
        if batch.staged:
            staged = [
                (*owner.values(), offsets, max_timestamp, *location, None)
                for owner, rows in batch.staged.items()
                for offsets, max_timestamp, location in rows
            ]
            self._call("stage_batches", staged)
        if self._chunks or self._has_rows():
            self._call(WRITE_ROWS, *self._rows())
            self._chunks.clear()
            self._bytes = Bytes()
        batch.begin()

    def _has_rows(self) -> bool:
        """Whether anything was gathered that ``write_rows`` writes."""
        batch = self._batch
        return bool(
            batch.batches
            or batch.aborted
            or batch.dropped
            or batch.log_starts
            or any(batch.puts[kind] for kind in _IN_WRITE_ROWS)
        )

    def _rows(self) -> tuple[Any, ...]:
        """Return the arguments of ``write_rows``."""
        batch, version = self._batch, self._version
        puts = batch.puts
        partitions, producers, offsets = puts[PartitionKey], puts[ProducerKey], puts[OffsetKey]
        transactions, pending, groups = puts[TransactionKey], puts[PendingKey], puts[GroupKey]
        return (
            [(*row_of_partition(key, value), version, FIRST) for key, value in partitions.items()],
            [
                (*key.values(), *offsets_and_times, *location, *_ALONE)
                for key, rows in batch.batches.items()
                for *offsets_and_times, location in rows
            ],
            [(*key.values(), *row) for key, row in batch.aborted],
            [
                (*row_of_producer(key, value), version, FIRST)
                for key, value in producers.items()
                if value is not None
            ],
            [(*key.values(), *NO_PRODUCER) for key, value in producers.items() if value is None],
            [
                (*row_of_offset(key, value), name_shard(key.group_id), FIRST)
                for key, value in offsets.items()
                if value is not None
            ],
            [(*key_of_offset(key), *NO_OFFSET) for key, value in offsets.items() if value is None],
            [self._row_of_transaction(value) for value in transactions.values() if value is not None],
            [stored(key.transactional_id) for key, value in transactions.items() if value is None],
            [(stored(key.group_id), version, FIRST) for key in pending],
            [(*row, version) for value in pending.values() for row in rows_of_pending(value or ())],
            [self._row_of_group(group) for group in groups.values()],
            [(*key.values(), below) for key, below in batch.log_starts.items()],
            batch.dropped,
            # An object whose batches were all refused stays uncommitted, and is deleted later.
            [(number, size, None, None) for number, size in self._bytes.objects if number in self._chunks],
            self._rows_of_chunks(),
            self._bytes.inline,
        )

    def _row_of_transaction(self, transaction: Transaction) -> Row:
        name, *rest, shares = row_of_transaction(transaction)
        return (stored(name), *rest, self._version, shares, FIRST)

    def _row_of_group(self, group: Group) -> Row:
        name, protocol = stored(group.group_id), stored(group.protocol_type)
        return (name, group.kind, protocol, group.state_name, group.pack(), self._version, FIRST)

    def _rows_of_shares(self, shares: dict[ShareKey, SharePartition | None]) -> tuple[list[Row], list[Row]]:
        put, gone = [], []
        for key, share in shares.items():
            where = (key.topic_id, key.index, stored(key.group_id))
            if share is None:
                gone.append((*where, *NO_SHARE))
            else:
                put.append((*where, *row_of_share(share), self._version, FIRST))
        return put, gone

    def _rows_of_chunks(self) -> list[Row]:
        objects = {number for number, _ in self._bytes.objects}
        return [
            (number, size, number if number in objects else None, 0) for number, size in self._chunks.items()
        ]


_WRITE_ALONE: Final[dict[type, Callable[[CommitCalls, Any], None]]] = {
    BatchesReplaced: CommitCalls._batches_replaced,
    StagedCommitted: CommitCalls._staged_committed,
    StagedDropped: CommitCalls._staged_dropped,
    FeatureChanged: CommitCalls._feature_changed,
    GroupDeleted: CommitCalls._group_deleted,
    TopicCreated: CommitCalls._topic_put,
    TopicChanged: CommitCalls._topic_put,
    TopicDeleted: CommitCalls._topic_deleted,
}
"""Any: each takes the fact of its kind."""
assert GATHERED | _WRITE_ALONE.keys() == set(DURABLE)
_IN_WRITE_ROWS: Final = (PartitionKey, ProducerKey, OffsetKey, TransactionKey, PendingKey, GroupKey)
# Policies and share-partitions have calls of their own, topics and the cluster facts of their own.
assert {*_IN_WRITE_ROWS, PolicyKey, ShareKey, TopicKey, ClusterKey} == ENTITIES.keys()
