"""Acknowledgements of share groups inside transactions (ADR 0048): pending until the end settles them."""

from typing import Any

import pytest
from support.models.facts import kinds_of
from support.models.share_rules import (
    ACCEPT,
    GAP,
    KEY,
    LOCK_MS,
    REJECT,
    TRANSACTION_MS,
    ShareRules,
)

from semel.core.groups.model import TopicShape
from semel.core.shares.commands import AcknowledgedRun, AcquiredRun, ReadShare, ReadShares, StartShare
from semel.core.shares.offsets import AlterShareOffsets
from semel.core.shares.partition import (
    ACKNOWLEDGED,
    ARCHIVED,
    AVAILABLE,
    PENDING,
    PendingAcknowledgement,
    Run,
    SharePartition,
)
from semel.core.transactions import attempts
from semel.core.transactions.attempts import BeginAttempt, CommitTransactions, TransactionsCommitted
from semel.core.transactions.commands import AddOffsets, EndTransaction
from semel.core.types import ErrorCode, Partition, ShareKey, TransactionKey, TransactionState

NONE = ErrorCode.NONE
LOST = ErrorCode.INVALID_RECORD_STATE


@pytest.fixture
def it() -> ShareRules:
    """Ten records, all acquired by "a", and a producer "p"."""
    rules = ShareRules()
    rules.begin()
    rules.append(10)
    rules.init("p")
    assert rules.acquire("a") == [AcquiredRun(0, 9, 1)]
    return rules


# What an acknowledgement does.


def test_pending_records_are_given_to_nobody_and_the_start_does_not_pass_them(it: ShareRules) -> None:
    assert it.in_transaction("a", 0, 3, ACCEPT) is NONE
    assert it.share.start_offset == 0
    assert it.share.runs == (Run(0, 3, PENDING, 1, PendingAcknowledgement(0, True, False, "a")),)
    assert it.acquire("b") == []
    it.tick(LOCK_MS)
    assert it.acquire("b") == [AcquiredRun(4, 9, 2)], "a pending record has no lock that could end"
    it.release("a")
    assert it.acquire("c") == []


def test_the_share_partition_joins_the_transaction(it: ShareRules) -> None:
    it.in_transaction("a", 0, 0, ACCEPT)
    known = it.transaction()
    assert (known.state, known.shares, known.version) == (TransactionState.ONGOING, (KEY,), 2)
    assert known.deadline_ms == it.now + TRANSACTION_MS
    decision = it.decided(it.acknowledging("a", AcknowledgedRun(1, 1, (ACCEPT,))))
    assert TransactionKey not in kinds_of(decision.facts), "it has joined already"


def test_an_acknowledgement_may_be_answered_before_it_is_flushed(it: ShareRules) -> None:
    decision = it.decided(it.acknowledging("a", AcknowledgedRun(0, 0, (ACCEPT,))))
    assert decision.defers_sync


def test_pending_records_are_in_flight() -> None:
    it = ShareRules(locks_max=10)
    it.begin()
    it.append(25)
    it.init("p")
    it.acquire("a")
    it.in_transaction("a", 0, 9, ACCEPT)
    assert it.look().offset is None
    assert it.run(ReadShares((KEY,))) == (ReadShare(0, 0, 25),)
    it.end(commit=True)
    assert it.look().offset == 10
    assert it.run(ReadShares((KEY,))) == (ReadShare(10, 0, 25),)


# The end.


def test_a_commit_settles_what_was_accepted_and_rejected(it: ShareRules) -> None:
    it.in_transaction("a", 2, 5, ACCEPT, REJECT, GAP, ACCEPT)
    assert it.end(commit=True) is NONE
    assert [(each.first, each.last, each.state) for each in it.share.runs] == [
        (0, 1, AVAILABLE),
        (2, 2, ACKNOWLEDGED),
        (3, 4, ARCHIVED),
        (5, 5, ACKNOWLEDGED),
    ]
    assert it.transaction().shares == ()
    it.restart()
    assert it.acquire("b") == [AcquiredRun(0, 1, 1), AcquiredRun(6, 9, 1)]


