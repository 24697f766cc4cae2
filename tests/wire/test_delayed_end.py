"""Requests that come late, twice or never: they end no other transaction, and leave none hanging.

EndTxn names a producer, not a transaction. In the first generation of the protocol the producer is the same
from one transaction to the next, so a commit that is late by one transaction ends the wrong one
(KAFKA-17754). Semel knows a late request by its connection: a newer one has spoken since. In the second
generation every end raises the epoch, and a late request has an old one (KIP-890).

Against another broker (SEMEL_PEER) the histories are counted, not asserted: run them with ``-s``.
"""

import os
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient
from support.brokers.peer import PEER
from support.chance import fresh_seed
from support.clients.confluent import create
from support.clients.raw import KEEPS_RECORDS, RawClient
from support.clients.raw_transactions import RawProducer, committed, make_topic, new_name, soon
from support.clients.stubborn import StubbornClient
from support.faults.delayed_network import (
    ADD_PARTITIONS,
    END,
    LATE,
    OFFSETS,
    PARTITIONS,
    History,
    Logs,
    finish,
    write,
)
from support.faults.proxy import Act, Proxy

import semel
from semel.client import Client, TransactionalProducer
from semel.wire.errors import ErrorCode
from semel.wire.messages import FindCoordinatorRequest, InitProducerIdRequest

INIT = 22
HISTORIES = int(os.environ.get("SEMEL_HISTORIES", "60"))


@pytest.fixture(scope="module")
def bootstrap() -> Iterator[str]:
    if not PEER:
        with semel.embedded(settings=KEEPS_RECORDS) as broker:
            yield broker.bootstrap_servers
        return
    with RawClient(PEER) as client:
        # Elsewhere the coordinator's own topic is made by the first one that asks.
        find = FindCoordinatorRequest(key="any", key_type=1)
        soon(lambda: client.ask(find, 3).error_code == ErrorCode.NONE, "a coordinator")
        for number in range(20):
            init = InitProducerIdRequest(transactional_id=f"warm-{number}", transaction_timeout_ms=60_000)
            soon(lambda ask=init: client.ask(ask, 4).error_code == ErrorCode.NONE, "a coordinator")  # type: ignore[misc]  # a default: mypy infers no such lambda
    yield PEER


@pytest.fixture
def reader(bootstrap: str) -> Iterator[RawClient]:
    """Somebody who reads without the proxy."""
    with RawClient(bootstrap) as client:
        yield client


@pytest.fixture
def logs(reader: RawClient) -> Logs:
    return Logs(reader, make_topic(reader, PARTITIONS))


@pytest.mark.parametrize("version", [0, 1, 3, 4, 5])
@pytest.mark.parametrize("act", [Act.STRAND, Act.ECHO])
@pytest.mark.parametrize("commit", [True, False])
def test_a_late_end_does_not_end_the_next_transaction(
    proxy: Proxy, logs: Logs, version: int, act: Act, commit: bool
) -> None:
    """It is held on connection A, asked again and answered on B, and arrives during the next transaction."""
    with StubbornClient(proxy.bootstrap) as client:
        producer = RawProducer(client, generation=2 if version >= 5 else 1)
        write(producer, logs, b"first")
        held = proxy.on(END, act)
        assert finish(producer, version, commit=commit) == ErrorCode.NONE
        assert client.connections == 2
        write(producer, logs, b"second")
        held.release()
        assert held.was_refused == (version < 5)
        assert not logs.is_settled(), "the second transaction was ended"
        # The other outcome than that of the late one.
        assert finish(producer, version, commit=not commit) == ErrorCode.NONE
        write(producer, logs, b"third")
        assert finish(producer, version, commit=True) == ErrorCode.NONE
    soon(logs.is_settled)
    assert logs.values() == [[b"first" if commit else b"second", b"third"]] * PARTITIONS


