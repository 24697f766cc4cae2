"""A connection to one broker: sends requests with correlation ids, and receives responses in their order.

A `Connection` is blocking and belongs to one thread. `send` sends a request and waits for its response;
`post` sends now and lets the caller wait later, so that several brokers can work in parallel. The versions
that the broker supports are queried once, when connecting, and kept in `versions`. Then the connection
authenticates.

A connection closes itself when it misses a response, so that a later response is never taken for it. The
callers, such as `cluster`, decide whether a request may be sent again.

Most of what a broker sends is fetched records, in frames of megabytes. Assembling a frame from pieces costs a
copy, and allocating its memory costs as much again. So `FrameReceiver` receives the rest of a large frame
directly into the buffer of the previous one, if that is no longer in use.
"""

import socket
import ssl
import sys
import time
from collections import deque
from typing import Any, Final, NamedTuple, Self

from semel.client.errors import (
    AuthenticationFailed,
    BrokerUnreachable,
    ConnectionLost,
    RequestTimedOut,
    UnsupportedRequest,
)
from semel.client.net.sasl import authenticate
from semel.client.net.security import Security
from semel.wire.errors import ErrorCode, ProtocolError
from semel.wire.frames import FrameParser, decode_response_header, encode_request
from semel.wire.messages import APIS, ApiVersionsRequest, ApiVersionsResponse
from semel.wire.schema import Request

PIECE_BYTES: Final = 1 << 18
"""How much is received at once while the frame size is unknown."""
LARGE_BYTES: Final = 1 << 18
"""If this much of a frame is missing, it is received in place."""
ROOM_BYTES_MAX: Final = 1 << 24
"""A buffer up to this size is allocated when the frame size is known; a larger frame grows as it arrives."""
RESPONSE_BYTES_MAX = 1 << 28  # no valid response is larger: brokers limit fetches to much less
#: The fraction of an authenticated session after which a new connection is made, before the broker ends it.
SESSION_PART = 0.85
SOFTWARE_NAME = "semel"
# The root package is loaded by now. It is not imported, because it exports more than the client may depend
# on.
SOFTWARE_VERSION: str = getattr(sys.modules["semel"], "__version__", "0")


class FrameReceiver:
    """Receives the frames of one connection from its socket."""

    __slots__ = ("_filled", "_kept", "_parser", "_room")

    def __init__(self, max_frame_bytes: int) -> None:
        self._parser = FrameParser(max_frame_bytes)
        #: The buffer of a large frame in progress, and how much of it has arrived.
        self._room: memoryview | None = None
        self._filled = 0
        #: The buffer of the previous large frame.
        self._kept = bytearray()

    def receive(self, source: socket.socket) -> list[memoryview] | None:
        """Read once; return the payloads that are now complete, or None if the other side has closed."""
        if self._room is None:
            piece = source.recv(PIECE_BYTES)
            frames = self._parser.feed(piece)
            if LARGE_BYTES <= self._parser.missing <= ROOM_BYTES_MAX:
                self._make_room(self._parser.missing)
            return frames if piece else None
        count = source.recv_into(self._room[self._filled :])
        self._filled += count
        if self._filled < len(self._room):
            return [] if count else None
        whole, self._room = self._room.toreadonly(), None
        return [whole]

    def _make_room(self, missing: int) -> None:
        begun = self._parser.take_over()
        size = len(begun) + missing
        try:
            # Resizing fails while the caller still uses the buffer.
            self._kept.append(0)
            self._kept.pop()
        except BufferError:
            self._kept = bytearray()
        if len(self._kept) < size:
            self._kept = bytearray(size)
        self._room, self._filled = memoryview(self._kept)[:size], len(begun)
        self._room[: len(begun)] = begun


def _is_to_itself(connected: socket.socket) -> bool:
    """Whether the socket was connected to its own ephemeral port, because nothing listens on the port."""
    try:
        return bool(connected.getsockname() == connected.getpeername())
    except OSError:  # Already closed; the next use will report it.
        return False


class VersionRange(NamedTuple):
    """The versions of one API that a broker supports, inclusive."""

    first: int
    last: int


