"""Groups that change between the classic protocol and KIP-848 while they have members."""

from collections.abc import Iterable
from typing import Any

import pytest
from support.models.group_rules import GROUP, REBALANCE_MS, SESSION_MS, GroupRules, indexes, subscription

from semel.core.groups.commands import DeleteGroup, DescribeGroup, GroupTick, LeavingMember
from semel.core.groups.migration import Migration, why_not_consumer
from semel.core.groups.model import ClassicGroup, ClassicMember, ClassicState, MemberState
from semel.core.groups.offsets import CommitOffsets, Committer
from semel.core.types import CommittedOffset, ErrorCode, OffsetKey
from semel.wire.consumer_protocol import decode_assignment, encode_assignment

BOTH = {"a": [0, 1], "b": [2, 3]}


def with_topic(partitions: int = 4, migration: Migration = Migration()) -> GroupRules:  # noqa: B008
    rules = GroupRules(migration)
    rules.make_topic("t", partitions)
    return rules


def upgraded(**fields: object) -> tuple[GroupRules, int]:
    """A classic group of "a" and "b" that a consumer member "n" has joined; its generation before."""
    rules = with_topic()
    generation = rules.stable("a", "b", assigned=BOTH)
    assert rules.consumer_join("n", **fields).error is ErrorCode.NONE
    return rules, generation


def rejoin(rules: GroupRules, name: str, owned: list[int] | None = None, **fields: Any) -> list[int]:
    """Join and sync as a classic member does; what it owns then."""
    data = subscription("t", owned={"t": owned or []})
    joined = rules.join(name, protocols=(("range", data),), **fields)
    assert joined.error is ErrorCode.NONE
    assert (joined.leader, joined.members, joined.protocol_name) == ("", (), "range")
    synced = rules.sync(joined.member_id, joined.generation, protocol_type="consumer", protocol_name="range")
    assert synced.error is ErrorCode.NONE
    return decode_assignment(synced.assignment).get("t", [])


def commit(
    rules: GroupRules, member_id: str, epoch: int, partition: int, *, version_9: bool = True
) -> ErrorCode:
    offset = (OffsetKey(GROUP, "t", partition), CommittedOffset(7))
    command = CommitOffsets(GROUP, Committer(epoch, member_id), (offset,), knows_consumer_groups=version_9)
    (error,) = rules.run(command)
    assert isinstance(error, ErrorCode)
    return error


# Up.


def test_the_first_consumer_member_takes_the_classic_members_along() -> None:
    rules, generation = upgraded()
    group = rules.consumer
    assert list(group.members) == ["a", "b", "n"]
    assert group.epoch > generation
    assert [indexes(group.members[name].assigned) for name in "abn"] == [[0, 1], [2, 3], []]
    assert group.members["a"].classic is not None
    assert group.members["n"].classic is None
    assert all(indexes(group.target[name]) for name in "abn")


def test_classic_members_go_on_with_their_own_requests() -> None:
    rules, generation = upgraded()
    assert rules.heartbeat("a", generation) is ErrorCode.REBALANCE_IN_PROGRESS
    kept = rejoin(rules, "a")
    assert len(kept) in (1, 2)
    kept += rejoin(rules, "b")
    epoch = rules.consumer.members["a"].epoch
    assert rules.heartbeat("a", epoch) is ErrorCode.NONE
    answer = rules.beat("n", rules.consumer.members["n"].epoch, owned=frozenset())
    assert sorted([*kept, *indexes(answer.assignment)]) == [0, 1, 2, 3]
    assert rules.consumer.state_name == "Stable"


def test_a_cooperative_member_keeps_what_it_need_not_give_up() -> None:
    rules, generation = upgraded()
    target = indexes(rules.consumer.target["a"])
    assert rejoin(rules, "a", [0, 1]) == target
    member = rules.consumer.members["a"]
    given_up = indexes(member.revoking)
    assert sorted([*target, *given_up]) == [0, 1]
    if given_up:
        # It stays in its generation until it has joined again without them.
        assert (member.state, member.epoch) == (MemberState.UNREVOKED, generation)
        assert rules.heartbeat("a", generation) is ErrorCode.REBALANCE_IN_PROGRESS
        assert rejoin(rules, "a", target) == target
    assert rules.consumer.members["a"].state is MemberState.STABLE


