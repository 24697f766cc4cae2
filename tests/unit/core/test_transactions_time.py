"""Timeouts, expiry, terms and connections, as rules."""

from typing import Any

import pytest
from support.models.transaction_rules import (
    ID,
    J0,
    M0,
    M1,
    TIMEOUT_MS,
    Producer,
    TransactionRules,
    holds_together,
)

from semel.core.facts import LatestConnectionChanged
from semel.core.transactions.commands import (
    SUPERSEDED,
    AbortOpen,
    AddPartitions,
    ChangeFeature,
    DescribeTransaction,
    EndTransaction,
    ForgetTransaction,
    InitProducer,
    ProducerGiven,
)
from semel.core.types import ErrorCode, TransactionState

FENCED = ErrorCode.PRODUCER_FENCED
ABORTED, COMMITTED = TransactionState.COMPLETE_ABORT, TransactionState.COMPLETE_COMMIT


@pytest.fixture
def rules() -> TransactionRules:
    return TransactionRules()


# Timeouts.


@pytest.mark.parametrize("version", [1, 2])
def test_behaviour_70_a_transaction_ends_after_its_timeout(rules: TransactionRules, version: int) -> None:
    producer = Producer(rules, version)
    producer.write(M0)
    producer.write(J0)
    producer.write_offset(1)
    rules.now += TIMEOUT_MS
    assert rules.abort_open(overdue_only=True) is False, "not before it is over"
    rules.now += 1
    assert rules.abort_open(overdue_only=True) is True
    assert rules.state_of() is ABORTED
    assert rules.pair() == (producer.producer_id, producer.epoch + 1)
    assert [(epoch, said.commit) for _, _, epoch, said in rules.markers] == [(producer.epoch + 1, False)]
    assert rules.state.ongoing == {}
    holds_together(rules)


def test_behaviour_71_activity_does_not_move_the_deadline(rules: TransactionRules) -> None:
    producer = Producer(rules, 2)
    producer.write(M0)
    deadline = rules.state.ongoing[ID]
    for key in (M0, M1, J0, M0):
        rules.now += 1_000
        producer.write(key)
        producer.write_offset(1)
        assert rules.state.ongoing == {ID: deadline}
    producer.commit()
    assert rules.state.ongoing == {}
    producer.write(M0)
    assert rules.state.ongoing == {ID: rules.now + TIMEOUT_MS}, "the next one has its own"


def test_behaviour_72_what_was_committed_cannot_time_out(rules: TransactionRules) -> None:
    producer = Producer(rules)
    producer.write(M0)
    producer.commit()
    rules.now += 10 * TIMEOUT_MS
    assert rules.abort_open(overdue_only=True) is False
    assert rules.state_of() is COMMITTED


def test_a_timeout_that_comes_second_changes_nothing(rules: TransactionRules) -> None:
    """Catalogue 12 and 30: the decision looks again at what is true when it is made."""
    producer = Producer(rules, 2)
    producer.write(M0)
    rules.now += TIMEOUT_MS + 1
    producer.commit()
    assert rules.abort_open(overdue_only=True) is False
    producer.write(M0)
    assert rules.abort_open(overdue_only=True) is False, "nor the next transaction"
    producer.commit()
    assert [said.commit for *_, said in rules.markers] == [True, True]


@pytest.mark.parametrize("level", [0, 1, 2])
def test_behaviour_78_a_write_that_fails_uses_up_no_epoch(rules: TransactionRules, level: int) -> None:
    """Catalogue 5 and 27: what was decided and not written is as if it had not been decided."""
    rules.run(ChangeFeature(level))
    producer = Producer(rules, 2)
    producer.write(M0)
    before = rules.transaction()
    for command in (AbortOpen(ID), InitProducer(ID, 1_000), EndTransaction(ID, *producer.pair, True, 2)):
        decisions = [rules.decide(command) for _ in range(3)]
        assert decisions[0].facts
        assert decisions[1:] == decisions[:1] * 2
        assert rules.transaction() == before
    assert rules.abort_open() is True
    assert rules.pair() == (producer.producer_id, producer.epoch + 1)


