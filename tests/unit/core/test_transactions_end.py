"""The end of a transaction, as rules: the tables of both generations, and what one decision holds."""

from typing import Any

import pytest
from support.models.facts import kinds_of
from support.models.transaction_rules import (
    ID,
    J0,
    J1,
    M0,
    M1,
    M2,
    Producer,
    TransactionRules,
    holds_together,
)

from semel.core.facts import BatchAppended, Put, StagedCommitted, StagedDropped
from semel.core.topics import DeleteTopic
from semel.core.transactions import model
from semel.core.transactions.commands import ChangeFeature, EndTransaction, ProducerGiven
from semel.core.types import (
    ErrorCode,
    OffsetKey,
    PartitionKey,
    PendingKey,
    ProducerKey,
    TransactionKey,
    TransactionState,
)

EMPTY, ONGOING = TransactionState.EMPTY, TransactionState.ONGOING
COMMITTED, ABORTED = TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT
OK, STATE, FENCED, UNMAPPED = 0, 48, 90, 49
LAST = model.EPOCH_MAX - 1


@pytest.fixture
def rules() -> TransactionRules:
    return TransactionRules()


def in_state(rules: TransactionRules, state: TransactionState, version: int) -> Producer:
    """A producer with something before, so that there is an epoch before the current one."""
    producer = Producer(rules, version)
    producer.take(rules.init())
    producer.take(rules.init(pair=producer.pair))
    if state is not EMPTY:
        producer.write(M0)
    if state is COMMITTED:
        producer.commit()
    if state is ABORTED:
        producer.abort()
    assert rules.state_of() is state
    return producer


@pytest.mark.parametrize(
    ("state", "commit", "code", "becomes"),
    [
        (EMPTY, True, STATE, EMPTY),
        (EMPTY, False, STATE, EMPTY),
        (ONGOING, True, OK, COMMITTED),
        (ONGOING, False, OK, ABORTED),
        (COMMITTED, True, OK, COMMITTED),
        (COMMITTED, False, STATE, COMMITTED),
        (ABORTED, True, STATE, ABORTED),
        (ABORTED, False, OK, ABORTED),
    ],
)
def test_behaviour_36_37_the_table_of_the_first_generation(
    rules: TransactionRules, state: TransactionState, commit: bool, code: int, becomes: TransactionState
) -> None:
    producer = in_state(rules, state, 1)
    markers = len(rules.markers)
    assert producer.end(commit=commit).error == code
    assert rules.state_of() is becomes
    assert rules.pair() == producer.pair, "the pair does not move"
    assert len(rules.markers) == markers + (state is ONGOING)


@pytest.mark.parametrize("state", list(TransactionState))
@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize(
    ("by", "other", "code"), [(-1, 0, FENCED), (1, 0, FENCED), (0, 99, UNMAPPED), (1, 99, UNMAPPED)]
)
def test_behaviour_30_31_other_pairs_end_nothing(
    rules: TransactionRules, state: TransactionState, commit: bool, by: int, other: int, code: int
) -> None:
    """Catalogue 3: also an epoch ahead is refused."""
    producer = in_state(rules, state, 1)
    before = rules.transaction()
    pair = (producer.producer_id + other, producer.epoch + by)
    assert producer.end(commit=commit, pair=pair).error == code
    assert rules.transaction() == before


@pytest.mark.parametrize("version", [1, 2])
def test_behaviour_31_an_unknown_id(rules: TransactionRules, version: int) -> None:
    assert rules.end((0, 0), True, version, "nobody") == ProducerGiven(ErrorCode.INVALID_PRODUCER_ID_MAPPING)


CURRENT, BEFORE = 0, -1


@pytest.mark.parametrize(
    ("state", "shown", "commit", "code", "becomes"),
    [
        (EMPTY, BEFORE, False, FENCED, EMPTY),
        (EMPTY, CURRENT, False, OK, ABORTED),
        (EMPTY, BEFORE, True, FENCED, EMPTY),
        (EMPTY, CURRENT, True, STATE, EMPTY),
        (ONGOING, BEFORE, False, FENCED, ONGOING),
        (ONGOING, CURRENT, False, OK, ABORTED),
        (ONGOING, BEFORE, True, FENCED, ONGOING),
        (ONGOING, CURRENT, True, OK, COMMITTED),
        (ABORTED, BEFORE, False, OK, ABORTED),
        (ABORTED, CURRENT, False, OK, ABORTED),
        (ABORTED, BEFORE, True, STATE, ABORTED),
        (ABORTED, CURRENT, True, STATE, ABORTED),
        (COMMITTED, BEFORE, False, STATE, COMMITTED),
        (COMMITTED, CURRENT, False, OK, ABORTED),
        (COMMITTED, BEFORE, True, OK, COMMITTED),
        (COMMITTED, CURRENT, True, STATE, COMMITTED),
    ],
)
def test_behaviour_51_to_55_the_table_of_the_second_generation(
    rules: TransactionRules,
    state: TransactionState,
    shown: int,
    commit: bool,
    code: int,
    becomes: TransactionState,
) -> None:
    producer = in_state(rules, state, 2)
    answer = producer.end(commit=commit, pair=(producer.producer_id, producer.epoch + shown))
    bumps = code == OK and shown == CURRENT
    expected = (producer.producer_id, producer.epoch + bumps)
    assert answer.error == code
    if code == OK:
        assert (answer.producer_id, answer.epoch) == expected
    assert (rules.state_of(), rules.pair()) == (becomes, expected)
    holds_together(rules)


