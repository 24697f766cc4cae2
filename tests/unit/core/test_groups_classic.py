"""The classic group protocol, as members see it (KIP-62, 345, 394, 814)."""

from typing import Any

import pytest
from support.models.group_rules import GROUP, REBALANCE_MS, SESSION_MS, GroupRules, subscription

from semel.core.groups.commands import DeleteGroup, DescribeGroup, GroupTick, JoinGroup
from semel.core.groups.model import ClassicMember
from semel.core.groups.session import NEW_MEMBER_TIMEOUT_MS
from semel.core.types import ErrorCode, GroupKey


def test_kip_394_a_member_without_an_id_comes_back_with_one() -> None:
    rules = GroupRules()
    answer = rules.join(new="client-1")
    assert answer.error is ErrorCode.MEMBER_ID_REQUIRED
    assert answer.member_id == "client-1"
    assert rules.writes == 0
    joined = rules.join("client-1")
    assert (joined.error, joined.generation, joined.leader) == (ErrorCode.NONE, 1, "client-1")
    assert [each.member_id for each in joined.members] == ["client-1"]
    assert joined.protocol_name == "range"


def test_before_version_4_a_member_joins_without_an_id() -> None:
    rules = GroupRules()
    joined = rules.join(new="client-1", requires_member_id=False)
    assert (joined.error, joined.member_id, joined.generation) == (ErrorCode.NONE, "client-1", 1)


def test_two_members_share_a_generation_and_the_leader_assigns() -> None:
    rules = GroupRules()
    rules.enter("a")
    second = rules.enter("b")
    assert second in rules.waiting
    assert rules.heartbeat("a", 1) is ErrorCode.REBALANCE_IN_PROGRESS
    first = rules.join("a")
    assert first.generation == rules.joined(second).generation == 2
    assert first.leader == rules.joined(second).leader == "a"
    assert [each.member_id for each in first.members] == ["a", "b"]
    assert rules.joined(second).members == ()

    follower = rules.sync("b", 2)
    assert follower in rules.waiting
    leader = rules.sync("a", 2, {"a": b"A", "b": b"B"})
    assert leader.assignment == b"A"
    assert rules.synced(follower).assignment == b"B"
    assert rules.classic.state_name == "Stable"
    assert rules.heartbeat("a", 2) is rules.heartbeat("b", 2) is ErrorCode.NONE


def test_a_follower_that_syncs_after_the_leader_is_answered_at_once() -> None:
    rules = GroupRules()
    rules.enter("a")
    rules.enter("b")
    rules.join("a")
    rules.sync("a", 2, {"b": b"B"})
    assert rules.sync("b", 2).assignment == b"B"
    assert rules.sync("a", 2).assignment == b""


def test_a_heartbeat_writes_nothing() -> None:
    rules = GroupRules()
    generation = rules.stable("a", "b")
    writes = rules.writes
    for _ in range(5):
        rules.tick(1_000)
        assert rules.heartbeat("a", generation) is rules.heartbeat("b", generation) is ErrorCode.NONE
    assert rules.writes == writes


def test_a_member_that_is_silent_is_lost_and_the_others_rebalance() -> None:
    rules = GroupRules()
    generation = rules.stable("a", "b")
    rules.tick(SESSION_MS - 1)
    assert rules.heartbeat("a", generation) is ErrorCode.NONE
    rules.tick(1)
    assert list(rules.classic.members) == ["a"]
    assert rules.heartbeat("a", generation) is ErrorCode.REBALANCE_IN_PROGRESS
    assert rules.heartbeat("b", generation) is ErrorCode.UNKNOWN_MEMBER_ID
    assert rules.join("a").generation == generation + 1


def test_a_member_of_an_old_generation_is_told_so() -> None:
    rules = GroupRules()
    generation = rules.stable("a", "b")
    assert rules.heartbeat("a", generation - 1) is ErrorCode.ILLEGAL_GENERATION
    assert rules.sync("a", generation + 1).error is ErrorCode.ILLEGAL_GENERATION


def test_leaving_makes_the_rest_rebalance_and_the_last_empties_the_group() -> None:
    rules = GroupRules()
    generation = rules.stable("a", "b")
    assert rules.leave("a").members[0][1] is ErrorCode.NONE
    assert rules.heartbeat("b", generation) is ErrorCode.REBALANCE_IN_PROGRESS
    joined = rules.join("b")
    assert (joined.leader, joined.generation) == ("b", generation + 1)
    rules.leave("b")
    assert rules.classic.state_name == "Empty"
    assert rules.classic.generation == generation + 2
    assert rules.classic.leader is None
    assert rules.state.sessions == {}


