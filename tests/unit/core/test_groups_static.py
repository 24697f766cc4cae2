"""Static members of classic groups (KIP-345), and leaders that skip the assignment (KIP-814)."""

from support.models.group_rules import SESSION_MS, GroupRules

from semel.core.groups.commands import LeavingMember
from semel.core.types import ErrorCode


def static_pair(rules: GroupRules) -> int:
    rules.join(new="a1", instance_id="A")
    rules.join(new="b1", instance_id="B")
    rules.join("a1", instance_id="A")
    generation = rules.classic.generation
    rules.sync("b1", generation, instance_id="B")
    rules.sync("a1", generation, {"a1": b"A", "b1": b"B"}, instance_id="A")
    assert rules.classic.state_name == "Stable"
    return generation


def test_kip_345_a_static_member_joins_without_the_detour_for_an_id() -> None:
    rules = GroupRules()
    joined = rules.join(new="a1", instance_id="A")
    assert (joined.error, joined.member_id) == (ErrorCode.NONE, "a1")
    assert joined.members[0].instance_id == "A"


def test_kip_345_a_static_member_comes_back_without_a_rebalance() -> None:
    rules = GroupRules()
    generation = static_pair(rules)
    joined = rules.join(new="b2", instance_id="B")
    assert (joined.error, joined.member_id, joined.generation) == (ErrorCode.NONE, "b2", generation)
    assert rules.classic.state_name == "Stable"
    assert rules.sync("b2", generation, instance_id="B").assignment == b"B"
    assert rules.heartbeat("a1", generation, "A") is ErrorCode.NONE


def test_kip_345_the_older_self_is_fenced() -> None:
    rules = GroupRules()
    generation = static_pair(rules)
    rules.join(new="b2", instance_id="B")
    assert rules.heartbeat("b1", generation, "B") is ErrorCode.FENCED_INSTANCE_ID
    assert rules.sync("b1", generation, instance_id="B").error is ErrorCode.FENCED_INSTANCE_ID
    assert rules.join("b1", instance_id="B").error is ErrorCode.FENCED_INSTANCE_ID
    assert rules.leave(LeavingMember("b1", "B")).members[0][1] is ErrorCode.FENCED_INSTANCE_ID
    assert rules.heartbeat("b2", generation, "unheard of") is ErrorCode.UNKNOWN_MEMBER_ID


def test_kip_345_an_older_self_that_waits_is_told_that_it_is_fenced() -> None:
    rules = GroupRules()
    static_pair(rules)
    waiting = rules.join("a1", instance_id="A")
    rules.join(new="a2", instance_id="A")
    assert rules.joined(waiting).error is ErrorCode.FENCED_INSTANCE_ID


def test_kip_814_a_leader_that_comes_back_skips_the_assignment() -> None:
    rules = GroupRules()
    static_pair(rules)
    joined = rules.join(new="a2", instance_id="A")
    assert joined.skip_assignment
    assert joined.leader == "a2"
    assert [each.member_id for each in joined.members] == ["a2", "b1"]


def test_kip_814_an_old_client_is_not_told_that_it_leads() -> None:
    rules = GroupRules()
    static_pair(rules)
    joined = rules.join(new="a2", instance_id="A", can_skip_assignment=False)
    assert not joined.skip_assignment
    assert joined.leader == "a1"
    assert joined.members == ()


def test_kip_345_a_static_member_that_comes_back_amid_a_rebalance_joins_it() -> None:
    rules = GroupRules()
    rules.join(new="a1", instance_id="A")
    ticket = rules.join(new="b1", instance_id="B")
    rules.join("a1", instance_id="A")
    assert ticket in rules.answers
    assert rules.classic.state_name == "CompletingRebalance"
    back = rules.join(new="b2", instance_id="B")
    assert rules.classic.state_name == "PreparingRebalance"
    rules.join("a1", instance_id="A")
    assert rules.joined(back).member_id == "b2"


def test_kip_345_a_static_member_that_is_away_keeps_its_place_until_its_session_ends() -> None:
    rules = GroupRules()
    generation = static_pair(rules)
    ticket = rules.join(new="c1", instance_id="C")
    rules.join("a1", instance_id="A", session_timeout_ms=SESSION_MS * 100)
    rules.heartbeat("b1", generation, "B")
    rules.tick(SESSION_MS - 1)
    assert "b1" in rules.classic.members
    rules.tick(1)
    assert "b1" not in rules.classic.members
    assert rules.joined(ticket).generation == generation + 1


def test_kip_345_an_administrator_removes_a_static_member_by_its_instance_id() -> None:
    rules = GroupRules()
    static_pair(rules)
    left = rules.leave(LeavingMember("", "B"), LeavingMember("", "Z"))
    assert [error for _, error in left.members] == [ErrorCode.NONE, ErrorCode.UNKNOWN_MEMBER_ID]
    assert list(rules.classic.members) == ["a1"]