def test_a_commit_moves_the_start_offset(it: ShareRules) -> None:
    it.in_transaction("a", 0, 9, ACCEPT)
    it.end(commit=True)
    assert it.share == SharePartition(10)


@pytest.mark.parametrize("kind", [ACCEPT, REJECT, GAP])
def test_after_an_abort_the_records_are_available_and_the_delivery_counts(it: ShareRules, kind: int) -> None:
    it.in_transaction("a", 0, 3, kind)
    assert it.end(commit=False) is NONE
    assert it.acquire("b") == [AcquiredRun(0, 3, 2)]
    assert it.transaction().shares == ()


def test_a_record_is_given_up_after_the_last_delivery_that_was_aborted() -> None:
    it = ShareRules(delivery_limit=2)
    it.begin()
    it.append(1)
    it.init("p")
    for delivery in (1, 2):
        assert it.acquire("a") == [AcquiredRun(0, 0, delivery)]
        it.in_transaction("a", 0, 0, ACCEPT)
        it.end(commit=False)
    assert it.acquire("a") == []
    assert it.share.start_offset == 1


def test_the_last_delivery_counts_if_it_is_committed() -> None:
    it = ShareRules(delivery_limit=1)
    it.begin()
    it.append(2)
    it.init("p")
    it.acquire("a")
    it.in_transaction("a", 1, 1, ACCEPT)
    it.end(commit=True)
    assert it.share.runs[-1].state is ACKNOWLEDGED


def _timeout(it: ShareRules) -> None:
    it.now += TRANSACTION_MS + 1
    assert it.abort_open(overdue_only=True)


def _term(it: ShareRules) -> None:
    it.restart(term=1)
    assert it.end(commit=True) is ErrorCode.PRODUCER_FENCED, "what it acknowledged may be lost"
    assert it.abort_open(before_term=1)


@pytest.mark.parametrize(
    "happens",
    [_timeout, _term, lambda it: it.abort_open(), lambda it: it.init("p")],
    ids=["timeout", "new term", "admin", "new producer"],
)
def test_every_abort_makes_the_records_available(it: ShareRules, happens: Any) -> None:
    it.in_transaction("a", 0, 9, ACCEPT)
    before = it.transaction()
    happens(it)
    assert it.acquire("b") == [AcquiredRun(0, 9, 2)]
    late: dict[str, Any] = {"producer_id": before.producer_id, "epoch": before.epoch}
    assert it.in_transaction("b", 0, 9, ACCEPT, **late) is ErrorCode.PRODUCER_FENCED
    assert it.end(commit=True, **late) is not NONE


def test_transactions_end_independently_of_each_other(it: ShareRules) -> None:
    it.init("q")
    it.in_transaction("a", 0, 4, ACCEPT)
    it.in_transaction("a", 5, 9, ACCEPT, name="q")
    assert it.end("q", commit=True) is NONE
    assert it.share.start_offset == 0
    assert it.acquire("b") == []
    it.end(commit=False)
    assert it.acquire("b") == [AcquiredRun(0, 4, 2)]


def test_the_next_transaction_of_the_producer_does_not_contain_the_acknowledgements(it: ShareRules) -> None:
    it.in_transaction("a", 0, 4, ACCEPT)
    it.end(commit=False)
    it.in_transaction("a", 5, 5, ACCEPT)
    it.end(commit=True)
    assert it.acquire("b") == [AcquiredRun(0, 4, 2)]


def test_after_a_crash_of_the_broker_the_transaction_goes_on(it: ShareRules) -> None:
    it.in_transaction("a", 0, 3, ACCEPT)
    it.restart()
    assert it.acquire("b") == [AcquiredRun(4, 9, 1)]
    assert it.end(commit=True) is NONE
    assert it.share.start_offset == 4


