"""A listener: the address that is bound, and the address that clients get.

A client of a listener with SASL must authenticate before anything else. Until then the client costs little:
its requests must be small and few, and there is a deadline. A failed authentication is answered after a short
delay, which slows down guessing. Then the client closes the connection, or the broker does.

When a user is removed, the user's connections are closed (`revoke`). Kafka leaves them open.
"""

import asyncio
import socket
import struct
import time
from typing import TYPE_CHECKING, Final, NamedTuple

from semel.broker.broker import Broker
from semel.broker.ownership import Endpoint
from semel.handlers.context import RequestContext
from semel.server.connection import FRAME_COST, Connection, Phase
from semel.server.in_flight import InFlightRequest
from semel.server.sasl.mechanism import AuthenticationFailed, principal_of
from semel.server.sasl.plain import NAME as PLAIN
from semel.server.server_context import TOO_MANY_OF_USER, ServerContext
from semel.server.tls import ServerTls, TlsDoor
from semel.wire.addresses import write_address
from semel.wire.api_key import ApiKey
from semel.wire.messages import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)

if TYPE_CHECKING:
    from semel.server.sasl import Authenticators

UNKNOWN_BYTES_MAX: Final = 65_536
"""The most bytes of a request, and of a read, before the client has authenticated."""
UNKNOWN_SECONDS_MAX: Final = 15.0
"""How long a client may take to authenticate, and to re-authenticate."""
REFUSED_SECONDS: Final = 1.0
"""How long a client whose authentication has failed may take to read the answer. kafka-python drops an answer
that arrives together with the end of the connection, and tries again without saying why it was refused."""
_RAW_KEY: Final = SaslAuthenticateRequest.api_key


class SaslConnection(Connection):
    """One client of a listener with SASL."""

    has_sasl = True

    def __init__(self, server: ServerContext, listener: str, authenticators: "Authenticators") -> None:
        super().__init__(server, listener)
        self._exchange = authenticators.exchange()
        self._own_handlers = {
            SaslHandshakeRequest.api_key: self._handshake,
            SaslAuthenticateRequest.api_key: self._authenticate,
        }
        self._parser.max_frame_bytes = self._parser.usual_max_bytes = UNKNOWN_BYTES_MAX
        self._unknown_since: float | None = time.monotonic()

    def data_received(self, data: bytes) -> None:
        """Start the requests that are complete, keep the rest of the bytes."""
        if self._exchange.is_failed:
            return
        if self._unknown_since is not None and len(data) > UNKNOWN_BYTES_MAX:
            self._close_gracefully("not authenticated", f"{len(data)} bytes at once")
            return
        super().data_received(data)

    def _begin(self, frame: memoryview) -> None:
        exchange = self._exchange
        if exchange.expects_raw:
            in_flight = InFlightRequest(self, _RAW_KEY, 0, 0, len(frame) + FRAME_COST)
            self._requests.in_flight.append(in_flight)
            self._server.requests.begin(self, is_produce=False)
            self._run(self._answer_raw(bytes(frame)), in_flight)
            return
        api_key = int.from_bytes(frame[:2])
        now = self._server.broker.now()
        if exchange.allows(api_key, now):
            super()._begin(frame)
        elif exchange.is_expired(now):
            self._close_gracefully("session expired", "the client did not authenticate again in time")
        else:
            self._close_gracefully(
                "not authenticated", f"API {api_key} came before the authentication was complete"
            )

    async def _handshake(
        self, broker: Broker, request: SaslHandshakeRequest, context: RequestContext
    ) -> SaslHandshakeResponse:
        response = self._exchange.handshake(request.mechanism, context.version)
        self._unknown_since = self._unknown_since or time.monotonic()
        await self._settle()
        return response

    async def _authenticate(
        self, broker: Broker, request: SaslAuthenticateRequest, context: RequestContext
    ) -> SaslAuthenticateResponse:
        response = await self._exchange.authenticate(bytes(request.auth_bytes), context.version)
        await self._settle()
        return response

    async def _answer_raw(self, message: bytes) -> None:
        try:
            answer = await self._exchange.raw(message)
        except AuthenticationFailed:
            await self._settle()
            return
        self._out += [struct.pack(">i", len(answer)) + answer]
        await self._settle()

    async def _settle(self) -> None:
        """Apply the outcome of a round of authentication."""
        exchange, server = self._exchange, self._server
        if exchange.is_failed:
            server.authentication_failed(self._context, exchange.mechanism, exchange.failure)
            await asyncio.sleep(server.settings.connection_failed_authentication_delay_ms / 1000)
        elif exchange.is_authenticated and exchange.principal is not None:
            self._unknown_since = None
            self._context = self._context._replace(principal=exchange.principal)
            self._throttle.principal = exchange.principal
            if not server.count_user(self, exchange.principal):
                self._close("refused", TOO_MANY_OF_USER)
                return
            settings = server.settings
            self._parser.max_frame_bytes = settings.socket_request_max_bytes
            self._parser.usual_max_bytes = settings.semel_request_max_bytes

    def _answer(self, in_flight: InFlightRequest) -> None:
        super()._answer(in_flight)
        if not self._exchange.is_failed or self._phase >= Phase.DRAINING:
            return
        if self._out:
            self._requests.waiting.clear()
            self._loop.call_later(REFUSED_SECONDS, self.finish)
        else:
            self.finish()

    def check(self, now: float) -> None:
        """Close a client that does not authenticate in time, or is slow or idle for too long."""
        if self._unknown_since is not None and now - self._unknown_since > UNKNOWN_SECONDS_MAX:
            self._close("not authenticated", f"unknown for {now - self._unknown_since:.1f} s")
            return
        super().check(now)

    def revoke(self, user: str, mechanism: str) -> None:
        """Close the connection if it was authenticated by a credential that is gone."""
        if self._exchange.principal == principal_of(user) and self._exchange.mechanism in (mechanism, PLAIN):
            why = f"{mechanism} of {user!r} was removed"
            in_flight = self._requests.in_flight
            if in_flight and in_flight[0].api_key == ApiKey.ALTER_USER_SCRAM_CREDENTIALS:
                # A user who removes their own credential still gets a response.
                self._close_gracefully("user removed", why)
            else:
                self._close("user removed", why)


