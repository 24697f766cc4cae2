"""What a tick reads; of several values of an entity, it writes the last, where it became true."""

from typing import Any

from support.models.rules import PARTITION

from semel.broker.commit.tick import keys_of, newest_only
from semel.core.facts import (
    BatchAppended,
    GroupDeleted,
    LogStartAdvanced,
    Put,
    TopicChanged,
    TopicCreated,
    TopicDeleted,
)
from semel.core.groups import ClassicGroup
from semel.core.transactions.commands import AddOffsets, AddPartitions, EndTransaction
from semel.core.types import (
    Command,
    Fact,
    Partition,
    PartitionKey,
    PendingKey,
    Topic,
    Transaction,
    TransactionKey,
)

OTHER = PartitionKey(PARTITION.topic_id, 1)
TOPIC = Topic("t", PARTITION.topic_id, 2, {})


def appended(offset: int, key: PartitionKey = PARTITION) -> BatchAppended:
    return BatchAppended(key, offset, offset, 0, 0, 100, -1, False, False)


def reaching(high_watermark: int, key: PartitionKey = PARTITION) -> Put:
    return Put(key, Partition(high_watermark=high_watermark))


def test_the_last_value_of_each_partition_is_written() -> None:
    facts: list[Fact] = [
        *(appended(0), reaching(1), appended(0, OTHER), reaching(1, OTHER)),
        *(appended(1), reaching(2), LogStartAdvanced(PARTITION, 1), reaching(3)),
    ]
    expected = [facts[0], facts[2], facts[3], facts[4], facts[6], facts[7]]
    assert newest_only(facts) == expected


def test_what_is_there_once_stays_as_it_is() -> None:
    facts: list[Fact] = [TopicCreated(TOPIC), appended(0), reaching(1), TopicChanged(TOPIC)]
    assert newest_only(facts) == facts
    assert newest_only([]) == []


def test_a_value_before_a_deletion_is_not_moved_behind_it() -> None:
    anew = PartitionKey(b"another topic id", 0)
    facts: list[Fact] = [
        *(appended(0), reaching(1), appended(1), reaching(2), TopicDeleted(TOPIC)),
        *(TopicCreated(Topic("t", anew.topic_id, 1, {})), appended(0, anew), reaching(1, anew)),
    ]
    assert newest_only(facts) == [facts[0], *facts[2:]]


def test_a_group_that_is_deleted_and_made_again_is_written_once() -> None:
    group = Put.of(ClassicGroup("g"))
    again = Put.of(ClassicGroup("g", generation=7))
    assert newest_only([group, GroupDeleted("g"), again]) == [GroupDeleted("g"), again]
    assert newest_only([group, GroupDeleted("g")]) == [group, GroupDeleted("g")]


def test_entities_of_the_same_name_are_different_entities() -> None:
    facts: list[Fact] = [Put.of(Transaction("g", 1, 0, 1_000)), Put.of(ClassicGroup("g"))]
    assert newest_only(facts) == facts
    later = Put.of(Transaction("g", 1, 1, 1_000))
    assert newest_only([*facts, later]) == [facts[1], later]


def test_added_partitions_are_read_if_their_transaction_may_end_in_the_same_tick() -> None:
    adds: list[Command[Any]] = [AddPartitions("a", 1, 0, (PARTITION,)), AddOffsets("b", 2, 0, "g")]
    assert [*keys_of(adds)] == [TransactionKey("a"), TransactionKey("b")]
    ended = set(keys_of([*adds, EndTransaction("a", 1, 0, is_commit=True)]))
    assert {PARTITION, PARTITION.of(1)} <= ended
    assert PendingKey("g") not in ended
    assert PendingKey("g") in set(keys_of([*adds, EndTransaction("b", 2, 0, is_commit=False)]))
