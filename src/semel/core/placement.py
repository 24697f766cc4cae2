"""Placement: the shard of an entity, and the entity that a fact changes.

The entities of a cluster are divided into a fixed number of shards, each owned by one broker. A partition
with its producers and share-partitions, a group with its offsets, and a transactional id belong to one shard.
Topics, policies and the cluster itself belong to none: every broker needs them.

Several brokers may change the same entity: the coordinator of a transaction ends it in partitions that others
lead. So these entities have a *version*, the number of the commit that wrote them last. A commit names the
versions that its decisions were based on.
"""

from collections.abc import Iterable
from hashlib import blake2b
from operator import attrgetter
from struct import pack
from typing import Any, Final
from zlib import crc32

from semel.core import facts as f
from semel.core.types import (
    ClusterKey,
    Fact,
    GroupKey,
    Key,
    OffsetKey,
    PartitionKey,
    PendingKey,
    ProducerKey,
    ShareKey,
    TopicKey,
    TransactionKey,
)

SHARDS: Final = 256

VERSIONED: Final = frozenset(
    {TopicKey, PartitionKey, ProducerKey, TransactionKey, GroupKey, PendingKey, ShareKey}
)
"""Kinds of keys whose entities have a version. The version of a group's pending offsets also covers its
committed offsets: when a transaction commits, its offsets are removed from the pending ones."""

ABSENT: Final = 0
"""The version of an entity that does not exist."""


def partition_shard(topic_id: bytes, index: int) -> int:
    """Return the shard of a partition. Consecutive partitions of a topic are in different shards."""
    return (crc32(topic_id) + index) % SHARDS


def name_shard(name: str) -> int:
    """Return the shard of a group or a transactional id."""
    return crc32(name.encode("utf-8", "surrogatepass")) % SHARDS


def shard_of(key: Key) -> int | None:
    """Return the shard of an entity; None if it belongs to all brokers."""
    if isinstance(key, PartitionKey | ProducerKey | ShareKey):
        return partition_shard(key.topic_id, key.index)
    if isinstance(key, TransactionKey):
        return name_shard(key.transactional_id)
    if isinstance(key, GroupKey | PendingKey | OffsetKey):
        return name_shard(key.group_id)
    return None


def owner_of(shard: int, brokers: Iterable[int]) -> int | None:
    """Return the broker that should own a shard, by rendezvous hashing; None if there is none.

    If a broker is added or removed, only the shards that it gains or loses change their owner.
    """
    return max(
        brokers, key=lambda each: blake2b(pack(">qh", each, shard), digest_size=8).digest(), default=None
    )


def entity_of(fact: Fact) -> Key | None:
    """Return the entity that a fact is about; None if it concerns only the broker that committed it."""
    key_of = _ENTITY.get(type(fact))
    return None if key_of is None else key_of(fact)


def versioned_by(fact: Fact) -> tuple[Key, ...]:
    """Return the entities to which this fact gives a new version."""
    kind = type(fact)
    if kind not in _VERSIONING:
        return ()
    if kind is f.GroupDeleted:
        return GroupKey(fact.group_id), PendingKey(fact.group_id)
    return (_ENTITY[kind](fact),)


_of_topic: Any = lambda fact: TopicKey(fact.topic.name)  # noqa: E731
_of_partition: Any = attrgetter("partition")
_of_key: Any = attrgetter("key")
_of_offset: Any = lambda fact: PendingKey(fact.key.group_id)  # noqa: E731

_ENTITY: Final[dict[type, Any]] = {
    f.TopicCreated: _of_topic,
    f.TopicChanged: _of_topic,
    f.TopicDeleted: _of_topic,
    f.PartitionChanged: _of_key,
    f.BatchAppended: _of_partition,
    f.LogStartAdvanced: _of_partition,
    f.BatchesReplaced: _of_partition,
    f.BatchStaged: _of_partition,
    f.StagedCommitted: _of_partition,
    f.StagedDropped: _of_partition,
    f.ProducerAdvanced: _of_key,
    f.ProducerExpired: _of_key,
    f.TransactionChanged: lambda fact: TransactionKey(fact.transaction.transactional_id),
    f.TransactionForgotten: lambda fact: TransactionKey(fact.transactional_id),
    f.PendingChanged: lambda fact: PendingKey(fact.group_id),
    f.OffsetCommitted: _of_offset,
    f.OffsetDeleted: _of_offset,
    f.GroupChanged: lambda fact: GroupKey(fact.group.group_id),
    f.GroupDeleted: lambda fact: GroupKey(fact.group_id),
    f.FeatureChanged: lambda fact: ClusterKey(),
    f.PolicyChanged: _of_key,
    f.ShareChanged: _of_key,
    f.ShareDeleted: _of_key,
}
assert _ENTITY.keys() == set(f.DURABLE) - {f.ProducerIdAllocated}

_VERSIONING: Final = frozenset(
    {
        f.TopicCreated,
        f.TopicChanged,
        f.TopicDeleted,
        f.PartitionChanged,
        f.ProducerAdvanced,
        f.ProducerExpired,
        f.TransactionChanged,
        f.TransactionForgotten,
        f.PendingChanged,
        f.GroupChanged,
        f.GroupDeleted,
        f.ShareChanged,
        f.ShareDeleted,
    }
)
