"""Decodes a frame into a message and finds its handler.

The table of handlers is a parameter, so that tests can use their own handlers. An API without a handler is
not advertised, and a request for it is refused like one with an unknown key. The protocol has no response for
a request that is refused here, so `read` raises `ProtocolError` and the connection is closed. ApiVersions is
the exception: it is answered in any version, because clients use it to learn which versions are served
(docs/behaviours.md, 93).
"""

from collections.abc import Generator, Iterable, Mapping
from typing import Final, TypeAlias

from semel.handlers.context import CloseConnection, Handler
from semel.wire.api_key import ApiKey
from semel.wire.errors import ProtocolError
from semel.wire.frames import RequestHeader, decode_request_header
from semel.wire.messages import APIS, Api, ApiVersionsRequest
from semel.wire.schema import Buffer, Request, Response

LONG_FRAME_BYTES: Final = 16_384
"""A longer request is decoded in slices: without records, it may have as many elements as bytes."""

ELEMENTS_MAX: Final = {24: 10_000}
"""Lower limits than `semel.request.elements.max`, by API key. AddPartitionsToTxn: a transaction is decided
and written as a whole, and each thousand partitions block the event loop for ten milliseconds."""

Decoding: TypeAlias = Generator[None, None, Request]
"""The remaining work of decoding a message, in slices."""

HandlerResult: TypeAlias = Response | CloseConnection | None
"""The outcome of a request: a response, a reason to close, or None if no response is wanted."""


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
