"""The consumer protocol, as members see it (KIP-848)."""

from typing import Any

import pytest
from support.models.group_rules import GROUP, REBALANCE_MS, SESSION_MS, GroupRules, indexes

from semel.core.groups.commands import REGEX_REFRESH_MS, GroupTick
from semel.core.groups.model import MemberState
from semel.core.types import ErrorCode


def with_topic(partitions: int = 6) -> tuple[GroupRules, bytes]:
    rules = GroupRules()
    return rules, rules.make_topic("t", partitions)


def test_the_first_member_gets_everything() -> None:
    rules, _ = with_topic(3)
    answer = rules.consumer_join("a", client_id="client", client_host="/host")
    assert (answer.error, answer.member_id, answer.epoch) == (ErrorCode.NONE, "a", 1)
    assert answer.heartbeat_interval_ms == 5_000
    assert indexes(answer.assignment) == [0, 1, 2]
    assert rules.consumer.state_name == "Stable"
    member = rules.consumer.members["a"]
    assert (member.client_id, member.client_host) == ("client", "/host")


def test_a_heartbeat_without_news_writes_nothing_and_tells_nothing() -> None:
    rules, _ = with_topic()
    owned = rules.consumer_join("a").assignment
    writes = rules.writes
    for _ in range(5):
        rules.now += 1_000
        answer = rules.beat("a", 1)
        assert (answer.epoch, answer.assignment) == (1, None)
        assert rules.beat("a", 1, owned=owned).assignment is None
    assert rules.writes == writes


def test_a_full_heartbeat_is_told_its_assignment_again() -> None:
    rules, _ = with_topic(2)
    owned = rules.consumer_join("a").assignment
    answer = rules.beat("a", 1, topic_names=("t",), rebalance_timeout_ms=REBALANCE_MS, owned=owned)
    assert indexes(answer.assignment) == [0, 1]


def test_partitions_are_revoked_before_they_are_given_to_another() -> None:
    rules, topic = with_topic(6)
    everything = rules.consumer_join("a").assignment
    joined = rules.consumer_join("b")
    assert (joined.epoch, joined.assignment) == (2, frozenset()), "all is still owned by the first"
    assert rules.consumer.members["b"].state is MemberState.UNRELEASED
    assert rules.consumer.state_name == "Reconciling"

    told = rules.beat("a", 1, owned=everything)
    assert told.epoch == 1, "it stays in its epoch until it has given up"
    kept = told.assignment
    assert len(indexes(kept)) == 3
    assert rules.beat("b", 2).assignment is None

    acknowledged = rules.beat("a", 1, owned=kept)
    assert acknowledged.epoch == 2
    assert acknowledged.assignment is None
    given = rules.beat("b", 2, owned=frozenset())
    assert given.assignment == {(topic, index) for index in range(6)} - (kept or frozenset())
    assert rules.consumer.state_name == "Stable"


def test_a_member_that_comes_by_another_connection_is_told_its_assignment_again() -> None:
    """An answer may have been lost with the connection, while the epoch has stayed."""
    rules, topic = with_topic(6)
    everything = rules.consumer_join("a", connection_id=1).assignment
    rules.consumer_join("b", connection_id=2)
    kept = rules.beat("a", 1, connection_id=1).assignment
    assert kept is not None
    assert rules.beat("a", 1, connection_id=1).assignment is None
    again = rules.beat("a", 1, connection_id=3)
    assert (again.epoch, again.assignment) == (1, kept)
    assert rules.beat("a", 1, connection_id=3).assignment is None
    rules.beat("a", 1, owned=kept, connection_id=3)
    rest = frozenset((topic, index) for index in range(6)) - kept
    assert everything == rest | kept
    assert rules.beat("b", 2, connection_id=2).assignment == rest
    assert rules.beat("b", 2, connection_id=4).assignment == rest
    assert rules.beat("b", 2, connection_id=4).assignment is None
    rules.restart()
    assert rules.beat("b", 2, connection_id=4).assignment == rest, "that connection is another one"


def test_three_members_settle_evenly() -> None:
    rules, _ = with_topic(10)
    owned: dict[str, Any] = {}
    epochs: dict[str, int] = {}
    for name in ("a", "b", "c"):
        answer = rules.consumer_join(name)
        owned[name], epochs[name] = answer.assignment, answer.epoch
        settle(rules, owned, epochs)
    assert sorted(len(each) for each in owned.values()) == [3, 3, 4]
    assert len(frozenset().union(*owned.values())) == 10
    assert set(epochs.values()) == {3}


