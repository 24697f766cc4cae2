"""Fold the facts of one commit into calls of the database's functions (``functions.sql``).

As in ``semel.store.embedded.fold``, each entity is written once, with its last value, and the rows of a table
are written together. Almost every commit becomes one call. A fact that changes rows which it does not contain
(a deleted topic, staged batches of earlier commits, compaction) becomes a separate call, after all facts
before.

This module contains no rules. A fact carries the complete new value of its entity.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

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
from semel.core.placement import name_shard
from semel.core.shares.partition import SharePartition
from semel.core.types import (
    Fact,
    OffsetKey,
    Partition,
    PartitionKey,
    PendingOffset,
    ProducerKey,
    ProducerState,
    ShareKey,
)
from semel.store.cluster.postgres.texts import stored
from semel.store.cluster.postgres.tuples import (
    FIRST,
    NO_OFFSET,
    NO_PRODUCER,
    NO_SHARE,
    Row,
    key_of_offset,
    row_of_offset,
    row_of_partition,
    row_of_producer,
    rows_of_pending,
)
from semel.store.contract import BatchLocation
from semel.store.rows import (
    pack_configs,
    row_of_share,
    row_of_transaction,
)

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


class Fold:
    """Gathers the facts of one commit. Used once."""

    def __init__(self, locations: Sequence[BatchLocation], contents: Bytes, version: int) -> None:
        self.calls: list[Call] = []
        self.next_producer_id: int | None = None
        self._version = version
        self._locations = iter(locations)
        self._bytes = contents
        self._chunks: Counter[int] = Counter()
        for chunk_id, _, length in locations:
            self._chunks[chunk_id] += length
        self._begin()

    def _begin(self) -> None:
        self._is_empty = True
        self._partitions: dict[PartitionKey, Partition] = {}
        self._batches: list[Row] = []
        self._aborted: list[Row] = []
        self._staged: dict[ProducerKey, list[tuple[int, int, BatchLocation]]] = {}
        self._dropped: list[BatchLocation] = []
        self._producers: dict[ProducerKey, ProducerState | None] = {}
        self._offsets: dict[OffsetKey, Any] = {}
        self._transactions: dict[str, Row | None] = {}
        self._pending: dict[str, tuple[PendingOffset, ...]] = {}
        self._groups: dict[str, Row] = {}
        self._left_below: dict[PartitionKey, int] = {}
        self._shares: dict[ShareKey, SharePartition | None] = {}

    def write(self, facts: Sequence[Fact]) -> list[Call]:
        """Return the calls that write these facts. Facts that are not durable are skipped."""
        for fact in facts:
            write = _WRITE.get(type(fact))
            if write is not None:
                calls = len(self.calls)
                write(self, fact)
                # A fact that became a call has flushed the others, and is not gathered itself.
                self._is_empty = self._is_empty and len(self.calls) > calls
        self._flush()
        assert next(self._locations, None) is None, "every location belongs to a batch"
        return self.calls

    # -- gathered -----------------------------------------------------------------------------------------

    def _partition_changed(self, fact: PartitionChanged) -> None:
        self._partitions[fact.key] = fact.partition

    def _batch_appended(self, fact: BatchAppended) -> None:
        key = fact.partition
        closes = fact.closes
        if closes is not None and not closes.is_commit:
            self._aborted.append(
                (
                    *key.values(),
                    fact.base_offset,
                    closes.first_offset,
                    fact.producer_id,
                    closes.last_stable_offset,
                )
            )
        offsets = (fact.base_offset, fact.last_offset, fact.max_timestamp, fact.peak_timestamp)
        self._batches.append((*key.values(), *offsets, *next(self._locations), *_ALONE))

    def _batch_staged(self, fact: BatchStaged) -> None:
        gathered = self._staged.setdefault(fact.partition.of(fact.producer_id), [])
        gathered.append((fact.offsets, fact.max_timestamp, next(self._locations)))

    def _log_start_advanced(self, fact: LogStartAdvanced) -> None:
        self._left_below[fact.partition] = fact.log_start_offset

    def _producer_advanced(self, fact: ProducerAdvanced) -> None:
        self._producers[fact.key] = fact.state

    def _producer_expired(self, fact: ProducerExpired) -> None:
        self._producers[fact.key] = None

    def _producer_id_allocated(self, fact: ProducerIdAllocated) -> None:
        self.next_producer_id = fact.producer_id + 1

    def _offset_committed(self, fact: OffsetCommitted) -> None:
        self._offsets[fact.key] = fact.value

    def _offset_deleted(self, fact: OffsetDeleted) -> None:
        self._offsets[fact.key] = None

    def _group_changed(self, fact: GroupChanged) -> None:
        group = fact.group
        name, kind, protocol = stored(group.group_id), group.kind, stored(group.protocol_type)
        listed = (name, kind, protocol, group.state_name, group.member_count)
        self._groups[name] = (*listed, group.pack(), name_shard(group.group_id), self._version, FIRST)

    def _transaction_changed(self, fact: TransactionChanged) -> None:
        name, *rest, shares = row_of_transaction(fact.transaction)
        self._transactions[stored(name)] = (
            *(stored(name), *rest, name_shard(name)),
            *(self._version, shares, FIRST),
        )

    def _transaction_forgotten(self, fact: TransactionForgotten) -> None:
        self._transactions[stored(fact.transactional_id)] = None

    def _pending_changed(self, fact: PendingChanged) -> None:
        self._pending[fact.group_id] = fact.pending

    def _share_changed(self, fact: ShareChanged) -> None:
        self._shares[fact.key] = fact.share

    def _share_deleted(self, fact: ShareDeleted) -> None:
        self._shares[fact.key] = None

    # -- in order -----------------------------------------------------------------------------------------

    def _staged_committed(self, fact: StagedCommitted) -> None:
        key = fact.partition
        gathered = self._staged.get(key.of(fact.producer_id), [])
        # Each batch takes an offset, so equal sums mean that none was staged by an earlier commit.
        if gathered and sum(each[0] for each in gathered) == fact.last_offset + 1 - fact.base_offset:
            del self._staged[key.of(fact.producer_id)]
            base, peak = fact.base_offset, fact.peak_before
            for offsets, max_timestamp, location in gathered:
                peak = max(peak, max_timestamp)
                self._batches.append(
                    (*key.values(), base, base + offsets - 1, max_timestamp, peak, *location, *_ALONE)
                )
                base += offsets
            assert peak == fact.peak_timestamp, "the core counts as the ledger does"
            return
        arguments = (*key.values(), fact.producer_id, fact.base_offset, fact.peak_before)
        self._call(Call("commit_staged", arguments, (fact.last_offset, fact.peak_timestamp)))

    def _staged_dropped(self, fact: StagedDropped) -> None:
        staged = self._staged.pop(fact.partition.of(fact.producer_id), ())
        self._dropped += [location for *_, location in staged]
        self._call(Call("drop_staged", (*fact.partition.values(), fact.producer_id)))

    def _batches_replaced(self, fact: BatchesReplaced) -> None:
        key = fact.partition.values()
        rewritten = [
            # Neither the last offset nor the peak of a batch changes.
            (*key, *each.values()[:3], 0, *next(self._locations), *_ALONE)
            for each in fact.rewritten
        ]
        self._call(Call("replace_batches", (rewritten, *key, list(fact.removed))))

    def _policy_changed(self, fact: PolicyChanged) -> None:
        kind, name = fact.key.values()
        self._call(
            Call("write_policy", (kind, stored(name), None if fact.body is None else stored(fact.body)))
        )

    def _feature_changed(self, fact: FeatureChanged) -> None:
        self._call(Call("write_features", fact.values()))

    def _topic_put(self, fact: TopicCreated | TopicChanged) -> None:
        name, topic_id, partitions, configs = fact.topic.values()
        self._call(Call("put_topic", (name, topic_id, partitions, pack_configs(configs), self._version)))

    def _topic_deleted(self, fact: TopicDeleted) -> None:
        self._call(Call("delete_topic", (*fact.topic.values()[:2], self._version)))
        self._call(Call("delete_shares_of_topic", (fact.topic.topic_id,)))

    def _group_deleted(self, fact: GroupDeleted) -> None:
        self._call(Call("delete_group", (stored(fact.group_id),)))

    def _call(self, call: Call) -> None:
        self._flush()
        self.calls.append(call)

    # -- rows ---------------------------------------------------------------------------------------------

    def _flush(self) -> None:
        """Write the gathered rows."""
        if self._is_empty and not self._chunks:
            return
        if self._shares:
            self.calls.append(Call(WRITE_SHARES, self._rows_of_shares()))
            self._shares = {}
            if not self._chunks and not self._has_rows():
                self._begin()
                return
        if self._staged:
            staged = [
                (*owner.values(), offsets, max_timestamp, *location, None)
                for owner, gathered in self._staged.items()
                for offsets, max_timestamp, location in gathered
            ]
            self.calls.append(Call("stage_batches", (staged,)))
        arguments = (
            [(*row_of_partition(key, each), self._version, FIRST) for key, each in self._partitions.items()],
            self._batches,
            self._aborted,
            [
                (*row_of_producer(key, each), self._version, FIRST)
                for key, each in self._producers.items()
                if each is not None
            ],
            [(*key.values(), *NO_PRODUCER) for key, each in self._producers.items() if each is None],
            [
                (*row_of_offset(key, each), name_shard(key.group_id), FIRST)
                for key, each in self._offsets.items()
                if each is not None
            ],
            [(*key_of_offset(key), *NO_OFFSET) for key, each in self._offsets.items() if each is None],
            [each for each in self._transactions.values() if each is not None],
            [name for name, each in self._transactions.items() if each is None],
            [(stored(name), self._version, FIRST) for name in self._pending],
            [(*row, self._version) for pending in self._pending.values() for row in rows_of_pending(pending)],
            list(self._groups.values()),
            [(*key.values(), below) for key, below in self._left_below.items()],
            self._dropped,
            # An object whose batches were all refused stays uncommitted, and is deleted later.
            [(number, size, None, None) for number, size in self._bytes.objects if number in self._chunks],
            self._rows_of_chunks(),
            self._bytes.inline,
        )
        self.calls.append(Call(WRITE_ROWS, arguments))
        self._chunks.clear()
        self._bytes = Bytes()
        self._begin()

    def _has_rows(self) -> bool:
        """Whether anything but share-partitions was gathered."""
        return any(
            (
                *(
                    self._partitions,
                    self._batches,
                    self._aborted,
                    self._staged,
                    self._dropped,
                    self._producers,
                ),
                *(self._offsets, self._transactions, self._pending, self._groups, self._left_below),
            )
        )

    def _rows_of_shares(self) -> tuple[list[Row], list[Row]]:
        put, gone = [], []
        for key, share in self._shares.items():
            where = (key.topic_id, key.index, stored(key.group_id))
            if share is None:
                gone.append((*where, *NO_SHARE))
            else:
                put.append((*where, *row_of_share(share), self._version, FIRST))
        return put, gone

    def _rows_of_chunks(self) -> list[Row]:
        objects = {number for number, _ in self._bytes.objects}
        return [(each, size, each if each in objects else None, 0) for each, size in self._chunks.items()]


_WRITE: Final[dict[type, Callable[[Fold, Any], None]]] = {
    PartitionChanged: Fold._partition_changed,
    BatchAppended: Fold._batch_appended,
    BatchStaged: Fold._batch_staged,
    StagedCommitted: Fold._staged_committed,
    StagedDropped: Fold._staged_dropped,
    ProducerAdvanced: Fold._producer_advanced,
    ProducerExpired: Fold._producer_expired,
    LogStartAdvanced: Fold._log_start_advanced,
    BatchesReplaced: Fold._batches_replaced,
    ProducerIdAllocated: Fold._producer_id_allocated,
    FeatureChanged: Fold._feature_changed,
    PolicyChanged: Fold._policy_changed,
    OffsetCommitted: Fold._offset_committed,
    OffsetDeleted: Fold._offset_deleted,
    GroupChanged: Fold._group_changed,
    GroupDeleted: Fold._group_deleted,
    TransactionChanged: Fold._transaction_changed,
    TransactionForgotten: Fold._transaction_forgotten,
    PendingChanged: Fold._pending_changed,
    ShareChanged: Fold._share_changed,
    ShareDeleted: Fold._share_deleted,
    TopicCreated: Fold._topic_put,
    TopicChanged: Fold._topic_put,
    TopicDeleted: Fold._topic_deleted,
}
assert _WRITE.keys() == set(DURABLE)
