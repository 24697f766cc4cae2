"""Requests that are under way while a group changes, and members that are refused or come back too late."""

from typing import Any

import pytest
from support.models.group_rules import GROUP, REBALANCE_MS, SESSION_MS, GroupRules, subscription

from semel.core.groups.commands import ConsumerHeartbeat, LeavingMember, TopicsNeeded
from semel.core.groups.model import ClassicGroup, ClassicState
from semel.core.groups.offsets import CommitOffsets, Committer
from semel.core.types import CommittedOffset, ErrorCode, OffsetKey
from semel.wire.consumer_protocol import decode_assignment

NONE = ErrorCode.NONE
LARGE = (("range", subscription("t" * 200)),)


@pytest.fixture
def it() -> GroupRules:
    rules = GroupRules()
    rules.make_topic("t", 4)
    return rules


def supporting(*names: str, owned: list[int] | None = None) -> tuple[tuple[str, bytes], ...]:
    """Protocols of a cooperative member."""
    return tuple((name, subscription("t", owned={"t": owned or []})) for name in names)


def commit(rules: GroupRules, member_id: str, epoch: int, partition: int, offset: int = 7) -> ErrorCode:
    place = (OffsetKey(GROUP, "t", partition), CommittedOffset(offset))
    (error,) = rules.run(CommitOffsets(GROUP, Committer(epoch, member_id), (place,)))
    assert isinstance(error, ErrorCode)
    return error


# A classic group becomes a consumer group, or a classic group again.


def test_topics_that_changed_since_they_were_looked_up_are_looked_up_again(it: GroupRules) -> None:
    """Else nobody would own the partitions of a topic that the caller does not know, and another got them."""
    it.stable("a", "b", assigned={"a": [0, 1], "b": [2, 3]})
    first = ConsumerHeartbeat(
        GROUP, "n", 0, topic_names=("t",), owned=frozenset(), rebalance_timeout_ms=REBALANCE_MS
    )
    assert it.run(first) == TopicsNeeded(frozenset({"t"}))
    assert isinstance(it.group(), ClassicGroup)
    assert it.consumer_join("n").error is NONE


def test_a_sync_in_flight_during_an_upgrade(it: GroupRules) -> None:
    """With the protocol that the classic group has chosen, not the first of the member."""
    ticket: Any = None
    for name, protocols in (("a", supporting("range", "coop")), ("b", supporting("coop", "range"))):
        it.join("", new=name, protocols=protocols)
        ticket = it.join(name, protocols=protocols)
    it.join("a", protocols=supporting("range", "coop"))
    joined = it.joined(ticket)
    assert joined.protocol_name == "range"
    it.consumer_join("n")
    synced = it.sync("b", joined.generation, protocol_type="consumer", protocol_name="range")
    assert synced.error is ErrorCode.REBALANCE_IN_PROGRESS


def test_a_sync_in_flight_during_a_downgrade(it: GroupRules) -> None:
    it.consumer_join("n")
    it.join("a", protocols=supporting("range", "coop"))
    joined = it.join("b", protocols=supporting("coop", "range"))
    assert joined.protocol_name == "coop"
    it.beat("n", -1)
    assert it.classic.protocol_name == "range"
    synced = it.sync("b", joined.generation, protocol_type="consumer", protocol_name="coop")
    assert synced.error is ErrorCode.REBALANCE_IN_PROGRESS


def test_a_member_may_commit_while_its_join_waits_after_a_downgrade(it: GroupRules) -> None:
    it.consumer_join("n")
    it.join("b")
    it.join("a")
    epoch = it.consumer.members["a"].epoch
    it.join("c")
    it.leave("c")
    it.beat("n", -1)
    assert it.heartbeat("a", epoch) is ErrorCode.REBALANCE_IN_PROGRESS
    assert commit(it, "a", epoch, 0) is NONE
    assert isinstance(it.join("a"), int), "parked until b joins"
    assert commit(it, "a", epoch, 0) is NONE


def test_the_last_consumer_member_that_changes_its_protocol_takes_the_group_along(it: GroupRules) -> None:
    it.consumer_join("n", instance_id="i")
    it.join("a")
    it.join("n", instance_id="i")
    assert isinstance(it.group(), ClassicGroup)


