"""The coordinator with clients of the first generation (EndTxn up to 4). Behaviours 27 to 45 and 102."""

from typing import Any

import pytest
from support.brokers.peer import PEER
from support.clients.raw import RawClient
from support.clients.raw_log import Log
from support.clients.raw_transactions import RawProducer, describe, make_topic, new_name, ours, soon
from support.waiting import until

import semel
from semel.wire.errors import ErrorCode
from semel.wire.messages.transactions import InitProducerIdRequest

PAIR_OF_NOBODY = (-1, -1)
FENCED = {0: 47, 1: 47, 2: 90, 3: 90, 4: 90}
"""By the version of AddPartitionsToTxn, AddOffsetsToTxn and EndTxn: PRODUCER_FENCED came with 2."""


def pair(answer: Any) -> tuple[int, int, int]:
    return answer.error_code, answer.producer_id, answer.producer_epoch


@pytest.mark.parametrize("version", range(6))
def test_behaviour_27_a_new_id_has_epoch_0_and_every_init_raises_it(client: RawClient, version: int) -> None:
    request = InitProducerIdRequest(transactional_id=new_name("id"), transaction_timeout_ms=60_000)
    answers = [client.ask(request, version) for _ in range(3)]
    assert [(each.error_code, each.producer_epoch) for each in answers] == [(0, 0), (0, 1), (0, 2)]
    assert len({each.producer_id for each in answers}) == 1
    found = describe(client, request.transactional_id or "")
    assert (found.error_code, found.transaction_state) == (0, "Empty")
    assert (found.producer_id, found.producer_epoch) == (answers[0].producer_id, 2)
    assert (found.transaction_timeout_ms, found.topics) == (60_000, [])


def test_behaviour_28_init_over_an_open_transaction_aborts_it_and_succeeds_at_once(
    producer: RawProducer, log: Log
) -> None:
    """Elsewhere the first answer is 51 and the second is this one."""
    producer.write(log.topic, b"lost")
    producer_id, epoch = producer.pair
    assert pair(producer.init()) == (0, producer_id, epoch + 2)
    soon(lambda: log.is_settled)
    assert log.markers() == [(1, epoch + 1, False)]
    assert log.values() == []
    found = describe(log.client, producer.transactional_id)
    assert (found.transaction_state, found.producer_epoch) == ("Empty", epoch + 2)


@pytest.mark.parametrize("version", range(4))
def test_behaviour_29_an_older_instance_is_fenced(first: RawProducer, log: Log, version: int) -> None:
    """First a transaction of it is aborted, so that the log knows of the new epoch too."""
    first.write(log.topic, b"a")
    newer = RawProducer(first.client, first.transactional_id)
    assert newer.epoch == first.epoch + 2
    assert first.add(log.topic, version=version) == [FENCED[version]]
    assert first.add_offsets(new_name("group"), version=version) == FENCED[version]
    for commit in (True, False):
        assert first.end(commit=commit, version=version).error_code == FENCED[version]
    answer = first.send(log.topic, b"b", version=9)
    assert answer.error_code == ErrorCode.INVALID_PRODUCER_EPOCH
    assert first.send_offset(new_name("group"), log.topic, 1) == ErrorCode.INVALID_PRODUCER_EPOCH


@pytest.mark.parametrize("version", range(4))
def test_behaviour_30_an_epoch_that_was_never_given_is_fenced_too(
    first: RawProducer, topic: str, version: int
) -> None:
    ahead = (first.producer_id, first.epoch + 1)
    assert first.add(topic, version=version, pair=ahead) == [FENCED[version]]
    assert first.add_offsets("g", version=version, pair=ahead) == FENCED[version]
    first.write(topic, b"a")
    assert first.end(commit=True, version=version, pair=ahead).error_code == FENCED[version]


