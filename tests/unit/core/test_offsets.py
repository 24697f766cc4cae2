"""Committed offsets: who may commit, fetch and delete; when they are forgotten."""

import pytest
from support.models.facts import kinds_of
from support.models.group_rules import GROUP, SESSION_MS, GroupRules, subscription

from semel.core.groups.commands import DeleteGroup, ExpireOffsets
from semel.core.groups.model import ClassicGroup
from semel.core.groups.offsets import (
    IDLE_REFRESH_MS,
    CommitOffsets,
    Committer,
    DeleteOffsets,
    FetchOffsets,
    OffsetsDeleted,
    check_commit,
)
from semel.core.types import CommittedOffset, ErrorCode, GroupKey, OffsetKey

NOBODY = Committer()
KEY = OffsetKey(GROUP, "t", 0)
RETENTION_MS = 7 * 86_400_000


def commit(
    rules: GroupRules,
    committer: Committer = NOBODY,
    offset: int = 5,
    *,
    key: OffsetKey = KEY,
    knows: bool = True,
) -> ErrorCode:
    value = CommittedOffset(offset, 3, "note")
    (error,) = rules.run(CommitOffsets(GROUP, committer, ((key, value),), knows_consumer_groups=knows))
    assert isinstance(error, ErrorCode)
    return error


def fetched(rules: GroupRules, key: OffsetKey = KEY) -> int:
    answer = rules.run(FetchOffsets(GROUP, offsets=(key,)))
    assert answer.error is ErrorCode.NONE
    return -1 if answer.offsets[0] is None else answer.offsets[0].offset


def test_a_commit_from_outside_makes_the_group() -> None:
    rules = GroupRules()
    assert fetched(rules) == -1
    assert commit(rules) is ErrorCode.NONE
    assert fetched(rules) == 5
    assert rules.group() == ClassicGroup(GROUP, idle_since_ms=rules.now)
    value = rules.run(FetchOffsets(GROUP, offsets=(KEY,))).offsets[0]
    assert value == CommittedOffset(5, 3, "note", rules.now)


def test_an_unknown_group_has_no_generations() -> None:
    rules = GroupRules()
    member = Committer(3, "a")
    assert commit(rules, member) is ErrorCode.GROUP_ID_NOT_FOUND
    assert commit(rules, member, knows=False) is ErrorCode.ILLEGAL_GENERATION


def test_a_group_must_have_a_name() -> None:
    rules = GroupRules()
    command = CommitOffsets("", NOBODY, ((OffsetKey("", "t", 0), CommittedOffset(1)),))
    assert rules.run(command) == (ErrorCode.INVALID_GROUP_ID,)


def test_members_of_the_current_generation_commit() -> None:
    rules = GroupRules()
    generation = rules.stable("a", "b")
    assert commit(rules, Committer(generation, "a")) is ErrorCode.NONE
    assert commit(rules, Committer(generation - 1, "a")) is ErrorCode.ILLEGAL_GENERATION
    assert commit(rules, Committer(generation, "ghost")) is ErrorCode.UNKNOWN_MEMBER_ID
    assert commit(rules, Committer(generation, "a", "A")) is ErrorCode.UNKNOWN_MEMBER_ID
    assert commit(rules, Committer(-1, "a")) is ErrorCode.ILLEGAL_GENERATION
    assert commit(rules, NOBODY) is ErrorCode.UNKNOWN_MEMBER_ID, "the group has members"


def test_a_fenced_static_member_does_not_commit() -> None:
    rules = GroupRules()
    rules.join(new="a1", instance_id="A")
    rules.sync("a1", 1, instance_id="A")
    rules.join(new="a2", instance_id="A")
    assert commit(rules, Committer(1, "a1", "A")) is ErrorCode.FENCED_INSTANCE_ID
    assert commit(rules, Committer(1, "a2", "A")) is ErrorCode.NONE


def test_commits_while_the_group_rebalances() -> None:
    rules = GroupRules()
    generation = rules.stable("a", "b")
    rules.join("a")
    assert rules.classic.state_name == "PreparingRebalance"
    assert commit(rules, Committer(generation, "b")) is ErrorCode.NONE
    rules.join("b")
    assert rules.classic.state_name == "CompletingRebalance"
    assert commit(rules, Committer(generation + 1, "b")) is ErrorCode.REBALANCE_IN_PROGRESS


