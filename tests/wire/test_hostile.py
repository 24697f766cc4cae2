"""Hostile input: one connection is closed or told what is wrong, and nobody else notices."""

import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

import psutil
import pytest
from support.faults.hostile_corpus import CORPUS
from support.faults.hostile_words import TOPIC, Answered, Closed, Hostile, batch, error_codes, produce

from semel.wire.frames import decode_response_header
from semel.wire.messages import APIS, CreateTopicsRequest, MetadataRequest
from semel.wire.messages.topics import CreatableTopic

ANSWER_SECONDS = 10.0
"""Meant is one; a machine that is busy with other tests gets ten."""

WORK_SECONDS = 30.0

MEMORY_GROWTH_MAX = 200 << 20


@pytest.fixture(scope="module")
def served(serve_broker: Callable[..., Any]) -> Iterator[Any]:
    with serve_broker(semel_write_timeout_ms=500, group_initial_rebalance_delay_ms=0) as served:
        with served.connect() as wire:
            topic = CreatableTopic(name=TOPIC, num_partitions=1, replication_factor=1)
            response = wire.ask(CreateTopicsRequest(topics=[topic], timeout_ms=5_000), 5)
            assert set(error_codes(response)) == {0}
        yield served


@pytest.fixture(scope="module")
def witness(served: Any) -> Iterator[Any]:
    """A client that behaves, on one connection all the time."""
    with served.connect() as wire:
        wire.socket.settimeout(ANSWER_SECONDS)
        yield wire


@pytest.fixture(scope="module", autouse=True)
def _memory_stays_bounded(served: Any) -> Iterator[None]:
    before = psutil.Process().memory_info().rss
    yield
    assert psutil.Process().memory_info().rss - before < MEMORY_GROWTH_MAX


def test_the_corpus_is_large_enough() -> None:
    assert len(CORPUS) >= 60
    assert len({each.name for each in CORPUS}) == len(CORPUS)


def send(wire: Any, hostile: Hostile) -> None:
    try:
        if not hostile.trickle_seconds:
            wire.socket.sendall(hostile.data)
            return
        deadline = time.monotonic() + ANSWER_SECONDS
        for index in range(len(hostile.data)):
            if time.monotonic() > deadline:
                return
            wire.socket.sendall(hostile.data[index : index + 1])
            time.sleep(hostile.trickle_seconds)
    except ConnectionError:
        pass  # closed while we were still sending, which is one of the right answers


@pytest.mark.parametrize("hostile", CORPUS, ids=lambda each: f"{each.number}-{each.name}")
def test_hostile_input(served: Any, witness: Any, hostile: Hostile) -> None:
    with served.connect() as wire:
        wire.socket.settimeout(WORK_SECONDS if hostile.is_work else ANSWER_SECONDS)
        send(wire, hostile)
        if hostile.is_work:
            assert witness.ask(MetadataRequest(topics=None), 9).brokers
        answer = wire.receive_frame()
    if isinstance(hostile.expected, Closed):
        assert answer is None
    elif isinstance(hostile.expected, Answered):
        check_answer(hostile.expected, answer)
    assert witness.ask(MetadataRequest(topics=None), 9).brokers
    witness.socket.sendall(produce(batch()))
    assert set(error_codes(witness.receive(0, 9))) == {0}
    assert served.server.failure is None
    assert "internal error" not in served.server.broker.metrics.connections_closed


def check_answer(expected: Answered, frame: bytes | None) -> None:
    assert frame is not None, "closed instead of answered"
    correlation_id, position = decode_response_header(frame, expected.api_key, expected.version)
    assert correlation_id == 7
    response = APIS[expected.api_key].response.decode(frame, expected.version, position)
    if expected.codes is not None:
        assert set(error_codes(response)) == expected.codes


def test_many_connections_that_say_nothing(served: Any, witness: Any) -> None:
    """60 of the catalogue, as far as the descriptors of a test go."""
    silent = [served.connect() for _ in range(300)]
    assert witness.ask(MetadataRequest(topics=None), 9).brokers
    for wire in silent:
        wire.socket.close()
    assert witness.ask(MetadataRequest(topics=None), 9).brokers


def test_connections_that_come_and_go_without_a_word(served: Any, witness: Any) -> None:
    for index in range(300):
        wire = served.connect()
        if index % 2:  # half of them leave with a reset
            wire.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        wire.socket.close()
    assert witness.ask(MetadataRequest(topics=None), 9).brokers


def test_a_client_that_half_closes_is_let_go(served: Any, witness: Any) -> None:
    with served.connect() as wire:
        wire.socket.shutdown(socket.SHUT_WR)
        assert wire.receive_frame() is None
    assert witness.ask(MetadataRequest(topics=None), 9).brokers
