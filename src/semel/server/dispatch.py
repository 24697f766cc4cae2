"""From a frame to a message and the handler for it.

The table of handlers is given from above, so that a connection can be tested with handlers of the test's
own. An API without a handler does not exist: it is not advertised and a request for it is refused like
one that nobody knows. A request that is refused here has no answer in the protocol, so it raises
`ProtocolError` and the connection is closed. ApiVersions is the exception: it is answered in whatever
version it was asked, because it is how a client finds out what may be asked (docs/behaviours.md, 93).
"""

from collections.abc import Generator, Iterable, Mapping
from typing import Final, TypeAlias

from semel.core.names import CLIENT_ID_CHARS_MAX
from semel.handlers.context import CloseConnection, Handler
from semel.wire.errors import ProtocolError
from semel.wire.frames import RequestHeader, decode_request_header
from semel.wire.messages import APIS, Api, ApiVersionsRequest
from semel.wire.schema import Buffer, Request, Response

PRODUCE: Final = 0
FETCH: Final = 1
API_VERSIONS: Final = 18

LONG_FRAME_BYTES: Final = 16_384
"""A request without records that is longer is decoded in slices: it may have as many elements as bytes."""

ELEMENTS_MAX: Final = {24: 10_000}
"""Less than `semel.request.elements.max` for AddPartitionsToTxn: a transaction is decided and written as a
whole, and each thousand partitions hold up the event loop for ten milliseconds."""

Decoding: TypeAlias = Generator[None, None, Request]
"""The rest of a message, in slices."""

HandlerResult: TypeAlias = Response | CloseConnection | None
"""What became of a request: a response, a reason to close, or None where no response is wanted."""


class Dispatch:
    """The APIs that are served, and who serves them."""

    __slots__ = ("_served", "handlers")

    def __init__(self, handlers: Mapping[int, Handler], apis: Iterable[Api] = APIS.values()) -> None:
        self.handlers = handlers
        self._served: dict[int, Api] = {each.key: each for each in apis if each.key in handlers}

    def open(self, frame: Buffer) -> "Opened":
        """Read the header, and find out how to read the rest. ProtocolError if there is no answer."""
        header, position = decode_request_header(frame)
        api = self._served.get(header.api_key)
        if api is None:
            raise ProtocolError(f"API {header.api_key} is not served")
        if api.min_version <= header.api_version <= api.advertised_max:
            return Opened(header, api.request, position, header.api_version)
        if header.api_key == API_VERSIONS:
            return Opened(header, None, position, 0)
        raise ProtocolError(f"{api.name} v{header.api_version} is not served")


class Opened:
    """A request whose header was read."""

    __slots__ = (
        "_kind",
        "_position",
        "api_key",
        "client_id",
        "correlation_id",
        "response_version",
        "version",
    )

    def __init__(
        self, header: RequestHeader, kind: type[Request] | None, position: int, response_version: int
    ) -> None:
        self.api_key = header.api_key
        self.version = header.api_version
        self.correlation_id = header.correlation_id
        client_id = header.client_id
        self.client_id = client_id if client_id is None else client_id[:CLIENT_ID_CHARS_MAX]
        self.response_version = response_version
        self._kind = kind
        """None for ApiVersions in a version that we do not know, which is not read."""
        self._position = position

    def decode(self, frame: Buffer, elements_max: int) -> "Request | Decoding":
        """Read the message, or what is left to do if it has many elements.

        A request without records is long by the bytes of its frame; Produce if it does not end with the first
        slice. A frame that may hold too many elements is read by the decoder that counts.
        """
        if self._kind is None:
            return ApiVersionsRequest()
        if len(frame) <= LONG_FRAME_BYTES:
            return self._kind.decode(frame, self.version, self._position)
        elements_max = min(elements_max, ELEMENTS_MAX.get(self.api_key, elements_max))
        work = self._kind.decode_in_slices(frame, self.version, self._position, elements_max)
        if self.api_key == PRODUCE:
            try:
                next(work)
                next(work)
            except StopIteration as stop:
                message: Request = stop.value
                return message
        return work