@pytest.mark.parametrize("version", [1, 3, 5])
@pytest.mark.parametrize("commit", [True, False])
def test_a_late_end_between_two_transactions_does_nothing(
    proxy: Proxy, logs: Logs, version: int, commit: bool
) -> None:
    with StubbornClient(proxy.bootstrap) as client:
        producer = RawProducer(client, generation=2 if version >= 5 else 1)
        write(producer, logs, b"first")
        held = proxy.on(END, Act.STRAND)
        assert finish(producer, version, commit=commit) == ErrorCode.NONE
        held.release()
        write(producer, logs, b"second")
        assert finish(producer, version, commit=True) == ErrorCode.NONE
    soon(logs.is_settled)
    assert logs.values() == [[b"first", b"second"] if commit else [b"second"]] * PARTITIONS


@pytest.mark.parametrize("version", [1, 3, 5])
@pytest.mark.parametrize("act", [Act.TWICE, Act.CUT, Act.CUT_ANSWER])
@pytest.mark.parametrize("commit", [True, False])
def test_an_end_that_comes_twice_or_not_at_all(
    proxy: Proxy, logs: Logs, version: int, act: Act, commit: bool
) -> None:
    """The copy right behind it is recognised; lost on either way, asking again is answered the same."""
    with StubbornClient(proxy.bootstrap) as client:
        producer = RawProducer(client, generation=2 if version >= 5 else 1)
        for number in range(4):
            proxy.on(END, act)
            write(producer, logs, b"%d" % number)
            assert finish(producer, version, commit=commit == (number % 2 == 0)) == ErrorCode.NONE
    soon(logs.is_settled)
    assert logs.values() == [[b"0", b"2"] if commit else [b"1", b"3"]] * PARTITIONS


def test_a_late_join_opens_nothing(proxy: Proxy, logs: Logs) -> None:
    """AddPartitionsToTxn that arrives after the end would open a transaction that nobody will end."""
    with StubbornClient(proxy.bootstrap) as client:
        producer = RawProducer(client)
        held = proxy.on(ADD_PARTITIONS, Act.STRAND)
        write(producer, logs, b"first")
        producer.commit()
        held.release()
        assert held.was_refused
        assert producer.add(logs.topic, 0) == [ErrorCode.NONE]
        producer.commit()
    assert logs.is_settled()
    assert logs.values() == [[b"first"]] * PARTITIONS


@pytest.mark.parametrize("generation", [1, 2])
def test_a_late_position_is_not_taken_by_the_next_transaction(
    proxy: Proxy, reader: RawClient, logs: Logs, generation: int
) -> None:
    """It would set the group back."""
    with StubbornClient(proxy.bootstrap) as client:
        producer = RawProducer(client, generation=generation)
        held = proxy.on(OFFSETS, Act.STRAND)
        producer.write_offset("late", logs.topic, 1)
        producer.commit()
        producer.write_offset("late", logs.topic, 2)
        held.release()
        assert held.was_refused == (generation == 1)
        producer.commit()
    assert committed(reader, "late", logs.topic, stable=True) == (ErrorCode.NONE, 2)


def test_a_late_init_tears_nothing(proxy: Proxy, logs: Logs) -> None:
    """InitProducerId may come on any connection and fences, as in Kafka: what was open is aborted whole."""
    with StubbornClient(proxy.bootstrap) as client:
        held = proxy.on(INIT, Act.STRAND)
        producer = RawProducer(client)
        write(producer, logs, b"first")
        held.release()
        assert producer.end(commit=True).error_code == ErrorCode.PRODUCER_FENCED
        soon(logs.is_settled)
        producer.take(producer.init())
        write(producer, logs, b"second")
        producer.commit()
    soon(logs.is_settled)
    assert logs.values() == [[b"second"]] * PARTITIONS