class Pending:
    """A request whose response is outstanding."""

    def __init__(self, connection: "Connection", request: Request, version: int, correlation_id: int) -> None:
        self.request = request
        self.version = version
        self.correlation_id = correlation_id
        self._connection = connection
        self._response: Any = None

    def wait(self, timeout_s: float | None = None) -> Any:
        """Return the response. Responses to earlier requests are read on the way."""
        if self._response is None:
            self._connection._receive_until(self, timeout_s)
        return self._response

    def _answer(self, frame: memoryview) -> None:
        api = APIS[self.request.api_key]
        correlation_id, offset = decode_response_header(frame, api.key, self.version)
        if correlation_id != self.correlation_id:
            raise ProtocolError(
                f"the response has correlation id {correlation_id} instead of {self.correlation_id}"
            )
        if api.key == ApiVersionsRequest.api_key and frame[offset : offset + 2] == _UNSUPPORTED:
            self._response = _unsupported(frame, offset)
        else:
            self._response = api.response.decode(frame, self.version, offset)


_UNSUPPORTED = int(ErrorCode.UNSUPPORTED_VERSION).to_bytes(2, "big")


def _unsupported(frame: memoryview, offset: int) -> ApiVersionsResponse:
    """Decode the answer to an unsupported version of ApiVersions, which should be in version 0.

    librdkafka's mock cluster deviates from that; the client then tries version 0, which every broker
    supports.
    """
    try:
        return ApiVersionsResponse.decode(frame, 0, offset)
    except ProtocolError:
        return ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)


