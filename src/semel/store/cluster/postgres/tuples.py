"""Convert entities to rows of the tables, as the database's functions take them."""

from typing import Any, Final

from semel.core.types import OffsetKey, Partition, PartitionKey, PendingOffset, ProducerKey, ProducerState
from semel.store.cluster.postgres.texts import stored
from semel.store.rows import pack_open_transactions, pack_sent_batches, pack_staged

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
