"""All kinds of entities: for each, the type of its values, its shard and its version.

CONTRIBUTING.md says what else a new kind needs.
"""

from collections.abc import Callable
from typing import Any, Final, NamedTuple
from zlib import crc32

from semel.core.groups.model import Group
from semel.core.shares.partition import SharePartition
from semel.core.types import (
    Cluster,
    ClusterKey,
    CommittedOffset,
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
    Topic,
    TopicKey,
    Transaction,
    TransactionKey,
)

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


def _by_partition(key: PartitionKey | ProducerKey | ShareKey) -> int:
    return partition_shard(key.topic_id, key.index)


def _by_group(key: GroupKey | PendingKey | OffsetKey) -> int:
    return name_shard(key.group_id)


def _by_transaction(key: TransactionKey) -> int:
    return name_shard(key.transactional_id)


ENTITIES: Final[dict[type, Kind]] = {
    TopicKey: Kind(Topic, None, is_versioned=True),
    PartitionKey: Kind(Partition, _by_partition, is_versioned=True, may_stay_unsynced=True),
    ProducerKey: Kind(ProducerState, _by_partition, is_versioned=True, may_stay_unsynced=True),
    OffsetKey: Kind(CommittedOffset, _by_group),
    GroupKey: Kind(Group, _by_group, is_versioned=True),
    # The version also covers the committed offsets of the group: when a transaction commits, its offsets are
    # removed from the pending ones.
    PendingKey: Kind(
        tuple[PendingOffset, ...], _by_group, is_versioned=True, keeps_version=True, may_stay_unsynced=True
    ),
    TransactionKey: Kind(Transaction, _by_transaction, is_versioned=True, may_stay_unsynced=True),
    ClusterKey: Kind(Cluster, None),
    PolicyKey: Kind(str, None),
    ShareKey: Kind(SharePartition, _by_partition, is_versioned=True, may_stay_unsynced=True),
}