def settle(rules: GroupRules, owned: dict[str, Any], epochs: dict[str, int]) -> None:
    """Heartbeats of members that do what they are told, until nothing changes."""
    for _ in range(10):
        for name in owned:
            answer = rules.beat(name, epochs[name], owned=owned[name])
            assert answer.error is ErrorCode.NONE
            epochs[name] = answer.epoch
            if answer.assignment is not None:
                owned[name] = answer.assignment
        if rules.consumer.state_name == "Stable":
            return
    raise AssertionError("the group did not settle")


def test_a_member_that_says_nothing_of_what_it_owns_is_waited_for() -> None:
    rules, _ = with_topic(2)
    rules.consumer_join("a")
    rules.consumer_join("b")
    kept = rules.beat("a", 1).assignment
    assert indexes(kept) == [0]
    assert rules.beat("a", 1).epoch == 1
    assert rules.consumer.members["a"].state is MemberState.UNREVOKED
    assert rules.beat("a", 1, owned=kept).epoch == 2


def test_a_group_with_very_many_partitions_is_not_assigned_for_every_member_that_joins() -> None:
    """Which takes as long as there are partitions. Members that come in between are served a little later."""
    rules, _ = with_topic(20_000)
    rules.consumer_join("a")
    before = rules.consumer.target
    for member_id in "bcd":
        assert rules.consumer_join(member_id).error is ErrorCode.NONE
    assert rules.consumer.target is before
    rules.now += 2_000
    rules.beat("a", 1)
    assert {len(owned) for owned in rules.consumer.target.values()} == {5_000}


def test_leaving_frees_the_partitions() -> None:
    rules, _ = with_topic(4)
    rules.consumer_join("a")
    rules.consumer_join("b")
    left = rules.beat("a", -1)
    assert (left.error, left.epoch) == (ErrorCode.NONE, -1)
    assert rules.consumer.state_name == "Assigning"
    answer = rules.beat("b", 2, owned=frozenset())
    assert (answer.epoch, indexes(answer.assignment)) == (3, [0, 1, 2, 3])
    rules.beat("b", -1)
    assert rules.consumer.state_name == "Empty"
    assert rules.state.sessions == {}


def test_a_silent_member_is_lost() -> None:
    rules, _ = with_topic(4)
    rules.consumer_join("a")
    rules.consumer_join("b")
    rules.tick(SESSION_MS - 1)
    rules.beat("b", 2)
    rules.tick(1)
    assert list(rules.consumer.members) == ["b"]
    assert rules.beat("a", 1).error is ErrorCode.UNKNOWN_MEMBER_ID
    assert indexes(rules.beat("b", 2).assignment) == [0, 1, 2, 3]