@pytest.mark.parametrize("state", list(TransactionState))
@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("by", [-2, 1])
def test_behaviour_55_other_epochs_are_fenced(
    rules: TransactionRules, state: TransactionState, commit: bool, by: int
) -> None:
    producer = in_state(rules, state, 2)
    pair = (producer.producer_id, producer.epoch + by)
    assert producer.end(commit=commit, pair=pair).error == FENCED


@pytest.mark.parametrize("commit", [True, False])
def test_behaviour_49_the_second_generation_moves_on_at_every_end(
    rules: TransactionRules, commit: bool
) -> None:
    producer = Producer(rules, 2)
    pid, epoch = producer.pair
    producer.write(M0, count=3)
    assert producer.end(commit=commit) == ProducerGiven(ErrorCode.NONE, pid, epoch + 1)
    ((_, offset, marked, said),) = rules.markers
    assert (offset, marked, said.commit, said.coordinator_epoch) == (3, epoch + 1, commit, rules.state.term)
    remembered = rules.remembered(M0, pid)
    assert (remembered.epoch, remembered.batches) == (epoch + 1, ())
    producer.pair = (pid, epoch + 1)
    assert producer.send(M0, sequence=3).error is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert producer.send(M0, sequence=0).error is ErrorCode.NONE


def test_behaviour_40_the_first_generation_keeps_epoch_and_sequences(rules: TransactionRules) -> None:
    producer = Producer(rules)
    for number in range(3):
        assert producer.write(M0) == 2 * number
        producer.commit()
    assert producer.sequences == {M0: 3}
    assert {epoch for _, _, epoch, _ in rules.markers} == {producer.epoch}
    assert len(rules.remembered(M0, producer.producer_id).batches) == 3


@pytest.mark.parametrize("commit", [True, False])
def test_behaviour_56_the_last_epoch_leads_to_a_new_producer_id(
    rules: TransactionRules, commit: bool
) -> None:
    producer = Producer(rules, 2)
    rules.become(Put.of(rules.transaction().but(epoch=LAST)))
    producer.pair = old = (producer.producer_id, LAST)
    producer.write(M0)
    answer = producer.end(commit=commit)
    assert (answer.error, answer.epoch) == (ErrorCode.NONE, 0)
    assert answer.producer_id != old[0]
    assert [epoch for _, _, epoch, _ in rules.markers] == [model.EPOCH_MAX]
    assert producer.end(commit=commit, pair=old) == answer, "the retry"
    assert producer.end(commit=not commit, pair=old).error is ErrorCode.INVALID_TXN_STATE
    producer.take(answer)
    assert producer.add(M1) is ErrorCode.NONE, "nothing has to complete first"
    producer.write(M0)
    assert producer.end(commit=commit, pair=old).error is not ErrorCode.NONE, "no longer a retry"
    producer.commit()
    holds_together(rules)


def test_behaviour_38_a_retry_writes_nothing(rules: TransactionRules) -> None:
    """Catalogue 29 and 35: the outcome is remembered, and there is one marker."""
    for version, transactional_id in ((1, "one"), (2, "two")):
        producer = Producer(rules, version, transactional_id)
        producer.write(M0)
        command = EndTransaction(transactional_id, *producer.pair, True, version)
        first = rules.run(command)
        again = rules.decide(command)
        assert (again.answer, again.facts, again.batches) == (first, (), ())


def test_behaviour_39_everything_ends_in_one_decision(rules: TransactionRules) -> None:
    producer = Producer(rules, 2)
    for key in (M0, M1, J0):
        producer.write(key)
    producer.write_offset(4)
    producer.write_offset(5, group_id="h")
    decision = rules.decide(EndTransaction(ID, *producer.pair, True, 2))
    assert not decision.defers_sync
    kinds = kinds_of(decision.facts)
    closing = [fact.closes for fact in decision.facts if isinstance(fact, BatchAppended)]
    assert all(closing)
    assert len(closing) == len(decision.batches) == 2
    assert kinds.count(StagedCommitted) == 1
    assert kinds.count(ProducerKey) == 3
    assert kinds.count(OffsetKey) == kinds.count(PendingKey) == 2
    assert kinds.count(TransactionKey) == 1
    rules.take(decision)
    assert (rules.committed(), rules.committed(group_id="h")) == (4, 5)
    holds_together(rules)


