"""What a transactional producer sends."""

from typing import Any

import pytest

from semel.client import ClientError, GroupMetadata, ProducerIdAndEpoch, TransactionalProducer
from semel.client.admin.group_offsets import CommitAs
from semel.client.produce.transactional_producer import State
from semel.wire.messages import EndTxnRequest, ProduceRequest


def transact_twice(producer: TransactionalProducer, *offsets: dict[tuple[str, int], int]) -> None:
    """Two transactions, each with two batches and these offsets."""
    for _ in range(2):
        with producer.transaction():
            producer.send("t", b"a", partition=0)
            producer.flush()
            producer.send("t", b"b", partition=0)
            for each in offsets:
                producer.send_offsets(each, "g")


def test_version_2_adds_nothing_and_begins_each_transaction_with_a_new_epoch(stage: Any) -> None:
    """Behaviours 46, 49: no AddPartitionsToTxn, Produce from 12, EndTxn 5, sequences from 0."""
    producer, script, *_ = stage(2)
    transact_twice(producer, {("in", 0): 5})
    transaction = ["Produce", "TxnOffsetCommit", "Produce", "EndTxn"]
    assert script.names == ["InitProducerId", *transaction, *transaction]
    assert min(script.versions("Produce")) >= 12
    assert script.versions("EndTxn") == {5}
    assert script.versions("TxnOffsetCommit") == {5}
    assert script.headers() == [(7, 1, 0), (7, 1, 1), (7, 2, 0), (7, 2, 1)]
    assert producer.identity == ProducerIdAndEpoch(7, 3)


def test_version_1_adds_what_it_writes_to_and_counts_on(stage: Any) -> None:
    """Behaviours 40, 47: everything is added before, once; the epoch stays and sequences go on."""
    producer, script, *_ = stage(1)
    transact_twice(producer, {("in", 0): 5}, {("in", 1): 6})
    transaction = [
        "AddPartitionsToTxn",
        "Produce",
        "AddOffsetsToTxn",
        "TxnOffsetCommit",
        "TxnOffsetCommit",
        "Produce",
        "EndTxn",
    ]
    assert script.names == ["InitProducerId", *transaction, *transaction]
    assert script.versions("AddPartitionsToTxn") == {3}
    assert script.versions("Produce") == {11}
    assert script.versions("EndTxn") == {4}
    assert script.versions("TxnOffsetCommit") == {4}
    assert script.headers() == [(7, 1, 0), (7, 1, 1), (7, 1, 2), (7, 1, 3)]


@pytest.mark.parametrize("api_key", [ProduceRequest.api_key, EndTxnRequest.api_key])
def test_version_2_needs_the_requests_as_well_as_the_feature(stage: Any, api_key: int) -> None:
    assert stage(2, versions={api_key: 4}).producer.__enter__().version == 1
    assert stage(0).producer.__enter__().version == 1
    assert stage(2).producer.__enter__().version == 2


def test_the_member_is_named_with_the_offsets(stage: Any) -> None:
    producer, script, *_ = stage(2)
    with producer.transaction():
        producer.send_offsets({("in", 0): 5}, GroupMetadata("g", CommitAs("m", 3, "i")))
    request = script.sent[1].request
    named = (request.group_id, request.member_id, request.generation_id, request.group_instance_id)
    assert named == ("g", "m", 3, "i")


@pytest.mark.parametrize("version", [1, 2])
def test_an_empty_transaction_is_nobodys_business(stage: Any, version: int) -> None:
    producer, script, *_ = stage(version)
    for end in (producer.commit, producer.abort, producer.prepare):
        producer.begin()
        assert end() is None
        assert producer.state is State.READY
    producer.begin()
    producer.send("t", b"v")  # and not sent yet
    producer.abort()
    assert script.names == ["InitProducerId"]


@pytest.mark.parametrize("version", [1, 2])
def test_what_the_coordinator_cannot_do_yet_is_asked_again(stage: Any, version: int, no_pauses: None) -> None:
    """14, 15, 16 and 51 say "later", whatever was asked."""
    later = [14, 15, 16, 51]
    producer, script, *_ = stage(version)
    names = ["InitProducerId", "AddPartitionsToTxn", "AddOffsetsToTxn", "TxnOffsetCommit", "EndTxn"]
    script.errors = {name: list(later) for name in names}
    with producer.transaction():
        producer.send("t", b"v", partition=0)
        producer.send_offsets({("in", 0): 5}, "g")
    assert script.names.count("EndTxn") == 5
    assert producer.state is State.READY


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("name", ["InitProducerId", "Produce", "TxnOffsetCommit", "EndTxn"])
def test_a_lost_answer_is_asked_for_again(stage: Any, version: int, name: str) -> None:
    producer, script, broker, _ = stage(version)
    script.errors = {name: [script.LOST] * 2}
    with producer.transaction():
        producer.send("t", b"v", partition=0)
        producer.send_offsets({("in", 0): 5}, "g")
    assert script.names.count(name) == 3
    assert broker.connections >= 3
    assert len(set(script.headers())) == 1, "a batch is sent again with the same numbers"


def test_the_version_changes_between_transactions_only(stage: Any) -> None:
    scene = stage(1)
    producer = scene.begin()
    scene.broker.features = {"transaction.version": 2}
    scene.client.close()  # features are learned when a connection is made
    producer.commit()
    assert scene.script.versions("EndTxn") == {4}
    with producer.transaction():
        assert scene.script.names[-1] == "InitProducerId", "what is still under way must not fit any more"
        assert producer.version == 2
        producer.send("t", b"v", partition=0)
    assert scene.script.sent[-1].version == 5


def test_a_new_version_is_tried_again_by_the_next_begin(stage: Any) -> None:
    scene = stage(1)
    scene.begin().commit()
    scene.broker.features = {"transaction.version": 2}
    scene.client.close()
    scene.script.errors = {"InitProducerId": [scene.script.LOST] * 50}
    with scene.impatient(), pytest.raises(ClientError):
        scene.producer.begin()
    assert (scene.producer.state, scene.producer.version) == (State.READY, 1)
    scene.script.errors.clear()
    scene.begin().commit()
    assert scene.producer.version == 2
    assert scene.script.sent[-1].version == 5