def test_waiting_requests_are_called_back() -> None:
    rules = with_topic()
    rules.stable("a", assigned={"a": [0, 1, 2, 3]})
    parked = rules.enter("b")
    assert isinstance(parked, int)
    rules.consumer_join("n")
    assert not rules.waiting
    # Not every client expects an error from JoinGroup; all of them expect this one from SyncGroup.
    joined = rules.joined(parked)
    assert (joined.error, joined.member_id, joined.leader) == (ErrorCode.NONE, "b", "")
    assert rules.sync("b", joined.generation).error is ErrorCode.REBALANCE_IN_PROGRESS
    assert rules.consumer.members["b"].assigned == frozenset()
    rejoin(rules, "a")
    rules.beat("n", rules.consumer.members["n"].epoch, owned=frozenset())
    assert rejoin(rules, "b")


def test_the_sync_of_an_unfinished_generation_is_called_back() -> None:
    rules = with_topic()
    rules.enter("a")
    rules.enter("b")
    rules.join("a")
    generation = rules.classic.generation
    parked = rules.sync("b", generation)
    rules.consumer_join("n")
    assert rules.synced(parked).error is ErrorCode.REBALANCE_IN_PROGRESS
    assert rules.heartbeat("b", generation) is ErrorCode.REBALANCE_IN_PROGRESS


def test_offsets_and_numbers_live_on() -> None:
    rules, generation = upgraded()
    assert commit(rules, "a", generation, 0, version_9=False) is ErrorCode.NONE
    rejoin(rules, "a")
    epoch = rules.consumer.members["a"].epoch
    assert epoch > generation
    assert commit(rules, "a", epoch + 1, 0) is ErrorCode.ILLEGAL_GENERATION
    assert commit(rules, "n", epoch + 9, 0) is ErrorCode.STALE_MEMBER_EPOCH
    assert commit(rules, "n", epoch, 0, version_9=False) is ErrorCode.UNSUPPORTED_VERSION


@pytest.mark.parametrize("policy", [Migration(upgrade=False), Migration(consumer_members_max=1)])
def test_a_policy_forbids_the_upgrade(policy: Migration) -> None:
    rules = with_topic(migration=policy)
    generation = rules.stable("a", "b", assigned=BOTH)
    answer = rules.consumer_join("n")
    assert answer.error is ErrorCode.GROUP_ID_NOT_FOUND
    assert answer.message is not None
    assert "cannot become a consumer group" in answer.message
    assert rules.heartbeat("a", generation) is ErrorCode.NONE


def test_groups_of_other_protocols_and_malformed_metadata_are_refused() -> None:
    rules = with_topic()
    rules.stable("a")
    answer = rules.consumer_join("n")
    assert answer.error is ErrorCode.GROUP_ID_NOT_FOUND
    assert "cannot be used" in (answer.message or "")
    rules.leave("a")
    rules.join("", new="c", protocol_type="connect", requires_member_id=False)
    assert "not consumers" in (rules.consumer_join("n").message or "")


def test_a_large_group_of_cooperative_members_is_upgraded() -> None:
    """Each of them says what it owns, so that no two subscriptions are the same: here 4 MiB altogether."""
    names = [f"a-topic-with-a-rather-long-name-{number:04}" for number in range(100)]
    group = consumers(subscription(*names, owned={name: [number] for name in names}) for number in range(500))
    assert why_not_consumer(group, Migration()) is None


def test_a_group_with_too_many_entries_stays_classic() -> None:
    """Reading them would block the broker."""
    group = consumers(
        subscription("t", owned={"t": [*range(number, number + 50_000)]}) for number in range(5)
    )
    problem = why_not_consumer(group, Migration())
    assert problem is not None
    assert "more than 250000 topics and partitions" in problem


def consumers(subscriptions: Iterable[bytes]) -> ClassicGroup:
    """A classic group whose members have these subscriptions."""
    members = {
        str(number): ClassicMember(
            str(number), None, "", "", SESSION_MS, REBALANCE_MS, (("cooperative-sticky", metadata),)
        )
        for number, metadata in enumerate(subscriptions)
    }
    return ClassicGroup(GROUP, ClassicState.STABLE, 1, "consumer", members=members)


