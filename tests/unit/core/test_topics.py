"""Topics: what each command decides, and what its facts make of the state."""

import copy
from typing import Any

import pytest

from semel.core.configs import APPEND, DELETE, SET, SUBTRACT
from semel.core.facts import TopicChanged, TopicCreated, TopicDeleted
from semel.core.state import BrokerState
from semel.core.topics import (
    AddPartitions,
    AlterTopic,
    CreateTopic,
    DeleteTopic,
    TopicAnswer,
    name_problem,
)
from semel.core.types import (
    CommittedOffset,
    Decision,
    ErrorCode,
    OffsetKey,
    Partition,
    PartitionKey,
    ProducerKey,
    ProducerState,
    Topic,
    TopicKey,
)

ID = b"i" * 16
OTHER_ID = b"o" * 16
NOW = 1_000


def state_with(*topics: Topic) -> BrokerState:
    state = BrokerState()
    for topic in topics:
        state.apply(TopicCreated(topic))
    return state


def orders(**configs: str) -> Topic:
    return Topic("orders", ID, 2, {name.replace("_", "."): value for name, value in configs.items()})


def decide(state: BrokerState, command: Any) -> Decision:
    """Decide as the commit loop does: load what is missing, and see that deciding changes nothing."""
    for key in state.missing(command.keys()):
        state.put(key, None)
    before = copy.deepcopy(state.topics)
    decision = state.decide(command, NOW)
    assert state.topics == before
    return decision


def refused(state: BrokerState, command: Any) -> tuple[ErrorCode, str]:
    """The error and message of a command that makes nothing true."""
    decision = decide(state, command)
    answer: TopicAnswer = decision.answer
    assert decision.facts == ()
    assert answer.error
    assert answer.message
    return answer.error, answer.message


def test_create_makes_a_topic_and_its_empty_partitions() -> None:
    state = BrokerState()
    decision = decide(state, CreateTopic("orders", ID, 2, {"retention.ms": "1"}))
    topic = Topic("orders", ID, 2, {"retention.ms": "1"})
    assert decision.answer == TopicAnswer(ErrorCode.NONE, None, topic)
    assert decision.facts == (TopicCreated(topic),)
    state.apply(decision.facts[0])
    assert state.topics[TopicKey("orders")] == topic
    assert state.partitions == {PartitionKey(ID, 0): Partition(), PartitionKey(ID, 1): Partition()}


def test_create_again_is_topic_already_exists_also_for_a_retry() -> None:
    error, _ = refused(state_with(orders()), CreateTopic("orders", ID, 2, {}))
    assert error == ErrorCode.TOPIC_ALREADY_EXISTS


def test_create_to_validate_only_makes_nothing_true() -> None:
    decision = decide(BrokerState(), CreateTopic("orders", ID, 2, {}, validate_only=True))
    assert decision.facts == ()
    assert decision.answer.error == ErrorCode.NONE
    error, _ = refused(state_with(orders()), CreateTopic("orders", OTHER_ID, 2, {}, validate_only=True))
    assert error == ErrorCode.TOPIC_ALREADY_EXISTS


@pytest.mark.parametrize("name", ["", ".", "..", "a" * 250, "a/b", "ä", "a b", "a\n", "a\x00"])
def test_create_refuses_a_bad_name(name: str) -> None:
    error, _ = refused(BrokerState(), CreateTopic(name, ID, 1, {}))
    assert error == ErrorCode.INVALID_TOPIC_EXCEPTION


@pytest.mark.parametrize("name", ["a", "a" * 249, "...", "A.b_c-9", "__consumer_offsets"])
def test_good_names(name: str) -> None:
    assert name_problem(name) is None


