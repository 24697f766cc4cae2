"""Server-sent events: turns an async iterator into a response that a browser keeps open.

When the browser disconnects, the iterator is closed, which stops the work behind it. A comment is sent while
there are no events, so that a lost connection is detected.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from semel.client import ClientError, KafkaError
from semel.console.workers import Busy, SessionOver
from semel.wire.errors import EncodeError

#: After this time without an event, a comment is sent.
QUIET_SECONDS = 10.0


class EventStream(StreamingResponse):
    """A response that always closes its source, even if the browser disconnects during a send."""

    media_type = "text/event-stream"

    def __init__(self, source: AsyncGenerator[bytes, None]) -> None:
        super().__init__(source, headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        self._source = source

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send all events, and close the source. A HEAD request gets only the headers."""
        try:
            if scope["method"] == "HEAD":
                await Response(headers=dict(self.headers))(scope, receive, send)
            else:
                await super().__call__(scope, receive, send)
        finally:
            await self._source.aclose()


def stream(request: Request, items: AsyncIterator[Any]) -> EventStream:
    """Return a response of events. An item is the data of an event, or a pair of its name and its data.

    An error of the cluster ends the stream with an event `failed`.
    """
    return EventStream(_encoded(items))


async def _encoded(items: AsyncIterator[Any]) -> AsyncGenerator[bytes, None]:
    iterator = aiter(items)
    pending: asyncio.Future[Any] | None = None
    try:
        yield b": open\n\n"
        while True:
            if pending is None:
                pending = asyncio.ensure_future(anext(iterator))
            done, _ = await asyncio.wait({pending}, timeout=QUIET_SECONDS)
            if not done:
                yield b": quiet\n\n"
                continue
            finished, pending = pending, None
            try:
                item = finished.result()
            except StopAsyncIteration:
                yield b"event: end\ndata: {}\n\n"
                return
            except (KafkaError, ClientError, EncodeError, Busy, SessionOver) as error:
                yield event("failed", {"message": str(error)})
                return
            yield event(*item) if isinstance(item, tuple) else event(None, item)
    finally:
        if pending is not None:
            pending.cancel()
            await asyncio.gather(pending, return_exceptions=True)
        if isinstance(items, AsyncGenerator):
            await items.aclose()


def event(name: str | None, data: Any) -> bytes:
    """Encode one event. JSON has no line ends, so the data is one line."""
    head = b"" if name is None else b"event: " + name.encode() + b"\n"
    return head + b"data: " + msgspec.json.encode(data) + b"\n\n"