def test_only_joining_upgrades() -> None:
    """A consumer member that slept while its group became classic may join again; it does not give up."""
    rules = with_topic()
    rules.stable("a", assigned={"a": [0]})
    for epoch in (5, -1):
        assert rules.beat("n", epoch).error is ErrorCode.UNKNOWN_MEMBER_ID
    assert rules.classic.members
    rules.state.migration = Migration(upgrade=False)
    assert rules.beat("n", 5).error is ErrorCode.GROUP_ID_NOT_FOUND


def test_an_assignment_that_overlaps_gets_one_owner() -> None:
    rules = with_topic()
    rules.stable("a", "b", assigned={"a": [0, 1, 9], "b": [1, 2]})
    rules.consumer_join("n")
    members = rules.consumer.members
    assert [indexes(members[name].assigned) for name in "ab"] == [[0, 1], [2]]


def test_a_crash_in_the_middle_changes_nothing() -> None:
    rules, generation = upgraded()
    rules.restart()
    rules.run(GroupTick((GROUP,), 60_000))
    assert rules.heartbeat("b", generation) is ErrorCode.REBALANCE_IN_PROGRESS
    rejoin(rules, "b")
    # Each member has the timeout of its own protocol.
    rules.tick(SESSION_MS)
    assert list(rules.consumer.members) == ["n"]


COOPERATIVE = "cooperative-sticky"


def cooperative(*owned: int) -> tuple[tuple[str, bytes], ...]:
    return ((COOPERATIVE, subscription("t", owned={"t": list(owned)})),)


def test_a_cooperative_member_owns_what_it_said_until_it_is_told() -> None:
    """The classic group was in the middle of a rebalance, and its assignments had been dropped."""
    rules = with_topic()
    rules.join("", new="a", requires_member_id=False, protocols=cooperative())
    rules.sync("a", 1, {"a": encode_assignment({"t": [0, 1, 2, 3]})})
    rules.join("", new="b", requires_member_id=False, protocols=cooperative())
    rules.join("a", protocols=cooperative(0, 1, 2, 3))
    assert rules.classic.state is ClassicState.COMPLETING
    rules.join("", new="c", requires_member_id=False, protocols=cooperative())
    assert rules.classic.members["a"].assignment == b""
    assert rules.consumer_join("n").assignment == frozenset()
    assert indexes(rules.consumer.members["a"].assigned) == [0, 1, 2, 3]


def test_a_follower_that_has_not_synced_owns_what_it_said() -> None:
    rules = with_topic()
    rules.join("", new="a", requires_member_id=False, protocols=cooperative())
    rules.sync("a", 1, {"a": encode_assignment({"t": [0, 1, 2, 3]})})
    rules.join("", new="b", requires_member_id=False, protocols=cooperative())
    rules.join("a", protocols=cooperative(0, 1, 2, 3))
    # The leader takes 3 from itself, and nobody gets it in this generation.
    rules.sync("a", 2, {"a": encode_assignment({"t": [0, 1, 2]}), "b": encode_assignment({})})
    assert rules.classic.state is ClassicState.STABLE
    assert rules.consumer_join("n").assignment == frozenset()


def test_going_back_and_forth_keeps_owners_and_numbers() -> None:
    """Up, down and up again, before a member has joined again: it owns what it owned, and commits it."""
    rules = with_topic()
    generation = rules.stable("a", assigned={"a": [0, 1, 2, 3]})
    rules.consumer_join("n")
    rules.beat("n", -1)
    assert rules.classic.generation_of("a") == generation
    assert rules.consumer_join("m").assignment == frozenset()
    assert indexes(rules.consumer.members["a"].assigned) == [0, 1, 2, 3]
    assert commit(rules, "a", generation, 3, version_9=False) is ErrorCode.NONE
    assert rules.heartbeat("a", generation) is ErrorCode.REBALANCE_IN_PROGRESS