# Members that come back too late.


def test_an_expired_member_of_a_consumer_group_does_not_come_back_with_what_it_has_lost() -> None:
    """With a new epoch it could commit in its callback for revoked partitions."""
    it = GroupRules()
    it.make_topic("t", 2)
    it.consumer_join("n")
    mine: list[int] = []
    joined: Any = None
    for _ in range(10):
        joined = it.join("a", protocols=supporting("coop", owned=mine))
        mine = decode_assignment(it.sync("a", joined.generation).assignment).get("t", [])
        known = it.consumer.members["n"]
        it.beat("n", known.epoch, owned=known.assigned)
    (lost,) = mine
    assert commit(it, "a", joined.generation, lost, 10) is NONE
    for _ in range(4):
        it.now += SESSION_MS // 2
        known = it.consumer.members["n"]
        it.beat("n", known.epoch, owned=known.assigned)
    assert commit(it, "n", it.consumer.members["n"].epoch, lost, 100) is NONE
    assert it.join("a", protocols=supporting("coop", owned=mine)).error is ErrorCode.UNKNOWN_MEMBER_ID
    # It asks for a new id. Some clients still say what they owned.
    promised = it.join("", new="c", protocols=supporting("coop", owned=mine))
    assert promised.error is ErrorCode.MEMBER_ID_REQUIRED
    assert it.join("c", protocols=supporting("coop", owned=mine)).error is NONE


# Members that are refused because the group has no room for what they say.


def test_a_member_that_is_refused_and_removed_starts_a_rebalance(it: GroupRules) -> None:
    generation = it.stable("a", "b")
    refused = it.join("b", protocols=LARGE, group_bytes_max=200)
    assert refused.error is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert "b" not in it.classic.members
    assert it.heartbeat("a", generation) is ErrorCode.REBALANCE_IN_PROGRESS


def test_the_last_member_that_is_refused_leaves_an_empty_group(it: GroupRules) -> None:
    it.stable("a")
    it.join("a", protocols=LARGE, group_bytes_max=100)
    assert (it.classic.state, it.classic.idle_since_ms) == (ClassicState.EMPTY, it.now)


def test_a_leader_that_is_refused_does_not_let_the_others_wait_for_ever(it: GroupRules) -> None:
    for name in "abc":
        it.enter(name)
    it.join("a")
    for name in "bc":
        it.sync(name, it.classic.generation)
    assert it.classic.leader == "a"
    it.join("a", protocols=LARGE, group_bytes_max=200)
    for _ in range(20):
        it.tick(REBALANCE_MS)
    assert not it.waiting


# Regular expressions, and many members that leave at once.


def test_an_expression_in_every_heartbeat_does_not_keep_others_from_new_topics(it: GroupRules) -> None:
    for name in ("x1", "y1"):
        it.make_topic(name, 1)
    it.consumer_join("a", topic_regex="x.*", topic_names=None)
    it.consumer_join("b", topic_regex="y.*", topic_names=None)
    it.make_topic("x2", 1)
    for _ in range(20):
        it.now += 1_000
        for name, fields in (("b", {"topic_regex": "y.*"}), ("a", {})):
            member = it.consumer.members[name]
            it.beat(name, member.epoch, owned=member.assigned, **fields)
    assert len(it.consumer.members["a"].assigned) == 2


@pytest.mark.parametrize("is_classic", [True, False])
def test_who_leaves_is_looked_up_once_for_all(
    it: GroupRules, is_classic: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not is_classic:
        it.consumer_join("n")
    it.join("", new="s", instance_id="i")

    def count(*_: object) -> None:
        raise AssertionError("all members are searched for one of those that leave")

    monkeypatch.setattr(type(it.group()), "static_member", count)
    unknown = [LeavingMember("", f"other-{number}") for number in range(5)]
    answers = it.leave(*unknown, LeavingMember("x", "i"), LeavingMember("", "i"), LeavingMember("", "i"))
    assert [error for _, error in answers.members] == [
        *[ErrorCode.UNKNOWN_MEMBER_ID] * 5,
        ErrorCode.FENCED_INSTANCE_ID,
        NONE,
        ErrorCode.UNKNOWN_MEMBER_ID,
    ]
