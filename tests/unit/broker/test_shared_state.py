"""The state of a broker in a cluster: versions, undoing a tick, forgetting (ADR 0042)."""

import pytest

from semel.broker.cluster.state import SharedState
from semel.core import facts as f
from semel.core.groups import ClassicGroup, GroupSession
from semel.core.shares.partition import Lock, Locks, SharePartition
from semel.core.types import (
    CommittedOffset,
    GroupKey,
    Key,
    OffsetKey,
    Partition,
    PartitionKey,
    PendingKey,
    ProducerState,
    ShareKey,
    Topic,
    TopicKey,
    Transaction,
    TransactionKey,
    TransactionState,
)

TOPIC = Topic("t", b"t" * 16, 2, {})
ZERO, ONE = (PartitionKey(TOPIC.topic_id, index) for index in range(2))
TX = TransactionKey("tx")


def transaction(state: TransactionState = TransactionState.ONGOING) -> Transaction:
    return Transaction("tx", 7, 0, 1_000, state, deadline_ms=5_000)


def loaded() -> SharedState:
    state = SharedState()
    state.put_versioned(ZERO, Partition(), 11)
    state.put_versioned(ONE, None, 0)
    state.put_versioned(TX, transaction(), 12)
    state.put_versioned(GroupKey("g"), ClassicGroup("g"), 13)
    state.begin_tick()
    return state


def test_an_entity_is_current_with_its_version() -> None:
    state = loaded()
    assert state.is_current(ZERO)
    assert state.is_current(ONE)
    state.partitions[PartitionKey(b"u" * 16, 0)] = Partition()
    assert not state.is_current(PartitionKey(b"u" * 16, 0))
    assert not state.is_current(TopicKey("t"))


def test_a_commit_is_based_on_what_was_read_and_on_what_is_written() -> None:
    state = loaded()
    written = [f.Put(ZERO, Partition(high_watermark=1))]
    assert state.expected([TX, OffsetKey("g", "t", 0)], written) == {TX: 12, ZERO: 11}


def test_nothing_is_written_that_was_not_read() -> None:
    with pytest.raises(AssertionError):
        loaded().expected([], [f.Put(ZERO.of(7), ProducerState())])


def test_what_was_committed_has_the_new_version() -> None:
    state = loaded()
    changed = f.Put(ZERO, Partition(high_watermark=1))
    state.apply(changed)
    state.keep([changed], 99)
    state.undo()
    assert state.partitions[ZERO] == Partition(high_watermark=1)
    assert state.versions[ZERO] == 99


def test_what_was_deleted_is_loaded_again() -> None:
    state = loaded()
    forgotten = f.Put(TransactionKey("tx"), None)
    state.apply(forgotten)
    state.keep([forgotten], 99)
    assert not state.is_current(TX)


def test_an_undone_tick_leaves_everything_as_it_was() -> None:
    state = loaded()
    state.sessions["g"] = GroupSession()
    offset = OffsetKey("g", "t", 0)
    before = (dict(state.partitions), dict(state.groups), dict(state.sessions), dict(state.ongoing))
    state.apply(
        f.Put(ZERO, Partition(high_watermark=1)),
        f.Put(ZERO, Partition(high_watermark=2)),
        f.Put.of(transaction(TransactionState.COMPLETE_COMMIT)),
        f.GroupGathered(ClassicGroup("g", generation=3)),
        f.SessionChanged("g", None),
        f.SessionChanged("h", GroupSession()),
        f.Put(offset, CommittedOffset(5)),
    )
    assert state.ongoing == {}
    state.undo()
    assert (state.partitions, state.groups, state.sessions, state.ongoing) == before
    assert offset not in state.offsets
    assert state.versions[ZERO] == 11


def test_undoing_a_created_topic_forgets_its_partitions() -> None:
    state = SharedState()
    state.put_versioned(TopicKey("t"), None, 0)
    state.begin_tick()
    state.apply(f.TopicCreated(TOPIC))
    state.undo()
    assert not state.is_current(TopicKey("t"))
    assert ZERO not in state.partitions


def test_a_created_topic_is_loaded_with_its_versions_when_it_is_needed() -> None:
    state = SharedState()
    state.put_versioned(TopicKey("t"), None, 0)
    state.begin_tick()
    created = f.TopicCreated(TOPIC)
    state.apply(created)
    state.keep([created], 5)
    assert not state.is_current(ZERO)