@pytest.mark.parametrize("partitions", [0, -1, -2])
def test_create_refuses_a_topic_without_partitions(partitions: int) -> None:
    assert (
        refused(BrokerState(), CreateTopic("orders", ID, partitions, {}))[0] == ErrorCode.INVALID_PARTITIONS
    )


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("retention.m", "1", "did you mean retention.ms?"),
        ("completely different thing", "1", "Unknown topic config name"),
        ("retention.ms", None, "needs a value"),
        ("retention.ms", "-2", "out of range"),
        ("retention.ms", "9223372036854775808", "out of range"),
        ("retention.ms", "1_000", "Invalid value"),
        ("retention.ms", "٣", "Invalid value"),
        ("retention.ms", "1" * 5_000, "longer than"),
        ("cleanup.policy", ",", "must be one of"),
        ("cleanup.policy", "delete,shred", "must be one of"),
        ("min.cleanable.dirty.ratio", "nan", "Invalid value"),
        ("min.cleanable.dirty.ratio", "1.1", "out of range"),
        ("preallocate", "yes", "Invalid value"),
        ("message.timestamp.type", "createtime", "must be one of"),
    ],
)
def test_create_refuses_a_bad_config_by_name(name: str, value: str | None, says: str) -> None:
    error, message = refused(BrokerState(), CreateTopic("orders", ID, 1, {name: value}))
    assert error == ErrorCode.INVALID_CONFIG
    assert says in message


def test_configs_that_contradict_each_other_are_refused() -> None:
    configs = {"min.compaction.lag.ms": "10", "max.compaction.lag.ms": "9"}
    assert refused(BrokerState(), CreateTopic("orders", ID, 1, configs))[0] == ErrorCode.INVALID_CONFIG
    state = state_with(orders(min_compaction_lag_ms="10"))
    alter = AlterTopic("orders", (("max.compaction.lag.ms", SET, "9"),))
    assert refused(state, alter)[0] == ErrorCode.INVALID_CONFIG


def test_delete_by_name_and_by_id() -> None:
    state = state_with(orders())
    for command in (DeleteTopic("orders"), DeleteTopic("orders", ID)):
        decision = decide(state, command)
        assert decision.answer == TopicAnswer(ErrorCode.NONE, None, orders())
        assert decision.facts == (TopicDeleted(orders()),)


def test_delete_of_what_is_not_there() -> None:
    assert refused(BrokerState(), DeleteTopic("orders"))[0] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert refused(BrokerState(), DeleteTopic("orders", ID))[0] == ErrorCode.UNKNOWN_TOPIC_ID
    # A topic made anew under the name is another topic: the id protects it from a late delete.
    assert refused(state_with(orders()), DeleteTopic("orders", OTHER_ID))[0] == ErrorCode.UNKNOWN_TOPIC_ID


def test_deleted_topic_takes_its_partitions_producers_and_offsets_along() -> None:
    other = Topic("other", OTHER_ID, 1, {})
    state = state_with(orders(), other)
    mine, others = ProducerKey(ID, 0, 7), ProducerKey(OTHER_ID, 0, 7)
    my_offset, other_offset = OffsetKey("group", "orders", 0), OffsetKey("group", "other", 0)
    state.producers |= {mine: ProducerState(0), others: ProducerState(0)}
    state.offsets |= {my_offset: CommittedOffset(5), other_offset: CommittedOffset(5)}
    state.apply(TopicDeleted(orders()))
    # Known to be absent, not unloaded: the ledger still has the rows until the tick is committed.
    assert state.topics == {TopicKey("orders"): None, TopicKey("other"): other}
    assert state.partitions == {
        PartitionKey(ID, 0): None,
        PartitionKey(ID, 1): None,
        PartitionKey(OTHER_ID, 0): Partition(),
    }
    assert state.producers == {mine: None, others: ProducerState(0)}
    assert state.offsets == {my_offset: None, other_offset: CommittedOffset(5)}


def test_a_topic_can_be_made_anew_in_the_tick_that_deleted_it() -> None:
    state = state_with(orders())
    state.apply(decide(state, DeleteTopic("orders")).facts[0])
    state.apply(decide(state, CreateTopic("orders", OTHER_ID, 1, {})).facts[0])
    topic = state.topics[TopicKey("orders")]
    assert topic is not None
    assert topic.topic_id == OTHER_ID
    assert state.partitions[PartitionKey(ID, 0)] is None
    assert state.partitions[PartitionKey(OTHER_ID, 0)] == Partition()


def test_add_partitions_keeps_the_old_ones() -> None:
    state = state_with(orders(retention_ms="1"))
    grown_log = Partition(high_watermark=9)
    state.partitions[PartitionKey(ID, 1)] = grown_log
    # An old partition may have been evicted; growing must not bring it back as empty.
    del state.partitions[PartitionKey(ID, 0)]
    decision = decide(state, AddPartitions("orders", 4))
    assert decision.facts == (TopicChanged(orders(retention_ms="1").but(partitions=4)),)
    state.apply(decision.facts[0])
    assert state.partitions == {
        PartitionKey(ID, 1): grown_log,
        PartitionKey(ID, 2): Partition(),
        PartitionKey(ID, 3): Partition(),
    }