def test_a_topic_may_limit_how_long_it_is_blocked(rules: TransactionRules) -> None:
    producer = Producer(rules, 2)
    started = rules.now
    producer.write(M0)
    rules.now += 100
    assert producer.send(M1, block_max_ms=500).error is ErrorCode.NONE
    assert rules.state.ongoing == {ID: started + 500}
    assert producer.send(J0, block_max_ms=9 * TIMEOUT_MS).error is ErrorCode.NONE
    assert rules.state.ongoing == {ID: started + 500}, "the smallest counts"
    first = Producer(rules, 1, "first")
    first.add(M0, block_max_ms=700)
    assert rules.state.ongoing["first"] == rules.now + 700


# Expiry of ids.


def test_behaviour_76_an_id_that_is_not_used_is_forgotten(rules: TransactionRules) -> None:
    producer = Producer(rules)
    used = rules.now
    assert rules.run(ForgetTransaction(ID, used - 1)) is False
    producer.write(M0)
    assert rules.run(ForgetTransaction(ID, used + 10)) is False, "it is open"
    rules.now += 50
    producer.commit()
    assert rules.run(ForgetTransaction(ID, rules.now - 1)) is False
    assert rules.run(ForgetTransaction(ID, rules.now)) is True
    assert rules.run(DescribeTransaction(ID)) is None
    unmapped = ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert producer.add(M0) is unmapped
    assert producer.end(commit=True).error is unmapped
    assert producer.send(M0).error is unmapped
    assert rules.run(ForgetTransaction(ID, rules.now)) is False


def test_two_instances_after_the_id_was_forgotten(rules: TransactionRules) -> None:
    """Catalogue 20: the old one must not write under what the new one has."""
    old = Producer(rules, 2)
    rules.run(ForgetTransaction(ID, rules.now))
    new = Producer(rules, 2)
    assert old.send(M0).error is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    new.write(M0)
    assert old.end(commit=True).error is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    new.commit()


# Restarts and terms.


@pytest.mark.parametrize("version", [1, 2])
def test_behaviour_74_a_restart_of_the_same_term_changes_nothing(
    rules: TransactionRules, version: int
) -> None:
    producer = Producer(rules, version)
    producer.write(M0)
    producer.write(J0)
    fresh = rules.restarted()
    producer.rules = fresh
    producer.send(M0)
    producer.send(J0)
    producer.commit()
    assert (fresh.at(M0).high_watermark, fresh.at(J0).high_watermark) == (3, 2)
    assert fresh.at(M0).last_stable_offset == 3
    holds_together(fresh)


def test_behaviour_74_retries_are_recognised_after_a_restart(rules: TransactionRules) -> None:
    """The pair before is a fact (elsewhere it is lost with the coordinator's memory)."""
    producer = Producer(rules, 2)
    producer.write(M0)
    answer = producer.end(commit=True)
    producer.rules = rules.restarted()
    assert producer.end(commit=True) == answer
    assert producer.rules.init(pair=producer.pair) == answer


def test_behaviour_79_a_restart_keeps_what_is_open(rules: TransactionRules) -> None:
    producer = Producer(rules)
    rules.plain(M0)
    producer.write(M0)
    fresh = rules.restarted()
    assert (fresh.at(M0).last_stable_offset, fresh.at(M0).high_watermark) == (1, 2)
    assert fresh.remembered(M0, producer.producer_id).transaction_first_offset == 1
    assert fresh.state.ongoing == rules.state.ongoing


@pytest.mark.parametrize("version", [1, 2])
def test_a_new_term_fences_what_was_open(rules: TransactionRules, version: int) -> None:
    """Something of it may be lost, so it must not be committed."""
    producer = Producer(rules, version)
    producer.write(M0)
    fresh = rules.restarted(term=2)
    producer.rules = fresh
    assert fresh.abort_open(before_term=2) is True
    assert fresh.state_of() is ABORTED
    assert producer.send(M0).error is FENCED
    assert producer.end(commit=True).error is not ErrorCode.NONE
    assert fresh.at(M0).last_stable_offset == fresh.at(M0).high_watermark
    ((*_, said),) = fresh.markers
    assert (said.commit, said.coordinator_epoch) == (False, 2)
    holds_together(fresh)


