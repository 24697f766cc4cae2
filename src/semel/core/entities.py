"""All kinds of entities: for each, the type of its values, its shard and its version.

CONTRIBUTING.md says what else a new kind needs.

The entities of a cluster are divided into a fixed number of shards, each owned by one broker. A partition
with its producers and share-partitions, a group with its offsets, and a transactional id belong to one shard.
Topics, policies and the cluster itself belong to none: every broker needs them.

Several brokers may change the same entity: the coordinator of a transaction ends it in partitions that others
lead. So these entities have a *version*, the number of the commit that wrote them last. A commit names the
versions that its decisions were based on.
"""

from collections.abc import Callable, Iterable
from hashlib import blake2b
from struct import pack
from typing import Any, Final, NamedTuple
from zlib import crc32

from semel.core import facts as f
from semel.core import types
from semel.core.groups.model import Group
from semel.core.shares.partition import SharePartition

SHARDS: Final = 256


class Kind(NamedTuple):
    """What is known about one kind of entity."""

    value: Any
    """The type of its values, by which they are decoded. Any: a type expression."""
    shard: Callable[[Any], int] | None
    """Returns the shard of a key (Any: of this kind); None if every broker needs these entities."""
    is_versioned: bool = False
    """Whether each entity has the version of the commit that wrote it last."""
    keeps_version: bool = False
    """Whether the version outlives the entity, because it covers others too."""
    may_stay_unsynced: bool = False
    """Whether a new value may wait to be flushed until the open transaction ends that it belongs to."""


def partition_shard(topic_id: bytes, index: int) -> int:
    """Return the shard of a partition. Consecutive partitions of a topic are in different shards."""
    return (crc32(topic_id) + index) % SHARDS


def name_shard(name: str) -> int:
    """Return the shard of a group or a transactional id."""
    return crc32(name.encode("utf-8", "surrogatepass")) % SHARDS


def _by_partition(key: types.PartitionKey | types.ProducerKey | types.ShareKey) -> int:
    return partition_shard(key.topic_id, key.index)


def _by_group(key: types.GroupKey | types.PendingKey | types.OffsetKey) -> int:
    return name_shard(key.group_id)


def _by_transaction(key: types.TransactionKey) -> int:
    return name_shard(key.transactional_id)


ENTITIES: Final[dict[type, Kind]] = {
    types.TopicKey: Kind(types.Topic, None, is_versioned=True),
    types.PartitionKey: Kind(types.Partition, _by_partition, is_versioned=True, may_stay_unsynced=True),
    types.ProducerKey: Kind(types.ProducerState, _by_partition, is_versioned=True, may_stay_unsynced=True),
    types.OffsetKey: Kind(types.CommittedOffset, _by_group),
    types.GroupKey: Kind(Group, _by_group, is_versioned=True),
    # The version also covers the committed offsets of the group: when a transaction commits, its offsets are
    # removed from the pending ones.
    types.PendingKey: Kind(
        tuple[types.PendingOffset, ...],
        _by_group,
        is_versioned=True,
        keeps_version=True,
        may_stay_unsynced=True,
    ),
    types.TransactionKey: Kind(types.Transaction, _by_transaction, is_versioned=True, may_stay_unsynced=True),
    types.ClusterKey: Kind(types.Cluster, None),
    types.PolicyKey: Kind(str, None),
    types.ShareKey: Kind(SharePartition, _by_partition, is_versioned=True, may_stay_unsynced=True),
}

VERSIONED: Final = frozenset(key for key, kind in ENTITIES.items() if kind.is_versioned)
"""Kinds of keys whose entities have a version."""
ABSENT: Final = 0
"""The version of an entity that does not exist."""
_BATCH_FACTS: Final = (
    f.BatchAppended,
    f.LogStartAdvanced,
    f.BatchesReplaced,
    f.BatchStaged,
    f.StagedCommitted,
    f.StagedDropped,
)
_TOPIC_FACTS: Final = (f.TopicCreated, f.TopicChanged, f.TopicDeleted)


def shard_of(key: types.Key) -> int | None:
    """Return the shard of an entity; None if it belongs to all brokers."""
    shard = ENTITIES[type(key)].shard
    return None if shard is None else shard(key)


def owner_of(shard: int, brokers: Iterable[int]) -> int | None:
    """Return the broker that should own a shard, by rendezvous hashing; None if there is none.

    If a broker is added or removed, only the shards that it gains or loses change their owner.
    """
    return max(
        brokers, key=lambda each: blake2b(pack(">qh", each, shard), digest_size=8).digest(), default=None
    )


def entity_of(fact: types.Fact) -> types.Key | None:
    """Return the entity that a fact is about; None if it concerns only the broker that committed it."""
    match fact:
        case f.Put(types.OffsetKey(group_id)):
            # Committed offsets are covered by the version of the pending ones.
            return types.PendingKey(group_id)
        case f.Put(key):
            return key
        case f.TopicCreated(topic) | f.TopicChanged(topic) | f.TopicDeleted(topic):
            return topic.key
        case f.GroupDeleted(group_id):
            return types.GroupKey(group_id)
        case f.FeatureChanged():
            return types.ClusterKey()
    return fact.partition if isinstance(fact, _BATCH_FACTS) else None


def versioned_by(fact: types.Fact) -> tuple[types.Key, ...]:
    """Return the entities to which this fact gives a new version."""
    if type(fact) is f.Put:
        return (fact.key,) if type(fact.key) in VERSIONED else ()
    if isinstance(fact, _TOPIC_FACTS):
        return (fact.topic.key,)
    if type(fact) is f.GroupDeleted:
        return types.GroupKey(fact.group_id), types.PendingKey(fact.group_id)
    return ()
