"""Share-partitions (KIP-932): acquisition, acknowledgement, locks, delivery counts, the start offset."""

import pytest
from support.models.share_rules import ACCEPT, GAP, KEY, LOCK_MS, REJECT, RELEASE, RENEW, ShareRules

from semel.core.shares.commands import (
    Acknowledge,
    AcknowledgedRun,
    Acquire,
    AcquiredRun,
    AcquireFrom,
    FindAcquirable,
    ReadBatch,
    ReadShare,
    ReadShares,
    StartShare,
)
from semel.core.shares.partition import ACKNOWLEDGED, ARCHIVED, AVAILABLE, Run, SharePartition
from semel.core.types import ErrorCode, ShareKey


@pytest.fixture
def it() -> ShareRules:
    rules = ShareRules()
    rules.begin()
    return rules


def test_a_share_partition_begins_where_the_first_fetch_says_and_only_once() -> None:
    it = ShareRules()
    it.ledger[KEY] = SharePartition()
    it._set_log(10, 50)
    assert not it.look().is_started
    assert it.run(StartShare(KEY, 40)) is ErrorCode.NONE
    assert it.run(StartShare(KEY, 20)) is ErrorCode.NONE
    assert it.look().offset == 40


def test_a_start_below_the_log_is_moved_to_it() -> None:
    it = ShareRules()
    it.ledger[KEY] = SharePartition()
    it._set_log(10, 50)
    it.run(StartShare(KEY, 3))
    assert it.share.start_offset == 10


def test_records_of_a_group_that_has_no_share_partition_cannot_be_acquired(it: ShareRules) -> None:
    other = ShareKey(KEY.topic_id, 0, "other")
    assert it.run(FindAcquirable(other)).error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert it.run(StartShare(other, 0)) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    read = AcquireFrom(other, 0, (ReadBatch(0, 1),))
    (answer,) = it.run(Acquire("a", (read,), 10))
    assert answer.error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    acknowledged = it.run(Acknowledge(other, "a", (AcknowledgedRun(0, 0, (ACCEPT,)),)))
    assert acknowledged is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_acquiring_writes_nothing(it: ShareRules) -> None:
    it.append(10)
    before = it.writes
    assert it.acquire("a") == [AcquiredRun(0, 9, 1)]
    assert it.writes == before


def test_an_acquired_record_is_given_to_nobody_else(it: ShareRules) -> None:
    it.append(5, 5)
    assert it.acquire("a", 5) == [AcquiredRun(0, 4, 1)]
    assert it.acquire("b") == [AcquiredRun(5, 9, 1)]
    assert it.acquire("c") == []


def test_two_members_that_read_the_same_batches_get_different_records(it: ShareRules) -> None:
    it.append(10)
    read = it.read()
    assert read is not None
    assert it.take("a", read, 4, is_strict=True) == [AcquiredRun(0, 3, 1)]
    assert it.take("b", read) == [AcquiredRun(4, 9, 1)]
    assert it.take("c", read) == []


def test_the_number_of_records_is_rounded_up_to_whole_batches_unless_the_limit_is_strict(
    it: ShareRules,
) -> None:
    # KIP-1206: batch-optimized and record-limit mode.
    it.append(4, 4, 4)
    assert it.acquire("a", 5) == [AcquiredRun(0, 7, 1)]
    assert it.acquire("b", 3, is_strict=True) == [AcquiredRun(8, 10, 1)]
    assert it.acquire("c", 5, is_strict=True) == [AcquiredRun(11, 11, 1)]


def test_acquired_records_are_reported_in_batches_of_the_size_that_the_client_prefers(it: ShareRules) -> None:
    it.append(4, 4, 4)
    assert it.acquire("a", batch_size=5) == [AcquiredRun(0, 7, 1), AcquiredRun(8, 11, 1)]