@pytest.mark.parametrize("version", [1, 2])
def test_a_new_term_also_refuses_work_of_which_nothing_is_known(
    rules: TransactionRules, version: int
) -> None:
    """All of the transaction may be lost, also that it began: a commit of the rest would be half of it."""
    producer = Producer(rules, version)
    fresh = rules.restarted(term=2)
    producer.rules = fresh
    fresh.abort_open(before_term=2)
    assert producer.add(M0) is FENCED
    assert producer.send(M0, version=2).error is FENCED
    assert producer.send_offset(1, version=2) is FENCED
    assert producer.end(commit=True).error is not ErrorCode.NONE
    if version == 2:
        producer.abort()
    else:
        producer.take(fresh.init(pair=producer.pair))
    producer.write(M0)
    producer.commit()
    assert fresh.at(M0).last_stable_offset == 2


def test_a_transaction_of_this_term_is_left_alone(rules: TransactionRules) -> None:
    fresh = rules.restarted(term=2)
    producer = Producer(fresh, 2)
    producer.write(M0)
    assert fresh.abort_open(before_term=2) is False
    producer.commit()


# The newest connection speaks.


def on(connection: int) -> dict[str, Any]:
    return {"connection": connection}


def test_a_late_end_of_version_1_is_superseded(rules: TransactionRules) -> None:
    """Catalogue 1: it would end the next transaction."""
    producer = Producer(rules, 1, connection=1)
    producer.add(M0, **on(1))
    producer.send(M0)
    # The answer to the first EndTxn is lost; the client asks again on another connection and goes on.
    assert producer.end(commit=True, **on(2)).error is ErrorCode.NONE
    producer.add(M0, **on(2))
    producer.send(M0)
    for commit in (True, False):
        assert producer.end(commit=commit, **on(1)) is SUPERSEDED
    assert producer.add(M1, **on(1)) is SUPERSEDED
    assert producer.add_offsets(**on(1)) is SUPERSEDED
    assert rules.transaction().partitions == (M0,)
    assert producer.end(commit=False, **on(2)).error is ErrorCode.NONE


def test_who_has_another_pair_gets_the_ordinary_error(rules: TransactionRules) -> None:
    old = Producer(rules, 1, connection=1)
    Producer(rules, 1, connection=2)
    assert old.end(commit=True, **on(1)) == ProducerGiven(FENCED)
    assert old.add(M0, **on(1)) is FENCED


def test_what_is_refused_does_not_speak(rules: TransactionRules) -> None:
    producer = Producer(rules, 1, connection=1)
    for pair in [(producer.producer_id, 7), (77, 0)]:
        assert rules.decide(EndTransaction(ID, *pair, True, 1, connection=9)).facts == ()
        assert rules.decide(AddPartitions(ID, *pair, (M0,), connection=9)).facts == ()
    assert producer.add(M0, **on(1)) is ErrorCode.NONE


def test_an_older_connection_that_begins_anew_speaks_again(rules: TransactionRules) -> None:
    """Two instances, each on a connection of its own, fencing each other in turns."""
    one = Producer(rules, 1, connection=1)
    two = Producer(rules, 1, connection=2)
    one.take(rules.init(connection=1))
    assert one.add(M0, **on(1)) is ErrorCode.NONE
    assert two.add(M0, **on(2)) is FENCED
    assert one.end(commit=True, **on(1)).error is ErrorCode.NONE


def test_version_2_needs_no_such_rule(rules: TransactionRules) -> None:
    producer = Producer(rules, 2, connection=5)
    producer.write(M0)
    late = producer.pair
    producer.take(producer.end(commit=True, **on(5)))
    producer.write(M0)
    assert producer.end(commit=False, pair=late, **on(3)) == ProducerGiven(FENCED)
    assert producer.end(commit=True, **on(3)).error is ErrorCode.NONE


def test_speakers_are_not_durable(rules: TransactionRules) -> None:
    producer = Producer(rules, 1, connection=7)
    assert rules.state.latest_connections == {ID: 7}
    assert not any(isinstance(fact, LatestConnectionChanged) for fact in rules.facts)
    producer.rules = rules.restarted()
    assert producer.add(M0, **on(1)) is ErrorCode.NONE, "a restart ends all connections"


def test_a_connection_that_is_gone(rules: TransactionRules) -> None:
    producer = Producer(rules, 1, connection=1)
    producer.add(M0, **on(1))
    producer.add(M1, **on(2))
    assert rules.abort_open(connection=1) is False, "a newer one spoke since"
    assert rules.abort_open(connection=2) is True
    assert rules.state_of() is ABORTED
