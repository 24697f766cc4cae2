"""No write outside a transaction (KIP-890, part 1). Behaviours 61 to 69."""

import pytest
from support.brokers.peer import PEER
from support.clients.raw import RawClient, batch
from support.clients.raw_log import Log
from support.clients.raw_transactions import RawProducer, describe, ours, produce_in, soon

import semel
from semel.wire.errors import ErrorCode
from semel.wire.messages import APIS

NOT_IN_IT = {9: 48, 10: 48, 11: 120}
"""By the version of Produce: TRANSACTION_ABORTABLE came with 11."""

ORDERED = {ErrorCode.NONE, ErrorCode.INVALID_TXN_STATE, ErrorCode.INVALID_PRODUCER_EPOCH}
if PEER:
    # Before its markers are written, Kafka says "try again": by 51, to older clients by 19. We have no such
    # moment.
    ORDERED |= {ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.NOT_ENOUGH_REPLICAS}


@pytest.mark.parametrize("version", [3, 7, 8, 9, 10, 11])
def test_behaviour_61_a_partition_must_have_been_added(first: RawProducer, log: Log, version: int) -> None:
    answer = first.send(log.topic, b"v", version=version)
    assert answer.error_code == (120 if version == 11 else 48)
    assert answer.base_offset == -1
    assert (log.stable, log.end) == (0, 0)
    assert describe(log.client, first.transactional_id).transaction_state == "Empty"


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("version", [9, 10, 11])
def test_behaviour_62_a_late_write_opens_nothing(
    first: RawProducer, log: Log, version: int, commit: bool
) -> None:
    first.add(log.topic)
    first.end(commit=commit)
    state = "CompleteCommit" if commit else "CompleteAbort"
    soon(lambda: describe(log.client, first.transactional_id).transaction_state == state)
    answer = first.send(log.topic, b"late", version=version)
    assert answer.error_code == NOT_IN_IT[version]
    assert log.is_settled
    assert log.values() == []


def test_behaviour_62_also_not_when_the_transaction_had_written_there(first: RawProducer, log: Log) -> None:
    first.write(log.topic, b"in time")
    first.commit()
    soon(lambda: log.is_settled)
    assert first.send(log.topic, b"late").error_code == ErrorCode.INVALID_TXN_STATE
    assert log.is_settled
    assert log.values() == [b"in time"]


def test_behaviour_63_later_batches_of_the_transaction_follow(producer: RawProducer, log: Log) -> None:
    producer.write(log.topic, b"0")
    for number in range(1, 10):
        assert producer.send(log.topic, b"%d" % number).base_offset == number
    producer.commit()
    soon(lambda: log.values() == [b"%d" % number for number in range(10)])


def test_behaviour_64_the_coordinator_is_never_out_of_reach(producer: RawProducer, log: Log) -> None:
    """It is in the same step as the write: what is asked first is answered first, without a retry (19)."""
    client = log.client
    for number in range(20):
        if producer.generation == 1:
            assert producer.add(log.topic) == [ErrorCode.NONE]
        assert producer.send(log.topic, b"%d" % number).error_code == ErrorCode.NONE
        producer.commit()
    soon(lambda: len(Log(client, log.topic).values()) == 20)


@ours
def test_behaviour_65_verification_can_be_turned_off() -> None:
    settings = {"transaction.partition.verification.enable": False}
    with semel.embedded(settings=settings) as broker, RawClient(broker.bootstrap_servers) as client:
        client.create_topic("t")
        log = Log(client, "t")
        unverified = RawProducer(client, generation=1)
        assert unverified.send("t", b"unverified").error_code == ErrorCode.NONE
        second = RawProducer(client, generation=2)
        second.write("t", b"added")
        assert describe(client, second.transactional_id).transaction_state == "Ongoing"
        second.commit()
        # Nobody hangs: what was written without being added is in the transaction all the same.
        unverified.commit()
        assert log.is_settled
        assert log.values() == [b"unverified", b"added"]


@pytest.mark.parametrize("generation", [1, 2])
def test_behaviour_66_an_end_and_a_write_at_the_same_moment_have_an_order(
    bootstrap: str, client: RawClient, log: Log, generation: int
) -> None:
    """The write is in the transaction or refused; nothing between can leave one open."""
    with RawClient(bootstrap) as other:
        for _ in range(10):
            producer = RawProducer(client, generation=generation)
            producer.write(log.topic, b"v")
            late = produce_in(producer.transactional_id, log.topic, producer.batch(b"late", sequence=1))
            version = 9 if generation == 1 else 12
            other.send(late, version)
            producer.commit()
            frame = other.receive_frame()
            assert frame is not None
            answer = APIS[0].response.decode(frame, version, 5)
            code = answer.responses[0].partition_responses[0].error_code  # type: ignore[attr-defined]
            assert code in ORDERED
            soon(lambda: log.is_settled)


def test_behaviour_67_nothing_overtakes_a_batch_that_was_refused(second: RawProducer, log: Log) -> None:
    """Of a pipeline only what follows the log is taken: sequence 5 has to wait for 0."""
    five = [b"v"] * 5
    assert second.send(log.topic, b"w", sequence=5).error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert second.send(log.topic, *five, sequence=0).base_offset == 0
    assert second.send(log.topic, b"w", sequence=5).base_offset == 5


def test_behaviour_68_a_plain_batch_inside_a_transaction_is_refused(producer: RawProducer, log: Log) -> None:
    producer.write(log.topic, b"v")
    plain = batch(1, producer_id=producer.producer_id, producer_epoch=producer.epoch)
    assert log.client.produce(log.topic, plain).error_code == ErrorCode.INVALID_TXN_STATE
    assert log.end == 1
    producer.commit()


def test_behaviour_69_a_transactional_batch_without_an_id_is_refused(producer: RawProducer, log: Log) -> None:
    request = produce_in(None, log.topic, producer.batch(b"a", sequence=0))
    (answer,) = log.client.ask(request, 9).responses[0].partition_responses
    assert answer.error_code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    assert log.end == 0


@pytest.mark.parametrize("version", [9, 12])
def test_a_zombie_cannot_write_where_the_log_does_not_know_it(
    client: RawClient, log: Log, version: int
) -> None:
    """The partition has never heard of the producer, the coordinator has."""
    zombie = RawProducer(client, generation=1 if version == 9 else 2)
    RawProducer(client, zombie.transactional_id)
    answer = zombie.send(log.topic, b"v", version=version)
    assert answer.error_code == ErrorCode.INVALID_PRODUCER_EPOCH
    assert log.end == 0