def test_no_more_records_are_in_flight_than_the_limit() -> None:
    it = ShareRules(locks_max=10)
    it.begin()
    it.append(25)
    assert it.acquire("a") == [AcquiredRun(0, 9, 1)]
    assert it.look().offset is None
    it.acknowledge("a", 3, 5, ACCEPT)
    assert it.look().offset is None, "the window begins at the first record that is not settled"
    it.acknowledge("a", 0, 2, ACCEPT)
    assert it.share.start_offset == 6
    assert it.acquire("b") == [AcquiredRun(10, 15, 1)]


def test_a_released_record_can_be_acquired_although_the_window_is_full() -> None:
    it = ShareRules(locks_max=10)
    it.begin()
    it.append(25)
    it.acquire("a")
    it.acknowledge("a", 7, 7, RELEASE)
    assert it.acquire("b") == [AcquiredRun(7, 7, 2)]


def test_accepted_records_are_never_delivered_again(it: ShareRules) -> None:
    it.append(10)
    it.acquire("a")
    assert it.acknowledge("a", 0, 4, ACCEPT) is ErrorCode.NONE
    assert it.share == SharePartition(5, 0, ())
    it.restart()
    assert it.acquire("b") == [AcquiredRun(5, 9, 1)]


def test_what_another_member_holds_is_written_as_available(it: ShareRules) -> None:
    it.append(5, 5)
    it.acquire("a", 5)
    it.acquire("b")
    it.acknowledge("b", 5, 9, ACCEPT)
    assert it.share == SharePartition(0, 0, (Run(0, 4, AVAILABLE, 0), Run(5, 9, ACKNOWLEDGED, 0)))
    assert it.acquire("c") == []
    it.acknowledge("a", 0, 4, ACCEPT)
    assert it.share == SharePartition(10, 0, ())


def test_a_crash_of_the_broker_makes_acquired_records_available(it: ShareRules) -> None:
    it.append(10)
    it.acquire("a")
    it.restart()
    assert it.acknowledge("a", 0, 9, ACCEPT) is ErrorCode.INVALID_RECORD_STATE
    assert it.acquire("b") == [AcquiredRun(0, 9, 1)], "an unfinished delivery is not counted"


def test_a_delivery_count_that_was_written_survives_a_crash(it: ShareRules) -> None:
    it.append(10)
    it.acquire("a")
    it.acknowledge("a", 2, 3, RELEASE)
    it.restart()
    assert it.acquire("b") == [AcquiredRun(0, 1, 1), AcquiredRun(2, 3, 2), AcquiredRun(4, 9, 1)]


def test_the_lock_ends_with_its_time_and_the_record_goes_to_another_member(it: ShareRules) -> None:
    it.append(10)
    it.acquire("a")
    it.tick(LOCK_MS - 1)
    assert it.acquire("b") == []
    it.tick(1)
    assert it.state.share_locks == {}
    assert it.acknowledge("a", 0, 9, ACCEPT) is ErrorCode.INVALID_RECORD_STATE
    assert it.acquire("b") == [AcquiredRun(0, 9, 2)]


def test_an_acknowledgement_after_the_time_is_refused_even_before_the_tick(it: ShareRules) -> None:
    it.append(10)
    it.acquire("a")
    it.now += LOCK_MS
    assert it.acknowledge("a", 0, 9, ACCEPT) is ErrorCode.INVALID_RECORD_STATE


def test_a_lock_can_be_renewed(it: ShareRules) -> None:
    # KIP-1222.
    it.append(10)
    it.acquire("a")
    it.now += LOCK_MS - 1
    before = it.writes
    assert it.acknowledge("a", 4, 5, RENEW) is ErrorCode.NONE
    assert it.writes == before
    it.tick(1)
    assert it.acquire("b") == [AcquiredRun(0, 3, 2), AcquiredRun(6, 9, 2)]
    assert it.acknowledge("a", 4, 5, ACCEPT) is ErrorCode.NONE


