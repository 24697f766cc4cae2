"""Transactions that are prepared by one process and ended by another."""

from typing import Any

import pytest

from semel.client import (
    ErrorCode,
    KafkaError,
    PreparedTransaction,
    ProducerFenced,
    ProducerIdAndEpoch,
    TransactionAborted,
    TransactionMisuse,
    UnsupportedRequest,
    complete_transaction,
    end_transaction,
)
from semel.wire.messages import InitProducerIdRequest


def test_a_prepared_transaction_can_only_be_ended(stage: Any) -> None:
    scene = stage(2)
    producer = scene.begin()
    prepared = producer.prepare()
    assert prepared == PreparedTransaction("x", 7, 1)
    with pytest.raises(TransactionMisuse):
        producer.send("t", b"v")
    producer.close()
    assert "EndTxn" not in scene.script.names, "closing leaves it to whoever has it"


def test_a_prepared_transaction_is_written_and_read() -> None:
    prepared = PreparedTransaction("a:b c", 12, 3)
    assert PreparedTransaction.parse(str(prepared)) == prepared
    for text in ("", "12:3", "12:3:", "x:3:a", "12:-1:a"):
        with pytest.raises(ValueError, match="PRODUCER_ID:EPOCH:ID"):
            PreparedTransaction.parse(text)


@pytest.mark.parametrize("version", [1, 2])
def test_whoever_has_the_pair_can_end(stage: Any, version: int) -> None:
    _, script, _, client = stage(version)
    end_transaction(client, "x", 12, 3, commit=True)
    (sent,) = script.sent
    assert (sent.request.producer_id, sent.request.producer_epoch, sent.request.committed) == (12, 3, True)
    assert sent.version == {1: 4, 2: 5}[version]
    for code, commit, expected in [
        (ErrorCode.INVALID_TXN_STATE, True, TransactionAborted),
        (ErrorCode.PRODUCER_FENCED, True, ProducerFenced),
        (ErrorCode.INVALID_PRODUCER_ID_MAPPING, False, ProducerFenced),
    ]:
        script.errors = {"EndTxn": [code]}
        with pytest.raises(expected):
            end_transaction(client, "x", 12, 3, commit=commit)


def test_two_phase_commit_takes_over_what_is_prepared(stage: Any) -> None:
    scene = stage(2, versions={InitProducerIdRequest.api_key: 6}, two_phase=True)
    scene.script.prepared = ProducerIdAndEpoch(12, 3)
    assert scene.producer.resume() == PreparedTransaction("x", 12, 3)
    scene.producer.commit()
    init, end = scene.script.sent
    assert init.version == 6
    assert init.request.enable2_pc
    assert init.request.keep_prepared_txn
    assert (end.request.producer_id, end.request.producer_epoch) == (7, 1)


def test_completing_says_whether_there_was_something_to_complete(stage: Any) -> None:
    _, script, _, client = stage(2, versions={InitProducerIdRequest.api_key: 6})
    prepared = PreparedTransaction("x", 12, 3)
    assert not complete_transaction(client, prepared, commit=True)
    script.prepared = ProducerIdAndEpoch(12, 3)
    assert complete_transaction(client, prepared, commit=True)
    assert complete_transaction(client, "x", commit=False)
    script.prepared = ProducerIdAndEpoch(12, 4)
    ends = script.names.count("EndTxn")
    with pytest.raises(KafkaError, match="12:4:x"):
        complete_transaction(client, prepared, commit=True)
    assert script.names.count("EndTxn") == ends


def test_a_broker_without_two_phase_commit_is_told_from_one_that_refuses(stage: Any) -> None:
    with pytest.raises(UnsupportedRequest, match="two-phase"):
        stage(2, two_phase=True).producer.init()
    scene = stage(2, versions={InitProducerIdRequest.api_key: 6}, two_phase=True)
    scene.script.errors = {"InitProducerId": [ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED]}
    with pytest.raises(KafkaError, match="two-phase"):
        scene.producer.init()
