"""Timeouts, expiry, restarts and deleted topics. Behaviours 70 to 77 and 79."""

import os
from pathlib import Path

import pytest
from support.brokers.faulty import FaultyBroker
from support.brokers.peer import PEER, Timed
from support.clients.raw import RawClient
from support.clients.raw_log import Log
from support.clients.raw_transactions import (
    RawProducer,
    committed,
    describe,
    make_topic,
    new_name,
    ours,
    producers,
    soon,
)
from support.waiting import until

import semel
from semel.wire.errors import ErrorCode
from semel.wire.messages.topics import DeleteTopicsRequest

TIMEOUT_S = 10
"""Passes when a test says so. With a peer it passes really, and a transaction writes within it."""


def test_behaviour_70_the_broker_aborts_what_takes_too_long(
    client: RawClient, log: Log, timed: Timed
) -> None:
    producer = RawProducer(client, timeout_ms=TIMEOUT_S * 1000)
    producer.write(log.topic, b"v")
    timed.passes(TIMEOUT_S)
    until(lambda: log.is_settled, what="the broker aborts")
    found = describe(client, producer.transactional_id)
    assert (found.transaction_state, found.producer_epoch) == ("CompleteAbort", producer.epoch + 1)
    assert log.markers() == [(1, producer.epoch + 1, False)]
    assert log.values() == []


def test_behaviour_71_activity_does_not_move_the_timeout(client: RawClient, log: Log, timed: Timed) -> None:
    producer = RawProducer(client, generation=2, timeout_ms=TIMEOUT_S * 1000)
    producer.write(log.topic, b"v")
    timed.passes(TIMEOUT_S / 2)
    assert producer.send(log.topic, b"v").error_code == ErrorCode.NONE
    timed.passes(TIMEOUT_S / 2)

    def is_refused() -> bool:
        return producer.send(log.topic, b"v").error_code == ErrorCode.INVALID_PRODUCER_EPOCH

    until(is_refused, what="the end of a busy transaction")
    soon(lambda: log.is_settled)


def test_a_transaction_within_its_time_is_left_alone(client: RawClient, log: Log, timed: Timed) -> None:
    """One with a short timeout ends beside it, so that the broker has looked at both."""
    patient = RawProducer(client, timeout_ms=60_000)
    patient.write(log.topic, b"v")
    topic = make_topic(client)
    hasty = RawProducer(client, generation=2, timeout_ms=TIMEOUT_S * 1000)
    hasty.write(topic, b"v")
    timed.passes(TIMEOUT_S)
    until(lambda: Log(client, topic).is_settled, what="the broker aborts the other")
    patient.commit()
    soon(lambda: log.values() == [b"v"])


@ours
def test_behaviour_72_a_commit_that_was_answered_is_never_aborted(tmp_path: Path) -> None:
    """There is no moment after the answer in which anything is left to do, also not for a timeout."""
    settings = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": 10}
    with semel.embedded(tmp_path, settings=settings) as broker:
        with RawClient(broker.bootstrap_servers) as client:
            client.create_topic("t", 3)
            producer = RawProducer(client, "id", timeout_ms=5_000)
            for index in range(3):
                producer.write("t", b"v", partition=index)
            producer.commit()
        broker.close()
    with semel.embedded(tmp_path, settings=settings) as broker, RawClient(broker.bootstrap_servers) as client:
        assert describe(client, "id").transaction_state == "CompleteCommit"
        assert [Log(client, "t", index).values() for index in range(3)] == [[b"v"]] * 3


@pytest.mark.parametrize("commit", [True, False])
def test_behaviour_73_a_deleted_topic_does_not_hold_a_transaction(
    producer: RawProducer, client: RawClient, log: Log, commit: bool
) -> None:
    doomed = make_topic(client)
    producer.write(log.topic, b"v")
    producer.write(doomed, b"v")
    (answer,) = client.ask(DeleteTopicsRequest(topic_names=[doomed], timeout_ms=10_000), 4).responses
    assert answer.error_code == ErrorCode.NONE
    if PEER:
        until(
            lambda: client.fetch(doomed).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, what="it is gone"
        )
    if commit:
        producer.commit()
    else:
        producer.abort()
    soon(lambda: log.is_settled)
    state = "CompleteCommit" if commit else "CompleteAbort"
    soon(lambda: describe(client, producer.transactional_id).transaction_state == state)
    assert log.values() == ([b"v"] if commit else [])


