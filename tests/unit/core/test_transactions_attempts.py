"""Attempts of a run, and the commit of several transactions in one decision, as rules."""

from typing import Any

import pytest
from support.models.facts import kinds_of
from support.models.transaction_rules import GROUP, J0, J1, M0, M1, Producer, TransactionRules, holds_together

from semel.core.facts import Put
from semel.core.transactions import attempts, model
from semel.core.transactions.attempts import BeginAttempt, CommitTransactions, TransactionsCommitted
from semel.core.transactions.commands import SUPERSEDED, EndTransaction, InitProducer, ProducerGiven
from semel.core.types import CommittedOffset, ErrorCode, OffsetKey, TransactionKey, TransactionState

DONE = TransactionsCommitted(ErrorCode.NONE)
FENCED = ErrorCode.PRODUCER_FENCED
ONGOING, ABORTED, COMMITTED = (
    TransactionState.ONGOING,
    TransactionState.COMPLETE_ABORT,
    TransactionState.COMPLETE_COMMIT,
)
DAY_MS = 86_400_000


@pytest.fixture
def rules() -> TransactionRules:
    return TransactionRules()


@pytest.fixture
def driver(rules: TransactionRules) -> Producer:
    return Producer(rules, 1, "driver")


class Attempt(Producer):
    """A producer that begins as an attempt of a run."""

    def __init__(self, driver: Producer, name: str, version: int = 2) -> None:
        self.rules, self.version, self.transactional_id = driver.rules, version, name
        self.sequences = {}
        self.take(begin(driver, name, version=version))


def begin(driver: Producer, name: str = "a", **fields: Any) -> Any:
    return driver.rules.run(BeginAttempt(name, named(driver), DAY_MS, **fields))


def named(producer: Producer) -> attempts.Producer:
    return attempts.Producer(producer.transactional_id, *producer.pair)


def commit(driver: Producer, *members: Producer, offset: int = 7, note: str = "", **fields: Any) -> Any:
    value = (OffsetKey(GROUP, "marked", 0), CommittedOffset(offset, metadata=note))
    command = CommitTransactions(named(driver), tuple(map(named, members)), GROUP, (value,), **fields)
    return driver.rules.run(command)


def unchanged(rules: TransactionRules, run: Any) -> Any:
    """What was answered, and nothing became true."""
    before = len(rules.facts)
    answer = run()
    assert len(rules.facts) == before
    return answer


@pytest.mark.parametrize("versions", [(1, 1), (2, 2), (1, 2)])
def test_several_transactions_and_offsets_have_one_outcome(
    rules: TransactionRules, driver: Producer, versions: tuple[int, int]
) -> None:
    first, second = (Attempt(driver, f"a{at}", version) for at, version in enumerate(versions))
    for each in (first, second):
        for key in (M0, M1, J0, J1):
            each.write(key, 2)
    rules.plain(M0)
    assert rules.at(M0).last_stable_offset == 0
    assert commit(driver, first, second) == DONE
    # Two markers follow each other in one partition, and staged batches do in another.
    assert [(offset, said.commit) for key, offset, _, said in rules.markers if key == M0] == [
        (5, True),
        (6, True),
    ]
    assert (rules.at(M0).last_stable_offset, rules.at(M1).last_stable_offset) == (7, 6)
    assert (rules.at(J0).high_watermark, rules.at(J1).high_watermark) == (4, 4)
    assert {rules.state_of("a0"), rules.state_of("a1")} == {COMMITTED}
    assert (rules.committed(), rules.state.ongoing) == (7, {})
    holds_together(rules)
    holds_together(rules.restarted())


def test_the_pairs_move_by_the_generation_in_which_was_written(
    rules: TransactionRules, driver: Producer
) -> None:
    first, second = Attempt(driver, "a", 1), Attempt(driver, "b", 2)
    first.write(M0)
    second.write(M0)
    assert commit(driver, first, second) == DONE
    assert rules.pair("a") == first.pair
    assert rules.pair("b") == (second.producer_id, second.epoch + 1)
    assert rules.pair("driver") == driver.pair


@pytest.mark.parametrize("version", [1, 2])
def test_a_lost_answer_is_asked_for_again(rules: TransactionRules, driver: Producer, version: int) -> None:
    attempt, empty = Attempt(driver, "a", version), Attempt(driver, "b", version)
    attempt.write(M0)
    assert commit(driver, attempt, empty) == DONE
    rules.now += 1
    before = len(rules.markers)
    for again in (rules, rules.restarted(), rules.restarted(term=9)):
        driver.rules = again
        facts = len(again.facts)
        if version == 1 and again.state.term == 9:
            # Its pair did not move, so it might have begun another one that is lost with the term.
            answer = unchanged(again, lambda: commit(driver, attempt, empty))
            assert answer.refused == (("a", FENCED), ("b", FENCED))
            continue
        assert commit(driver, attempt, empty) == DONE
        assert TransactionKey not in kinds_of(again.facts[facts:])
    assert len(rules.markers) == before
    assert rules.committed() == 7