@pytest.mark.parametrize("version", range(4))
def test_behaviour_31_another_producer_id_or_an_unknown_id(
    first: RawProducer, topic: str, version: int
) -> None:
    unmapped = ErrorCode.INVALID_PRODUCER_ID_MAPPING
    other = (first.producer_id + 1_000_000, first.epoch)
    assert first.add(topic, version=version, pair=other) == [unmapped]
    assert first.add_offsets("g", version=version, pair=other) == unmapped
    assert first.end(commit=True, version=version, pair=other).error_code == unmapped
    first.transactional_id = new_name("unknown")
    assert first.add(topic, version=version) == [unmapped]
    assert first.add_offsets("g", version=version) == unmapped
    assert first.end(commit=False, version=version).error_code == unmapped
    assert first.send(topic, b"a", version=9).error_code == unmapped


def test_behaviour_32_adding_again_changes_nothing(first: RawProducer, client: RawClient) -> None:
    topic = make_topic(client, 3)
    assert first.add(topic, 0, 1, 2) == [0, 0, 0]
    before = describe(client, first.transactional_id)
    assert first.add(topic, 2, 0) == [0, 0]
    after = describe(client, first.transactional_id)
    # A broker of a cluster follows the clock of the ledger, so the same moment is told a little differently.
    assert abs(after.transaction_start_time_ms - before.transaction_start_time_ms) < 100
    after.transaction_start_time_ms = before.transaction_start_time_ms
    assert after == before
    assert [(each.topic, sorted(each.partitions)) for each in after.topics] == [(topic, [0, 1, 2])]


def test_behaviour_33_one_unknown_partition_refuses_all(first: RawProducer, topic: str) -> None:
    missing = new_name("missing")
    assert first.add_topics({topic: [0, 7], missing: [0]}) == {
        (topic, 0): ErrorCode.OPERATION_NOT_ATTEMPTED,
        (topic, 7): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        (missing, 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
    found = describe(first.client, first.transactional_id)
    assert (found.transaction_state, found.topics) == ("Empty", [])


@pytest.mark.parametrize("name", ["__consumer_offsets", "__transaction_state"])
def test_behaviour_34_internal_topics_cannot_be_added(first: RawProducer, topic: str, name: str) -> None:
    assert first.add_topics({name: [0], topic: [0]}) == {
        (name, 0): ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        (topic, 0): ErrorCode.OPERATION_NOT_ATTEMPTED,
    }


@pytest.mark.parametrize("commit", [True, False])
def test_behaviour_35_the_next_transaction_need_not_wait(
    producer: RawProducer, log: Log, commit: bool
) -> None:
    """Elsewhere what comes right after an end is told to try again (51)."""
    for _ in range(20):
        producer.write(log.topic, b"v")
        if commit:
            producer.commit()
        else:
            producer.abort()
    soon(lambda: log.values() == [b"v"] * (20 if commit else 0) and log.end == 40)


@pytest.mark.parametrize("version", range(5))
def test_behaviour_36_an_end_can_be_repeated_but_not_changed(
    first: RawProducer, topic: str, version: int
) -> None:
    for commit in (True, False):
        first.write(topic, b"v")
        assert first.end(commit=commit, version=version).error_code == ErrorCode.NONE
        assert first.end(commit=commit, version=version).error_code == ErrorCode.NONE
        assert first.end(commit=not commit, version=version).error_code == ErrorCode.INVALID_TXN_STATE
        state = "CompleteCommit" if commit else "CompleteAbort"
        assert describe(first.client, first.transactional_id).transaction_state == state


@pytest.mark.parametrize("commit", [True, False])
def test_behaviour_37_nothing_can_be_ended_before_anything_began(first: RawProducer, commit: bool) -> None:
    assert first.end(commit=commit).error_code == ErrorCode.INVALID_TXN_STATE


def test_behaviour_38_a_retry_of_an_end_is_never_too_early(first: RawProducer, topic: str) -> None:
    """Two of them at once: both are answered with success, and there is one marker."""
    first.write(topic, b"v")
    answers = [first.end(commit=True), first.end(commit=True)]
    assert [each.error_code for each in answers] == [0, 0]
    log = Log(first.client, topic)
    soon(lambda: log.is_settled)
    assert log.markers() == [(1, first.epoch, True)]


def test_behaviour_39_what_was_committed_is_visible_when_the_answer_is_there(
    producer: RawProducer, log: Log
) -> None:
    for number in range(20):
        producer.write(log.topic, b"v")
        producer.commit()
        soon(lambda expected=number + 1: len(log.values()) == expected)  # type: ignore[misc]  # a default: mypy infers no such lambda


def test_behaviour_40_sequences_run_on_and_the_epoch_stays(first: RawProducer, log: Log) -> None:
    for number in range(3):
        first.write(log.topic, b"a", b"b")
        assert first.sequences[log.topic, 0] == 2 * (number + 1)
        first.commit()
    found = describe(first.client, first.transactional_id)
    assert found.producer_epoch == first.epoch
    first.add(log.topic)
    out_of_order = first.send(log.topic, b"c", sequence=0)
    assert out_of_order.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"transaction_timeout_ms": 0}, ErrorCode.INVALID_TRANSACTION_TIMEOUT),
        ({"transaction_timeout_ms": -1}, ErrorCode.INVALID_TRANSACTION_TIMEOUT),
        ({"transaction_timeout_ms": 900_001}, ErrorCode.INVALID_TRANSACTION_TIMEOUT),
        ({"transaction_timeout_ms": 900_000}, ErrorCode.NONE),
        ({"transactional_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"producer_id": 5}, ErrorCode.INVALID_REQUEST),
        ({"producer_epoch": 5}, ErrorCode.INVALID_REQUEST),
    ],
)
def test_behaviour_41_what_cannot_be_asked(
    client: RawClient, fields: dict[str, Any], code: ErrorCode
) -> None:
    defaults = {"transactional_id": new_name("id"), "transaction_timeout_ms": 60_000}
    answer = client.ask(InitProducerIdRequest(**{**defaults, **fields}), 4)
    assert answer.error_code == code
    if code:
        assert pair(answer)[1:] == PAIR_OF_NOBODY