def test_what_an_abort_drops(rules: TransactionRules) -> None:
    producer = Producer(rules, 2)
    producer.write(M0, 2)
    producer.write(J0, 2)
    producer.write_offset(4)
    producer.abort()
    assert (rules.count(StagedDropped), rules.count(StagedCommitted), rules.count(OffsetKey)) == (
        1,
        0,
        0,
    )
    assert (rules.committed(), rules.pending()) == (None, ())
    assert rules.at(M0).last_aborted_offset == 2
    assert rules.at(J0).high_watermark == 0
    holds_together(rules)


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("commit", [True, False])
def test_no_marker_where_nothing_was_written(rules: TransactionRules, version: int, commit: bool) -> None:
    """Catalogue 71: a client took a lone abort marker for the end of another transaction's records."""
    producer = Producer(rules, version)
    assert producer.add(M0, M1, J0) is ErrorCode.NONE
    producer.send(M1)
    producer.finish(commit=commit)
    assert [key for key, *_ in rules.markers] == [M1]
    assert (rules.at(M0).high_watermark, rules.at(J0).high_watermark) == (0, 0)


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("commit", [True, False])
def test_behaviour_73_a_deleted_topic_does_not_hold_a_transaction(
    rules: TransactionRules, version: int, commit: bool
) -> None:
    """Catalogue 26."""
    producer = Producer(rules, version)
    producer.write(M0)
    producer.write(J0)
    producer.write_offset(3)
    rules.run(DeleteTopic("marked"))
    producer.finish(commit=commit)
    assert rules.state_of() is (COMMITTED if commit else ABORTED)
    assert rules.markers == []
    assert rules.at(J0).high_watermark == (1 if commit else 0)
    assert rules.committed() is None, "its offsets went with the topic"


def test_ends_of_several_producers_do_not_touch_each_other(rules: TransactionRules) -> None:
    """Catalogue 14, 24, 25: markers of another transaction, or only the first of two."""
    producers = [Producer(rules, 1 + number % 2, f"id-{number}") for number in range(4)]
    for producer in producers:
        for key in (M0, M1, M2, J0, J1):
            producer.write(key)
    for number, producer in enumerate(producers):
        producer.finish(commit=number % 2 == 0)
        holds_together(rules)
    by_partition: dict[PartitionKey, list[tuple[int, bool]]] = {}
    for key, _, _, said in rules.markers:
        by_partition.setdefault(key, []).append((said.coordinator_epoch, said.commit))
    assert by_partition == {key: [(1, True), (1, False)] * 2 for key in (M0, M1, M2)}
    assert rules.at(J0).high_watermark == 2


def test_an_abort_right_after_a_commit(rules: TransactionRules) -> None:
    """Catalogue 10: a healthy producer was fenced by its own empty abort."""
    producer = Producer(rules, 2)
    for _ in range(3):
        producer.write(M0)
        producer.commit()
        producer.abort()
        producer.abort()
    assert [said.commit for *_, said in rules.markers] == [True] * 3


@pytest.mark.parametrize("level", [0, 1, 2])
def test_behaviour_57_what_a_producer_can_do_after_the_broker_aborted(
    rules: TransactionRules, level: int
) -> None:
    rules.run(ChangeFeature(level))
    outcome: dict[str, Any] = {}
    for what in ("produce", "abort", "commit", "init", "first"):
        producer = Producer(rules, 1 if what == "first" else 2, what)
        producer.write(M0)
        assert rules.abort_open(what) is True
        pid, epoch = producer.pair
        moved = ProducerGiven(ErrorCode.NONE, pid, epoch + 1)
        if what == "produce":
            assert producer.send(M0).error is ErrorCode.PRODUCER_FENCED
            assert rules.pair(what) == (pid, epoch + 1)
        elif what == "init":
            outcome[what] = rules.init(what, producer.pair) == moved
        elif what == "abort":
            outcome[what] = producer.end(commit=False) == moved
        else:
            outcome[what] = producer.end(commit=True).error
    if level == 2:
        assert outcome == {"abort": True, "commit": STATE, "init": True, "first": FENCED}
    else:
        assert outcome == {"abort": False, "commit": FENCED, "init": False, "first": FENCED}
    holds_together(rules)


def test_half_a_transaction_is_not_committed_after_a_timeout(rules: TransactionRules) -> None:
    """Catalogue 4: the producer went on in a new implicit transaction with the epoch it had."""
    for version in (1, 2):
        producer = Producer(rules, version, f"id-{version}")
        producer.write(M0)
        rules.abort_open(producer.transactional_id)
        assert producer.send(M1).error is ErrorCode.PRODUCER_FENCED
        assert producer.add(M1) is ErrorCode.PRODUCER_FENCED
        assert producer.end(commit=True).error is not ErrorCode.NONE
    assert rules.at(M1).high_watermark == 0


def test_a_transaction_is_of_the_generation_that_ends_it(rules: TransactionRules) -> None:
    """The version is that of the requests, not of the id."""
    producer = Producer(rules, 1)
    producer.write(M0)
    producer.commit()
    assert rules.transaction().version == 1
    producer.version = 2
    producer.write(M0)
    producer.commit()
    assert (rules.transaction().version, producer.epoch) == (2, 1)
    producer.version = 1
    producer.write(M0)
    producer.commit()
    assert (rules.transaction().version, producer.epoch) == (1, 1)
