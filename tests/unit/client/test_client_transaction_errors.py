"""What a transactional producer makes of refusals, lost answers and calls that do not fit."""

from typing import Any

import pytest

from semel.client import (
    ErrorCode,
    KafkaError,
    MustAbort,
    OutcomeUnknown,
    ProducerFailed,
    ProducerFenced,
    ProducerIdAndEpoch,
    TransactionAborted,
    TransactionalProducer,
    TransactionMisuse,
)
from semel.client.produce.transactional_producer import State


def test_a_commit_without_an_answer_has_an_unknown_outcome_and_can_be_asked_again(stage: Any) -> None:
    scene = stage(2)
    producer = scene.begin()
    scene.script.errors = {"EndTxn": [scene.script.LOST] * 50}
    with scene.impatient(), pytest.raises(OutcomeUnknown) as caught:
        producer.commit()
    assert not caught.value.retriable
    with pytest.raises(TransactionMisuse):
        producer.abort()
    scene.script.errors.clear()
    producer.commit()
    assert producer.state is State.READY
    assert producer.identity == ProducerIdAndEpoch(7, 2)


def test_closing_without_knowing_the_outcome_says_so(stage: Any) -> None:
    scene = stage(2)
    producer = scene.begin()
    scene.script.errors = {"EndTxn": [scene.script.LOST] * 50}
    with scene.impatient(), pytest.raises(OutcomeUnknown):
        producer.commit()
    with scene.impatient(), pytest.raises(OutcomeUnknown):
        producer.close()


def test_an_abort_without_an_answer_can_be_asked_again(stage: Any) -> None:
    scene = stage(2)
    producer = scene.begin()
    producer.flush()
    scene.script.errors = {"EndTxn": [51] * 50}
    with scene.impatient(), pytest.raises(KafkaError) as caught:
        producer.abort()
    assert caught.value.code is ErrorCode.CONCURRENT_TRANSACTIONS
    scene.script.errors.clear()
    producer.abort()
    assert producer.state is State.READY


@pytest.mark.parametrize(("version", "then"), [(2, ["EndTxn"]), (1, ["EndTxn", "InitProducerId"])])
def test_a_refused_batch_takes_the_transaction_with_it(stage: Any, version: int, then: list[str]) -> None:
    """Version 1 needs another epoch then, because the numbers of the batch are missing in the log."""
    scene = stage(version)
    scene.script.errors = {"Produce": [ErrorCode.MESSAGE_TOO_LARGE]}
    producer = scene.begin()
    later = producer.send("t", b"v", partition=0)
    with pytest.raises(MustAbort, match="t/0"):
        producer.flush()
    for call in (producer.commit, producer.prepare, lambda: producer.send("t", b"v")):
        with pytest.raises(MustAbort):
            call()
    assert isinstance(later.error, KafkaError)
    before = len(scene.script.sent)
    producer.abort()
    assert scene.script.names[before:] == then
    assert scene.script.sent[before].request.committed is False
    if version == 1:
        renewed = scene.script.sent[-1].request
        assert (renewed.producer_id, renewed.producer_epoch) == (7, 1)
    with producer.transaction():
        producer.send("t", b"v", partition=0)
    assert scene.script.headers()[-1] == (7, 2, 0)


def test_a_block_whose_records_are_refused_is_aborted(stage: Any) -> None:
    producer, script, *_ = stage(2)
    script.errors = {"Produce": [ErrorCode.INVALID_RECORD]}
    with pytest.raises(MustAbort), producer.transaction():
        producer.send("t", b"v", partition=0)
    assert script.sent[-1].name == "EndTxn"
    assert script.sent[-1].request.committed is False
    assert producer.state is State.READY


def test_offsets_of_a_lost_membership_take_the_transaction_with_them(stage: Any) -> None:
    producer, script, *_ = stage(2)
    script.errors = {"TxnOffsetCommit": [ErrorCode.ILLEGAL_GENERATION]}
    with pytest.raises(MustAbort) as caught, producer.transaction():
        producer.send_offsets({("in", 0): 5}, "g")
    assert caught.value.code is ErrorCode.ILLEGAL_GENERATION
    assert script.sent[-1].request.committed is False


def test_an_exception_in_the_block_aborts_and_goes_on(stage: Any) -> None:
    producer, script, *_ = stage(2)

    def work() -> None:
        with producer.transaction():
            producer.send("t", b"v", partition=0)
            producer.flush()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        work()
    assert script.sent[-1].request.committed is False


def test_a_fenced_producer_stops(stage: Any) -> None:
    scene = stage(2)
    producer = scene.begin()
    scene.script.errors = {"EndTxn": [ErrorCode.PRODUCER_FENCED]}
    with pytest.raises(ProducerFenced):
        producer.commit()
    for call in (producer.commit, producer.abort, producer.begin):
        with pytest.raises(ProducerFenced):
            call()
    producer.close()


