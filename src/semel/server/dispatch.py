"""Decodes a frame into a message, finds its handler, and processes long requests and responses in slices.

The table of handlers is a parameter, so that tests can use their own handlers. An API without a handler is
not advertised, and a request for it is refused like one with an unknown key. The protocol has no response for
a request that is refused here, so `read` raises `ProtocolError` and the connection is closed. ApiVersions is
the exception: it is answered in any version, because clients use it to learn which versions are served
(docs/behaviours.md, 93).

The size of its frame decides whether a request is long. For a response, the number of elements in its arrays
does, counted two levels deep: topics and their partitions, groups and their members.
"""

from collections.abc import Awaitable, Callable, Generator, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from semel.handlers.context import Handler, RequestContext
from semel.server.in_flight import InFlightRequest
from semel.wire.api_key import ApiKey
from semel.wire.decoding import SLICE_ELEMENTS
from semel.wire.errors import ProtocolError
from semel.wire.frames import RequestHeader, decode_request_header
from semel.wire.messages import APIS, Api, ApiVersionsRequest, FetchRequest
from semel.wire.schema import Buffer, Encoded, Request, Response

if TYPE_CHECKING:
    from semel.server.server_context import ServerContext

LONG_FRAME_BYTES: Final = 16_384
"""A longer request is decoded in slices: without records, it may have as many elements as bytes."""

ELEMENTS_MAX: Final = {24: 10_000}
"""Lower limits than `semel.request.elements.max`, by API key. AddPartitionsToTxn: a transaction is decided
and written as a whole, and each thousand partitions block the event loop for ten milliseconds."""

Decoding: TypeAlias = Generator[None, None, Request]
"""The remaining work of decoding a message, in slices."""


class Dispatch:
    """The APIs that are served, and their handlers."""

    __slots__ = ("_served", "handlers")

    def __init__(self, handlers: Mapping[int, Handler], apis: Iterable[Api] = APIS.values()) -> None:
        self.handlers = handlers
        self._served: dict[int, Api] = {each.key: each for each in apis if each.key in handlers}

    def read(self, frame: Buffer, elements_max: int) -> "tuple[RequestHeader, Request | Decoding]":
        """Decode a frame; returns its header, and the message, or for a long request the remaining work.

        A request is long if its frame exceeds `LONG_FRAME_BYTES`; Produce only if it also needs more than the
        first slice. Only the decoder that works in slices limits the number of elements. ProtocolError if the
        API is not served.
        """
        header, position = decode_request_header(frame)
        api = self._served.get(header.api_key)
        if api is None:
            raise ProtocolError(f"API {header.api_key} is not served")
        version = header.api_version
        if not api.min_version <= version <= api.advertised_max:
            if header.api_key == ApiKey.API_VERSIONS:
                # The response says which versions are served, in the version that every client understands.
                header.response_version = 0
                return header, ApiVersionsRequest()
            raise ProtocolError(f"{api.name} v{version} is not served")
        if len(frame) <= LONG_FRAME_BYTES:
            return header, api.request.decode(frame, version, position)
        elements_max = min(elements_max, ELEMENTS_MAX.get(header.api_key, elements_max))
        work = api.request.decode_in_slices(frame, version, position, elements_max)
        if header.api_key == ApiKey.PRODUCE:
            try:
                next(work)
                next(work)
            except StopIteration as stop:
                message: Request = stop.value
                return header, message
        return header, work


async def handle_long(
    server: "ServerContext",
    in_flight: InFlightRequest,
    decoding: Decoding,
    context: RequestContext,
    handler: Handler,
    decoded: Callable[[InFlightRequest], None],
) -> Response | Encoded | None:
    """Decode a long request in slices, then handle it. Calls ``decoded``, except for Produce."""
    request = await server.broker.slices.run(decoding)
    del decoding
    if in_flight.api_key != ApiKey.PRODUCE:
        decoded(in_flight)
    answer = handler(server.broker, request, context)
    return await respond(server, in_flight, request, answer)


async def respond(
    server: "ServerContext", in_flight: InFlightRequest, request: Request, answer: Awaitable[Any]
) -> Response | Encoded | None:
    """Await a handler's answer. A long response is encoded in slices."""
    if isinstance(request, FetchRequest):
        responses = server.responses
        request.max_bytes = min(request.max_bytes, responses.fetch_share())
        responses.fetches += 1
        try:
            response = await answer
        finally:
            responses.fetches -= 1
    else:
        response = await answer
    if is_long(response):
        parts = await server.broker.slices.run(response.encode_in_slices(in_flight.version))
        return Encoded(type(response), parts)
    return response  # type: ignore[no-any-return]


def is_long(response: Any) -> bool:
    """Whether encoding this response at once would block the event loop for too long."""
    if type(response) is Encoded:
        return False
    return isinstance(response, Response) and _elements(response, levels=2) > SLICE_ELEMENTS


def _elements(struct: Any, levels: int) -> int:
    """Return the number of elements in the arrays of a struct; stops counting above ``SLICE_ELEMENTS``."""
    count = 0
    for name, field in struct.declared.items():
        if field.kind != "array":
            continue
        items = getattr(struct, name)
        if not items:
            continue
        count += len(items)
        if levels > 1 and isinstance(field.element, type):
            for item in items:
                if count > SLICE_ELEMENTS:
                    break
                count += _elements(item, levels - 1)
    return count