def test_a_batch_without_records_commits_its_offsets(rules: TransactionRules, driver: Producer) -> None:
    assert commit(driver) == DONE
    assert commit(driver) == DONE
    assert rules.committed() == 7


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("how", ["timeout", "fenced", "aborted", "forgotten", "unknown", "term"])
def test_one_that_is_lost_is_named_and_nothing_changes(
    rules: TransactionRules, driver: Producer, version: int, how: str
) -> None:
    good, bad = Attempt(driver, "good", version), Attempt(driver, "bad", version)
    good.write(M0)
    bad.write(M0)
    expected = FENCED
    match how:
        case "timeout":
            rules.now += DAY_MS + 1
            assert rules.abort_open("bad", overdue_only=True)
            # A retry with the pair before is told what became of it, where the generation has one.
            expected = ErrorCode.INVALID_TXN_STATE if version == 2 else FENCED
        case "fenced":
            rules.init("bad")
        case "aborted":
            assert bad.end(commit=False).error is ErrorCode.NONE
            expected = ErrorCode.INVALID_TXN_STATE
        case "forgotten" | "unknown":
            bad.pair = (99, 0)
            expected = ErrorCode.INVALID_PRODUCER_ID_MAPPING
        case "term":
            good_of_new_term = rules.restarted(term=9)
            good.rules = bad.rules = driver.rules = rules = good_of_new_term
    answer = unchanged(rules, lambda: commit(driver, good, bad))
    assert answer.error is ErrorCode.INVALID_TXN_STATE
    refused = dict(answer.refused)
    assert refused.pop("bad") is expected
    assert refused == ({"good": FENCED} if how == "term" else {})
    assert (rules.state_of("good"), rules.committed()) == (ONGOING, None)
    holds_together(rules)


def test_offsets_that_cannot_be_committed_hold_up_the_transactions(
    rules: TransactionRules, driver: Producer
) -> None:
    attempt = Attempt(driver, "a")
    attempt.write(M0)
    answer = unchanged(rules, lambda: commit(driver, attempt, note="x" * 5_000))
    assert answer == TransactionsCommitted(ErrorCode.OFFSET_METADATA_TOO_LARGE)
    assert rules.state_of("a") is ONGOING


def test_a_run_that_is_not_the_current_one_decides_nothing_and_begins_nothing(
    rules: TransactionRules, driver: Producer
) -> None:
    attempt = Attempt(driver, "a")
    attempt.write(M0)
    newer = Producer(rules, 1, "driver")
    assert unchanged(rules, lambda: commit(driver, attempt)) == TransactionsCommitted(FENCED)
    assert unchanged(rules, lambda: begin(driver, "b")).error is FENCED
    assert begin(newer, "b").error is ErrorCode.NONE
    nobody = Producer(rules, 1, "somebody else")
    nobody.transactional_id = "never began"
    assert unchanged(rules, lambda: begin(nobody, "c")).error is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    # What the older run had open is left to the newer one: it may have been decided in the portable way.
    assert rules.state_of("a") is ONGOING
    assert commit(newer, attempt) == DONE


def test_an_attempt_is_open_from_its_beginning_and_for_long(
    rules: TransactionRules, driver: Producer
) -> None:
    Attempt(driver, "a")
    assert rules.state.ongoing == {"a": rules.now + DAY_MS}
    rules.now += DAY_MS
    assert rules.abort_open("a", overdue_only=True) is False
    rules.now += 1
    assert rules.abort_open("a", overdue_only=True) is True
    assert rules.state_of("a") is ABORTED
    holds_together(rules)


@pytest.mark.parametrize("version", [1, 2])
def test_an_attempt_that_asks_again_gets_the_same_pair_until_it_has_written(
    rules: TransactionRules, driver: Producer, version: int
) -> None:
    attempt = Attempt(driver, "a", version)
    again = unchanged(rules, lambda: begin(driver, version=version))
    assert (again.producer_id, again.epoch) == attempt.pair
    refused = ProducerGiven(ErrorCode.INVALID_TXN_STATE)
    assert unchanged(rules, lambda: begin(driver, version=3 - version)) == refused
    attempt.write(M0)
    assert unchanged(rules, lambda: begin(driver, version=version)) == refused
    assert commit(driver, attempt) == DONE
    assert unchanged(rules, lambda: begin(driver, version=version)) == refused
    rules.init("used otherwise")
    assert unchanged(rules, lambda: begin(driver, "used otherwise")) == refused


