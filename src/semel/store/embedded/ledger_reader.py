"""Query the embedded ledger, on a thread and over one connection.

Every statement is finished before a method returns: an open read would keep SQLite's log from being moved
into the database. Pages of batches are returned as one JSON array, because SQLite releases the GIL for every
row, which is slow while the event loop is busy.
"""

import json
from collections.abc import Callable, Sequence
from typing import Any, Final

import apsw

from semel.core import types
from semel.core.groups import unpack_group
from semel.core.shares.partition import SharePartition
from semel.store.contract import Counts, GroupSummary, StoredBatch
from semel.store.embedded.queries import Statements
from semel.store.rows import (
    batch_of,
    offset_of,
    partition_of,
    pending_of,
    producer_of,
    share_of,
    topic_of,
    transaction_of,
)

PAGE_FIRST: Final = 32
"""Batches in the first page: enough for most answers, and few are read in vain."""
PAGE_MAX: Final = 1024


class LedgerReader:
    """Queries on one connection."""

    def __init__(self, connection: apsw.Connection) -> None:
        self._sql = Statements(connection)
        # Any: each takes a key of its kind, and returns its value.
        self._loaders: dict[type, Callable[[Any], Any]] = {
            types.TopicKey: self._load_topic,
            types.PartitionKey: self._load_partition,
            types.ProducerKey: self._load_producer,
            types.GroupKey: self._load_group,
            types.OffsetKey: self._load_offset,
            types.PendingKey: self._load_pending,
            types.TransactionKey: self._load_transaction,
            types.ClusterKey: self._load_cluster,
            types.PolicyKey: self._load_policy,
            types.ShareKey: self._load_share,
        }

    def close(self) -> None:
        """Close the connection."""
        self._sql.connection.close(True)

    def load(self, keys: Sequence[types.EntityKey[types.V]]) -> list[types.V | None]:
        """Return the entities with these keys in the same order, None for those that do not exist."""
        return [self._loaders[type(key)](key) for key in keys]

    def find_batches(
        self, key: types.PartitionKey, offset: int, before: int, bytes_max: int, batches_max: int
    ) -> list[StoredBatch]:
        """Return batches from the one that holds ``offset``, or the next, that end below ``before``."""
        found: list[StoredBatch] = []
        partition = self._partition(key)
        if partition is None:
            return found
        partition_id, edges = partition
        offset = max(offset, edges.log_start_offset)
        page_size = PAGE_FIRST
        while len(found) < batches_max:
            bindings = {
                "partition_id": partition_id,
                "offset": offset,
                "before": before,
                # One more, because the page may begin with the batch that ends just below the offset.
                "batches_max": min(page_size, batches_max - len(found)) + 1,
            }
            page = json.loads(self._sql.value("batches_from", bindings))
            for row in page:
                batch = batch_of(row)
                if batch.last_offset < offset:
                    continue
                bytes_max -= batch.location.length
                if batch.last_offset >= before or (found and bytes_max < 0) or len(found) >= batches_max:
                    return found
                found.append(batch)
            if len(page) < bindings["batches_max"]:
                return found
            offset = page[-1][1] + 1
            page_size = min(page_size * 4, PAGE_MAX)
        return found

    def first_batch_since(self, key: types.PartitionKey, timestamp: int) -> StoredBatch | None:
        """Return the first batch whose largest timestamp is at or after this one.

        A binary search by peak timestamp, which never falls. After a log start the peak may be that of a
        deleted batch, so the last step goes forward to a batch that holds the timestamp itself.
        """
        partition = self._partition(key)
        if partition is None:
            return None
        partition_id, edges = partition
        if edges.peak_timestamp < timestamp:
            return None
        low = self._first_batch(partition_id, edges.log_start_offset)
        high = edges.high_watermark
        probe = low
        # Batches before low have a peak below the timestamp; the batch that holds high, if any, does not.
        while low < high:
            rows = self._sql.rows("batch_at", (partition_id, probe))
            # Compaction leaves gaps: there may be no batch up to the probe, or none since the last probe.
            if not rows:
                low = probe + 1
            elif rows[0][2] < timestamp:
                low = max(rows[0][1], probe) + 1
            else:
                high = min(rows[0][0], high)
            probe = (low + high) // 2
        rows = self._sql.rows("first_batch_since", (partition_id, low, timestamp))
        return batch_of(rows[0]) if rows else None

    def policies(self, after: types.PolicyKey | None, limit: int) -> list[tuple[types.PolicyKey, str]]:
        """Return policies and their values, ordered by key."""
        start = ("", "") if after is None else after.values()
        rows = self._sql.rows("policies_after", (*start, limit))
        return [(types.PolicyKey(kind, name), body) for kind, name, body in rows]

    def offset_at_size(self, key: types.PartitionKey, size_bytes: int) -> int:
        """Return the smallest batch boundary from which the partition has at most this size.

        Sums the excess from the log start, which is small if this is called often.
        """
        partition = self._partition(key)
        if partition is None:
            return 0
        partition_id, edges = partition
        if edges.size_bytes <= size_bytes:
            return edges.log_start_offset
        bindings = {
            "partition_id": partition_id,
            "first": self._first_batch(partition_id, edges.log_start_offset),
            "excess": edges.size_bytes - size_bytes,
        }
        rows = self._sql.rows("offset_past_bytes", bindings)
        return int(rows[0][0]) if rows else edges.high_watermark

    def size_below(self, key: types.PartitionKey, offset: int) -> tuple[int, int]:
        """Return the log start, and the size of the batches from there that end below this offset."""
        partition = self._partition(key)
        if partition is None:
            return 0, 0
        partition_id, edges = partition
        bindings = {
            "partition_id": partition_id,
            "first": self._first_batch(partition_id, edges.log_start_offset),
            "before": offset,
        }
        size: int = self._sql.value("size_between", bindings)
        return edges.log_start_offset, size

    def topic_by_id(self, topic_id: bytes) -> types.Topic | None:
        """Return the topic with this id."""
        rows = self._sql.rows("topic_by_id", (topic_id,))
        return topic_of(rows[0]) if rows else None

    def topics(self, after: str, limit: int) -> list[types.Topic]:
        """Return topics, ordered by name."""
        return [topic_of(row) for row in self._sql.rows("topics_after", (after, limit))]

    def counts(self) -> Counts:
        """Return the counts of what clients can create."""
        return Counts(*self._sql.rows("counts")[0])

    def groups(self, after: str, limit: int) -> list[GroupSummary]:
        """Return groups, ordered by id, including those that only have offsets (kind "")."""
        bindings = {"after": after, "groups_max": limit}
        return [GroupSummary(*row) for row in self._sql.rows("groups_after", bindings)]

    def group_offsets(self, group_id: str) -> list[tuple[types.OffsetKey, types.CommittedOffset]]:
        """Return everything a group has committed."""
        rows = self._sql.rows("offsets_of_group", (group_id,))
        return [(types.OffsetKey(group_id, topic, index), offset_of(rest)) for topic, index, *rest in rows]

    def producers(self, key: types.PartitionKey) -> list[tuple[int, types.ProducerState]]:
        """Return the producers that a partition remembers."""
        rows = self._sql.rows("producers_of", key.values())
        return [(producer_id, producer_of(rest)) for producer_id, *rest in rows]

    def place_of(self, producer: types.ProducerKey | None) -> tuple[int, int]:
        """Return a producer's position in the order of all; the beginning for None or a deleted partition."""
        if producer is None:
            return 0, -1
        partition = self._partition(types.PartitionKey(producer.topic_id, producer.index))
        return (0, -1) if partition is None else (partition[0], producer.producer_id)

    def unseen_producers(
        self, after: tuple[int, int], before_ms: int, page: int
    ) -> tuple[list[types.ProducerKey], tuple[int, int] | None]:
        """Read a page of all producers. Return the unseen ones, and where the next page begins, if any."""
        rows = json.loads(self._sql.value("producers_after", (*after, page)))
        unseen: list[types.ProducerKey] = []
        for partition_id, producer_id, seen_ms, is_open in rows:
            if seen_ms >= before_ms or is_open:
                continue
            # The producers of a deleted partition are swept, not expired.
            for topic_id, index in self._sql.rows("partition_key", (partition_id,)):
                unseen.append(types.ProducerKey(topic_id, index, producer_id))
        return unseen, (rows[-1][0], rows[-1][1]) if len(rows) == page else None

    def aborted(self, key: types.PartitionKey, first: int, before: int) -> list[tuple[int, int]]:
        """Return producer and first offset of the aborted transactions in a range of offsets."""
        partition = self._partition(key)
        if partition is None:
            return []
        bindings = {"partition_id": partition[0], "first": first, "before": before}
        return [
            (producer_id, first_offset)
            for producer_id, first_offset in json.loads(self._sql.value("aborted_between", bindings))
        ]

    def transactions(self, after: str, limit: int) -> list[types.Transaction]:
        """Return transactions ordered by transactional id."""
        return [transaction_of(row) for row in self._sql.rows("transactions_after", (after, limit))]

    def open_transactions(self, after: str, limit: int) -> list[types.Transaction]:
        """Return open transactions ordered by transactional id."""
        return [transaction_of(row) for row in self._sql.rows("ongoing_after", (after, limit))]

    def unused_transactions(self, after: str, before_ms: int, page: int) -> tuple[list[str], str | None]:
        """Read a page of all ids. Return the unused ones, and where the next page begins, if any."""
        rows = json.loads(self._sql.value("transaction_times_after", (after, page)))
        unused = [
            transactional_id
            for transactional_id, state, updated_ms in rows
            if updated_ms <= before_ms and state != types.TransactionState.ONGOING.label
        ]
        return unused, rows[-1][0] if len(rows) == page else None

    # -- entities -----------------------------------------------------------------------------------------

    def _load_topic(self, key: types.TopicKey) -> types.Topic | None:
        rows = self._sql.rows("topic_by_name", key.values())
        return topic_of(rows[0]) if rows else None

    def _load_partition(self, key: types.PartitionKey) -> types.Partition | None:
        partition = self._partition(key)
        return None if partition is None else partition[1]

    def _load_producer(self, key: types.ProducerKey) -> types.ProducerState | None:
        bindings = {"topic_id": key.topic_id, "partition_index": key.index, "producer_id": key.producer_id}
        rows = self._sql.rows("producer_row", bindings)
        return producer_of(rows[0]) if rows else None

    def _load_group(self, key: types.GroupKey) -> types.Value | None:
        rows = self._sql.rows("group_row", key.values())
        return unpack_group(*rows[0]) if rows else None

    def _load_offset(self, key: types.OffsetKey) -> types.CommittedOffset | None:
        rows = self._sql.rows("offset_row", key.values())
        return offset_of(rows[0]) if rows else None

    def _load_pending(self, key: types.PendingKey) -> tuple[types.PendingOffset, ...] | None:
        rows = self._sql.rows("pending_of_group", key.values())
        return tuple(pending_of(key.group_id, row) for row in rows) or None

    def _load_transaction(self, key: types.TransactionKey) -> types.Transaction | None:
        rows = self._sql.rows("transaction_row", key.values())
        return transaction_of(rows[0]) if rows else None

    def _load_cluster(self, key: types.ClusterKey) -> types.Cluster:
        return types.Cluster(*self._sql.rows("read_cluster")[0])

    def _load_policy(self, key: types.PolicyKey) -> str | None:
        rows = self._sql.rows("policy_row", key.values())
        return rows[0][0] if rows else None

    def _load_share(self, key: types.ShareKey) -> SharePartition | None:
        rows = self._sql.rows("share_row", key.values())
        return share_of(rows[0]) if rows else None

    def _partition(self, key: types.PartitionKey) -> tuple[int, types.Partition] | None:
        rows = self._sql.rows("partition_row", key.values())
        if not rows:
            return None
        partition_id, *rest = rows[0]
        return partition_id, partition_of(rest)

    def _first_batch(self, partition_id: int, log_start_offset: int) -> int:
        """Return the base offset of the batch that holds the log start."""
        rows = self._sql.rows("batch_at", (partition_id, log_start_offset))
        if not rows or rows[0][1] < log_start_offset:
            return log_start_offset
        return int(rows[0][0])
