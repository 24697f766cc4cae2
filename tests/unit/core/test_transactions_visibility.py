"""What the ends of transactions do to a partition, as rules: markers, last stable offset, staged batches."""

import pytest
from support.models.transaction_rules import J0, M0, Producer, TransactionRules, holds_together

from semel.core.facts import BatchAppended, Closing, StagedCommitted
from semel.core.log.partition import DeleteRecords
from semel.core.transactions import model
from semel.core.transactions.commands import WriteMarker
from semel.core.types import ErrorCode, PartitionKey


@pytest.fixture
def rules() -> TransactionRules:
    return TransactionRules()


def two(rules: TransactionRules) -> tuple[Producer, Producer]:
    return Producer(rules, 1, "one"), Producer(rules, 2, "two")


def test_behaviour_6_the_oldest_open_transaction_holds_the_last_stable_offset(
    rules: TransactionRules,
) -> None:
    earlier, later = two(rules)
    rules.plain(M0)
    earlier.write(M0)
    later.write(M0)
    assert rules.at(M0).last_stable_offset == 1
    later.commit()
    assert (rules.at(M0).last_stable_offset, rules.at(M0).high_watermark) == (1, 4)
    assert rules.closed()[-1].last_stable_offset == 1
    earlier.abort()
    assert rules.at(M0).last_stable_offset == 5
    assert rules.closed()[-1].last_stable_offset == 5


def test_behaviour_6_the_other_way_round(rules: TransactionRules) -> None:
    earlier, later = two(rules)
    earlier.write(M0)
    later.write(M0)
    earlier.commit()
    assert rules.at(M0).last_stable_offset == 1
    later.commit()
    assert rules.at(M0).last_stable_offset == 4


def test_behaviour_8_marker_and_last_stable_offset_are_one_decision(rules: TransactionRules) -> None:
    producer = Producer(rules, 2)
    producer.write(M0)
    producer.abort()
    (marked,) = (fact for fact in rules.facts if isinstance(fact, BatchAppended) and fact.closes)
    assert (marked.base_offset, marked.last_offset, marked.producer_id) == (1, 1, producer.producer_id)
    assert marked.closes == Closing(first_offset=0, last_stable_offset=2, is_commit=False)
    assert rules.at(M0).last_aborted_offset == 1


def test_the_newest_aborted_one_is_remembered(rules: TransactionRules) -> None:
    producer = Producer(rules, 2)
    for commit in (False, True, False, True):
        producer.write(M0)
        producer.finish(commit=commit)
    assert rules.at(M0).last_aborted_offset == 5


def test_behaviour_108_deleting_the_head_of_an_open_transaction(rules: TransactionRules) -> None:
    """Retention is bounded by the end of the log, not by what is stable; the transaction stays open."""
    producer = Producer(rules, 2)
    producer.write(M0, 4)
    rules.run(DeleteRecords(M0, 2, 0, 0))
    assert rules.at(M0).last_stable_offset == 2
    producer.commit()
    assert (rules.at(M0).last_stable_offset, rules.at(M0).high_watermark) == (5, 5)
    assert rules.closed()[-1].first_offset == 0


def test_the_last_stable_offset_behind_a_deleted_head(rules: TransactionRules) -> None:
    earlier, later = two(rules)
    earlier.write(M0, 2)
    later.write(M0)
    rules.run(DeleteRecords(M0, -1))
    later.commit()
    assert rules.at(M0).last_stable_offset == 3 == rules.closed()[-1].last_stable_offset
    earlier.abort()
    assert rules.at(M0).last_stable_offset == 5


# Markers by request.


def marker(
    rules: TransactionRules,
    producer: Producer,
    epoch: int,
    *,
    coordinator: int = 1,
    commit: bool = False,
    version: int = 0,
    key: PartitionKey = M0,
) -> object:
    return rules.run(
        WriteMarker(key, producer.producer_id, epoch, coordinator, commit, version, is_journal=key == J0)
    )


def test_behaviour_80_a_duplicate_marker_changes_nothing_that_readers_see(rules: TransactionRules) -> None:
    producer = Producer(rules, 2)
    producer.write(M0)
    producer.commit()
    before = rules.at(M0)
    for _ in range(2):
        assert marker(rules, producer, producer.epoch, version=2, commit=True) is ErrorCode.NONE
    after = rules.at(M0)
    assert (after.open_transactions, after.last_aborted_offset) == ((), before.last_aborted_offset)
    assert after.last_stable_offset == after.high_watermark
    assert len(rules.closed()) == 1
    producer.write(M0)
    producer.commit()


@pytest.mark.parametrize(
    ("epoch", "version", "code"),
    [(0, 0, 47), (1, 0, 0), (2, 0, 0), (1, 1, 0), (0, 2, 47), (1, 2, 47), (2, 2, 0)],
)
def test_behaviour_81_the_epoch_of_a_marker_while_a_transaction_is_open(
    rules: TransactionRules, epoch: int, version: int, code: int
) -> None:
    """Version 2 ends every transaction with a higher epoch, so the same one is an old marker."""
    Producer(rules)
    producer = Producer(rules)
    assert producer.epoch == 1
    producer.write(M0)
    assert marker(rules, producer, epoch, version=version) == code
    assert bool(rules.at(M0).open_transactions) is bool(code)


@pytest.mark.parametrize(("epoch", "code"), [(0, 47), (1, 0), (2, 0)])
@pytest.mark.parametrize("version", [0, 2])
def test_behaviour_81_and_while_none_is_open(
    rules: TransactionRules, epoch: int, code: int, version: int
) -> None:
    """Catalogue 13: the same marker once more is a retry."""
    Producer(rules)
    producer = Producer(rules)
    producer.write(M0)
    producer.commit()
    assert marker(rules, producer, epoch, version=version) == code