def test_metadata_that_nobody_looked_at_ends_nothing() -> None:
    """Two protocols, the first of them garbage, and the group has chosen the second."""
    rules = with_topic()
    good = ("range", subscription("t", owned={}))
    rules.join("", new="a", requires_member_id=False, protocols=(("x", b"\xff"), good))
    rules.join("", new="b", requires_member_id=False, protocols=(good,))
    rules.join("a", protocols=(("x", b"\xff"), good))
    assert rules.consumer_join("n").error is ErrorCode.GROUP_ID_NOT_FOUND
    # The same in a consumer group.
    rules.leave("a", "b")
    rules.consumer_join("n")
    assert rules.join("c", protocols=(("x", b"\xff"), good)).error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert rejoin(rules, "d") == []
    rules.beat("n", -1)
    assert list(rules.classic.members) == ["d"]


def test_subscriptions_that_are_too_large_are_not_looked_up() -> None:
    rules = with_topic()
    many = (("range", subscription(*(f"name-{number}" for number in range(10_001)))),)
    rules.join("", new="a", requires_member_id=False, protocols=many)
    answer = rules.consumer_join("n")
    assert "more than 10000 topics" in (answer.message or "")
    rules.leave("a")
    rules.consumer_join("n")
    assert rules.join("c", protocols=many).error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_a_member_may_not_take_the_id_of_another() -> None:
    rules = with_topic()
    rules.consumer_join("n")
    rejoin(rules, "", instance_id="i", new="s")
    rejoin(rules, "a")
    assert rules.consumer_join("a", instance_id="i").error is ErrorCode.INVALID_REQUEST
    assert rejoin(rules, "b") is not None


# Members of the classic protocol in a consumer group.


def test_a_classic_member_joins_a_consumer_group() -> None:
    rules = with_topic()
    everything = rules.consumer_join("n").assignment
    promised = rules.join(new="c")
    assert (promised.error, promised.member_id) == (ErrorCode.MEMBER_ID_REQUIRED, "c")
    assert rejoin(rules, "c") == []
    epoch = rules.consumer.members["c"].epoch
    assert rules.heartbeat("c", epoch) is ErrorCode.NONE
    assert everything is not None
    kept = rules.beat("n", 1, owned=everything).assignment
    assert kept is not None
    rules.beat("n", 1, owned=kept)
    assert rules.heartbeat("c", epoch) is ErrorCode.REBALANCE_IN_PROGRESS
    assert sorted([*rejoin(rules, "c"), *indexes(kept)]) == [0, 1, 2, 3]


def test_what_is_refused_in_a_consumer_group() -> None:
    rules, generation = upgraded()
    wrong = (("sticky", subscription("t")),)
    assert rules.join("c", protocols=wrong).error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert rules.join("c", protocol_type="connect").error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    garbage = (("range", b"x"),)
    assert rules.join("c", protocols=garbage).error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert rules.join("c", members_max=3).error is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert rules.join("c", group_bytes_max=20).error is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert rules.join("n").error is ErrorCode.UNKNOWN_MEMBER_ID
    assert rules.join("x", instance_id="i").error is ErrorCode.UNKNOWN_MEMBER_ID
    assert rules.sync("x", generation).error is ErrorCode.UNKNOWN_MEMBER_ID
    assert rules.sync("n", generation).error is ErrorCode.UNKNOWN_MEMBER_ID
    assert rules.sync("a", 99).error is ErrorCode.ILLEGAL_GENERATION
    unknown = rules.sync("a", generation, protocol_name="sticky")
    assert unknown.error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert rules.sync("a", generation).error is ErrorCode.REBALANCE_IN_PROGRESS
    assert rules.heartbeat("a", 99) is ErrorCode.ILLEGAL_GENERATION
    assert rules.heartbeat("x", 1) is ErrorCode.UNKNOWN_MEMBER_ID
    assert rules.beat("a", generation).error is ErrorCode.UNKNOWN_MEMBER_ID
    assert rules.beat("a", -1).error is ErrorCode.UNKNOWN_MEMBER_ID
    left = rules.leave("x", "n", LeavingMember("", "nobody"))
    assert [error for _, error in left.members] == [ErrorCode.UNKNOWN_MEMBER_ID] * 3
    assert len(rules.consumer.members) == 3