# -- histories ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("generation", [1, 2])
def test_random_histories(bootstrap: str, reader: RawClient, logs: Logs, generation: int) -> None:
    """Ends and joins are delayed, doubled and lost at random; every producer is told the truth."""
    seed = fresh_seed()
    hanging: list[str] = []
    histories: list[History] = []
    with Proxy(bootstrap) as proxy:
        for number in range(seed, seed + HISTORIES):
            history = History(number, proxy, logs, generation)
            history.run()
            histories.append(history)
            try:
                soon(logs.is_settled)
            except AssertionError:
                hanging.append(f"history {number} left a transaction open")
                break
    seen = logs.values()
    wrong = [each for each in (history.anomalies(reader, seen) for history in histories) if each]
    report(wrong + [[each] for each in hanging], len(histories))


def report(wrong: list[list[str]], histories: int) -> None:
    """None is right. Another broker is only measured."""
    if PEER:
        print(f"{len(wrong)} of {histories} histories are wrong on {PEER}: {wrong[:3]}")  # noqa: T201
    else:
        assert wrong == []


# -- real clients ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("act", [Act.STRAND, Act.ECHO, Act.HOLD])
def test_librdkafka_and_a_late_end(bootstrap: str, reader: RawClient, act: Act) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    logs = Logs(reader, create(admin, new_name("late"), PARTITIONS))
    wrong: list[list[str]] = []
    rounds = 2 if act is Act.HOLD else 4  # of which each waits for an answer until it gives up
    with Proxy(bootstrap) as proxy:
        producer = Producer(
            {
                "bootstrap.servers": proxy.bootstrap,
                "transactional.id": new_name("late"),
                # How long it waits for an answer before it takes another connection.
                "socket.timeout.ms": 1_000 if act is Act.HOLD else 10_000,
                "reconnect.backoff.ms": 10,
                "retry.backoff.ms": 10,
                "log_level": 0,
            }
        )
        producer.init_transactions(30)
        for number in range(rounds):
            commit = number % 2 == 0
            held = proxy.on(END, act)
            transaction(producer, logs, b"%d-first" % number, lambda: None, commit=commit)
            expected = [b"%d-first" % number] if commit else [b"%d-second" % number]
            try:
                transaction(producer, logs, b"%d-second" % number, held.release, commit=not commit)
            except KafkaException as error:
                wrong.append([f"{number}: {error}"])
                break
            soon(logs.is_settled)
            for values in logs.values():
                mine = [value for value in values if value.startswith(b"%d-" % number)]
                if mine != expected:
                    wrong.append([f"{number}: {mine} instead of {expected}"])
    report(wrong, rounds)


def transaction(
    producer: Producer, logs: Logs, value: bytes, meanwhile: Callable[[], None], *, commit: bool
) -> None:
    producer.begin_transaction()
    for partition in range(PARTITIONS):
        producer.produce(logs.topic, value, partition=partition)
    assert producer.flush(30) == 0
    meanwhile()
    if commit:
        producer.commit_transaction(30)
    else:
        producer.abort_transaction(30)


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("act", [Act.STRAND, Act.ECHO, Act.TWICE, Act.CUT, Act.CUT_ANSWER])
def test_own_client_and_a_bad_end(proxy: Proxy, logs: Logs, act: Act, version: int) -> None:
    with (
        Client(proxy.bootstrap) as client,
        TransactionalProducer(client, new_name("own"), version_max=version) as producer,
    ):
        assert producer.version == version
        for number in range(4):
            bad = proxy.on(END, act)
            own_transaction(producer, logs, b"%d-first" % number, lambda: None, commit=number % 2 == 0)
            meanwhile = bad.release if act in LATE else lambda: None
            own_transaction(producer, logs, b"%d-second" % number, meanwhile, commit=number % 2 == 1)
    soon(logs.is_settled)
    assert logs.values() == [[b"0-first", b"1-second", b"2-first", b"3-second"]] * PARTITIONS


def own_transaction(
    producer: TransactionalProducer,
    logs: Logs,
    value: bytes,
    meanwhile: Callable[[], None],
    *,
    commit: bool,
) -> None:
    producer.begin()
    for partition in range(PARTITIONS):
        producer.send(logs.topic, value, partition=partition)
    producer.flush()
    meanwhile()
    if commit:
        producer.commit()
    else:
        producer.abort()