def test_a_record_is_archived_when_it_was_delivered_too_often(it: ShareRules) -> None:
    it.append(2)
    for count in (1, 2, 3):
        assert it.acquire("a") == [AcquiredRun(0, 1, count)]
        it.acknowledge("a", 0, 0, RELEASE)
        it.tick(LOCK_MS)
    assert it.share == SharePartition(2, 0, ())
    assert it.acquire("a") == []


def test_rejected_records_and_gaps_are_archived(it: ShareRules) -> None:
    it.append(10)
    it.acquire("a")
    it.acknowledge("a", 1, 1, REJECT)
    it.acknowledge("a", 3, 3, GAP)
    assert [(each.first, each.state) for each in it.share.runs] == [
        (0, AVAILABLE),
        (1, ARCHIVED),
        (2, AVAILABLE),
        (3, ARCHIVED),
    ]


def test_one_acknowledgement_may_have_a_type_for_each_record(it: ShareRules) -> None:
    it.append(6)
    it.acquire("a")
    assert it.acknowledge("a", 0, 5, ACCEPT, ACCEPT, RELEASE, REJECT, GAP, ACCEPT) is ErrorCode.NONE
    assert it.share == SharePartition(
        2, 0, (Run(2, 2, AVAILABLE, 1), Run(3, 4, ARCHIVED), Run(5, 5, ACKNOWLEDGED))
    )
    assert it.acquire("b") == [AcquiredRun(2, 2, 2)]


def test_an_acknowledgement_is_accepted_as_a_whole_or_not_at_all(it: ShareRules) -> None:
    it.append(10)
    it.acquire("a", 5, is_strict=True)
    runs = (AcknowledgedRun(0, 2, (ACCEPT,)), AcknowledgedRun(4, 6, (ACCEPT,)))
    assert it.run(Acknowledge(KEY, "a", runs, it.limits)) is ErrorCode.INVALID_RECORD_STATE
    assert it.share == SharePartition(0, 0, ())
    assert it.acknowledge("a", 0, 4, ACCEPT) is ErrorCode.NONE


def test_nobody_acknowledges_the_records_of_another_member(it: ShareRules) -> None:
    it.append(10)
    it.acquire("a")
    assert it.acknowledge("b", 0, 9, ACCEPT) is ErrorCode.INVALID_RECORD_STATE
    assert it.acknowledge("a", 0, 9, ACCEPT) is ErrorCode.NONE
    assert it.acknowledge("a", 0, 9, ACCEPT) is ErrorCode.NONE, "below the start there is nothing to do"


def test_the_end_of_a_share_session_releases_what_it_held(it: ShareRules) -> None:
    it.append(5, 5)
    it.acquire("a", 5)
    it.acquire("b")
    assert it.release("a")
    assert not it.release("a")
    assert it.acquire("c") == [AcquiredRun(0, 4, 2)]
    assert it.acknowledge("b", 5, 9, ACCEPT) is ErrorCode.NONE


def test_deleted_records_are_neither_delivered_nor_acknowledged(it: ShareRules) -> None:
    it.append(5, 5, 5)
    it.acquire("a", 10)
    it.delete_below(7)
    assert it.acknowledge("a", 0, 9, ACCEPT) is ErrorCode.NONE
    assert it.share == SharePartition(10, 0, ())


def test_released_records_that_were_deleted_are_skipped(it: ShareRules) -> None:
    it.append(5, 5)
    it.acquire("a")
    it.release("a")
    it.delete_below(7)
    assert it.acquire("b") == [AcquiredRun(7, 9, 2)]


def test_everything_in_flight_was_deleted(it: ShareRules) -> None:
    it.append(5, 5)
    it.acquire("a")
    it.append(5)
    it.delete_below(12)
    assert it.acquire("b") == [AcquiredRun(12, 14, 1)]
    assert it.share.start_offset == 12


