"""A producer begins: InitProducerId as rules. Numbers in names are those of docs/behaviours.md."""

import pytest
from support.models.transaction_rules import ID, J0, M0, M1, Producer, TransactionRules, holds_together

from semel.core.facts import ProducerIdAllocated, Put
from semel.core.transactions import model
from semel.core.transactions.commands import ChangeFeature, ForgetTransaction, InitProducer, ProducerGiven
from semel.core.types import Decision, ErrorCode, TransactionState

FENCED = ProducerGiven(ErrorCode.PRODUCER_FENCED)
LAST = model.EPOCH_MAX - 1
"""The last epoch that a client gets."""


@pytest.fixture
def rules() -> TransactionRules:
    return TransactionRules()


def given(producer_id: int, epoch: int) -> ProducerGiven:
    return ProducerGiven(ErrorCode.NONE, producer_id, epoch)


def at_epoch(rules: TransactionRules, epoch: int, version: int = 2) -> Producer:
    """A producer that has used up this many epochs."""
    producer = Producer(rules, version)
    rules.become(Put.of(rules.transaction().but(epoch=epoch)))
    producer.pair = (producer.producer_id, epoch)
    return producer


def test_behaviour_27_a_new_id_has_epoch_0_and_every_init_raises_it(rules: TransactionRules) -> None:
    first = rules.init()
    assert first == given(first.producer_id, 0)
    assert rules.init() == given(first.producer_id, 1)
    assert rules.init("other").producer_id != first.producer_id
    assert rules.state_of() is TransactionState.EMPTY


@pytest.mark.parametrize("version", [1, 2])
def test_behaviour_28_init_over_an_open_transaction_aborts_it_and_succeeds_at_once(
    rules: TransactionRules, version: int
) -> None:
    producer = Producer(rules, version)
    producer.write(M0)
    producer.write(J0)
    producer.write_offset(5)
    assert rules.init() == given(producer.producer_id, producer.epoch + 2)
    ((key, offset, epoch, said),) = rules.markers
    assert (key, offset, epoch, said.commit) == (M0, 1, producer.epoch + 1, False)
    assert (rules.state_of(), rules.transaction().partitions) == (TransactionState.EMPTY, ())
    assert (rules.at(M0).last_stable_offset, rules.at(J0).high_watermark) == (2, 0)
    assert (rules.committed(), rules.pending()) == (None, ())
    holds_together(rules)


def test_behaviour_29_the_instance_before_is_fenced(rules: TransactionRules) -> None:
    old = Producer(rules)
    old.write(M0)
    Producer(rules)
    assert old.add(M1) is ErrorCode.PRODUCER_FENCED
    assert old.add_offsets() is ErrorCode.PRODUCER_FENCED
    assert old.send(M0).error is ErrorCode.PRODUCER_FENCED
    assert old.send_offset(1) is ErrorCode.PRODUCER_FENCED
    for commit in (True, False):
        assert old.end(commit=commit) == FENCED
    assert rules.at(M0).high_watermark == 2, "the record and its marker"


@pytest.mark.parametrize("timeout_ms", [0, -1, 900_001])
def test_behaviour_41_a_timeout_out_of_range(rules: TransactionRules, timeout_ms: int) -> None:
    decision = rules.decide(InitProducer(ID, timeout_ms))
    assert decision == Decision(ProducerGiven(ErrorCode.INVALID_TRANSACTION_TIMEOUT))
    assert rules.init(timeout_ms=900_000).error is ErrorCode.NONE


def test_behaviour_42_a_producer_recovers_with_its_pair(rules: TransactionRules) -> None:
    first = rules.init()
    pair = (first.producer_id, 0)
    assert rules.init(pair=pair) == given(first.producer_id, 1)
    assert rules.init(pair=pair) == given(first.producer_id, 1), "the retry of a lost answer"
    assert rules.init(pair=(first.producer_id, 1)) == given(first.producer_id, 2)
    assert rules.init(pair=pair) == FENCED, "two epochs ago"


def test_behaviour_43_not_after_another_instance(rules: TransactionRules) -> None:
    old = Producer(rules)
    newer = Producer(rules, version=2)
    assert rules.init(pair=old.pair) == FENCED
    newer.write(M0)
    assert rules.init(pair=old.pair) == FENCED
    assert rules.state_of() is TransactionState.ONGOING, "a zombie does not abort what its successor has open"
    newer.commit()


@pytest.mark.parametrize("pair", [(99, 0), (99, LAST), (0, 5)])
def test_behaviour_43_nor_with_a_pair_of_nobody(rules: TransactionRules, pair: tuple[int, int]) -> None:
    Producer(rules)
    assert rules.init(pair=pair) == FENCED


def test_behaviour_44_after_the_id_was_forgotten_a_producer_is_new(rules: TransactionRules) -> None:
    producer = Producer(rules)
    assert rules.run(ForgetTransaction(ID, rules.now)) is True
    again = rules.init(pair=producer.pair)
    assert (again.error, again.epoch) == (ErrorCode.NONE, 0)
    assert again.producer_id != producer.producer_id


def test_behaviour_45_used_up_epochs_give_a_new_producer_id(rules: TransactionRules) -> None:
    producer = at_epoch(rules, LAST)
    rotated = rules.init(pair=producer.pair)
    assert (rotated.error, rotated.epoch) == (ErrorCode.NONE, 0)
    assert rotated.producer_id != producer.producer_id
    assert rules.init(pair=producer.pair) == rotated, "the retry"
    assert rules.init(pair=(producer.producer_id, LAST - 1)) == FENCED
    assert rules.init() == given(rotated.producer_id, 1)
    assert rules.init(pair=producer.pair) == FENCED, "another instance took over"


