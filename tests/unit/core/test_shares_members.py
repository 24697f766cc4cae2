"""Share groups (KIP-932): joining, epochs, fencing, expiry, assignment, and their share-partitions."""

import pytest
from support.models.share_rules import GROUP, ShareRules

from semel.core.facts import TopicDeleted
from semel.core.groups.commands import ConsumerHeartbeat, ExpireOffsets, JoinGroup
from semel.core.groups.model import ClassicGroup, TopicShape
from semel.core.groups.offsets import CommitOffsets, Committer
from semel.core.shares.members import assign
from semel.core.shares.offsets import AlterShareOffsets, DeleteShareOffsets
from semel.core.shares.partition import SharePartition
from semel.core.types import CommittedOffset, ErrorCode, GroupKey, OffsetKey, ShareKey, TopicKey

SESSION_MS = 45_000


@pytest.fixture
def it() -> ShareRules:
    rules = ShareRules()
    rules.make_topic("t", 3)
    return rules


def indexes(assignment: object) -> list[int]:
    return sorted(index for _, index in assignment)  # type: ignore[attr-defined]


def test_a_member_joins_and_gets_all_partitions(it: ShareRules) -> None:
    answer = it.beat("a", 0, "t")
    assert answer.error is ErrorCode.NONE
    assert answer.epoch == 1
    assert indexes(answer.assignment) == [0, 1, 2]
    assert it.group.state_name == "Stable"


def test_joining_adds_the_share_partitions_in_the_same_commit(it: ShareRules) -> None:
    it.beat("a", 0, "t")
    topic_id = it.topics["t"].topic_id
    for index in range(3):
        assert it.ledger[ShareKey(topic_id, index, GROUP)] == SharePartition(epoch=it.now)
    writes = it.writes
    it.beat("a", 1)
    assert it.writes == writes, "a plain heartbeat writes nothing"


def test_a_member_that_joins_later_changes_only_what_the_others_hear_next(it: ShareRules) -> None:
    it.beat("a", 0, "t")
    joined = it.beat("b", 0, "t")
    assert joined.epoch == 2
    unchanged = it.beat("a", 1)
    assert unchanged.epoch == 2
    assert unchanged.assignment is not None
    assert sorted(indexes(joined.assignment) + indexes(unchanged.assignment)) == [0, 1, 2]
    assert it.beat("a", 2).assignment is None


def test_more_members_than_partitions_share_them(it: ShareRules) -> None:
    for number in range(7):
        it.beat(f"m{number}", 0, "t")
    counts = [0, 0, 0]
    for target in it.group.target.values():
        (owned,) = target
        counts[owned[1]] += 1
    assert sorted(counts) == [2, 2, 3]


def test_the_previous_epoch_is_accepted_because_an_answer_may_be_lost(it: ShareRules) -> None:
    it.beat("a", 0, "t")
    it.beat("b", 0, "t")
    lost = it.beat("a", 1)
    again = it.beat("a", 1)
    assert again.error is ErrorCode.NONE
    assert (again.epoch, again.assignment) == (lost.epoch, lost.assignment)


def test_a_wrong_epoch_is_fenced(it: ShareRules) -> None:
    it.beat("a", 0, "t")
    assert it.beat("a", 7).error is ErrorCode.FENCED_MEMBER_EPOCH
    assert it.beat("a", 0, "t").error is ErrorCode.NONE


def test_strangers_are_unknown(it: ShareRules) -> None:
    assert it.beat("a", 1).error is ErrorCode.GROUP_ID_NOT_FOUND
    it.beat("a", 0, "t")
    assert it.beat("b", 1).error is ErrorCode.UNKNOWN_MEMBER_ID
    assert it.beat("b", -1).error is ErrorCode.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize(
    ("member", "epoch", "names"), [("", 0, ["t"]), ("a", 0, []), ("a", -2, ["t"]), ("x" * 5_000, 0, ["t"])]
)
def test_invalid_requests(it: ShareRules, member: str, epoch: int, names: list[str]) -> None:
    assert it.beat(member, epoch, *names).error is ErrorCode.INVALID_REQUEST
    assert it.ledger.get(GroupKey(GROUP)) is None