def test_what_comes_late_on_a_lost_connection_is_superseded(
    rules: TransactionRules, driver: Producer
) -> None:
    attempt = Attempt(driver, "a", 1)
    attempt.write(M0)
    assert commit(driver, attempt, connection=2) == DONE
    assert unchanged(rules, lambda: commit(driver, attempt, connection=1)) is SUPERSEDED
    assert commit(driver, attempt, connection=3) == DONE


def test_offsets_of_the_group_that_others_hold_pending_are_superseded(
    rules: TransactionRules, driver: Producer
) -> None:
    other = Producer(rules, 2, "other")
    other.write_offset(99)
    attempt = Attempt(driver, "a")
    attempt.write_offset(3, 1)
    assert commit(driver, attempt) == DONE
    assert (rules.committed(0), rules.committed(1)) == (7, 3)
    other.commit()
    assert rules.committed(0) == 7, "the later one wins"
    committed = (fact.value for fact in rules.facts if isinstance(fact, Put))
    assert [each.offset for each in committed if isinstance(each, CommittedOffset)] == [3, 7]


def test_producer_ids_that_are_used_up_are_replaced(
    rules: TransactionRules, driver: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model, "EPOCH_MAX", 1)
    members = [Attempt(driver, f"a{at}") for at in range(3)]
    for each in members:
        each.write(M0)
        each.write(J0)
    assert commit(driver, *members) == DONE
    ids = [rules.pair(each.transactional_id)[0] for each in members]
    assert len({*ids, *(each.producer_id for each in members), driver.producer_id}) == 7
    assert commit(driver, *members) == DONE
    holds_together(rules)


def test_a_run_that_has_decided_begins_no_attempt(rules: TransactionRules, driver: Producer) -> None:
    """Spark starts a copy of a slow task when the batch is nearly done; nobody would end what it opens."""
    attempt = Attempt(driver, "a")
    attempt.write(M0)
    assert begin(driver, "asked before") == begin(driver, "asked before")
    assert commit(driver, attempt) == DONE
    assert rules.state_of("driver") is COMMITTED
    for again in (rules, rules.restarted(), rules.restarted(term=9)):
        driver.rules = again
        for name in ("late", "asked before"):
            answer = unchanged(again, lambda name=name: begin(driver, name))
            assert answer.error is ErrorCode.INVALID_TXN_STATE
    driver.rules = rules
    successor = Producer(rules, 1, "driver")
    assert begin(successor, "late").error is ErrorCode.NONE


def test_a_run_decides_once(rules: TransactionRules, driver: Producer) -> None:
    """ADR 0026. A retry is answered with success; another attempt that is still open is not committed."""
    first, second = Attempt(driver, "a"), Attempt(driver, "b")
    first.write(M0)
    second.write(M0)
    assert commit(driver, first) == DONE
    assert commit(driver, first) == DONE
    refused = TransactionsCommitted(ErrorCode.INVALID_TXN_STATE, (("b", ErrorCode.INVALID_TXN_STATE),))
    assert unchanged(rules, lambda: commit(driver, second, offset=9)) == refused


def test_a_commit_of_transactions_that_is_refused_ends_no_run(
    rules: TransactionRules, driver: Producer
) -> None:
    attempt = Attempt(driver, "a")
    attempt.write(M0)
    assert commit(driver, attempt, Producer(rules, 2, "nobody")).error is ErrorCode.INVALID_TXN_STATE
    assert rules.state_of("driver") is TransactionState.EMPTY
    assert begin(driver, "late").error is ErrorCode.NONE


def test_who_had_the_id_before_is_not_told_that_its_end_was_this_one(rules: TransactionRules) -> None:
    """A run that was taken over by its successor asks for the end of its own decision, too late."""
    old = Producer(rules, 2, "driver")
    taken = rules.run(InitProducer("driver", 60_000, old.producer_id, old.epoch))
    assert taken.error is ErrorCode.NONE
    successor = attempts.Producer("driver", taken.producer_id, taken.epoch)
    assert rules.run(CommitTransactions(successor, ())) == DONE
    late = EndTransaction("driver", old.producer_id, old.epoch, is_commit=True, version=2)
    assert rules.run(late).error is FENCED
