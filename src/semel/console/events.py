"""Responses that a browser reads while the work behind them runs: server-sent events and downloads.

When the browser disconnects, the source is left, which stops the work behind it.
"""

from typing import Any

import msgspec
from anyio import EndOfStream, move_on_after
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from semel.client import ClientError, KafkaError
from semel.console.clients import WorkStopped
from semel.console.workers import Busy, Next, SessionOver, Source, while_connected
from semel.wire.errors import EncodeError

#: After this time without an event, a comment is sent, so that a lost connection is detected.
QUIET_SECONDS = 10.0


class _Streamed(Response):
    def __init__(self, source: Source[Any], media_type: str, headers: dict[str, str]) -> None:
        # Not of `Response`, which gives a body and its length.
        self.status_code, self.media_type, self.background = 200, media_type, None
        self.init_headers(headers)
        self._source = source

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send what the source has, until the browser disconnects. A HEAD request gets only the headers."""
        if scope["method"] == "HEAD":
            await self.begin(send)
        else:
            try:
                await self.send_all(receive, send)
            except WorkStopped:
                return  # Nobody reads the rest.
        await send(_body(b"", more=False))

    async def begin(self, send: Send) -> None:
        """Send the head."""
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})

    async def send_all(self, receive: Receive, send: Send) -> None:
        """Send the head, and what the source has."""
        raise NotImplementedError


class EventStream(_Streamed):
    """A response of events. An item is the data of an event, or a pair of its name and its data.

    An error of the cluster ends the stream with an event `failed`.
    """

    def __init__(self, source: Source[Any]) -> None:
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        super().__init__(source, "text/event-stream", headers)

    async def send_all(self, receive: Receive, send: Send) -> None:
        """Send the events, and a comment whenever there were none for a while."""
        await self.begin(send)
        await send(_body(b": open\n\n"))
        try:
            async with while_connected(receive), self._source as next_item:
                while True:
                    chunk = b": quiet\n\n"
                    with move_on_after(QUIET_SECONDS):
                        item = await next_item()
                        chunk = event(*item) if isinstance(item, tuple) else event(None, item)
                    await send(_body(chunk))
        except EndOfStream:
            await send(_body(event("end", {})))
        except (KafkaError, ClientError, EncodeError, Busy, SessionOver) as error:
            await send(_body(event("failed", {"message": str(error)})))


class Download(_Streamed):
    """A file, of which an item is a part."""

    def __init__(self, source: Source[bytes], media_type: str, headers: dict[str, str]) -> None:
        super().__init__(source, media_type, headers)

    async def send_all(self, receive: Receive, send: Send) -> None:
        """Send the file. The first part is awaited before the head: an error that comes first is a page."""
        is_begun = False
        try:
            async with while_connected(receive), self._source as next_part:
                part = await _or_none(next_part)
                await self.begin(send)
                is_begun = True
                while part is not None:
                    await send(_body(part))
                    part = await _or_none(next_part)
        except SessionOver:
            if not is_begun:
                raise
            raise ClientDisconnect from None  # The server disconnects: the file must not look complete.


async def _or_none(next_part: Next[bytes]) -> bytes | None:
    try:
        return await next_part()
    except EndOfStream:
        return None


def _body(chunk: bytes, more: bool = True) -> Message:
    return {"type": "http.response.body", "body": chunk, "more_body": more}


def event(name: str | None, data: Any) -> bytes:
    """Encode one event. JSON has no line ends, so the data is one line."""
    head = b"" if name is None else b"event: " + name.encode() + b"\n"
    return head + b"data: " + msgspec.json.encode(data) + b"\n\n"