def test_offsets_that_compaction_removed_are_archived(it: ShareRules) -> None:
    it.append(5, 5, 5)
    it.acquire("a")
    it.acknowledge("a", 10, 14, ACCEPT)
    it.release("a")
    it.batches = [(6, 9), (10, 14)]
    assert it.acquire("b") == [AcquiredRun(6, 9, 2)]
    assert it.share.start_offset == 6


def test_batches_of_aborted_transactions_are_archived(it: ShareRules) -> None:
    # share.isolation.level=read_committed
    it.append(3, 3, 3)
    read = it.read(aborted=frozenset({3}))
    assert read is not None
    assert it.take("a", read) == [AcquiredRun(0, 2, 1), AcquiredRun(6, 8, 1)]
    assert it.acknowledge("a", 0, 2, ACCEPT) is ErrorCode.NONE
    assert it.share.start_offset == 6


@pytest.mark.parametrize("gap", [99, 100, 101, 5_000])
def test_a_gap_that_is_longer_than_what_can_be_in_flight_is_passed(it: ShareRules, gap: int) -> None:
    it.append(gap, 10)
    it.batches.pop(0)  # compaction has removed it
    got = it.acquire("a") or it.acquire("a")
    assert got[0].first == gap
    assert it.share.start_offset == gap


def test_a_gap_behind_records_that_cannot_be_in_flight_yet_is_left(it: ShareRules) -> None:
    it.append(90, 20, 1_000, 5)
    it.batches.pop(2)
    assert it.acquire("a") == [AcquiredRun(0, 99, 1)], "a hundred records"
    assert it.share.end_offset == 0
    assert it.acknowledge("a", 0, 99, ACCEPT) is ErrorCode.NONE
    assert it.acquire("a") == [AcquiredRun(100, 109, 1)]
    assert it.acknowledge("a", 100, 109, ACCEPT) is ErrorCode.NONE
    assert it.acquire("a") == [AcquiredRun(1_110, 1_114, 1)]


def test_one_command_acquires_from_several_partitions_up_to_the_number_of_records(it: ShareRules) -> None:
    other = ShareKey(KEY.topic_id, 1, KEY.group_id)
    it.ledger[other] = SharePartition(0)
    it.ledger[other.partition] = it.ledger[KEY.partition].but(high_watermark=8)
    it.append(4)
    reads = (AcquireFrom(KEY, 0, (ReadBatch(0, 3),)), AcquireFrom(other, 0, (ReadBatch(0, 7),)))
    one, two = it.run(Acquire("a", reads, 6, is_strict=True, limits=it.limits))
    assert one.runs == (AcquiredRun(0, 3, 1),)
    assert two.runs == (AcquiredRun(0, 1, 1),)


def test_locks_are_void_when_an_administrator_has_moved_the_start(it: ShareRules) -> None:
    it.append(10)
    it.acquire("a")
    moved = SharePartition(2, epoch=1)
    it.ledger[KEY] = moved
    it.state.put(KEY, moved)
    assert it.acknowledge("a", 2, 9, ACCEPT) is ErrorCode.INVALID_RECORD_STATE
    assert it.acquire("b") == [AcquiredRun(2, 9, 1)]


def test_reading_tells_how_many_records_are_left(it: ShareRules) -> None:
    # KIP-1226: the lag is what lies between start and end of the log, without what is settled.
    it.append(10)
    it.acquire("a")
    it.acknowledge("a", 2, 4, ACCEPT)
    other = ShareKey(KEY.topic_id, 0, "other")
    assert it.run(ReadShares((KEY, other))) == (ReadShare(0, 3, 10), None)


def test_a_share_partition_with_locks_is_not_evicted(it: ShareRules) -> None:
    it.append(10)
    it.acquire("a")
    for number in range(20):
        it.state.put(ShareKey(bytes(16), number, "x"), None)
    it.state.evict(8)
    assert KEY in it.state.shares
    it.release("a")
    for number in range(20):
        it.state.put(ShareKey(bytes(16), number, "x"), None)
    it.state.evict(8)
    assert KEY not in it.state.shares