BACKLOG: Final = 1_024

_ANY: Final = ("", "0.0.0.0", "::")  # compared with, never bound by default


class ListenerConfig(NamedTuple):
    """Where to listen. Port 0 means any free port. By default the bound address is advertised."""

    name: str
    host: str
    port: int
    advertised_host: str | None = None
    advertised_port: int | None = None
    tls: ServerTls | None = None
    has_sasl: bool = False
    """Whether clients must authenticate by SASL."""


class Listener:
    """One bound address."""

    def __init__(self, config: ListenerConfig, server: asyncio.Server, door: TlsDoor | None) -> None:
        self.name = config.name
        self.port: int = server.sockets[0].getsockname()[1]
        self.bound = f"{config.name}://{write_address(config.host, self.port)}"
        """The bound address, as Kafka writes it."""
        self.endpoint = Endpoint(
            config.advertised_host or reachable(config.host), config.advertised_port or self.port
        )
        self._server = server
        self._door = door

    @classmethod
    async def bind(cls, server: ServerContext, config: ListenerConfig) -> "Listener":
        """Bind the address; no client is accepted before `serve`. OSError if the address is in use."""

        def admit() -> Connection:
            if config.has_sasl:
                return SaslConnection(server, config.name, server.authenticators)
            return Connection(server, config.name)

        def refused(host: str, error: Exception) -> None:
            server.refused_handshake(config.name, host, error)

        listening = await asyncio.get_running_loop().create_server(
            admit, config.host or None, config.port, backlog=BACKLOG, start_serving=False
        )
        tls = config.tls
        door = None if tls is None else TlsDoor(listening.sockets, tls, admit, refused, server)
        return cls(config, listening, door)

    async def serve(self) -> None:
        """Start to accept clients."""
        if self._door is None:
            await self._server.start_serving()
        else:
            self._door.open(BACKLOG)

    def close(self) -> None:
        """Stop accepting clients. Open connections stay."""
        self._server.close()
        if self._door is not None:
            self._door.close()

    async def wait_closed(self) -> None:
        """Wait until the socket is closed."""
        if self._door is not None:
            await self._door.wait_closed()
        await self._server.wait_closed()


def reachable(host: str) -> str:
    """Return the host to advertise: the host name if the listener is bound to all addresses."""
    return socket.gethostname() if host in _ANY else host
