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
from struct import pack
from typing import Final

from semel.core import facts as f
from semel.core.entities import ENTITIES
from semel.core.types import ClusterKey, Fact, GroupKey, Key, OffsetKey, PendingKey

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


def shard_of(key: Key) -> int | None:
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


def entity_of(fact: Fact) -> Key | None:
    """Return the entity that a fact is about; None if it concerns only the broker that committed it."""
    match fact:
        case f.Put(OffsetKey(group_id)):
            # Committed offsets are covered by the version of the pending ones.
            return PendingKey(group_id)
        case f.Put(key):
            return key
        case f.TopicCreated(topic) | f.TopicChanged(topic) | f.TopicDeleted(topic):
            return topic.key
        case f.GroupDeleted(group_id):
            return GroupKey(group_id)
        case f.FeatureChanged():
            return ClusterKey()
    return fact.partition if isinstance(fact, _BATCH_FACTS) else None


def versioned_by(fact: Fact) -> tuple[Key, ...]:
    """Return the entities to which this fact gives a new version."""
    if type(fact) is f.Put:
        return (fact.key,) if type(fact.key) in VERSIONED else ()
    if isinstance(fact, _TOPIC_FACTS):
        return (fact.topic.key,)
    if type(fact) is f.GroupDeleted:
        return GroupKey(fact.group_id), PendingKey(fact.group_id)
    return ()
