"""Reads and writes the frames and headers around the messages of a connection.

A frame is a size of four bytes, and a payload of that size: a header, then the body of one message.
`FrameParser` splits the bytes from a socket into payloads. The functions of this module read and write the
headers, which depend on the API and version of the message:

- A request has its API key, version, correlation id and client id, and a section of tagged fields when the
  version is flexible. The client id always has a length of two bytes.
- A response has the correlation id, and tagged fields when the version is flexible. ApiVersions is the
  exception: its response never has them, because a client cannot know yet what the broker supports.

A frame that arrives in one piece is returned without a copy. A frame in several pieces is collected in a
bytearray, which grows with the received bytes, never to the declared size. A view of this bytearray is
returned, so each byte is copied once, however the pieces are cut.
"""

import struct
from collections.abc import Collection
from dataclasses import dataclass

from semel.wire.api_key import ApiKey
from semel.wire.errors import ProtocolError
from semel.wire.messages import APIS
from semel.wire.primitives import COPY_LIMIT, HEADER_TAGS_MAX, skip_tagged_fields
from semel.wire.schema import Buffer, Request, Response

_SIZE = struct.Struct(">i")
_SIZED_KEY = struct.Struct(">ih")
_REQUEST_HEADER = struct.Struct(">hhih")
_REQUEST_PREFIX = struct.Struct(">ihhih")
_RESPONSE_PREFIX = struct.Struct(">ii")
_FLEXIBLE_RESPONSE_PREFIX = struct.Struct(">iix")


class FrameParser:
    """Splits a stream of bytes into the payloads of its frames.

    Requests of the APIs in `large` may have up to `max_frame_bytes`, all others up to `usual_max_bytes`. The
    API key follows the size, so a frame that is too large is refused at its start.

    After a `ProtocolError` the position of the next frame is unknown: the connection must be closed.
    """

    __slots__ = ("_large", "_missing", "_must_check_key", "_partial", "max_frame_bytes", "usual_max_bytes")

    def __init__(
        self, max_frame_bytes: int, usual_max_bytes: int | None = None, large: Collection[int] = ()
    ) -> None:
        self.max_frame_bytes = max_frame_bytes
        self.usual_max_bytes = (
            max_frame_bytes if usual_max_bytes is None else min(usual_max_bytes, max_frame_bytes)
        )
        self._large = large
        #: Whether a large frame has started, and its API key has not arrived yet.
        self._must_check_key = False
        #: The start of a frame, with as much of its size as has arrived.
        self._partial = bytearray()
        #: How many bytes `_partial` still needs for its size, and then for its payload.
        self._missing = 4

    @property
    def buffered(self) -> int:
        """The number of bytes received of an incomplete frame."""
        return len(self._partial)

    @property
    def missing(self) -> int:
        """The number of bytes still needed: of the size, and once that is known, of the payload."""
        return self._missing

    def take_over(self) -> memoryview:
        """Return the received part of a payload whose size is known. The caller receives the rest itself."""
        begun, self._partial, self._missing = self._partial, bytearray(), 4
        return memoryview(begun)[4:]

    def feed(self, data: Buffer) -> list[memoryview]:
        """Add the next bytes of the stream; return the payloads that are now complete, read-only."""
        # The returned payloads point into the data, which therefore must never change.
        piece = data if type(data) is bytes else bytes(data)
        frames: list[memoryview] = []
        position = 0
        if self._partial:
            position = self._continue(piece, frames)
            if self._partial:
                return frames
        view = memoryview(piece)
        end = len(piece)
        while end - position >= 4:
            size = self._checked_size(piece, position)
            stop = position + 4 + size
            if stop > end:
                self._missing = stop - end
                break
            frames.append(view[position + 4 : stop])
            position = stop
        else:
            self._missing = 4 - (end - position)
        if position < end:
            self._partial += view[position:]
        return frames

    def _continue(self, piece: bytes, frames: list[memoryview]) -> int:
        """Add to the current frame; return how many bytes of the piece it took."""
        partial, taken = self._partial, 0
        if len(partial) < 4:
            taken = self._missing
            partial += piece[:taken]
            if len(partial) < 4:
                self._missing = 4 - len(partial)
                return taken
            self._missing = self._checked_size(partial, 0)
        stop = taken + self._missing
        partial += memoryview(piece)[taken:stop]
        if self._must_check_key:
            self._check_key(partial, 0)
        if stop > len(piece):
            self._missing = stop - len(piece)
            return stop
        frames.append(memoryview(partial).toreadonly()[4:])
        self._partial, self._missing = bytearray(), 4
        return stop

    def _checked_size(self, data: Buffer, position: int) -> int:
        size: int = _SIZE.unpack_from(data, position)[0]
        if size < 0 or size > self.max_frame_bytes:
            raise ProtocolError(f"a frame of {size} bytes; at most {self.max_frame_bytes} are allowed")
        if size > self.usual_max_bytes:
            self._check_key(data, position)
        return size

    def _check_key(self, data: Buffer, position: int) -> None:
        """Refuse a large frame of an API that is not in `large`, as soon as the API key has arrived."""
        self._must_check_key = len(data) < position + _SIZED_KEY.size
        if self._must_check_key:
            return
        size, api_key = _SIZED_KEY.unpack_from(data, position)
        if api_key not in self._large:
            api = APIS.get(api_key)
            raise ProtocolError(
                f"a frame of {size} bytes for {api.name if api else f'API {api_key}'}; "
                f"at most {self.usual_max_bytes} are allowed (semel.request.max.bytes)"
            )