def test_a_member_that_does_not_give_up_in_time_is_lost() -> None:
    rules, _ = with_topic(4)
    everything = rules.consumer_join("a").assignment
    rules.consumer_join("b")
    rules.beat("a", 1, owned=everything)
    for _ in range(REBALANCE_MS // 5_000 - 1):
        rules.tick(5_000)
        assert rules.beat("a", 1, owned=everything).error is ErrorCode.NONE
        rules.beat("b", 2)
    rules.tick(5_000)
    assert list(rules.consumer.members) == ["b"]


def test_a_lost_answer_is_forgiven() -> None:
    rules, _ = with_topic(4)
    everything = rules.consumer_join("a").assignment
    rules.consumer_join("b")
    kept = rules.beat("a", 1, owned=everything).assignment
    assert rules.beat("a", 1, owned=kept).epoch == 2
    # The answer did not arrive; the member still is in epoch 1.
    assert rules.beat("a", 1, owned=kept).epoch == 2
    for owned in (None, everything):
        assert rules.beat("a", 1, owned=owned).error is ErrorCode.FENCED_MEMBER_EPOCH


def test_wrong_epochs_are_fenced() -> None:
    rules, _ = with_topic(4)
    rules.consumer_join("a")
    rules.beat("a", 1, topic_names=("t", "u"))
    rules.beat("a", 2, topic_names=("t",))
    assert rules.consumer.members["a"].epoch == 3
    assert rules.beat("a", 4).error is ErrorCode.FENCED_MEMBER_EPOCH
    assert rules.beat("a", 1, owned=frozenset()).error is ErrorCode.FENCED_MEMBER_EPOCH
    assert rules.beat("ghost", 1).error is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_fenced_member_starts_again() -> None:
    rules, _ = with_topic(4)
    rules.consumer_join("a")
    rules.consumer_join("b")
    again = rules.consumer_join("a")
    assert (again.error, again.epoch, indexes(again.assignment)) == (ErrorCode.NONE, 2, [0, 1])
    assert indexes(rules.beat("b", 2).assignment) == [2, 3]


def test_more_partitions_and_new_topics_move_the_epoch() -> None:
    rules, topic = with_topic(2)
    rules.consumer_join("a", "t", "later")
    rules.make_topic("t", 3)
    answer = rules.beat("a", 1)
    assert (answer.epoch, indexes(answer.assignment)) == (2, [0, 1, 2])
    later = rules.make_topic("later", 1)
    answer = rules.beat("a", 2)
    assert answer.epoch == 3
    assert (later, 0) in (answer.assignment or ())
    del rules.topics["t"]
    kept = rules.beat("a", 3, owned=answer.assignment)
    assert kept.assignment == {(later, 0)}
    assert rules.beat("a", kept.epoch, owned=kept.assignment).epoch == 4
    assert topic not in {topic_id for topic_id, _ in rules.consumer.target["a"]}


def test_members_may_want_different_topics() -> None:
    rules, topic = with_topic(2)
    other = rules.make_topic("u", 2)
    rules.consumer_join("a", "t")
    joined = rules.consumer_join("b", "u")
    assert joined.assignment == {(other, 0), (other, 1)}
    changed = rules.beat("b", joined.epoch, topic_names=("t", "u"), owned=joined.assignment)
    assert changed.error is ErrorCode.NONE
    assert {topic_id for topic_id, _ in rules.consumer.target["a"]} == {topic}


def test_a_regular_expression_subscribes_to_what_it_matches() -> None:
    rules, _ = with_topic(1)
    orders = rules.make_topic("orders-de", 2)
    answer = rules.consumer_join("a", topic_names=None, topic_regex="orders-.*")
    assert answer.assignment == {(orders, 0), (orders, 1)}
    france = rules.make_topic("orders-fr", 1)
    assert rules.beat("a", 1).assignment is None, "not every heartbeat looks through all topics"
    rules.now += REGEX_REFRESH_MS
    answer = rules.beat("a", 1)
    assert answer.assignment == {(orders, 0), (orders, 1), (france, 0)}
    rules.make_topic("orders-fr", 2)
    assert (france, 1) in (rules.beat("a", 2).assignment or ()), "known topics are looked at every time"
    ended = rules.beat("a", 3, topic_regex="", topic_names=("t",), owned=answer.assignment)
    assert ended.assignment == frozenset()


def test_a_regular_expression_of_another_member_is_not_forgotten() -> None:
    rules, _ = with_topic(1)
    orders = rules.make_topic("orders-de", 2)
    rules.consumer_join("a", topic_names=None, topic_regex="orders-.*")
    rules.consumer_join("b", "t")
    assert rules.consumer.target["a"] == {(orders, 0), (orders, 1)}


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"rebalance_timeout_ms": -1}, ErrorCode.INVALID_REQUEST),
        ({"owned": None}, ErrorCode.INVALID_REQUEST),
        ({"owned": frozenset({(bytes(16), 0)})}, ErrorCode.INVALID_REQUEST),
        ({"topic_names": None}, ErrorCode.INVALID_REQUEST),
        ({"instance_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"rack_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"assignor": "mine"}, ErrorCode.UNSUPPORTED_ASSIGNOR),
    ],
)
def test_a_join_must_say_all_that_is_needed(fields: dict[str, Any], error: ErrorCode) -> None:
    rules, _ = with_topic()
    answer = rules.consumer_join("a", **fields)
    assert answer.error is error
    assert answer.message
    assert rules.state.groups[next(iter(rules.state.groups))] is None


def test_impossible_heartbeats() -> None:
    rules, _ = with_topic()
    assert rules.consumer_join("").error is ErrorCode.INVALID_REQUEST
    assert rules.beat("a", -3).error is ErrorCode.INVALID_REQUEST
    assert rules.beat("a", -2).error is ErrorCode.INVALID_REQUEST
    assert rules.beat("a", 1).error is ErrorCode.GROUP_ID_NOT_FOUND
    assert rules.beat("a", -1).error is ErrorCode.GROUP_ID_NOT_FOUND


def test_a_full_group_takes_nobody_else() -> None:
    rules, _ = with_topic()
    rules.consumer_join("a")
    assert rules.consumer_join("b", members_max=1).error is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert rules.consumer_join("a", members_max=1).error is ErrorCode.NONE


def test_groups_with_members_are_bounded() -> None:
    rules, _ = with_topic()
    assert rules.consumer_join("a", sessions_max=0).error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert rules.consumer_join("a", sessions_max=1).error is ErrorCode.NONE
    assert rules.consumer_join("b", sessions_max=1).error is ErrorCode.NONE