def test_behaviour_81_the_last_epoch_may_come_again(rules: TransactionRules) -> None:
    producer = Producer(rules)
    producer.write(M0)
    assert marker(rules, producer, model.EPOCH_MAX, version=2) is ErrorCode.NONE
    assert marker(rules, producer, model.EPOCH_MAX, version=2) is ErrorCode.NONE


def test_behaviour_81_an_older_coordinator_is_fenced(rules: TransactionRules) -> None:
    producer = Producer(rules)
    producer.write(M0)
    assert marker(rules, producer, 0, coordinator=5) is ErrorCode.NONE
    assert marker(rules, producer, 0, coordinator=4) is ErrorCode.TRANSACTION_COORDINATOR_FENCED
    assert marker(rules, producer, 0, coordinator=5) is ErrorCode.NONE


def test_a_marker_of_an_unknown_producer_fences(rules: TransactionRules) -> None:
    producer = Producer(rules, 2)
    assert marker(rules, producer, 3) is ErrorCode.NONE
    assert rules.remembered(M0, producer.producer_id).epoch == 3
    assert rules.closed() == []
    assert producer.send(M0).error is ErrorCode.INVALID_PRODUCER_EPOCH


def test_a_marker_for_nothing_that_exists(rules: TransactionRules) -> None:
    producer = Producer(rules)
    unknown = PartitionKey(bytes(16), 0)
    assert marker(rules, producer, 0, key=unknown) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_behaviour_101_an_administrator_ends_a_hanging_transaction(rules: TransactionRules) -> None:
    """With the values that DescribeProducers shows; the coordinator epoch is -1 before the first marker."""
    producer = Producer(rules)
    producer.write(M0, 2)
    shown = rules.remembered(M0, producer.producer_id)
    assert marker(rules, producer, shown.epoch, coordinator=shown.coordinator_epoch) is ErrorCode.NONE
    assert rules.at(M0).last_stable_offset == 3
    assert rules.at(M0).last_aborted_offset == 2
    # The producer does not know. It goes on, and its end finds what there is.
    producer.send(M0)
    producer.commit()
    assert rules.at(M0).last_stable_offset == rules.at(M0).high_watermark


@pytest.mark.parametrize("commit", [True, False])
def test_a_marker_in_a_journal_drops_or_shows_what_is_staged(rules: TransactionRules, commit: bool) -> None:
    producer = Producer(rules)
    producer.write(J0, 2)
    assert marker(rules, producer, producer.epoch, commit=commit, key=J0) is ErrorCode.NONE
    assert rules.at(J0).high_watermark == (2 if commit else 0), "a journal has no markers in it"
    assert marker(rules, producer, producer.epoch, commit=commit, key=J0) is ErrorCode.NONE
    assert rules.at(J0).high_watermark == (2 if commit else 0)


# Journal visibility.


@pytest.mark.parametrize("version", [1, 2])
def test_staged_batches_have_no_offset_and_hold_nobody(rules: TransactionRules, version: int) -> None:
    producer = Producer(rules, version)
    assert producer.write(J0, 3) == -1
    assert rules.plain(J0).base_offset == 0
    assert (rules.at(J0).last_stable_offset, rules.at(J0).high_watermark) == (1, 1)
    producer.send(J0, 2)
    assert rules.plain(J0).base_offset == 1
    producer.commit()
    committed = [fact for fact in rules.facts if isinstance(fact, StagedCommitted)]
    assert [(fact.base_offset, fact.last_offset) for fact in committed] == [(2, 6)]
    assert (rules.at(J0).last_stable_offset, rules.at(J0).high_watermark) == (7, 7)
    assert rules.markers == []
    assert rules.plain(J0).base_offset == 7


def test_journals_are_in_the_order_of_commits(rules: TransactionRules) -> None:
    earlier, later = two(rules)
    earlier.write(J0, 2)
    later.write(J0, 3)
    later.commit()
    earlier.commit()
    committed = [fact for fact in rules.facts if isinstance(fact, StagedCommitted)]
    assert [(fact.producer_id, fact.base_offset) for fact in committed] == [
        (later.producer_id, 0),
        (earlier.producer_id, 3),
    ]


def test_an_aborted_journal_leaves_no_trace(rules: TransactionRules) -> None:
    producer = Producer(rules, 2)
    rules.plain(J0)
    before = rules.at(J0)
    producer.write(J0, 3)
    producer.abort()
    assert rules.at(J0) == before
    assert rules.remembered(J0, producer.producer_id).staged is None


def test_the_next_transaction_stages_anew(rules: TransactionRules) -> None:
    producer = Producer(rules, 1)
    for number in range(3):
        producer.write(J0, 2)
        producer.send(J0)
        staged = rules.remembered(J0, producer.producer_id).staged
        assert staged is not None
        assert (staged.batches, staged.offsets, staged.size_bytes) == (2, 3, 300)
        producer.finish(commit=number != 1)
    assert (rules.at(J0).high_watermark, rules.at(J0).size_bytes) == (6, 600)
    holds_together(rules)


def test_one_transaction_over_both_visibilities(rules: TransactionRules) -> None:
    producer = Producer(rules, 2)
    for commit in (True, False, True):
        producer.write(M0)
        producer.write(J0)
        producer.finish(commit=commit)
        holds_together(rules)
    assert rules.at(M0).high_watermark == 6
    assert rules.at(J0).high_watermark == 2