def test_a_deleted_topic_takes_everything_on_it_along() -> None:
    state = loaded()
    state.put_versioned(ZERO.of(7), ProducerState(), 3)
    state.put_versioned(PendingKey("g"), None, 4)
    state.put(OffsetKey("g", "t", 0), CommittedOffset(5))
    state.forget_all(f.TopicDeleted(TOPIC))
    keys: list[Key] = [ZERO, ONE, ZERO.of(7), PendingKey("g"), OffsetKey("g", "t", 0)]
    assert not any(map(state.is_current, keys))


def test_a_deleted_group_takes_its_offsets_along() -> None:
    state = loaded()
    for group_id in ("g", "h"):
        state.put_versioned(PendingKey(group_id), None, 4)
        state.put(OffsetKey(group_id, "t", 0), CommittedOffset(5))
    state.forget_all(f.GroupDeleted("g"))
    assert list(state.offsets) == [OffsetKey("h", "t", 0)]
    assert list(state.pending) == [PendingKey("h")]


def test_a_group_that_is_forgotten_has_no_session() -> None:
    state = loaded()
    state.sessions["g"] = GroupSession()
    state.forget([GroupKey("g")])
    assert state.sessions == {}


def test_what_is_not_kept_is_forgotten_with_its_timers_and_connections() -> None:
    state = loaded()
    state.sessions["g"] = GroupSession()
    state.latest_connections["tx"] = 1
    state.forget_unless(lambda key: key == ZERO)
    assert list(state.versions) == [ZERO]
    assert not state.sessions
    assert not state.ongoing
    assert not state.latest_connections


def test_copies_are_compared_with_a_commit_of_another_broker() -> None:
    state = loaded()
    current, old = state.compare([ZERO, ONE, TX], [11, 8, 7], 12)
    assert current == {ZERO}
    assert old == [ONE]


def test_evicted_entities_lose_their_versions() -> None:
    state = SharedState()
    for index in range(100):
        state.put_versioned(PartitionKey(TOPIC.topic_id, index), Partition(), index + 1)
    assert state.evict(50) > 0
    assert state.versions.keys() == state.partitions.keys()


def test_groups_are_taken_over_with_their_sessions() -> None:
    """A new term forgets everything but groups: what is written of them is always flushed."""
    before, after = loaded(), SharedState(term=2)
    before.sessions["g"] = GroupSession()
    after.take_over(before)
    assert after.is_current(GroupKey("g"))
    assert after.sessions == before.sessions
    assert not after.is_current(ZERO)


SHARE = ShareKey(TOPIC.topic_id, 0, "g")
LOCKS = Locks(0, 5, (Lock(0, 9, "m", 1, 1_000),), 1_000)


def shared() -> SharedState:
    state = loaded()
    state.put_versioned(SHARE, SharePartition(0), 14)
    state.share_locks[SHARE] = LOCKS
    return state


def test_locks_of_a_tick_that_conflicts_are_as_they_were() -> None:
    state = shared()
    state.apply(f.ShareLocksChanged(SHARE, None), f.Put(SHARE, SharePartition(10)))
    state.undo()
    assert state.share_locks == {SHARE: LOCKS}
    assert state.shares[SHARE] == SharePartition(0)
    state.apply(f.Put(SHARE, None))
    assert state.share_locks == {}
    state.undo()
    assert state.share_locks == {SHARE: LOCKS}
    assert state.shares[SHARE] == SharePartition(0)


def test_locks_stay_while_their_share_partition_is_loaded_again_and_end_with_its_owner() -> None:
    state = shared()
    state.forget((SHARE,))
    assert state.share_locks == {SHARE: LOCKS}
    later = SharedState()
    later.take_over(state)
    assert later.share_locks == {SHARE: LOCKS}
    state.forget_unless(lambda key: key != SHARE)
    assert state.share_locks == {}


def test_a_deleted_topic_has_no_share_partitions_and_no_locks() -> None:
    state = shared()
    state.forget_all(f.TopicDeleted(TOPIC))
    assert state.share_locks == {}
    assert SHARE not in state.shares


def test_a_share_partition_has_a_version() -> None:
    state = shared()
    assert state.expected([SHARE], []) == {SHARE: 14}
    state.apply(f.Put(SHARE, None))
    state.keep([f.Put(SHARE, None)], 20)
    assert SHARE not in state.versions