def test_behaviour_90_a_transactional_commit_is_checked_less() -> None:
    rules = GroupRules()
    rules.enter("a")
    group = rules.classic
    assert group.state_name == "CompletingRebalance"

    def check(committer: Committer, *, knows: bool = False) -> ErrorCode:
        return check_commit(group, committer, is_transactional=True, knows_consumer_groups=knows)

    assert check(Committer(1, "a")) is ErrorCode.NONE
    assert check(NOBODY) is ErrorCode.NONE, "even though the group has members"
    assert check(Committer(0, "a")) is ErrorCode.ILLEGAL_GENERATION
    assert check(Committer(1, "ghost")) is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_commit_is_a_sign_of_life() -> None:
    rules = GroupRules()
    generation = rules.stable("a")
    for _ in range(5):
        rules.tick(SESSION_MS - 1)
        assert commit(rules, Committer(generation, "a")) is ErrorCode.NONE
    assert list(rules.classic.members) == ["a"]


def test_commits_go_on_after_a_restart() -> None:
    rules = GroupRules()
    generation = rules.stable("a")
    rules.restart()
    assert commit(rules, Committer(generation, "a")) is ErrorCode.NONE


def test_members_of_consumer_groups_commit_in_their_epoch() -> None:
    rules = GroupRules()
    rules.make_topic("t", 1)
    rules.consumer_join("a")
    assert commit(rules, Committer(1, "a")) is ErrorCode.NONE
    assert commit(rules, Committer(2, "a")) is ErrorCode.STALE_MEMBER_EPOCH
    assert commit(rules, Committer(1, "ghost")) is ErrorCode.UNKNOWN_MEMBER_ID
    assert commit(rules, Committer(1, "a"), knows=False) is ErrorCode.UNSUPPORTED_VERSION
    assert commit(rules, NOBODY) is ErrorCode.UNKNOWN_MEMBER_ID
    rules.beat("a", -1)
    assert commit(rules, NOBODY) is ErrorCode.NONE


def test_members_of_consumer_groups_fetch_in_their_epoch() -> None:
    rules = GroupRules()
    rules.make_topic("t", 1)
    rules.consumer_join("a")
    assert rules.run(FetchOffsets(GROUP, "a", 1)).error is ErrorCode.NONE
    assert rules.run(FetchOffsets(GROUP, "a", 2)).error is ErrorCode.STALE_MEMBER_EPOCH
    assert rules.run(FetchOffsets(GROUP, "b", 1)).error is ErrorCode.UNKNOWN_MEMBER_ID
    assert rules.run(FetchOffsets(GROUP)).error is ErrorCode.NONE


def test_a_long_note_is_refused_for_its_partition_only() -> None:
    rules = GroupRules()
    offsets = tuple(
        (OffsetKey(GROUP, "t", index), CommittedOffset(1, metadata="x" * length))
        for index, length in enumerate((4, 5, 3))
    )
    assert rules.run(CommitOffsets(GROUP, NOBODY, offsets, metadata_chars_max=4)) == (
        ErrorCode.NONE,
        ErrorCode.OFFSET_METADATA_TOO_LARGE,
        ErrorCode.NONE,
    )
    assert fetched(rules, OffsetKey(GROUP, "t", 1)) == -1


def test_one_fact_per_partition() -> None:
    rules = GroupRules()
    commit(rules)
    offsets = tuple((OffsetKey(GROUP, "t", index), CommittedOffset(1)) for index in range(3))
    decision = rules.state.decide(CommitOffsets(GROUP, NOBODY, offsets), rules.now)
    assert kinds_of(decision.facts) == [OffsetKey] * 3
    later = rules.state.decide(CommitOffsets(GROUP, NOBODY, offsets), rules.now + IDLE_REFRESH_MS)
    assert kinds_of(later.facts) == [OffsetKey] * 3 + [GroupKey]


# Deleting.


def delete(rules: GroupRules, *topics: str) -> OffsetsDeleted:
    answer = rules.run(DeleteOffsets(GROUP, tuple(OffsetKey(GROUP, topic, 0) for topic in topics)))
    assert isinstance(answer, OffsetsDeleted)
    return answer


