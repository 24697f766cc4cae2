"""A real broker on loopback, in a thread of this process, spoken to in bytes."""

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import uvloop
from support.clients.raw import RawClient

from semel.config import Settings
from semel.server.listener import ListenerConfig
from semel.server.run import EXIT_OK, serve
from semel.server.server import Server
from semel.wire.frames import decode_response_header, encode_request
from semel.wire.messages import APIS
from semel.wire.schema import Request


class Served:
    """A broker that runs in a thread."""

    def __init__(self, server: Server, loop: asyncio.AbstractEventLoop) -> None:
        self.server = server
        self.loop = loop
        self.port = server.ports["test"]

    def connect(self, *, receive_buffer: int | None = None) -> "Wire":
        return Wire(self.port, receive_buffer)

    def passes(self, seconds: float) -> None:
        """Move the broker's clock, and do what is due then."""
        work = self.server.broker.advance(round(seconds * 1000))
        asyncio.run_coroutine_threadsafe(work, self.loop).result()

    def stop(self) -> None:
        # It may have stopped already, and its loop with it.
        with contextlib.suppress(RuntimeError):
            self.loop.call_soon_threadsafe(self.server.request_stop)


class Wire:
    """A blocking connection, in frames."""

    def __init__(self, port: int, receive_buffer: int | None = None) -> None:
        self.socket = socket.socket()
        if receive_buffer is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.settimeout(10)
        self.socket.connect(("127.0.0.1", port))

    def __enter__(self) -> "Wire":
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, message: Request, version: int, correlation_id: int = 1) -> None:
        self.socket.sendall(b"".join(encode_request(message, version, correlation_id, "wire")))

    def receive_frame(self) -> bytes | None:
        """The next frame, or None when the broker closed the connection."""
        size = self._exactly(4)
        return None if size is None else self._exactly(struct.unpack(">i", size)[0])

    def receive(self, api_key: int, version: int) -> Any:
        frame = self.receive_frame()
        assert frame is not None, "the broker closed the connection"
        _, position = decode_response_header(frame, api_key, version)
        return APIS[api_key].response.decode(frame, version, position)

    def ask(self, message: Request, version: int) -> Any:
        self.send(message, version)
        return self.receive(message.api_key, version)

    def _exactly(self, size: int) -> bytes | None:
        data = bytearray()
        while len(data) < size:
            try:
                piece = self.socket.recv(min(size - len(data), 1 << 20))
            except ConnectionError:
                return None
            if not piece:
                return None
            data += piece
        return bytes(data)


@contextmanager
def serve_in_thread(data: Path | None = None, **settings: Any) -> Iterator[Served]:
    ready = threading.Event()
    found: list[Served] = []
    codes: list[int] = []

    def on_ready(server: Server) -> None:
        found.append(Served(server, asyncio.get_running_loop()))
        ready.set()

    def main() -> None:
        listeners = [ListenerConfig("test", "127.0.0.1", 0)]
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            codes.append(runner.run(serve(Settings(**settings), listeners, data, ready=on_ready)))
        ready.set()

    thread = threading.Thread(target=main, name="semel")
    thread.start()
    assert ready.wait(10)
    assert found, f"the broker did not start: {codes}"
    try:
        yield found[0]
    finally:
        found[0].stop()
        thread.join(30)
    assert codes == [EXIT_OK]


@pytest.fixture(scope="session")
def serve_broker() -> Callable[..., Any]:
    """Starts a broker: `with serve_broker(max_connections=3) as served`."""
    return serve_in_thread


@pytest.fixture
def client(bootstrap: str) -> Iterator[RawClient]:
    with RawClient(bootstrap) as client:
        yield client