class Connection:
    """A connection, open from construction until `close`."""

    def __init__(
        self,
        host: str,
        port: int,
        *,
        client_id: str = "semel",
        timeout_s: float = 30.0,
        security: Security | None = None,
        ssl_context: ssl.SSLContext | None = None,
    ) -> None:
        """Connect. `ssl_context` is that of `security`, created once for many connections."""
        self.host = host
        self.port = port
        self.client_id = client_id
        self.timeout_s = timeout_s
        self.features: dict[str, int] = {}
        self.features_epoch = -1  # the higher, the newer the reported features
        self._receiver = FrameReceiver(RESPONSE_BYTES_MAX)
        self._pending: deque[Pending] = deque()
        self._next_id = 0
        self._expires_at: float | None = None
        self._socket: socket.socket | None = self._connect(ssl_context)
        try:
            self.versions = self._negotiate()
            if security is not None and security.mechanism is not None:
                self._authenticate(security)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def is_open(self) -> bool:
        """Whether requests can be sent. Detects that the broker has closed the connection."""
        if self._socket is None:
            return False
        if self._pending:
            return True
        if self._expires_at is not None and time.monotonic() >= self._expires_at:
            self.close()
            return False
        # No response is outstanding: readable data is the end of the stream, or an error of the broker.
        try:
            self._socket.settimeout(0)
            self._socket.recv(1)
        except (BlockingIOError, ssl.SSLWantReadError):
            return True
        except OSError:
            pass
        self.close()
        return False

    def certificate(self) -> dict[str, Any] | None:
        """Return the certificate of the broker, as `ssl` describes it; None without TLS."""
        return self._socket.getpeercert() if isinstance(self._socket, ssl.SSLSocket) else None

    def close(self) -> None:
        """Close the connection. May be called again."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        self._pending.clear()

    def version_of(self, api_key: int, at_most: int | None = None) -> int:
        """Return the highest version of an API that both sides support."""
        api = APIS[api_key]
        served = self.versions.get(api_key)
        last = api.advertised_max if at_most is None else min(at_most, api.max_version)
        if served is None or min(served.last, last) < max(served.first, api.min_version):
            theirs = f"supports {served.first} to {served.last}" if served else "does not support it"
            raise UnsupportedRequest(
                f"{api.name} cannot be sent to {self.host}:{self.port}: this client supports versions "
                f"{api.min_version} to {last}, and the broker {theirs}."
            )
        return min(served.last, last)

    def send(self, request: Request, version: int | None = None, timeout_s: float | None = None) -> Any:
        """Send a request and wait for its response."""
        return self.post(request, version).wait(timeout_s)

    def post(self, request: Request, version: int | None = None) -> Pending:
        """Send a request now, and let the caller wait for the response later."""
        chosen = self.version_of(request.api_key) if version is None else version
        pending = Pending(self, request, chosen, self._send(request, chosen))
        self._pending.append(pending)
        return pending

    def post_unanswered(self, request: Request, version: int) -> None:
        """Send a request without a response: a Produce with acks=0."""
        self._send(request, version)

    def _send(self, request: Request, version: int) -> int:
        if self._socket is None:
            raise ConnectionLost(f"the connection to {self.host}:{self.port} is closed")
        self._next_id = (self._next_id + 1) & 0x7FFFFFFF
        parts = encode_request(request, version, self._next_id, self.client_id)
        try:
            self._socket.settimeout(self.timeout_s)
            self._socket.sendall(b"".join(parts))
        except OSError as error:
            self.close()
            raise ConnectionLost(
                f"{self.host}:{self.port} closed the connection during the request: {error}"
            ) from error
        except BaseException:
            self.close()  # An interrupt may have cut the request in two.
            raise
        return self._next_id

    def _receive_until(self, pending: Pending, timeout_s: float | None) -> None:
        limit_s = self.timeout_s if timeout_s is None else timeout_s
        deadline = time.monotonic() + limit_s
        try:
            while pending._response is None:
                if self._socket is None:
                    raise ConnectionLost(f"the connection to {self.host}:{self.port} is closed")
                remaining_s = deadline - time.monotonic()
                if remaining_s <= 0:
                    raise TimeoutError
                self._socket.settimeout(remaining_s)
                frames = self._receiver.receive(self._socket)
                if frames is None:
                    raise ConnectionLost(f"{self.host}:{self.port} closed the connection before it answered.")
                for frame in frames:
                    if not self._pending:
                        raise ProtocolError("the broker sent a response without a request")
                    self._pending.popleft()._answer(frame)
        except TimeoutError:
            self.close()
            raise RequestTimedOut(f"{self.host}:{self.port} did not answer within {limit_s:g} s.") from None
        except OSError as error:
            self.close()
            raise ConnectionLost(
                f"{self.host}:{self.port} closed the connection before it answered: {error}"
            ) from error
        except BaseException:
            # Including an interrupt: it may have consumed bytes, and the next response would be misread.
            self.close()
            raise

    def _connect(self, ssl_context: ssl.SSLContext | None) -> socket.socket:
        try:
            raw = socket.create_connection((self.host, self.port), timeout=self.timeout_s)
        except OSError as error:
            raise BrokerUnreachable(f"no broker answers at {self.host}:{self.port} ({error}).") from error
        if _is_to_itself(raw):
            raw.close()
            raise BrokerUnreachable(f"no broker answers at {self.host}:{self.port}.")
        try:
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if ssl_context is None:
                return raw
            return ssl_context.wrap_socket(raw, server_hostname=self.host)
        except ssl.SSLCertVerificationError as error:
            raw.close()
            raise AuthenticationFailed(
                f"the certificate of {self.host}:{self.port} is not accepted: {error.verify_message}. "
                "Check ssl.ca.location, and that the certificate is for this host."
            ) from error
        except OSError as error:
            raw.close()
            raise BrokerUnreachable(f"TLS with {self.host}:{self.port} failed: {error}") from error

    def _authenticate(self, security: Security) -> None:
        lifetime_ms = authenticate(self.send, security, f"{self.host}:{self.port}")
        if lifetime_ms > 0:
            self._expires_at = time.monotonic() + lifetime_ms / 1000 * SESSION_PART

    def _negotiate(self) -> dict[int, VersionRange]:
        version = ApiVersionsRequest.max_version
        request = ApiVersionsRequest(
            client_software_name=SOFTWARE_NAME, client_software_version=SOFTWARE_VERSION
        )
        response: ApiVersionsResponse = self.send(request, version)
        served = _served(response)
        if response.error_code == ErrorCode.UNSUPPORTED_VERSION:
            theirs = served.get(ApiVersionsRequest.api_key, VersionRange(0, 0))
            response = self.send(request, max(0, min(version, theirs.last)))
            served = _served(response)
        if response.error_code:
            raise BrokerUnreachable(
                f"{self.host}:{self.port} did not report its API versions (error {response.error_code})."
            )
        self.features = {feature.name: feature.max_version_level for feature in response.finalized_features}
        self.features_epoch = response.finalized_features_epoch
        return served


def _served(response: ApiVersionsResponse) -> dict[int, VersionRange]:
    return {api.api_key: VersionRange(api.min_version, api.max_version) for api in response.api_keys}