@pytest.mark.parametrize("synced", [False, True])
def test_a_classic_member_that_does_not_follow_is_removed(synced: bool) -> None:
    rules, generation = upgraded()
    epoch = rules.consumer.members["n"].epoch
    if synced:
        rules.heartbeat("a", generation)
    else:
        data = subscription("t", owned={})
        rules.join("a", protocols=(("range", data),))
    for _ in range(REBALANCE_MS // (SESSION_MS // 2)):
        rules.tick(SESSION_MS // 2)
        rules.beat("n", epoch)
        rules.heartbeat("a", rules.consumer.members["a"].epoch if "a" in rules.consumer.members else 0)
        if "b" in rules.consumer.members:
            rejoin(rules, "b")
    assert list(rules.consumer.members) == ["b", "n"]


def test_classic_members_leave() -> None:
    rules, _ = upgraded()
    left = rules.leave("a", "b")
    assert [error for _, error in left.members] == [ErrorCode.NONE] * 2
    epoch = rules.consumer.members["n"].epoch
    assert indexes(rules.beat("n", epoch, owned=frozenset()).assignment) == [0, 1, 2, 3]


# Down.


def test_the_last_consumer_member_leaves_a_classic_group_behind() -> None:
    rules, _ = upgraded()
    rejoin(rules, "a")
    rejoin(rules, "b")
    epoch = rules.consumer.epoch
    rules.beat("n", -1)
    group = rules.classic
    assert (group.state, group.generation, group.protocol_name) == (
        ClassicState.PREPARING,
        epoch + 1,
        "range",
    )
    assert list(group.members) == ["a", "b"]
    # Until the next generation the members go on with their own epochs.
    known = group.members["a"].epoch
    assert known < group.generation
    assert commit(rules, "a", known, 0) is ErrorCode.NONE
    assert rules.heartbeat("a", known) is ErrorCode.REBALANCE_IN_PROGRESS
    assert rules.sync("a", known).error is ErrorCode.REBALANCE_IN_PROGRESS
    assert rules.heartbeat("a", group.generation) is ErrorCode.ILLEGAL_GENERATION
    waits = [rules.join("a"), rules.join("b")]
    joined = rules.joined(waits[0])
    assert joined.error is ErrorCode.NONE
    assert joined.leader == "a"
    assert joined.generation == epoch + 2
    assert rules.heartbeat("a", known) is ErrorCode.ILLEGAL_GENERATION
    assert commit(rules, "a", known, 0) is ErrorCode.ILLEGAL_GENERATION


@pytest.mark.parametrize("policy", [Migration(downgrade=False), Migration(classic_members_max=1)])
def test_a_policy_forbids_the_downgrade(policy: Migration) -> None:
    rules = with_topic(migration=policy)
    rules.stable("a", "b", assigned=BOTH)
    rules.consumer_join("n")
    rules.beat("n", -1)
    assert sorted([*rejoin(rules, "a"), *rejoin(rules, "b"), *rejoin(rules, "a")])
    rejoin(rules, "b")
    owned = [each for member in rules.consumer.members.values() for each in indexes(member.assigned)]
    assert sorted(owned) == [0, 1, 2, 3]


def test_the_group_becomes_classic_when_the_consumer_member_dies() -> None:
    rules, generation = upgraded()
    rules.now += SESSION_MS - 1
    for name in "ab":
        rules.heartbeat(name, generation)
    rules.tick(1)
    assert list(rules.classic.members) == ["a", "b"]


def test_an_empty_consumer_group_stays_one() -> None:
    rules, _ = upgraded()
    rules.leave("a", "b")
    rules.beat("n", -1)
    assert not rules.consumer.members


# Static members.


def test_a_static_member_changes_its_protocol_without_a_rebalance() -> None:
    rules = with_topic()
    ticket = rules.join(instance_id="i", new="old")
    generation = rules.joined(ticket).generation if isinstance(ticket, int) else ticket.generation
    rules.sync("old", generation, {"old": encode_assignment({"t": [0, 1, 2, 3]})}, instance_id="i")
    answer = rules.consumer_join("new", instance_id="i")
    assert indexes(answer.assignment) == [0, 1, 2, 3]
    assert rules.heartbeat("old", generation, "i") is ErrorCode.FENCED_INSTANCE_ID
    assert list(rules.consumer.members) == ["new"]


def test_a_static_member_goes_back_and_takes_the_group_along() -> None:
    rules = with_topic()
    rules.consumer_join("new", instance_id="i")
    epoch = rules.consumer.epoch
    joined = rules.join(instance_id="i", new="old")
    assert (joined.error, joined.leader, joined.member_id) == (ErrorCode.NONE, "old", "old")
    assert joined.generation > epoch
    assert rules.classic.static_member("i") is not None
    assert rules.beat("new", 1, instance_id="i").error is ErrorCode.FENCED_INSTANCE_ID


def test_a_static_member_goes_back_in_a_group_that_stays() -> None:
    rules = with_topic()
    rules.consumer_join("n")
    rules.consumer_join("m", instance_id="i")
    held = rules.consumer.members["m"].assigned
    assert rejoin(rules, "", [], instance_id="i", new="old") == indexes(held)
    assert list(rules.consumer.members) == ["n", "old"]
    assert rules.beat("m", 1, instance_id="i").error is ErrorCode.FENCED_INSTANCE_ID
    other = rules.join("stranger", instance_id="i")
    assert other.error is ErrorCode.FENCED_INSTANCE_ID


# Commits with an older epoch (KIP-1251).


def test_a_member_commits_what_it_has_owned_since_an_older_epoch() -> None:
    rules = with_topic()
    everything = rules.consumer_join("n").assignment
    first = rules.consumer.members["n"].epoch
    assert everything is not None
    rules.consumer_join("m")
    kept = rules.beat("n", first, owned=everything).assignment
    assert kept is not None
    given_up = next(iter(everything - kept))[1]
    # It owns what it is revoking.
    assert commit(rules, "n", first, given_up) is ErrorCode.NONE
    rules.beat("n", first, owned=kept)
    second = rules.consumer.members["n"].epoch
    assert second > first
    mine = next(iter(kept))[1]
    assert commit(rules, "n", first, mine) is ErrorCode.NONE
    assert commit(rules, "n", first, given_up) is ErrorCode.STALE_MEMBER_EPOCH
    assert commit(rules, "n", first - 1, mine) is ErrorCode.STALE_MEMBER_EPOCH
    assert commit(rules, "n", second + 1, mine) is ErrorCode.STALE_MEMBER_EPOCH
    # A partition that comes back is owned since then.
    rules.beat("m", rules.consumer.members["m"].epoch, owned=frozenset())
    rules.beat("m", -1)
    rules.beat("n", second, owned=kept)
    assert indexes(rules.consumer.members["n"].assigned) == [0, 1, 2, 3]
    assert commit(rules, "n", second, given_up) is ErrorCode.STALE_MEMBER_EPOCH
    assert commit(rules, "n", rules.consumer.members["n"].epoch, given_up) is ErrorCode.NONE


# Whoever decides about a group first expires what is overdue.


@pytest.mark.parametrize("is_consumer", [False, True])
def test_a_group_can_be_deleted_when_its_last_session_is_over(is_consumer: bool) -> None:
    rules = with_topic()
    if is_consumer:
        rules.consumer_join("n")
    else:
        rules.stable("a")
    rules.now += SESSION_MS - 1
    assert rules.run(DeleteGroup(GROUP)) is ErrorCode.NON_EMPTY_GROUP
    rules.now += 1
    assert not rules.run(DescribeGroup(GROUP)).members
    assert rules.run(DeleteGroup(GROUP)) is ErrorCode.NONE
    assert rules.state.sessions == {}


def test_an_overdue_member_is_gone_for_those_who_join() -> None:
    rules = with_topic()
    rules.stable("a", assigned={"a": [0, 1, 2, 3]})
    rules.now += SESSION_MS
    assert indexes(rules.consumer_join("n").assignment) == [0, 1, 2, 3]
    assert rules.heartbeat("a", 1) is ErrorCode.UNKNOWN_MEMBER_ID
