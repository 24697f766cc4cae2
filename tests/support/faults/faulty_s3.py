"""A proxy before an S3 server that injects faults into some requests.

with FaultyS3(server) as proxy:
    proxy.spoil("GET", Fault.UNAVAILABLE, times=2)
    objects = Objects.open(proxy.address, **proxy.options)
"""

import enum
import http.client
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from support.servers.s3 import S3Server


class Fault(enum.Enum):
    """What happens to a request."""

    UNAVAILABLE = enum.auto()
    """The server never receives it, and the client gets 503."""
    CUT = enum.auto()
    """The server receives it, and the connection ends in the middle of the response."""
    SHORT = enum.auto()
    """The server receives it; the response has half of its body and declares it complete."""
    LOST_ANSWER = enum.auto()
    """The server receives it, and the connection ends without a response."""
    SWALLOWED = enum.auto()
    """The server never receives it, and the client gets 200."""
    SHRUNK = enum.auto()
    """The server receives half of the body as if it were all, whatever the signature says."""


class FaultyS3:
    """Listens on a port of its own."""

    def __init__(self, server: S3Server) -> None:
        self._server = server
        self._lock = threading.Lock()
        self._rules: list[list[Any]] = []
        self.seen: list[tuple[str, str]] = []
        """Method and path of every request."""
        proxy = self

        class Handler(_Handler):
            faulty = proxy

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.01,), name="faulty s3")

    @property
    def address(self) -> str:
        return self._server.address

    @property
    def port(self) -> int:
        return self._server.port

    @property
    def options(self) -> dict[str, Any]:
        return {**self._server.options, "endpoint": f"http://127.0.0.1:{self._http.server_port}"}

    def spoil(
        self, method: str, fault: Fault, times: int = 1, where: Callable[[str], bool] = lambda path: True
    ) -> None:
        """Apply the fault to the next `times` requests of a method whose paths match."""
        with self._lock:
            self._rules.append([method, fault, times, where])

    def heal(self) -> None:
        """Remove all faults."""
        with self._lock:
            self._rules.clear()

    def judge(self, method: str, path: str) -> Fault | None:
        with self._lock:
            self.seen.append((method, path))
            for rule in self._rules:
                if rule[0] == method and rule[2] and rule[3](path):
                    rule[2] -= 1
                    return rule[1]  # type: ignore[no-any-return]
        return None

    def count(self, method: str) -> int:
        return sum(each == method for each, _ in self.seen)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._http.shutdown()
        self._thread.join()
        self._http.server_close()


class _Handler(BaseHTTPRequestHandler):
    faulty: FaultyS3
    protocol_version = "HTTP/1.1"

    def handle_one_request(self) -> None:
        """Do as in the base class, for every method."""
        self.raw_requestline = self.rfile.readline(65_537)
        if not self.raw_requestline or not self.parse_request():
            self.close_connection = True
            return
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        fault = self.faulty.judge(self.command, self.path)
        if fault is Fault.UNAVAILABLE:
            self._answer(503, {}, b"<Error><Code>SlowDown</Code></Error>")
            return
        if fault is Fault.SWALLOWED:
            self._answer(200, {"ETag": '"0123"'}, b"")
            return
        upstream = http.client.HTTPConnection("127.0.0.1", self.faulty.port, timeout=30)
        headers = dict(self.headers)
        if fault is Fault.SHRUNK:
            body = body[: len(body) // 2]
            headers["Content-Length"] = str(len(body))
        upstream.request(self.command, self.path, body, headers)
        response = upstream.getresponse()
        data = response.read()
        upstream.close()
        self.close_connection = fault is not None
        if fault is Fault.LOST_ANSWER:
            return
        kept = {name: value for name, value in response.getheaders() if name not in _OWN}
        if fault is Fault.SHORT:
            data = data[: len(data) // 2]
            kept.pop("Content-Range", None)
        self._answer(response.status, kept, data, cut=fault is Fault.CUT)

    def _answer(self, status: int, headers: dict[str, str], data: bytes, *, cut: bool = False) -> None:
        self.send_response_only(status)
        length = headers.pop("Content-Length", str(len(data))) if self.command == "HEAD" else str(len(data))
        for name, value in {**headers, "Content-Length": length}.items():
            self.send_header(name, value)
        if self.close_connection:
            # Otherwise the client may send its next request on a connection that is about to close.
            self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data[: len(data) // 2] if cut else data)
        self.wfile.flush()


_OWN = {"Transfer-Encoding", "Connection"}
