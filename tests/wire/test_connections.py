"""How the whole broker behaves at its edge: order, splits, slow readers, limits, listeners, stopping."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from support.clocks import later
from support.faults.hostile_words import TOPIC, batch, error_codes, fetch, produce

from semel.server import server
from semel.wire.frames import decode_response_header, encode_request
from semel.wire.messages import ApiVersionsRequest, CreateTopicsRequest, ListOffsetsRequest, MetadataRequest
from semel.wire.messages.fetch import ListOffsetsPartition, ListOffsetsTopic
from semel.wire.messages.topics import CreatableTopic
from semel.wire.records import Record, encode_batch

LATEST = -1


def create_topic(served: Any) -> None:
    with served.connect() as wire:
        topic = CreatableTopic(name=TOPIC, num_partitions=1, replication_factor=1)
        response = wire.ask(CreateTopicsRequest(topics=[topic], timeout_ms=5_000), 5)
        assert set(error_codes(response)) <= {0}


@pytest.fixture(scope="module")
def served(serve_broker: Callable[..., Any]) -> Iterator[Any]:
    with serve_broker() as served:
        create_topic(served)
        yield served


def end_of_log(wire: Any) -> int:
    asked = [ListOffsetsPartition(partition_index=0, timestamp=LATEST)]
    response = wire.ask(ListOffsetsRequest(topics=[ListOffsetsTopic(name=TOPIC, partitions=asked)]), 7)
    offset: int = response.topics[0].partitions[0].offset
    return offset


def with_id(frame: bytes, correlation_id: int) -> bytes:
    return frame[:8] + correlation_id.to_bytes(4, "big") + frame[12:]


def test_pipelined_requests_of_all_kinds_are_answered_in_order(served: Any) -> None:
    listed = b"".join(
        with_id(frame, number)
        for number, frame in enumerate(
            [produce(batch()), fetch(), produce(batch()), produce(batch()), fetch()] * 20
        )
    )
    with served.connect() as wire:
        wire.socket.sendall(listed)
        ids = [int.from_bytes(wire.receive_frame()[:4], "big") for _ in range(100)]
    assert ids == list(range(100))


def test_read_your_writes_on_one_connection(served: Any) -> None:
    """A ListOffsets right behind Produce, without waiting for its answer, sees the new end."""
    with served.connect() as wire:
        before = end_of_log(wire)
        for expected in range(before + 1, before + 20):
            wire.socket.sendall(produce(batch()))
            asked = [ListOffsetsPartition(partition_index=0, timestamp=LATEST)]
            wire.send(ListOffsetsRequest(topics=[ListOffsetsTopic(name=TOPIC, partitions=asked)]), 7)
            produced = wire.receive(0, 9).responses[0].partition_responses[0]
            assert produced.base_offset == expected - 1
            assert wire.receive(2, 7).topics[0].partitions[0].offset == expected


@pytest.mark.parametrize("api", ["produce", "metadata"])
def test_a_frame_split_at_every_byte(served: Any, api: str) -> None:
    with served.connect() as wire:
        wire.send(MetadataRequest(topics=None), 9)
        expected = wire.receive_frame()
        wire.socket.sendall(produce(batch()))
        wire.receive(0, 9)
        frame = produce(batch())
        if api == "metadata":
            frame = b"".join(encode_request(MetadataRequest(topics=None), 9, 1, "wire"))
        for at in range(1, len(frame)):
            wire.socket.sendall(frame[:at])
            wire.socket.sendall(frame[at:])
            if api == "produce":
                assert set(error_codes(wire.receive(0, 9))) == {0}
            else:
                assert wire.receive_frame() == expected


def test_readers_that_never_read_hold_bounded_memory_and_others_are_served(
    serve_broker: Callable[..., Any],
) -> None:
    """Eight clients ask for everything, again and again, and take nothing."""
    limit = 16 << 20
    with serve_broker(semel_queued_max_response_bytes=limit) as served:
        create_topic(served)
        with served.connect() as wire:
            large = produce(encode_batch([Record(0, 1_000, None, bytes(1_000_000))]))
            for _ in range(24):
                wire.socket.sendall(large)
                assert set(error_codes(wire.receive(0, 9))) == {0}
            before = psutil.Process().memory_info().rss
            stuck = [served.connect(receive_buffer=4_096) for _ in range(8)]
            asked = fetch(max_bytes=50 << 20, bytes_each=50 << 20)
            for each in stuck:
                each.socket.sendall(asked * 50)
            for _ in range(20):
                wire.socket.sendall(produce(batch()))
                assert set(error_codes(wire.receive(0, 9))) == {0}
            wire.socket.sendall(fetch(max_bytes=1 << 20))
            assert set(error_codes(wire.receive(1, 12))) == {0}
            assert psutil.Process().memory_info().rss - before < 8 * limit
            for each in stuck:
                each.socket.close()


def test_the_connection_limit(serve_broker: Callable[..., Any]) -> None:
    with serve_broker(max_connections=3) as served:
        wires = [served.connect() for _ in range(3)]
        for wire in wires:
            assert wire.ask(
                ApiVersionsRequest(client_software_name="t", client_software_version="1"), 3
            ).api_keys
        with served.connect() as one_more:
            assert one_more.receive_frame() is None
        for wire in wires:
            assert wire.ask(MetadataRequest(topics=None), 9).brokers
            wire.socket.close()


def test_a_client_that_comes_during_a_stop_is_not_waited_for(
    serve_broker: Callable[..., Any],
) -> None:
    """It was accepted before the listener was closed, and nobody would have told it to finish."""
    with serve_broker() as served:
        served.server._server.is_closing = True
        with served.connect() as wire:
            assert wire.receive_frame() is None
        assert not served.server._server.connections


def test_a_silent_client_is_closed(serve_broker: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    with serve_broker(connections_max_idle_ms=600_000) as served, served.connect() as wire:
        assert wire.ask(MetadataRequest(topics=None), 9).brokers
        monkeypatch.setattr(server, "time", later(601))  # It looks every second.
        assert wire.receive_frame() is None


def test_what_was_answered_before_a_graceful_stop_is_there_after_it(
    serve_broker: Callable[..., Any], tmp_path: Path
) -> None:
    """Stopping in the middle of a stream of requests loses nothing that was acknowledged, like kill -9."""
    acknowledged = 0
    with serve_broker(tmp_path / "data") as served:
        create_topic(served)
        enough = threading.Event()
        with served.connect() as wire:

            def send() -> None:
                try:
                    while True:
                        wire.socket.sendall(produce(batch()))
                except OSError:
                    enough.set()

            sender = threading.Thread(target=send)
            sender.start()
            while (frame := wire.receive_frame()) is not None:
                _, position = decode_response_header(frame, 0, 9)
                assert position == 5
                acknowledged += 1
                if acknowledged == 50:
                    served.stop()
            wire.socket.close()
            sender.join(10)
            assert enough.is_set()
    assert acknowledged >= 50
    with serve_broker(tmp_path / "data") as served, served.connect() as wire:
        assert end_of_log(wire) >= acknowledged