def test_a_member_leaves(it: ShareRules) -> None:
    it.beat("a", 0, "t")
    it.beat("b", 0, "t")
    answer = it.beat("a", -1)
    assert (answer.error, answer.epoch) == (ErrorCode.NONE, -1)
    assert indexes(it.beat("b", 2).assignment) == [0, 1, 2]
    it.beat("b", -1)
    assert it.group.state_name == "Empty"
    assert it.state.sessions == {}


def test_a_silent_member_is_removed(it: ShareRules) -> None:
    it.beat("a", 0, "t")
    it.beat("b", 0, "t")
    it.group_tick(SESSION_MS - 1)
    it.beat("b", 2)
    it.group_tick(1)
    assert list(it.group.members) == ["b"]


def test_members_survive_a_restart_and_the_dead_are_removed_later(it: ShareRules) -> None:
    it.beat("a", 0, "t")
    it.restart()
    assert it.beat("a", 1).error is ErrorCode.NONE
    it.group_tick(SESSION_MS)
    assert it.group.state_name == "Empty"


def test_the_group_may_be_full(it: ShareRules) -> None:
    it.beat("a", 0, "t", members_max=1)
    assert it.beat("b", 0, "t", members_max=1).error is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert it.beat("a", 1, members_max=1).error is ErrorCode.NONE
    assert it.beat("a", 1, "t" * 50, member_bytes_max=10).error is ErrorCode.INVALID_REQUEST
    assert it.beat("c", 0, "t" * 50, group_bytes_max=10).error is ErrorCode.GROUP_MAX_SIZE_REACHED


def test_new_partitions_of_a_topic_are_shared(it: ShareRules) -> None:
    it.beat("a", 0, "t")
    it.make_topic("t", 5)
    assert indexes(it.beat("a", 1).assignment) == [0, 1, 2, 3, 4]
    assert it.ledger[ShareKey(it.topics["t"].topic_id, 4, GROUP)] == SharePartition(epoch=it.now)


def test_a_topic_that_was_deleted_since_the_caller_looked_is_not_shared(it: ShareRules) -> None:
    shape = it.topics["t"]
    it.ledger[TopicKey("t")] = None
    it.state.put(TopicKey("t"), None)
    answer = it.beat("a", 0, "t")
    assert answer.assignment == frozenset()
    assert ShareKey(shape.topic_id, 0, GROUP) not in it.ledger


def test_a_recreated_topic_begins_anew(it: ShareRules) -> None:
    it.beat("a", 0, "t")
    it.make_topic("t", 1, b"another topic id")
    answer = it.beat("a", 1)
    assert answer.assignment == {(b"another topic id", 0)}
    assert it.ledger[ShareKey(b"another topic id", 0, GROUP)] == SharePartition(epoch=it.now)


def test_deleting_a_topic_forgets_its_share_partitions_and_locks(it: ShareRules) -> None:
    it.beat("a", 0, "t")
    topic = it.ledger[TopicKey("t")]
    it.state.apply(TopicDeleted(topic))
    assert set(it.state.shares.values()) == {None}


def test_deleting_a_group_deletes_its_share_partitions(it: ShareRules) -> None:
    it.beat("a", 0, "t")
    assert it.delete_group() is ErrorCode.NON_EMPTY_GROUP
    it.beat("a", -1)
    assert it.delete_group() is ErrorCode.NONE
    assert not [key for key in it.ledger if isinstance(key, ShareKey)]
    assert it.delete_group() is ErrorCode.GROUP_ID_NOT_FOUND


def test_a_share_group_is_no_consumer_group_and_commits_no_offsets(it: ShareRules) -> None:
    it.beat("a", 0, "t")
    it.beat("a", -1)
    joining = JoinGroup(GROUP, "", None, "consumer", (("range", b""),), 10_000, 10_000, "", "", 1, "m")
    assert it.run(joining).error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    beat = ConsumerHeartbeat(GROUP, "m", 0, rebalance_timeout_ms=1, topic_names=("t",), owned=frozenset())
    assert it.run(beat).error is ErrorCode.GROUP_ID_NOT_FOUND
    commit = CommitOffsets(GROUP, Committer(), ((OffsetKey(GROUP, "t", 0), CommittedOffset(1)),))
    assert it.run(commit) == (ErrorCode.GROUP_ID_NOT_FOUND,)
    it.now += 10**12
    it.run(ExpireOffsets(GROUP, (), it.now, forget_group=True))
    assert it.group.state_name == "Empty", "it does not expire"


