"""A server with the test's own handlers, and a client that sends and receives frames."""

import asyncio
import struct
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from semel.broker.commit.pending_commands import Promise
from semel.broker.metrics import Metrics
from semel.broker.policies import Policies
from semel.broker.slices import Slices
from semel.config import Settings
from semel.server.dispatch import Dispatch
from semel.server.listener import ListenerConfig
from semel.server.server import Server
from semel.wire.frames import encode_request
from semel.wire.messages import ApiVersionsResponse, ProduceRequest, ProduceResponse
from semel.wire.schema import Request
from support.waiting import LIMIT_SECONDS


class FakeBroker:
    """The parts of a broker that the server uses."""

    def __init__(self, **settings: Any) -> None:
        self.settings = Settings(**settings)
        self.slices = Slices()
        self.metrics = Metrics()
        self.endpoints: dict[str, Any] = {}
        self.cluster_id = "fake"
        self.member = None
        nowhere: Any = None
        self.policies = Policies(nowhere, self.settings)
        self.failures: list[BaseException] = []
        self.gone: list[int] = []

    def connection_gone(self, connection_id: int) -> None:
        self.gone.append(connection_id)

    def fatal(self, error: BaseException) -> None:
        self.failures.append(error)

    def soon(self, work: Callable[[], None]) -> None:
        asyncio.get_running_loop().call_soon(work)


class Produces:
    """Stand for the Produce handler: keep requests until the test answers them."""

    def __init__(self, *, answer_at_once: bool = False) -> None:
        self.waiting: list[tuple[ProduceRequest, Promise[Any]]] = []
        self.submitted = 0
        self._answer_at_once = answer_at_once

    def handle(self, broker: Any, request: ProduceRequest, context: Any) -> Promise[Any]:
        self.submitted += 1
        promise: Promise[Any] = Promise()
        if self._answer_at_once:
            asyncio.get_running_loop().call_soon(promise.resolve, response_to(request))
        else:
            self.waiting.append((request, promise))
        return promise

    def answer(self, index: int = 0, outcome: Any = ...) -> None:
        request, promise = self.waiting.pop(index)
        promise.resolve(response_to(request) if outcome is ... else outcome)


def response_to(request: ProduceRequest) -> ProduceResponse:
    """Build a response that identifies the request."""
    return ProduceResponse(throttle_time_ms=request.timeout_ms)


Handlers = Mapping[int, Callable[..., Awaitable[Any]]]


async def api_versions(broker: Any, request: Any, context: Any) -> ApiVersionsResponse:
    return ApiVersionsResponse(throttle_time_ms=0)


class Client:
    """One connection, frame by frame."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self._correlation_id = 0

    def frame(self, message: Request, version: int) -> bytes:
        self._correlation_id += 1
        return b"".join(encode_request(message, version, self._correlation_id, "test"))

    def send(self, message: Request, version: int) -> int:
        """Send without waiting; return the correlation id."""
        self.writer.write(self.frame(message, version))
        return self._correlation_id

    async def receive(self) -> tuple[int, bytes]:
        """Return the next response: its correlation id and the rest."""
        async with asyncio.timeout(LIMIT_SECONDS):
            size = struct.unpack(">i", await self.reader.readexactly(4))[0]
            frame = await self.reader.readexactly(size)
        return struct.unpack_from(">i", frame)[0], frame[4:]

    async def is_closed(self, seconds: float = LIMIT_SECONDS) -> bool:
        """Whether the server closes the connection within this time without sending another byte."""
        try:
            async with asyncio.timeout(seconds):
                return await self.reader.read(1) == b""
        except ConnectionError:
            return True
        except TimeoutError:
            return False

    async def close(self) -> None:
        self.writer.transport.abort()
        await asyncio.sleep(0)


class ServerUnderTest:
    """A server on a free port."""

    def __init__(self, server: Server, broker: FakeBroker) -> None:
        self.server = server
        self.broker = broker
        self._clients: list[Client] = []

    @property
    def context(self) -> Any:
        return self.server._server

    async def connect(self, **options: Any) -> Client:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.server.ports["test"], **options)
        client = Client(reader, writer)
        self._clients.append(client)
        return client

    def check_after(self, seconds: float) -> None:
        """Check all connections now, as the server does every second, as if this much time had passed."""
        for connection in tuple(self.context.connections):
            connection.check(time.monotonic() + seconds)

    async def leave(self) -> None:
        for client in self._clients:
            await client.close()


@asynccontextmanager
async def serving(
    handlers: Handlers | None = None,
    produces: Produces | None = None,
    tls: Any = None,
    **settings: Any,
) -> AsyncIterator[ServerUnderTest]:
    """Run a server with ApiVersions, Produce and these handlers."""
    broker = FakeBroker(**settings)
    produces = produces or Produces()
    dispatch = Dispatch({0: produces.handle, 18: api_versions, **(handlers or {})})
    listener = ListenerConfig("test", "127.0.0.1", 0, tls=tls)
    server = Server(broker, [listener], dispatch)  # type: ignore[arg-type]
    await server.start()
    under_test = ServerUnderTest(server, broker)
    try:
        yield under_test
    finally:
        await under_test.leave()
        await server.stop(grace_seconds=0.5)
        assert under_test.context.requests.used == 0
        assert under_test.context.responses.used == 0
        assert under_test.context.requests.in_flight == len(produces.waiting)