@ours
@pytest.mark.parametrize("generation", [1, 2])
def test_behaviour_74_a_restart_does_not_end_an_open_transaction(tmp_path: Path, generation: int) -> None:
    """A prepared one, half ended, does not exist."""
    with semel.embedded(tmp_path) as broker, RawClient(broker.bootstrap_servers) as client:
        client.create_topic("t")
        producer = RawProducer(client, "id", generation)
        producer.write("t", b"before")
        producer.write_offset("g", "t", 5)
    with semel.embedded(tmp_path) as broker, RawClient(broker.bootstrap_servers) as client:
        producer.client = client
        assert describe(client, "id").transaction_state == "Ongoing"
        assert committed(client, "g", "t", stable=True) == (ErrorCode.UNSTABLE_OFFSET_COMMIT, -1)
        assert producer.send("t", b"after").error_code == ErrorCode.NONE
        producer.commit()
        log = Log(client, "t")
        assert log.is_settled
        assert log.values() == [b"before", b"after"]
        assert committed(client, "g", "t", stable=True) == (ErrorCode.NONE, 5)


@ours
def test_behaviour_75_the_first_request_after_a_start_is_answered(tmp_path: Path) -> None:
    """There is no time of loading (14), and no other coordinator (16)."""
    with semel.embedded(tmp_path) as broker, RawClient(broker.bootstrap_servers) as client:
        client.create_topic("t")
        several = [RawProducer(client, f"id-{number}", 1 + number % 2) for number in range(20)]
        for producer in several:
            producer.write("t", b"v")
    with semel.embedded(tmp_path) as broker:
        for number, producer in enumerate(several):
            with RawClient(broker.bootstrap_servers) as client:
                producer.client = client
                if number % 4 == 0:
                    producer.take(producer.init(producer.pair))
                elif number % 4 == 1:
                    assert producer.send("t", b"w").error_code == ErrorCode.NONE
                else:
                    producer.commit()


@ours
@pytest.mark.parametrize("generation", [1, 2])
def test_behaviour_77_a_full_disk_changes_nothing_and_the_retry_works(
    tmp_path: Path, generation: int
) -> None:
    # A chunk is taken in one step, so small chunks feel a full disk soon.
    small = ("--set", "semel.chunk.bytes.max=65536")
    with FaultyBroker(tmp_path / "data", *small) as broker, RawClient(broker.bootstrap) as client:
        client.create_topic("t", 2)
        producer, other = RawProducer(client, "id", generation), RawProducer(client, "other", 2)
        logs = [Log(client, "t", index) for index in range(2)]
        for index in range(2):
            producer.write("t", b"v", partition=index)
        producer.write_offset("g", "t", 3)
        broker.fill()
        until(lambda: other.send("t", os.urandom(16_000)).error_code == ErrorCode.KAFKA_STORAGE_ERROR)
        for _ in range(3):
            assert producer.end(commit=True).error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
            assert describe(client, "id").transaction_state == "Ongoing"
            assert [log.values() for log in logs] == [[], []]
        broker.make_room()
        producer.commit()
        other.abort()
        assert [log.values() for log in logs] == [[b"v"], [b"v"]]
        assert committed(client, "g", "t", stable=True) == (ErrorCode.NONE, 3)
        assert [len(log.markers()) for log in logs] == [2, 1]


@ours
def test_behaviour_76_an_id_that_is_not_used_is_forgotten() -> None:
    settings = {"transactional.id.expiration.ms": 30_000}
    with semel.embedded(settings=settings) as broker, RawClient(broker.bootstrap_servers) as client:
        client.create_topic("t")
        idle, busy = RawProducer(client, "idle"), RawProducer(client, "busy")
        busy.write("t", b"v")
        broker.advance(29)
        assert describe(client, "idle").error_code == ErrorCode.NONE
        broker.advance(1)
        assert describe(client, "idle").error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
        unmapped = ErrorCode.INVALID_PRODUCER_ID_MAPPING
        assert idle.end(commit=False).error_code == unmapped
        assert idle.add("t") == [unmapped]
        assert idle.send("t", b"v").error_code == unmapped
        assert describe(client, "busy").transaction_state == "Ongoing", "one that is open is not idle"
        busy.commit()


@ours
@pytest.mark.parametrize("generation", [1, 2])
def test_behaviour_79_a_restart_keeps_the_last_stable_offset(tmp_path: Path, generation: int) -> None:
    with semel.embedded(tmp_path) as broker, RawClient(broker.bootstrap_servers) as client:
        client.create_topic("t")
        RawProducer(client, generation=2).write("t", b"first")
        producer = RawProducer(client, "id", generation)
        producer.write("t", b"second")
    with semel.embedded(tmp_path) as broker, RawClient(broker.bootstrap_servers) as client:
        log = Log(client, "t")
        assert (log.stable, log.end) == (0, 2)
        started = {each.producer_id: each.current_txn_start_offset for each in producers(client, "t")}
        assert started[producer.producer_id] == 1
        RawProducer(client, new_name("other"), 2).write("t", b"third")
        assert log.stable == 0