def test_a_prepared_transaction_keeps_records_pending_until_it_is_ended() -> None:
    it = ShareRules()
    it.begin()
    it.append(2)
    it.init("p", is_two_phase=True, may_two_phase=True)
    it.acquire("a")
    decision = it.decided(it.acknowledging("a", AcknowledgedRun(0, 1, (ACCEPT,))))
    assert (decision.answer, decision.defers_sync) == (NONE, False)
    it.restart(term=1)
    assert not it.abort_open(before_term=1)
    it.now += 10 * TRANSACTION_MS
    assert not it.abort_open(overdue_only=True)
    given = it.init("p", is_two_phase=True, may_two_phase=True, keep_prepared=True)
    assert given.ongoing_producer_id == 0
    assert it.acquire("b") == []
    assert it.in_transaction("a", 0, 1, ACCEPT) is ErrorCode.INVALID_TXN_STATE, "it can only be ended"
    assert it.end(commit=True) is NONE
    assert it.share == SharePartition(2)


def test_several_transactions_commit_their_acknowledgements_together(it: ShareRules) -> None:
    given = it.init("driver")
    driver = attempts.Producer("driver", given.producer_id, given.epoch)
    members = []
    for at, name in enumerate(("x", "y")):
        begun = it.run(BeginAttempt(name, driver, 1_000_000))
        members.append(attempts.Producer(name, begun.producer_id, begun.epoch))
        assert it.in_transaction("a", at * 5, at * 5 + 4, ACCEPT, name=name) is NONE
    again = it.run(BeginAttempt("x", driver, 1_000_000))
    assert again.error is ErrorCode.INVALID_TXN_STATE, "it has written"
    assert it.run(CommitTransactions(driver, tuple(members))) == TransactionsCommitted(NONE)
    assert it.share == SharePartition(10)


# What is refused.


def test_only_the_member_that_holds_all_records_may_acknowledge_them(it: ShareRules) -> None:
    it.append(5)
    it.acquire("b")
    before = it.writes
    for member, first, last in (("a", 8, 10), ("b", 8, 10), ("c", 0, 0), ("a", 20, 30), ("b", 10, 15)):
        assert it.in_transaction(member, first, last, ACCEPT) is LOST
    assert it.writes == before, "nothing joins, nothing is pending"


def test_a_record_whose_lock_is_over_cannot_be_acknowledged(it: ShareRules) -> None:
    it.now += LOCK_MS
    assert it.in_transaction("a", 0, 0, ACCEPT) is LOST


def test_a_record_that_another_transaction_has_settled_cannot_be_acknowledged_again(it: ShareRules) -> None:
    """Outside of a transaction that is no error. Inside, the results of both would count."""
    it.tick(LOCK_MS)
    it.acquire("b")
    it.in_transaction("b", 0, 9, ACCEPT)
    it.end(commit=True)
    assert it.share.start_offset == 10
    assert it.in_transaction("a", 0, 9, ACCEPT) is LOST
    assert it.acknowledge("a", 0, 9, ACCEPT) is NONE


def test_a_record_that_is_pending_for_another_producer_cannot_be_acknowledged(it: ShareRules) -> None:
    it.init("q")
    it.in_transaction("a", 0, 4, ACCEPT)
    assert it.in_transaction("a", 0, 4, ACCEPT, name="q") is LOST
    assert it.acknowledge("a", 0, 4, ACCEPT) is LOST


def test_a_repeated_acknowledgement_succeeds_again(it: ShareRules) -> None:
    it.in_transaction("a", 2, 4, ACCEPT)
    before = it.share
    decision = it.decided(it.acknowledging("a", AcknowledgedRun(2, 4, (ACCEPT,))))
    assert (decision.answer, decision.facts) == (NONE, ())
    assert it.share == before
    it.restart()
    assert it.in_transaction("a", 2, 4, ACCEPT) is NONE, "also after a crash, which has ended the locks"
    assert it.in_transaction("a", 2, 4, REJECT) is LOST, "it was accepted"
    it.end(commit=True)
    assert it.in_transaction("a", 2, 4, ACCEPT) is LOST, "the next transaction is another"


