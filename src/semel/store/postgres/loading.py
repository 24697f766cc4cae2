"""Load entities by key: one query for each kind of key."""

from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from semel.core.groups import unpack_group
from semel.core.types import (
    Cluster,
    ClusterKey,
    GroupKey,
    Key,
    OffsetKey,
    PartitionKey,
    PendingKey,
    PendingOffset,
    ProducerKey,
    TopicKey,
    TransactionKey,
    Value,
)
from semel.store.postgres.database import Database
from semel.store.postgres.texts import original, stored
from semel.store.rows import offset_of, partition_of, pending_of, producer_of, topic_of, transaction_of

Found = dict[Any, Any]


async def load(database: Database, keys: Sequence[Key]) -> list[Value | None]:
    """Return the entities with these keys in the same order, None for those that do not exist."""
    by_kind: defaultdict[type, list[Any]] = defaultdict(list)
    for key in keys:
        by_kind[type(key)].append(key)
    found: Found = {}
    for kind, some in by_kind.items():
        found |= await _LOADERS[kind](database, some)
    return [found.get(key) for key in keys]


async def _topics(database: Database, keys: list[TopicKey]) -> Found:
    rows = await database.fetch(
        "SELECT * FROM topics WHERE name = ANY ($1)", [stored(key.name) for key in keys]
    )
    return {TopicKey(row[0]): topic_of(row) for row in rows}


async def _partitions(database: Database, keys: list[PartitionKey]) -> Found:
    rows = await database.fetch(
        """
        SELECT partitions.* FROM partitions
        JOIN unnest($1::bytea[], $2::integer[]) AS wanted (topic_id, partition_index)
        USING (topic_id, partition_index)
        """,
        *_columns(keys),
    )
    return {PartitionKey(topic_id, index): partition_of(rest) for topic_id, index, *rest in rows}


async def _producers(database: Database, keys: list[ProducerKey]) -> Found:
    rows = await database.fetch(
        """
        SELECT producers.* FROM producers
        JOIN unnest($1::bytea[], $2::integer[], $3::bigint[])
            AS wanted (topic_id, partition_index, producer_id)
        USING (topic_id, partition_index, producer_id)
        JOIN partitions USING (topic_id, partition_index)
        """,
        *_columns(keys),
    )
    return {ProducerKey(*row[:3]): producer_of(row[3:]) for row in map(tuple, rows)}


async def _groups(database: Database, keys: list[GroupKey]) -> Found:
    rows = await database.fetch(
        "SELECT group_id, kind, body FROM groups WHERE group_id = ANY ($1)",
        [stored(key.group_id) for key in keys],
    )
    return {GroupKey(original(name)): unpack_group(kind, body) for name, kind, body in rows}


async def _offsets(database: Database, keys: list[OffsetKey]) -> Found:
    rows = await database.fetch(
        """
        SELECT offsets.* FROM offsets
        JOIN unnest($1::text[], $2::text[], $3::integer[]) AS wanted (group_id, topic, partition_index)
        USING (group_id, topic, partition_index)
        """,
        [stored(key.group_id) for key in keys],
        [stored(key.topic) for key in keys],
        [key.partition for key in keys],
    )
    return {
        OffsetKey(original(group), original(topic), index): offset_of((offset, epoch, original(metadata), at))
        for group, topic, index, offset, epoch, metadata, at in rows
    }


async def _pending(database: Database, keys: list[PendingKey]) -> Found:
    rows = await database.fetch(
        """
        SELECT group_id, producer_id, topic, partition_index, committed_offset, leader_epoch, metadata,
            committed_ms, is_superseded
        FROM pending_offsets WHERE group_id = ANY ($1) ORDER BY group_id, position
        """,
        [stored(key.group_id) for key in keys],
    )
    found: defaultdict[PendingKey, list[PendingOffset]] = defaultdict(list)
    for group, producer_id, topic, index, offset, epoch, metadata, *rest in rows:
        name = original(group)
        row = (producer_id, original(topic), index, offset, epoch, original(metadata), *rest)
        found[PendingKey(name)].append(pending_of(name, row))
    return {key: tuple(each) for key, each in found.items()}


async def _transactions(database: Database, keys: list[TransactionKey]) -> Found:
    rows = await database.fetch(
        "SELECT * FROM transactions WHERE transactional_id = ANY ($1)",
        [stored(key.transactional_id) for key in keys],
    )
    found = [transaction_of((original(name), *rest)) for name, *rest in rows]
    return {TransactionKey(each.transactional_id): each for each in found}


async def _cluster(database: Database, keys: list[ClusterKey]) -> Found:
    row = await database.row("SELECT next_producer_id, transaction_version, features_epoch FROM cluster")
    return {ClusterKey(): Cluster(*row)}


def _columns(keys: Sequence[Any]) -> list[list[Any]]:
    return [list(column) for column in zip(*[key.values() for key in keys], strict=True)]


_LOADERS: Final[dict[type, Callable[[Database, list[Any]], Awaitable[Found]]]] = {
    TopicKey: _topics,
    PartitionKey: _partitions,
    ProducerKey: _producers,
    GroupKey: _groups,
    OffsetKey: _offsets,
    PendingKey: _pending,
    TransactionKey: _transactions,
    ClusterKey: _cluster,
}