@pytest.mark.parametrize("error", [ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_ID_MAPPING])
def test_a_producer_that_ends_says_if_its_commit_may_have_happened(stage: Any, error: ErrorCode) -> None:
    lost, later = stage(2).script.LOST, ErrorCode.NOT_COORDINATOR
    for answers, is_in_doubt in (([], False), ([later], False), ([lost], True), ([lost, later], True)):
        scene = stage(2)
        producer = scene.begin()
        scene.script.errors = {"EndTxn": [*answers, error]}
        with pytest.raises((ProducerFenced, ProducerFailed)) as caught:
            producer.commit()
        assert ("its commit may have happened" in str(caught.value)) is is_in_doubt


@pytest.mark.parametrize("is_known", [False, True])
def test_a_doubt_lasts_until_the_outcome_is_known(stage: Any, is_known: bool) -> None:
    scene = stage(2)
    producer = scene.begin()
    scene.script.errors = {"EndTxn": [scene.script.LOST] * 50}
    with scene.impatient(), pytest.raises(OutcomeUnknown):
        producer.commit()
    scene.script.errors.clear()
    if is_known:
        producer.commit()
        scene.begin()
    scene.script.errors = {"EndTxn": [ErrorCode.PRODUCER_FENCED]}
    with pytest.raises(ProducerFenced) as caught:
        producer.commit()
    assert ("may have happened" in str(caught.value)) is not is_known


def test_version_1_tells_a_timeout_from_a_fence(stage: Any) -> None:
    """Both look alike at the end; whoever may still take the id was not fenced."""
    scene = stage(1)
    producer = scene.begin()
    scene.script.errors = {"EndTxn": [ErrorCode.PRODUCER_FENCED]}
    with pytest.raises(TransactionAborted, match="60000"):
        producer.commit()
    assert producer.state is State.READY
    assert producer.identity == ProducerIdAndEpoch(7, 2)
    producer = scene.begin()
    fenced = [ErrorCode.PRODUCER_FENCED]
    scene.script.errors = {"EndTxn": list(fenced), "InitProducerId": list(fenced)}
    with pytest.raises(ProducerFenced):
        producer.commit()


def test_version_2_goes_on_after_a_timeout(stage: Any) -> None:
    """Behaviour 57: the commit is refused with 48, and an abort gives the pair to go on with."""
    scene = stage(2)
    producer = scene.begin()
    scene.script.errors = {"EndTxn": [ErrorCode.INVALID_TXN_STATE]}
    with pytest.raises(TransactionAborted):
        producer.commit()
    assert producer.state is State.READY
    assert producer.identity == ProducerIdAndEpoch(7, 2)


def test_an_id_that_is_forgotten_ends_the_producer(stage: Any) -> None:
    scene = stage(2)
    producer = scene.begin()
    scene.script.errors = {"EndTxn": [ErrorCode.INVALID_PRODUCER_ID_MAPPING]}
    with pytest.raises(ProducerFailed):
        producer.commit()
    with pytest.raises(ProducerFailed):
        producer.begin()


def test_version_1_forgives_an_abort_of_nothing(stage: Any) -> None:
    """The partition was refused, so nothing was opened, and an abort is answered with 48."""
    scene = stage(1)
    refused = [ErrorCode.TOPIC_AUTHORIZATION_FAILED]
    scene.script.errors = {"AddPartitionsToTxn": refused, "EndTxn": [ErrorCode.INVALID_TXN_STATE]}
    producer = scene.begin()
    with pytest.raises(MustAbort):
        producer.commit()
    producer.abort()
    assert producer.state is State.READY


@pytest.mark.parametrize("call", ["send", "send_offsets", "flush", "prepare", "commit", "abort"])
def test_outside_a_transaction_there_is_nothing_to_do(stage: Any, call: str) -> None:
    producer, script, *_ = stage(2)
    producer.init()
    arguments = {"send": ("t", b"v"), "send_offsets": ({("in", 0): 1}, "g")}.get(call, ())
    with pytest.raises(TransactionMisuse):
        getattr(producer, call)(*arguments)
    assert script.names == ["InitProducerId"]


def test_calls_that_do_not_fit_are_refused_at_once(stage: Any) -> None:
    producer, *_ = stage(2)
    with producer.transaction():
        with pytest.raises(TransactionMisuse):
            producer.begin()
        with pytest.raises(TransactionMisuse):
            producer.init()
        with pytest.raises(TransactionMisuse, match="two_phase"):
            TransactionalProducer(producer._client, "y").resume()
    producer.close()
    with pytest.raises(TransactionMisuse):
        producer.begin()
    with pytest.raises(ValueError, match="empty"):
        TransactionalProducer(producer._client, "")