@pytest.mark.parametrize("count", [2, 1, 0, -1])
def test_add_partitions_only_grows(count: int) -> None:
    assert refused(state_with(orders()), AddPartitions("orders", count))[0] == ErrorCode.INVALID_PARTITIONS


def test_add_partitions_other_refusals() -> None:
    assert refused(BrokerState(), AddPartitions("orders", 4))[0] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    wrong_number = AddPartitions("orders", 4, added=1)
    assert refused(state_with(orders()), wrong_number)[0] == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    validated = decide(state_with(orders()), AddPartitions("orders", 4, validate_only=True, added=2))
    assert validated.facts == ()
    assert validated.answer.error == ErrorCode.NONE


def altered(topic: Topic, *operations: tuple[str, int, str | None], replace: bool = False) -> dict[str, str]:
    """The configs after an alteration that is not refused."""
    state = state_with(topic)
    decision = decide(state, AlterTopic(topic.name, operations, replace))
    assert decision.answer.error == ErrorCode.NONE, decision.answer.message
    for fact in decision.facts:
        state.apply(fact)
    changed = state.topics[TopicKey(topic.name)]
    assert changed is not None
    assert changed == decision.answer.topic
    return dict(changed.configs)


def test_alter_sets_and_deletes() -> None:
    topic = orders(retention_ms="1", retention_bytes="2")
    assert altered(topic, ("retention.ms", SET, "5"), ("retention.bytes", DELETE, None)) == {
        "retention.ms": "5"
    }


def test_alter_appends_to_and_subtracts_from_lists_starting_at_the_default() -> None:
    assert altered(orders(), ("cleanup.policy", APPEND, "compact")) == {"cleanup.policy": "delete,compact"}
    both = orders(cleanup_policy="delete,compact")
    assert altered(both, ("cleanup.policy", APPEND, "compact,delete")) == {"cleanup.policy": "delete,compact"}
    assert altered(both, ("cleanup.policy", SUBTRACT, "delete")) == {"cleanup.policy": "compact"}
    assert altered(orders(), ("cleanup.policy", SUBTRACT, "delete")) == {"cleanup.policy": ""}


def test_alter_to_replace_puts_the_rest_back_to_the_default() -> None:
    topic = orders(retention_ms="1", retention_bytes="2")
    assert altered(topic, ("retention.bytes", SET, "3"), replace=True) == {"retention.bytes": "3"}
    assert altered(topic, replace=True) == {}


def test_alter_that_changes_nothing_writes_nothing() -> None:
    command = AlterTopic("orders", (("retention.ms", SET, "1"),))
    decision = decide(state_with(orders(retention_ms="1")), command)
    assert decision.answer.error == ErrorCode.NONE
    assert decision.facts == ()


@pytest.mark.parametrize(
    ("operation", "says"),
    [
        (("retention.m", SET, "1"), "did you mean retention.ms?"),
        (("retention.m", DELETE, None), "did you mean retention.ms?"),
        (("retention.ms", APPEND, "1"), "not LIST"),
        (("retention.ms", SUBTRACT, "1"), "not LIST"),
        (("retention.ms", SET, None), "needs a value"),
        (("cleanup.policy", APPEND, None), "needs a value"),
        (("cleanup.policy", APPEND, "shred"), "must be one of"),
        (("remote.storage.enable", SET, "true"), "not available"),
        (("retention.ms", 4, "1"), "Unknown operation 4"),
    ],
)
def test_alter_is_all_or_nothing_and_says_why(operation: tuple[str, int, str | None], says: str) -> None:
    command = AlterTopic("orders", (("retention.bytes", SET, "7"), operation))
    error, message = refused(state_with(orders()), command)
    assert error == ErrorCode.INVALID_CONFIG
    assert says in message


def test_alter_of_what_is_not_there_and_validate_only() -> None:
    assert refused(BrokerState(), AlterTopic("orders", ()))[0] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    command = AlterTopic("orders", (("retention.ms", SET, "1"),), validate_only=True)
    decision = decide(state_with(orders()), command)
    assert decision.facts == ()
    assert decision.answer.error == ErrorCode.NONE
