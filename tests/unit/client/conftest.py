"""A broker made of a script: what it answers is decided by the test, request by request."""

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from semel.wire.frames import FrameParser, decode_request_header, encode_response
from semel.wire.messages import (
    APIS,
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    MetadataRequest,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)

TOPIC_ID = bytes(range(16))


class HangUpError(Exception):
    """Raised by a test's script: close the connection instead of answering."""


class FakeBroker:
    """Answers ApiVersions and Metadata by itself, and everything else by `script`."""

    def __init__(self, script: Callable[[Any, int], Any]) -> None:
        self.script = script
        self.requests: list[Any] = []
        self.connections = 0
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        self._clients: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._start(self._accept)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def hang_up(self) -> None:
        for client in self._clients:
            client.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        for client in self._clients:
            with contextlib.suppress(OSError):  # the other side may be gone
                client.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(10)
            assert not thread.is_alive()

    def _start(self, target: Callable[..., None], *args: Any) -> None:
        thread = threading.Thread(target=target, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            self.connections += 1
            self._clients.append(client)
            self._start(self._serve, client)

    def _serve(self, client: socket.socket) -> None:
        parser = FrameParser(1 << 24)
        try:
            while data := client.recv(1 << 16):
                for frame in parser.feed(data):
                    header, at = decode_request_header(frame)
                    request = APIS[header.api_key].request.decode(bytes(frame), header.api_version, at)
                    response = self._answer(request, header.api_version)
                    if response is not None:
                        parts = encode_response(response, header.api_version, header.correlation_id)
                        client.sendall(b"".join(parts))
        except (OSError, HangUpError):
            pass
        finally:
            client.close()

    def _answer(self, request: Any, version: int) -> Any:
        if isinstance(request, ApiVersionsRequest):
            served = [
                ApiVersion(api_key=api.key, min_version=api.advertised_min, max_version=api.advertised_max)
                for api in APIS.values()
            ]
            return ApiVersionsResponse(api_keys=served)
        if isinstance(request, MetadataRequest):
            return self._metadata(request)
        self.requests.append(request)
        return self.script(request, version)

    def _metadata(self, request: MetadataRequest) -> MetadataResponse:
        topics = [
            MetadataResponseTopic(
                name=each.name,
                topic_id=TOPIC_ID,
                partitions=[MetadataResponsePartition(partition_index=n, leader_id=0) for n in range(2)],
            )
            for each in request.topics or []
        ]
        broker = MetadataResponseBroker(node_id=0, host="127.0.0.1", port=self.port)
        return MetadataResponse(brokers=[broker], controller_id=0, topics=topics)


@pytest.fixture
def fake_broker() -> Iterator[Callable[[Callable[[Any, int], Any]], FakeBroker]]:
    """Make a broker that answers by a script; it is closed at the end of the test."""
    made: list[FakeBroker] = []

    def make(script: Callable[[Any, int], Any]) -> FakeBroker:
        made.append(FakeBroker(script))
        return made[-1]

    yield make
    for broker in made:
        broker.close()


@pytest.fixture
def hang_up() -> type[HangUpError]:
    return HangUpError
