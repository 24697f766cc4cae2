"""Serves the metrics page: `GET /metrics` and `GET /health` over HTTP/1.1, and nothing else.

The page has its own port, for the operator's network. A request may have a few kilobytes and must arrive
within seconds. A connection carries one request, and only a few are served at a time.

A broker serves it on its own event loop. `MetricsThread` serves it for programs that have none.
"""

import asyncio
import json
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any, Final, Self

REQUEST_BYTES_MAX: Final = 8_192
REQUEST_SECONDS: Final = 5.0
CLIENTS_MAX: Final = 32

_TEXT: Final = "text/plain; version=0.0.4; charset=utf-8"
_JSON: Final = "application/json"

Health = Callable[[], tuple[bool, dict[str, Any]]]
"""Returns whether the program serves, and more fields for the answer."""


class MetricsPage:
    """A small HTTP server. `start` binds the port, `stop` releases it."""

    def __init__(self, metrics: Callable[[], bytes], health: Health) -> None:
        """`metrics` returns the page in Prometheus' text format."""
        self._metrics = metrics
        self._health = health
        self._server: asyncio.Server | None = None
        self._clients: set[asyncio.Task[Any]] = set()
        self._is_stopping = False

    async def start(self, host: str, port: int) -> int:
        """Serve on this address; returns the port. OSError if the address is in use."""
        self._server = await asyncio.start_server(self._serve, host, port, limit=REQUEST_BYTES_MAX)
        bound: int = self._server.sockets[0].getsockname()[1]
        return bound

    async def stop(self) -> None:
        """Release the port and abort the requests in progress."""
        if self._server is None:
            return
        self._is_stopping = True
        self._server.close()
        for task in tuple(self._clients):
            task.cancel()
        await asyncio.gather(*self._clients, return_exceptions=True)
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is None or self._is_stopping or len(self._clients) >= CLIENTS_MAX:
            writer.close()
            return
        self._clients.add(task)
        try:
            async with asyncio.timeout(REQUEST_SECONDS):
                writer.write(self._answer(await _request_line(reader)))
                await writer.drain()
        except (TimeoutError, ConnectionError):
            # The client is too slow, or has disconnected: no answer.
            pass
        except asyncio.CancelledError:
            # Only `stop` cancels, and it waits for this task; the task ends normally.
            writer.transport.abort()
        finally:
            self._clients.discard(task)
            writer.close()

    def _answer(self, request_line: bytes) -> bytes:
        method, _, rest = request_line.partition(b" ")
        path = rest.partition(b" ")[0].partition(b"?")[0]
        if not rest.endswith((b"HTTP/1.1", b"HTTP/1.0")):
            return _response(400, "text/plain", b"this is not HTTP\n")
        if method not in (b"GET", b"HEAD"):
            return _response(405, "text/plain", b"only GET is served\n", head=False)
        head = method == b"HEAD"
        if path == b"/metrics":
            return _response(200, _TEXT, self._metrics(), head=head)
        if path == b"/health":
            is_serving, fields = self._health()
            body = json.dumps({"status": "serving" if is_serving else "stopping", **fields}).encode() + b"\n"
            return _response(200 if is_serving else 503, _JSON, body, head=head)
        return _response(404, "text/plain", b"there are /metrics and /health\n", head=head)


class MetricsThread:
    """Serves a metrics page on a daemon thread while its context is open."""

    def __init__(self, page: MetricsPage, host: str, port: int) -> None:
        """Bind the port. OSError if the address is in use, UnicodeError if it cannot be one."""
        self._page = page
        self._loop = asyncio.new_event_loop()
        try:
            self.port = self._loop.run_until_complete(page.start(host, port))
        except BaseException:
            self._loop.close()
            raise
        self._thread = threading.Thread(target=self._loop.run_forever, name="metrics page", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.run_until_complete(self._stop())
        self._loop.close()

    async def _stop(self) -> None:
        await self._page.stop()
        # A connection that was accepted a moment ago has a task that the page does not know yet.
        while tasks := asyncio.all_tasks() - {asyncio.current_task()}:
            await asyncio.wait(tasks)
        await asyncio.sleep(0)  # Transports close their sockets in the next turn of the loop.


async def _request_line(reader: asyncio.StreamReader) -> bytes:
    """Return the first line, and ignore the headers. Empty if the request is too long or incomplete."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError):
        return b""
    return head.partition(b"\r\n")[0]


_REASONS: Final = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    503: "Unavailable",
}


def _response(status: int, content_type: str, body: bytes, *, head: bool = False) -> bytes:
    lines = (
        f"HTTP/1.1 {status} {_REASONS[status]}",
        f"Content-Type: {content_type}",
        f"Content-Length: {len(body)}",
        "Connection: close",
        "",
        "",
    )
    return "\r\n".join(lines).encode() + (b"" if head else body)