def test_offsets_of_an_empty_group_can_be_deleted() -> None:
    rules = GroupRules()
    assert delete(rules, "t").error is ErrorCode.GROUP_ID_NOT_FOUND
    commit(rules)
    assert delete(rules, "t", "u") == OffsetsDeleted(ErrorCode.NONE, (ErrorCode.NONE,) * 2)
    assert fetched(rules) == -1


@pytest.mark.parametrize("kind", ["classic", "consumer"])
def test_offsets_of_topics_in_use_stay(kind: str) -> None:
    rules = GroupRules()
    commit(rules, key=OffsetKey(GROUP, "u", 0))
    if kind == "classic":
        rules.stable("a")
    else:
        rules.make_topic("t", 1)
        rules.consumer_join("a")
    assert delete(rules, "t", "u").partitions == (ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC, ErrorCode.NONE)
    assert fetched(rules, OffsetKey(GROUP, "u", 0)) == -1


@pytest.mark.parametrize(
    "metadata", [b"", b"\x00", b"\x00\x01\x00\x00\x00\x09\x00\x01t", b"\x00\x01\x00\x00\x00\x01\x00\x01\xff"]
)
def test_a_subscription_that_cannot_be_read_may_be_anything(metadata: bytes) -> None:
    rules = GroupRules()
    commit(rules)
    rules.join(new="a", protocols=(("range", metadata),))
    rules.join("a", protocols=(("range", metadata),))
    assert delete(rules, "t").partitions == (ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC,)


def test_members_that_are_no_consumers_keep_all_offsets() -> None:
    rules = GroupRules()
    commit(rules)
    rules.join(new="a", protocol_type="connect")
    rules.join("a", protocol_type="connect")
    assert delete(rules, "t").error is ErrorCode.NON_EMPTY_GROUP


def test_a_group_is_deleted_with_its_offsets() -> None:
    rules = GroupRules()
    commit(rules)
    assert rules.run(DeleteGroup(GROUP)) is ErrorCode.NONE
    assert fetched(rules) == -1


# Expiry.


def expire(rules: GroupRules, *keys: OffsetKey, forget_group: bool = True) -> int:
    answer = rules.run(ExpireOffsets(GROUP, keys, rules.now - RETENTION_MS, forget_group))
    assert isinstance(answer, int)
    return answer


def test_offsets_of_a_group_without_members_expire() -> None:
    rules = GroupRules()
    commit(rules)
    rules.now += RETENTION_MS - 1
    assert expire(rules, KEY) == 0
    rules.now += 1
    assert expire(rules, KEY) == 1
    assert list(rules.state.groups.values()) == [None]
    assert fetched(rules) == -1


def test_offsets_outlive_the_last_member() -> None:
    rules = GroupRules()
    generation = rules.stable("a")
    commit(rules, Committer(generation, "a"))
    rules.now += 2 * RETENTION_MS
    assert expire(rules, KEY) == 0, "a group with members keeps its offsets"
    rules.leave("a")
    rules.now += RETENTION_MS - 1
    assert expire(rules, KEY) == 0
    rules.now += 1
    assert expire(rules, KEY) == 1


def test_a_newer_offset_keeps_itself_and_the_group() -> None:
    rules = GroupRules()
    newer = OffsetKey(GROUP, "u", 0)
    commit(rules)
    rules.now += RETENTION_MS
    commit(rules, key=newer)
    assert expire(rules, KEY, newer) == 1
    assert fetched(rules, newer) == 5
    assert rules.group().kind == "classic"


def test_a_commit_after_housekeeping_looked_saves_the_group() -> None:
    rules = GroupRules()
    commit(rules)
    rules.now += RETENTION_MS
    # Housekeeping saw only the old offset; this one came in before its command was decided.
    commit(rules, key=OffsetKey(GROUP, "u", 0))
    assert expire(rules, KEY) == 1
    assert fetched(rules, OffsetKey(GROUP, "u", 0)) == 5


def test_a_group_that_somebody_is_about_to_join_stays() -> None:
    rules = GroupRules()
    rules.stable("a")
    rules.leave("a")
    rules.now += RETENTION_MS
    rules.join(new="b", protocols=(("range", subscription("t")),))
    assert expire(rules) == 0
    assert rules.join("b").error is ErrorCode.NONE