@dataclass(slots=True)
class RequestHeader:
    """The header of a request."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None
    response_version: int
    """The version of the response: that of the request, or 0 for ApiVersions in a version not served."""


def decode_request_header(frame: Buffer) -> tuple[RequestHeader, int]:
    """Read the header of a request; return it, and the start of the body.

    If the API or the version is unknown, the layout after the client id is unknown too. Then the position
    right after the client id is returned, which is enough to answer ApiVersions of an unknown version.
    """
    try:
        api_key, api_version, correlation_id, length = _REQUEST_HEADER.unpack_from(frame)
        position = _REQUEST_HEADER.size
        client_id = None
        if length >= 0:
            stop = position + length
            if stop > len(frame):
                raise ProtocolError(f"a client id of {length} bytes, {len(frame) - position} are left")
            # C clients may send a client id that is not UTF-8. It is only a name, so it is not refused.
            client_id = str(frame[position:stop], "utf-8", "replace")
            position = stop
        api = APIS.get(api_key)
        if api is not None and api_version <= api.max_version and api.request.is_flexible(api_version):
            position = _skip_tags(frame, position)
    except (struct.error, IndexError) as error:
        raise ProtocolError("a request ends within its header") from error
    return RequestHeader(api_key, api_version, correlation_id, client_id, api_version), position


def decode_response_header(frame: Buffer, api_key: int, version: int) -> tuple[int, int]:
    """Read the header of a response; return the correlation id, and the start of the body."""
    try:
        correlation_id: int = _SIZE.unpack_from(frame)[0]
        position = _SIZE.size
        if _flexible_response(api_key, version):
            position = _skip_tags(frame, position)
    except (struct.error, IndexError) as error:
        raise ProtocolError("a response ends within its header") from error
    return correlation_id, position


def encode_request(
    message: Request, version: int, correlation_id: int, client_id: str | None
) -> list[Buffer]:
    """Encode a frame with a request, in pieces to be sent in order."""
    name = b"" if client_id is None else client_id.encode()
    length = -1 if client_id is None else len(name)
    parts = message.encode_parts(version)
    tags = b"\x00" if message.is_flexible(version) else b""
    size = _REQUEST_HEADER.size + len(name) + len(tags) + sum(map(len, parts))
    prefix = _REQUEST_PREFIX.pack(size, message.api_key, version, correlation_id, length)
    parts[0] = b"".join((prefix, name, tags, parts[0]))
    return parts


def encode_response(message: Response, version: int, correlation_id: int) -> list[Buffer]:
    """Encode a frame with a response, in pieces to be sent in order."""
    return framed_response(message, version, correlation_id, message.encode_parts(version))


def framed_response(
    message: Response, version: int, correlation_id: int, parts: list[Buffer]
) -> list[Buffer]:
    """Frame a response whose body is already encoded; the pieces are not copied."""
    size = sum(map(len, parts))
    if message.is_flexible(version) and message.api_key != ApiKey.API_VERSIONS:
        prefix = _FLEXIBLE_RESPONSE_PREFIX.pack(size + 5, correlation_id)
    else:
        prefix = _RESPONSE_PREFIX.pack(size + 4, correlation_id)
    if len(parts[0]) > COPY_LIMIT:
        return [prefix, *parts]
    return [prefix + parts[0], *parts[1:]]


def _flexible_response(api_key: int, version: int) -> bool:
    api = APIS.get(api_key)
    return api is not None and api_key != ApiKey.API_VERSIONS and api.response.is_flexible(version)


def _skip_tags(frame: Buffer, position: int) -> int:
    """Return the position after a header's tagged fields. Semel knows none, and clients send hardly any."""
    if frame[position] == 0:
        return position + 1
    return skip_tagged_fields(frame, position, len(frame), HEADER_TAGS_MAX)
