"""Two-phase commit (KIP-939), and the generation that the cluster is set to, as rules."""

from typing import Any

import pytest
from support.models.transaction_rules import ID, J0, M0, M1, Producer, TransactionRules, holds_together

from semel.core.transactions import model
from semel.core.transactions.commands import AddPartitions, ChangeFeature, ProducerGiven, ReadFeatures
from semel.core.types import ErrorCode, TransactionState

FENCED = ErrorCode.PRODUCER_FENCED
ABORTED, COMMITTED = TransactionState.COMPLETE_ABORT, TransactionState.COMPLETE_COMMIT
PREPARED: dict[str, Any] = {"is_two_phase": True, "may_two_phase": True}


@pytest.fixture
def rules() -> TransactionRules:
    return TransactionRules()


def test_behaviour_98_two_phase_commit_must_be_allowed(rules: TransactionRules) -> None:
    refused = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    assert rules.init(is_two_phase=True) == ProducerGiven(refused)
    assert rules.init(keep_prepared=True) == ProducerGiven(ErrorCode.UNSUPPORTED_VERSION)
    assert rules.init(**PREPARED).error is ErrorCode.NONE
    assert rules.init("other", timeout_ms=0, **PREPARED).error is ErrorCode.NONE, "it has no timeout"


def test_a_prepared_transaction_never_times_out(rules: TransactionRules) -> None:
    producer = Producer(rules, 2, **PREPARED)
    assert producer.send(M0, block_max_ms=5).error is ErrorCode.NONE
    assert rules.state.ongoing == {ID: -1}
    assert rules.transaction().timeout_ms == model.NEVER_MS
    rules.now += 2**40
    assert rules.abort_open(overdue_only=True) is False
    fresh = rules.restarted(term=9)
    assert fresh.abort_open(before_term=9) is False, "it is durable with every step"
    producer.rules = fresh
    producer.commit()
    assert fresh.at(M0).last_stable_offset == 2


def test_work_of_a_prepared_transaction_is_not_answered_early(rules: TransactionRules) -> None:
    producer = Producer(rules, 2, **PREPARED)
    assert not rules.decide(producer.command(M0)).defers_sync
    assert not rules.decide(producer.command(J0)).defers_sync
    assert not rules.decide(AddPartitions(ID, *producer.pair, (M0,))).defers_sync


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("version", [1, 2])
def test_another_process_ends_a_prepared_transaction(
    rules: TransactionRules, version: int, commit: bool
) -> None:
    writer = Producer(rules, version, **PREPARED)
    writer.write(M0)
    writer.write(J0)
    writer.write_offset(4)
    given = rules.init(keep_prepared=True, **PREPARED)
    assert given.error is ErrorCode.NONE
    assert (given.ongoing_producer_id, given.ongoing_epoch) == writer.pair
    assert (given.producer_id, given.epoch) == (writer.producer_id, writer.epoch + 1)
    assert rules.state_of() is TransactionState.ONGOING
    # The writer is fenced, and the new one can do nothing but end it.
    assert writer.send(M0).error is FENCED
    assert writer.end(commit=True).error is FENCED
    taker = Producer.__new__(Producer)
    taker.__dict__.update(writer.__dict__, pair=(given.producer_id, given.epoch), sequences={})
    assert taker.add(M1) is ErrorCode.INVALID_TXN_STATE
    assert taker.send(M0).error is ErrorCode.INVALID_TXN_STATE
    assert taker.send_offset(5) is ErrorCode.INVALID_TXN_STATE
    taker.finish(commit=commit)
    assert rules.state_of() is (COMMITTED if commit else ABORTED)
    assert rules.committed() == (4 if commit else None)
    assert rules.at(J0).high_watermark == (1 if commit else 0)
    taker.write(M0)
    taker.commit()
    holds_together(rules)


def test_a_takeover_can_be_taken_over(rules: TransactionRules) -> None:
    writer = Producer(rules, 2, **PREPARED)
    writer.write(M0)
    first = rules.init(keep_prepared=True, **PREPARED)
    second = rules.init(keep_prepared=True, **PREPARED)
    assert (second.ongoing_producer_id, second.ongoing_epoch) == writer.pair
    assert rules.end((first.producer_id, first.epoch), True, 2).error is FENCED
    assert rules.end((second.producer_id, second.epoch), True, 2).error is ErrorCode.NONE


def test_without_keeping_it_a_prepared_transaction_is_aborted(rules: TransactionRules) -> None:
    writer = Producer(rules, 2, **PREPARED)
    writer.write(M0)
    given = rules.init(**PREPARED)
    assert (given.error, given.epoch, given.ongoing_producer_id) == (ErrorCode.NONE, writer.epoch + 2, -1)
    assert [said.commit for *_, said in rules.markers] == [False]


def test_keeping_when_nothing_is_open(rules: TransactionRules) -> None:
    first = rules.init(keep_prepared=True, **PREPARED)
    assert (first.error, first.epoch, first.ongoing_producer_id) == (ErrorCode.NONE, 0, -1)
    second = rules.init(keep_prepared=True, **PREPARED)
    assert (second.epoch, second.ongoing_producer_id) == (1, -1)


@pytest.mark.parametrize("epochs_left", [0, 1, 2])
def test_a_takeover_with_few_epochs_left(
    rules: TransactionRules, monkeypatch: pytest.MonkeyPatch, epochs_left: int
) -> None:
    monkeypatch.setattr(model, "EPOCH_MAX", 1 + epochs_left)
    writer = Producer(rules, 2, **PREPARED)
    writer.write(M0)
    taken = [rules.init(keep_prepared=True, **PREPARED) for _ in range(3)][-1]
    assert taken.error is ErrorCode.NONE
    assert taken.epoch < model.EPOCH_MAX
    answer = rules.end((taken.producer_id, taken.epoch), True, 2)
    assert answer.error is ErrorCode.NONE
    assert answer.epoch < model.EPOCH_MAX
    assert rules.at(M0).last_stable_offset == 2
    holds_together(rules)


# The feature.


def test_behaviour_47_the_generation_of_the_cluster_can_change(rules: TransactionRules) -> None:
    producer = Producer(rules, 2)
    before = rules.run(ReadFeatures())
    assert before.transaction_version == 2
    for level in (1, 0, 2):
        assert rules.run(ChangeFeature(level)) is ErrorCode.NONE
        after = rules.run(ReadFeatures())
        assert (after.transaction_version, after.features_epoch > before.features_epoch) == (level, True)
        before = after
        producer.write(M0)
        producer.commit()
    assert rules.run(ChangeFeature(2)) is ErrorCode.NONE
    assert rules.run(ReadFeatures()) == before, "no change"
    assert rules.run(ChangeFeature(3)) is not ErrorCode.NONE
    assert rules.init("new").producer_id > producer.producer_id, "the counter is as it was"