def test_behaviour_42_a_producer_that_begins_anew_gets_the_next_epoch(first: RawProducer, topic: str) -> None:
    producer_id, epoch = first.pair
    assert pair(first.init(first.pair)) == (0, producer_id, epoch + 1)
    assert pair(first.init(first.pair)) == (0, producer_id, epoch + 1), "the retry does not raise it again"
    first.pair = (producer_id, epoch + 1)
    first.write(topic, b"v")
    first.commit()


@pytest.mark.parametrize(("version", "code"), [(3, 47), (4, 90), (5, 90)])
def test_behaviour_43_not_after_another_instance(first: RawProducer, version: int, code: int) -> None:
    RawProducer(first.client, first.transactional_id)
    answer = first.init(first.pair, version=version)
    assert pair(answer) == (code, *PAIR_OF_NOBODY)


@ours
def test_behaviour_44_after_the_id_was_forgotten_a_producer_begins_like_a_new_one() -> None:
    settings = {
        "transactional.id.expiration.ms": 50,
        "transaction.remove.expired.transaction.cleanup.interval.ms": 20,
    }
    with semel.embedded(settings=settings) as broker, RawClient(broker.bootstrap_servers) as client:
        producer = RawProducer(client)
        until(
            lambda: (
                describe(client, producer.transactional_id).error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
            ),
            what="the id is forgotten",
        )
        answer = producer.init(producer.pair)
        assert (answer.error_code, answer.producer_epoch) == (0, 0)
        assert answer.producer_id != producer.producer_id


def test_behaviour_102_to_fence_a_producer_is_to_init_its_id(producer: RawProducer, log: Log) -> None:
    """What an administrator does with fenceProducers and forceTerminateTransaction."""
    producer.write(log.topic, b"v")
    administrator = InitProducerIdRequest(
        transactional_id=producer.transactional_id, transaction_timeout_ms=1
    )
    answer = log.client.ask(administrator, 4)
    assert answer.error_code == (ErrorCode.CONCURRENT_TRANSACTIONS if PEER else ErrorCode.NONE)
    soon(lambda: log.is_settled)
    assert log.values() == []
    assert producer.send(log.topic, b"w").error_code == ErrorCode.INVALID_PRODUCER_EPOCH
    version = 3 if producer.generation == 1 else 5
    expected = {ErrorCode.PRODUCER_FENCED}
    if PEER and producer.generation == 2:
        expected = {ErrorCode.INVALID_TXN_STATE}
    assert producer.end(commit=True, version=version).error_code in expected