def test_a_wider_acknowledgement_adds_what_is_not_pending(it: ShareRules) -> None:
    it.in_transaction("a", 2, 4, ACCEPT)
    assert it.in_transaction("a", 0, 9, ACCEPT) is NONE
    it.end(commit=True)
    assert it.share == SharePartition(10)


def test_a_transaction_of_version_1_is_refused(it: ShareRules) -> None:
    known = it.transaction()
    it.run(AddOffsets("p", known.producer_id, known.epoch, "some group"))
    assert it.in_transaction("a", 0, 0, ACCEPT) is ErrorCode.INVALID_TXN_STATE


def test_another_producer_or_epoch_is_refused(it: ShareRules) -> None:
    assert it.in_transaction("a", 0, 0, ACCEPT, epoch=7) is ErrorCode.PRODUCER_FENCED
    assert it.in_transaction("a", 0, 0, ACCEPT, producer_id=7) is ErrorCode.INVALID_PRODUCER_ID_MAPPING


def test_a_share_partition_that_does_not_exist_or_has_not_begun_is_refused(it: ShareRules) -> None:
    other = ShareKey(KEY.topic_id, 0, "other")
    assert it.in_transaction("a", 0, 0, ACCEPT, key=other) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    it.ledger[other] = SharePartition()
    it.state.put(other, SharePartition())
    assert it.in_transaction("a", 0, 0, ACCEPT, key=other) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


# What voids pending records.


def test_records_that_the_log_has_deleted_are_not_pending_any_more(it: ShareRules) -> None:
    it.in_transaction("a", 0, 4, ACCEPT)
    it.delete_below(3)
    it.look()
    assert it.share.start_offset == 3
    it.end(commit=False)
    assert it.acquire("b") == [AcquiredRun(3, 4, 2)]


def test_moving_the_offsets_voids_pending_acknowledgements(it: ShareRules) -> None:
    it.in_transaction("a", 0, 9, ACCEPT)
    it.make_topic("t", 1, KEY.topic_id)
    moved = AlterShareOffsets(KEY.group_id, {"t": (TopicShape(KEY.topic_id, 1), {0: 5})})
    assert it.run(moved).error is NONE
    assert it.end(commit=True) is NONE
    assert it.share == SharePartition(5, 1)
    assert it.acquire("b") == [AcquiredRun(5, 9, 1)]


def test_deleting_the_share_partition_or_its_topic_does_not_break_the_end(it: ShareRules) -> None:
    it.in_transaction("a", 0, 9, ACCEPT)
    del it.ledger[KEY]
    it.restart()
    decided = it.decided(it.acknowledging("a", AcknowledgedRun(0, 9, (ACCEPT,))))
    assert decided.answer is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert it.end(commit=True) is NONE
    # A group of the same name begins anew.
    it.ledger[KEY] = SharePartition()
    it.restart()
    it.state.put(KEY.partition, Partition(0, 10))
    it.run(StartShare(KEY, 0))
    assert it.acquire("b") == [AcquiredRun(0, 9, 1)]


def test_an_end_without_pending_records_writes_no_share_partition(it: ShareRules) -> None:
    it.in_transaction("a", 0, 4, ACCEPT)
    it.delete_below(5)
    it.look()
    before = it.share
    known = it.transaction()
    decision = it.decided(EndTransaction("p", known.producer_id, known.epoch, is_commit=True, version=2))
    assert ShareKey not in kinds_of(decision.facts)
    assert it.share == before


def test_a_record_that_another_member_has_acknowledged_is_lost_also_in_the_same_transaction() -> None:
    """Else both results would be committed: a producer may write those of several members."""
    it = ShareRules()
    it.begin()
    it.append(1)
    it.init("p")
    assert it.acquire("slow") == [AcquiredRun(0, 0, 1)]
    it.tick(LOCK_MS)
    assert it.acquire("fast") == [AcquiredRun(0, 0, 2)]
    assert it.in_transaction("fast", 0, 0, ACCEPT) is NONE
    assert it.in_transaction("slow", 0, 0, ACCEPT) is LOST
    assert it.in_transaction("fast", 0, 0, ACCEPT) is NONE, "a repeated request"