def test_a_member_that_does_not_rejoin_in_time_is_left_behind() -> None:
    rules = GroupRules()
    generation = rules.stable("a", "b")
    third = rules.enter("c")
    rejoined = rules.join("a")
    for _ in range(REBALANCE_MS // 5_000 - 1):
        rules.tick(5_000)
        # It lives, but it does not join.
        assert rules.heartbeat("b", generation) is ErrorCode.REBALANCE_IN_PROGRESS
    assert third in rules.waiting
    rules.tick(5_000)
    assert rules.joined(third).generation == rules.joined(rejoined).generation == generation + 1
    assert list(rules.classic.members) == ["a", "c"]
    assert rules.heartbeat("b", generation) is ErrorCode.UNKNOWN_MEMBER_ID


def test_the_leader_changes_when_the_old_one_does_not_rejoin() -> None:
    rules = GroupRules()
    rules.stable("a", "b")
    ticket = rules.join("b", protocols=(("range", subscription("t", "u")),))
    for _ in range(6):
        rules.tick(SESSION_MS)
    assert rules.joined(ticket).leader == "b"
    assert [each.member_id for each in rules.joined(ticket).members] == ["b"]


def test_an_empty_group_waits_for_more_members() -> None:
    rules = GroupRules()
    rules.join(new="a")
    first = rules.join("a", initial_delay_ms=3_000)
    rules.tick(2_999)
    rules.join(new="b")
    second = rules.join("b", initial_delay_ms=3_000)
    rules.tick(1)
    assert first in rules.waiting, "somebody came, so the delay starts again"
    rules.tick(3_000)
    assert rules.joined(first).generation == rules.joined(second).generation == 1
    assert len(rules.joined(first).members) == 2


def test_the_initial_delay_is_not_longer_than_the_rebalance_timeout() -> None:
    rules = GroupRules()
    rules.join(new="m0")
    rules.join("m0", initial_delay_ms=3_000, rebalance_timeout_ms=7_000)
    for number in range(1, 20):
        rules.tick(500)
        rules.join(new=f"m{number}")
        rules.join(f"m{number}", initial_delay_ms=3_000, rebalance_timeout_ms=7_000)
        if rules.classic.generation:
            break
    assert rules.now - 1_000_000 <= 9_000
    assert rules.classic.generation == 1


def test_the_protocol_that_most_prefer_is_chosen() -> None:
    rules = GroupRules()
    preferences = {
        "a": (("range", b""), ("sticky", b"sa")),
        "b": (("sticky", b"sb"), ("range", b"")),
        "c": (("sticky", b"sc"), ("other", b""), ("range", b"")),
    }
    tickets = []
    for name, protocols in preferences.items():
        rules.join(new=name, protocols=protocols)
        tickets.append(rules.join(name, protocols=protocols, initial_delay_ms=3_000))
    rules.tick(3_000)
    rules.tick(3_000)
    leader = rules.joined(tickets[0])
    assert leader.protocol_name == "sticky"
    assert [each.metadata for each in leader.members] == [b"sa", b"sb", b"sc"]


def test_a_member_must_share_a_protocol_and_its_type() -> None:
    rules = GroupRules()
    rules.stable("a")
    for fields in (
        {"protocols": (("roundrobin", b""),)},
        {"protocol_type": "connect"},
        {"protocols": ()},
        {"protocol_type": ""},
    ):
        assert rules.join(**fields).error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_an_empty_group_takes_any_protocol_type() -> None:
    rules = GroupRules()
    rules.stable("a")
    rules.leave("a")
    rules.join(new="b")
    assert rules.join("b", protocol_type="connect").error is ErrorCode.NONE
    assert rules.classic.protocol_type == "connect"


def test_session_timeouts_have_bounds() -> None:
    rules = GroupRules()
    assert rules.join(session_timeout_ms=5_999).error is ErrorCode.INVALID_SESSION_TIMEOUT
    assert rules.join(session_timeout_ms=1_800_001).error is ErrorCode.INVALID_SESSION_TIMEOUT
    assert rules.join(session_timeout_ms=-1).error is ErrorCode.INVALID_SESSION_TIMEOUT


def test_a_group_must_have_a_name() -> None:
    rules = GroupRules()
    assert rules.join(group_id="").error is ErrorCode.INVALID_GROUP_ID
    assert rules.sync("a", 1, group_id="").error is ErrorCode.INVALID_GROUP_ID


def test_a_full_group_takes_nobody_else() -> None:
    rules = GroupRules()
    rules.stable("a", "b")
    assert rules.join(members_max=2).error is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert rules.join("b", members_max=2).error is ErrorCode.NONE


def test_promised_member_ids_are_bounded_and_forgotten() -> None:
    rules = GroupRules()
    for _ in range(3):
        assert rules.join(members_max=3).error is ErrorCode.MEMBER_ID_REQUIRED
    assert rules.join(members_max=3).error is ErrorCode.GROUP_MAX_SIZE_REACHED
    rules.tick(SESSION_MS)
    assert rules.state.sessions == {}
    assert rules.join("new-1").error is ErrorCode.UNKNOWN_MEMBER_ID


def test_groups_with_members_are_bounded() -> None:
    rules = GroupRules()
    rules.stable("a")
    assert rules.join(group_id="other", sessions_max=1).error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert rules.join(sessions_max=1).error is ErrorCode.MEMBER_ID_REQUIRED


def test_unknown_members_and_groups() -> None:
    rules = GroupRules()
    assert rules.join("ghost").error is ErrorCode.UNKNOWN_MEMBER_ID
    assert rules.sync("ghost", 1).error is ErrorCode.UNKNOWN_MEMBER_ID
    assert rules.heartbeat("ghost", 1) is ErrorCode.UNKNOWN_MEMBER_ID
    assert rules.leave("ghost").members[0][1] is ErrorCode.UNKNOWN_MEMBER_ID
    assert rules.state.groups == {GroupKey(GROUP): None}


def test_a_member_that_lost_the_answer_of_its_join_gets_it_again() -> None:
    rules = GroupRules()
    rules.enter("a")
    rules.enter("b")
    first = rules.join("a")
    assert rules.join("a") == first
    assert rules.join("b").generation == first.generation
    assert rules.classic.state_name == "CompletingRebalance"


def test_a_follower_that_joins_a_stable_group_again_changes_nothing() -> None:
    rules = GroupRules()
    generation = rules.stable("a", "b")
    answer = rules.join("b")
    assert (answer.generation, answer.members) == (generation, ())
    assert rules.classic.state_name == "Stable"


@pytest.mark.parametrize(
    ("member", "protocols"),
    [("a", (("range", subscription("t")),)), ("b", (("range", subscription("t", "u")),))],
    ids=["the leader", "a follower with another subscription (cooperative rejoin)"],
)
def test_a_join_that_starts_a_rebalance(member: str, protocols: tuple[tuple[str, bytes], ...]) -> None:
    rules = GroupRules()
    generation = rules.stable("a", "b")
    ticket = rules.join(member, protocols=protocols)
    assert ticket in rules.waiting
    other = "b" if member == "a" else "a"
    assert rules.heartbeat(other, generation) is ErrorCode.REBALANCE_IN_PROGRESS
    # Cooperative members keep what they own meanwhile: nothing is taken from them here.
    assert rules.classic.members[other].assignment == other.encode()
    rules.join(other)
    assert rules.joined(ticket).generation == generation + 1


def waiting_for_the_leader() -> tuple[GroupRules, int]:
    """Two members in generation 2, and the ticket of b, which waits for the assignment of a."""
    rules = GroupRules()
    rules.enter("a")
    rules.enter("b")
    rules.join("a")
    return rules, rules.sync("b", 2)


def test_a_rebalance_calls_back_those_who_wait_for_the_leader() -> None:
    rules, waiting = waiting_for_the_leader()
    rules.enter("c")
    assert rules.synced(waiting).error is ErrorCode.REBALANCE_IN_PROGRESS
    assert rules.classic.state_name == "PreparingRebalance"
    assert rules.sync("a", 2).error is ErrorCode.REBALANCE_IN_PROGRESS


def test_a_join_sent_twice_leaves_no_request_without_an_answer() -> None:
    rules = GroupRules()
    rules.stable("a", "b")
    first = rules.join("a")
    second = rules.join("a")
    assert rules.joined(first).error is ErrorCode.REBALANCE_IN_PROGRESS
    assert rules.waiting == {second}


def test_a_sync_sent_twice_leaves_no_request_without_an_answer() -> None:
    rules, first = waiting_for_the_leader()
    second = rules.sync("b", 2)
    assert rules.synced(first).error is ErrorCode.REBALANCE_IN_PROGRESS
    rules.sync("a", 2, {"b": b"B"})
    assert rules.synced(second).assignment == b"B"
    assert rules.waiting == set()


def test_members_that_never_sync_are_lost_at_the_rebalance_timeout() -> None:
    rules, waiting = waiting_for_the_leader()
    for _ in range(REBALANCE_MS // 5_000):
        rules.tick(5_000)
        rules.heartbeat("a", 2)
    assert rules.synced(waiting).error is ErrorCode.REBALANCE_IN_PROGRESS
    assert list(rules.classic.members) == ["b"]


def test_kip_559_sync_checks_the_protocol() -> None:
    rules = GroupRules()
    rules.enter("a")
    wrong: list[dict[str, Any]] = [{"protocol_type": "connect"}, {"protocol_name": "sticky"}]
    for fields in wrong:
        assert rules.sync("a", 1, **fields).error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    synced = rules.sync("a", 1, {"a": b"A"}, protocol_type="consumer", protocol_name="range")
    assert (synced.protocol_type, synced.protocol_name, synced.assignment) == ("consumer", "range", b"A")


def test_a_newcomer_that_went_away_is_given_up() -> None:
    rules = GroupRules()
    rules.stable("a", "b")
    ticket = rules.join(new="ghost", requires_member_id=False, rebalance_timeout_ms=2 * NEW_MEMBER_TIMEOUT_MS)
    for _ in range(NEW_MEMBER_TIMEOUT_MS // 5_000):
        rules.tick(5_000)
        for member in ("a", "b"):
            rules.heartbeat(member, rules.classic.generation)
    assert rules.joined(ticket).error is ErrorCode.UNKNOWN_MEMBER_ID
    assert "ghost" not in rules.classic.members


def test_batched_leave_makes_one_rebalance() -> None:
    rules = GroupRules()
    rules.stable("a", "b", "c")
    left = rules.leave("b", "ghost", "c")
    assert [error for _, error in left.members] == [
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.NONE,
    ]
    assert list(rules.classic.members) == ["a"]
    assert rules.classic.state_name == "PreparingRebalance"


def test_a_promised_member_may_leave() -> None:
    rules = GroupRules()
    rules.join(new="a")
    assert rules.leave("a").members[0][1] is ErrorCode.NONE
    assert rules.join("a").error is ErrorCode.UNKNOWN_MEMBER_ID


# After a restart.


def test_members_of_a_stable_group_do_not_notice_a_restart() -> None:
    rules = GroupRules()
    generation = rules.stable("a", "b")
    rules.restart()
    assert rules.heartbeat("a", generation) is rules.heartbeat("b", generation) is ErrorCode.NONE
    assert rules.sync("b", generation).assignment == b"b"


def test_a_member_that_died_with_the_broker_is_lost_a_session_later() -> None:
    rules = GroupRules()
    generation = rules.stable("a", "b")
    rules.restart()
    rules.now += 5 * SESSION_MS
    rules.run(GroupTick((GROUP,)))
    assert len(rules.classic.members) == 2
    rules.tick(SESSION_MS - 1)
    rules.heartbeat("a", generation)
    rules.tick(1)
    assert list(rules.classic.members) == ["a"]


def test_a_rebalance_goes_on_after_a_restart() -> None:
    rules = GroupRules()
    generation = rules.stable("a", "b")
    rules.join("a")
    assert rules.classic.state_name == "PreparingRebalance"
    rules.restart()
    first = rules.join("a")
    second = rules.join("b")
    assert second.generation == rules.joined(first).generation == generation + 1
    rules.restart()
    waiting = rules.sync("b", generation + 1)
    assert rules.sync("a", generation + 1, {"b": b"B"}).error is ErrorCode.NONE
    assert rules.synced(waiting).assignment == b"B"


# Describing and deleting.


def test_a_group_is_described_as_it_is() -> None:
    rules = GroupRules()
    assert rules.run(DescribeGroup(GROUP)) is None
    rules.stable("a", "b")
    group = rules.run(DescribeGroup(GROUP))
    assert (group.kind, group.state_name, group.protocol_type, len(group.members)) == (
        "classic",
        "Stable",
        "consumer",
        2,
    )
    member = group.members["a"]
    assert isinstance(member, ClassicMember)
    assert (member.client_id, member.client_host, member.assignment) == ("client", "/host", b"a")


def test_only_an_empty_group_can_be_deleted() -> None:
    rules = GroupRules()
    assert rules.run(DeleteGroup(GROUP)) is ErrorCode.GROUP_ID_NOT_FOUND
    rules.stable("a")
    assert rules.run(DeleteGroup(GROUP)) is ErrorCode.NON_EMPTY_GROUP
    rules.leave("a")
    assert rules.run(DeleteGroup(GROUP)) is ErrorCode.NONE
    assert rules.run(DescribeGroup(GROUP)) is None


def test_a_tick_that_has_nothing_to_do_says_so() -> None:
    rules = GroupRules()
    rules.stable("a")
    assert rules.run(GroupTick()) == 0
    assert tuple(JoinGroup.keys(JoinGroup("x", *[None] * 10))) == (GroupKey("x"),)  # type: ignore[arg-type]
