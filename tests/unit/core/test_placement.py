"""Shards and versions: which broker owns an entity, and which entities a fact changes (ADR 0042)."""

from collections import Counter

from semel.core import facts as f
from semel.core.entities import (
    SHARDS,
    VERSIONED,
    entity_of,
    name_shard,
    owner_of,
    partition_shard,
    shard_of,
    versioned_by,
)
from semel.core.types import (
    ClusterKey,
    GroupKey,
    OffsetKey,
    Partition,
    PartitionKey,
    PendingKey,
    ProducerKey,
    ProducerState,
    Topic,
    TopicKey,
    TransactionKey,
)

TOPIC = Topic("t", b"t" * 16, 2, {})
ZERO = PartitionKey(TOPIC.topic_id, 0)


def test_a_partition_and_its_producers_are_in_one_shard() -> None:
    assert shard_of(ZERO) == shard_of(ZERO.of(7)) == partition_shard(TOPIC.topic_id, 0)


def test_a_group_and_its_offsets_are_in_one_shard() -> None:
    keys = (GroupKey("g"), PendingKey("g"), OffsetKey("g", "t", 0))
    assert {shard_of(key) for key in keys} == {name_shard("g")}
    assert shard_of(TransactionKey("g")) == name_shard("g")


def test_topics_and_the_cluster_belong_to_every_broker() -> None:
    assert shard_of(TopicKey("t")) is None
    assert shard_of(ClusterKey()) is None


def test_consecutive_partitions_are_in_different_shards() -> None:
    assert len({partition_shard(TOPIC.topic_id, index) for index in range(SHARDS)}) == SHARDS


def test_any_text_has_a_shard() -> None:
    assert 0 <= name_shard("\udc80 \x00 \U0001f600") < SHARDS


def test_shards_are_divided_evenly_enough() -> None:
    counts = Counter(owner_of(shard, [1, 2, 3, 4]) for shard in range(SHARDS))
    assert set(counts) == {1, 2, 3, 4}
    assert max(counts.values()) < 2 * min(counts.values())


def test_a_broker_that_comes_or_goes_moves_only_its_own_shards() -> None:
    before = {shard: owner_of(shard, [1, 2, 3]) for shard in range(SHARDS)}
    after = {shard: owner_of(shard, [3, 1, 2, 4]) for shard in range(SHARDS)}
    assert {after[shard] for shard in before if after[shard] != before[shard]} == {4}


def test_without_brokers_a_shard_has_no_owner() -> None:
    assert owner_of(3, []) is None


def test_a_batch_belongs_to_its_partition_whose_value_has_the_version() -> None:
    appended = f.BatchAppended(ZERO, 0, 0, 1, 1, 10, -1, False, False)
    assert entity_of(appended) == ZERO
    assert versioned_by(appended) == ()
    assert versioned_by(f.Put(ZERO, Partition())) == (ZERO,)


def test_a_producer_has_a_version_of_its_own() -> None:
    key = ZERO.of(7)
    assert versioned_by(f.Put(key, ProducerState())) == (key,)
    assert versioned_by(f.Put(key, None)) == (key,)
    assert type(key) is ProducerKey
    assert ProducerKey in VERSIONED


def test_committed_offsets_are_covered_by_the_version_of_the_pending_ones() -> None:
    key = OffsetKey("g", "t", 0)
    assert entity_of(f.Put(key, None)) == PendingKey("g")
    assert versioned_by(f.Put(key, None)) == ()
    assert versioned_by(f.Put(PendingKey("g"), None)) == (PendingKey("g"),)


def test_a_deleted_group_takes_its_pending_offsets_along() -> None:
    assert versioned_by(f.GroupDeleted("g")) == (GroupKey("g"), PendingKey("g"))


def test_an_allocated_producer_id_concerns_only_the_broker_that_allocated_it() -> None:
    assert entity_of(f.ProducerIdAllocated(1)) is None