def test_behaviour_45_also_without_a_pair(rules: TransactionRules) -> None:
    producer = at_epoch(rules, LAST)
    rotated = rules.init()
    assert (rotated.error, rotated.epoch) == (ErrorCode.NONE, 0)
    assert rules.init(pair=producer.pair) == FENCED, "who does not show a pair leaves none to come again with"


def test_an_abort_on_the_way_may_use_up_the_last_epoch(rules: TransactionRules) -> None:
    """Catalogue 8: the abort takes one epoch and the new producer another."""
    producer = at_epoch(rules, LAST - 1)
    producer.write(M0)
    rotated = rules.init()
    assert (rotated.error, rotated.epoch) == (ErrorCode.NONE, 0)
    assert rotated.producer_id != producer.producer_id
    assert [epoch for _, _, epoch, _ in rules.markers] == [LAST]


@pytest.mark.parametrize("level", [0, 1, 2])
def test_an_abort_at_the_last_epoch(rules: TransactionRules, level: int) -> None:
    """Catalogue 9: the transaction must not stay open because there is no epoch to end it with."""
    rules.run(ChangeFeature(level))
    producer = at_epoch(rules, LAST)
    producer.write(M0)
    rotated = rules.init()
    assert rotated.error is ErrorCode.NONE
    # The broker's abort already gave a new producer id on level 2; the new instance takes its next epoch.
    assert rotated.epoch == (1 if level == 2 else 0)
    assert rotated.producer_id != producer.producer_id
    assert [epoch for _, _, epoch, _ in rules.markers] == [model.EPOCH_MAX]
    holds_together(rules)


@pytest.mark.parametrize("version", [1, 2])
def test_recovery_over_its_own_open_transaction(rules: TransactionRules, version: int) -> None:
    """The broker's abort moved the pair once; that is the answer, and the answer to the retry."""
    producer = Producer(rules, version)
    producer.write(M0)
    assert rules.init(pair=producer.pair) == given(producer.producer_id, producer.epoch + 1)
    assert rules.init(pair=producer.pair) == given(producer.producer_id, producer.epoch + 1)
    assert [epoch for _, _, epoch, _ in rules.markers] == [producer.epoch + 1]
    holds_together(rules)


@pytest.mark.parametrize("level", [0, 1])
def test_there_is_no_such_recovery_in_a_cluster_of_the_first_generation(
    rules: TransactionRules, level: int
) -> None:
    rules.run(ChangeFeature(level))
    producer = Producer(rules)
    producer.write(M0)
    assert rules.init(pair=producer.pair) == FENCED
    assert rules.state_of() is TransactionState.COMPLETE_ABORT, "it is aborted all the same"
    holds_together(rules)


def test_init_takes_the_new_timeout(rules: TransactionRules) -> None:
    Producer(rules, timeout_ms=5_000)
    assert rules.transaction().timeout_ms == 5_000
    rules.init(timeout_ms=7_000)
    assert rules.transaction().timeout_ms == 7_000


def test_a_refusal_changes_nothing(rules: TransactionRules) -> None:
    """Catalogue 5 and 6: an epoch that was raised for an answer that was an error."""
    producer = Producer(rules, 2)
    producer.write(M0)
    before = rules.transaction()
    for pair in [(99, 0), (producer.producer_id, 7)]:
        assert rules.decide(InitProducer(ID, 1_000, *pair)).facts == ()
    assert rules.transaction() == before


def test_producer_ids_are_never_given_twice(rules: TransactionRules) -> None:
    """Catalogue 21."""
    for number in range(50):
        rules.init(f"id-{number}")
        at_epoch_of = rules.transaction(f"id-{number}").but(epoch=LAST)
        rules.become(Put.of(at_epoch_of))
        rules.init(f"id-{number}")
    allocated = [fact.producer_id for fact in rules.facts if isinstance(fact, ProducerIdAllocated)]
    assert len(set(allocated)) == len(allocated) == 100


def test_every_epoch_once_around(rules: TransactionRules, monkeypatch: pytest.MonkeyPatch) -> None:
    """Catalogue 7 and 8, with an epoch space of four: whatever uses epochs up, nobody is given the last."""
    monkeypatch.setattr(model, "EPOCH_MAX", 3)
    seen: set[tuple[int, int]] = set()
    producer = Producer(rules, 2)
    for number in range(30):
        assert producer.pair not in seen
        assert producer.epoch < model.EPOCH_MAX
        seen.add(producer.pair)
        producer.write((M0, J0)[number % 2])
        if number % 5 == 0:
            producer.take(rules.init())
        elif number % 5 == 1:
            before = producer.pair
            answer = rules.init(pair=before)
            assert rules.init(pair=before) == answer
            producer.take(answer)
        elif number % 5 == 2:
            rules.abort_open()
            producer.take(producer.end(commit=False))
        else:
            before = producer.pair
            answer = producer.end(commit=bool(number % 2))
            assert producer.end(commit=bool(number % 2)) == answer
            producer.take(answer)
        holds_together(rules)
    assert rules.at(M0).last_stable_offset == rules.at(M0).high_watermark


@pytest.mark.parametrize("state", list(TransactionState))
def test_the_names_that_tools_show(state: TransactionState) -> None:
    assert state.label in ("Empty", "Ongoing", "CompleteCommit", "CompleteAbort")