def test_another_group_is_no_share_group(it: ShareRules) -> None:
    it.ledger[GroupKey(GROUP)] = ClassicGroup(GROUP)
    assert it.beat("a", 0, "t").error is ErrorCode.GROUP_ID_NOT_FOUND
    alter = AlterShareOffsets(GROUP, {"t": (it.topics["t"], {0: 5})})
    assert it.run(alter).error is ErrorCode.GROUP_ID_NOT_FOUND
    assert it.run(DeleteShareOffsets(GROUP, ("t",))).error is ErrorCode.GROUP_ID_NOT_FOUND


def test_offsets_are_moved_while_the_group_has_no_members(it: ShareRules) -> None:
    alter = AlterShareOffsets(GROUP, {"t": (it.topics["t"], {1: 5})})
    assert it.run(alter).topics == {"t": ErrorCode.NONE}
    topic_id = it.topics["t"].topic_id
    assert it.ledger[ShareKey(topic_id, 1, GROUP)] == SharePartition(5, it.now)
    assert it.ledger[ShareKey(topic_id, 0, GROUP)] == SharePartition(epoch=it.now)
    it.run(alter)
    assert it.ledger[ShareKey(topic_id, 1, GROUP)] == SharePartition(5, it.now + 1)
    it.beat("a", 0, "t")
    assert it.run(alter).error is ErrorCode.NON_EMPTY_GROUP
    assert it.run(DeleteShareOffsets(GROUP, ("t",))).error is ErrorCode.NON_EMPTY_GROUP


def test_offsets_of_a_topic_that_is_gone_are_not_moved(it: ShareRules) -> None:
    alter = AlterShareOffsets(GROUP, {"t": (TopicShape(b"an older topicid", 3), {1: 5})})
    assert it.run(alter).topics == {"t": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    assert not [key for key in it.ledger if isinstance(key, ShareKey)]


def test_a_share_partition_never_has_the_epoch_of_a_deleted_one(it: ShareRules) -> None:
    """A former leader may still have locks of the deleted one."""
    key = ShareKey(it.topics["t"].topic_id, 0, GROUP)
    it.beat("a", 0, "t")
    before = it.ledger[key].epoch
    it.beat("a", -1)
    it.run(DeleteShareOffsets(GROUP, ("t",)))
    it.now += 1
    it.beat("a", 0, "t")
    assert it.ledger[key].epoch > before


def test_a_group_forgets_a_topic(it: ShareRules) -> None:
    it.beat("a", 0, "t")
    it.beat("a", -1)
    answer = it.run(DeleteShareOffsets(GROUP, ("t", "u")))
    assert answer.topics == {"t": ErrorCode.NONE, "u": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    assert not [key for key in it.ledger if isinstance(key, ShareKey)]
    assert indexes(it.beat("a", 0, "t").assignment) == [0, 1, 2]
    assert it.ledger[ShareKey(it.topics["t"].topic_id, 0, GROUP)] == SharePartition(epoch=it.now)


def test_members_keep_their_partitions_as_far_as_that_is_even() -> None:
    topics = {"t": TopicShape(b"t", 6)}
    before = assign({"a": frozenset("t"), "b": frozenset("t")}, topics, {})
    after = assign({each: frozenset("t") for each in "abc"}, topics, before)
    assert [len(after[each]) for each in "abc"] == [2, 2, 2]
    assert after["a"] < before["a"]
    assert after["b"] < before["b"]


@pytest.mark.parametrize("members", range(1, 9))
@pytest.mark.parametrize("partitions", range(1, 9))
def test_every_partition_has_a_member_and_every_member_its_share(members: int, partitions: int) -> None:
    topics = {"t": TopicShape(b"t", partitions)}
    names = [f"m{number}" for number in range(members)]
    previous: dict[str, frozenset[tuple[bytes, int]]] = {}
    for count in range(1, members + 1):
        previous = assign({name: frozenset("t") for name in names[:count]}, topics, previous)
    assert {index for owned in previous.values() for _, index in owned} == set(range(partitions))
    sizes = [len(previous[name]) for name in names]
    assert max(sizes) - min(sizes) <= 1
    of_each = [sum((b"t", index) in owned for owned in previous.values()) for index in range(partitions)]
    assert max(of_each) - min(of_each) <= 1