def test_the_assignor_that_most_want_is_used() -> None:
    rules, topic = with_topic(4)
    rules.consumer_join("a", assignor="range")
    assert rules.consumer.assignor == "range"
    rules.consumer_join("b")
    assert rules.consumer.target == {
        "a": frozenset({(topic, 0), (topic, 1)}),
        "b": frozenset({(topic, 2), (topic, 3)}),
    }


# Static members.


def test_a_static_member_leaves_for_a_moment_and_takes_its_place_back() -> None:
    rules, _ = with_topic(4)
    owned = rules.consumer_join("a1", instance_id="A").assignment
    rules.consumer_join("b")
    epoch = rules.consumer.epoch
    away = rules.beat("a1", -2, instance_id="A")
    assert (away.error, away.epoch) == (ErrorCode.NONE, -2)
    assert rules.beat("b", 2).assignment is None, "its partitions wait for it"
    back = rules.consumer_join("a2", instance_id="A")
    assert back.error is ErrorCode.NONE
    assert rules.consumer.epoch == epoch, "nothing changed for the group"
    assert (back.assignment or frozenset()) < (owned or frozenset())
    assert "a1" not in rules.consumer.members
    assert rules.beat("a1", 1, instance_id="A").error is ErrorCode.FENCED_INSTANCE_ID


def test_a_place_that_is_not_released_cannot_be_taken() -> None:
    rules, _ = with_topic(4)
    rules.consumer_join("a1", instance_id="A")
    assert rules.consumer_join("a2", instance_id="A").error is ErrorCode.UNRELEASED_INSTANCE_ID
    assert rules.consumer_join("a1", instance_id="A").error is ErrorCode.NONE
    assert rules.beat("x", 1, instance_id="X").error is ErrorCode.UNKNOWN_MEMBER_ID
    rules.tick(SESSION_MS)
    assert rules.consumer_join("a2", instance_id="A").error is ErrorCode.NONE


def test_a_static_member_that_does_not_come_back_is_lost() -> None:
    rules, _ = with_topic(4)
    rules.consumer_join("a1", instance_id="A")
    rules.beat("a1", -2, instance_id="A")
    assert rules.beat("a1", 1, instance_id="A").error is ErrorCode.FENCED_MEMBER_EPOCH
    rules.tick(SESSION_MS)
    assert rules.consumer.members == {}


def test_a_static_member_may_leave_for_good() -> None:
    rules, _ = with_topic(4)
    rules.consumer_join("a1", instance_id="A")
    assert rules.beat("x", -1, instance_id="A").error is ErrorCode.FENCED_INSTANCE_ID
    assert rules.beat("a1", -1, instance_id="A").error is ErrorCode.NONE
    assert rules.consumer.members == {}


# Restarts, and the other protocol.


def test_members_do_not_notice_a_restart() -> None:
    rules, _ = with_topic(4)
    owned = rules.consumer_join("a").assignment
    rules.consumer_join("b")
    rules.restart()
    kept = rules.beat("a", 1, owned=owned)
    assert (kept.error, kept.epoch) == (ErrorCode.NONE, 1)
    rules.restart()
    assert rules.beat("a", 1, owned=kept.assignment).epoch == 2
    assert len(indexes(rules.beat("b", 2).assignment)) == 2


def test_members_that_died_with_the_broker_are_lost() -> None:
    rules, _ = with_topic(4)
    everything = rules.consumer_join("a").assignment
    rules.consumer_join("b")
    rules.beat("a", 1, owned=everything)
    rules.restart()
    rules.run(GroupTick((GROUP,), SESSION_MS))
    session = rules.state.sessions[GROUP]
    assert set(session.rebalance_deadlines) == {"a"}
    rules.tick(SESSION_MS)
    assert rules.consumer.members == {}


def test_an_empty_group_changes_its_protocol() -> None:
    rules, _ = with_topic(4)
    rules.consumer_join("a")
    assert rules.join(protocol_type="connect").error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert rules.heartbeat("a", 1) is ErrorCode.UNKNOWN_MEMBER_ID
    rules.beat("a", -1)
    epoch = rules.consumer.epoch
    rules.stable("c")
    assert rules.classic.generation > epoch
    assert rules.consumer_join("a").error is ErrorCode.GROUP_ID_NOT_FOUND
    generation = rules.classic.generation
    rules.leave("c")
    assert rules.consumer_join("a").error is ErrorCode.NONE
    assert rules.consumer.epoch > generation
