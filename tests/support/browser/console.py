"""A console over a broker, and requests to it as a browser or a program sends them."""

import http.client
import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode, urlsplit

from semel.console.serving import Beside
from semel.console.settings import ConsoleSettings


@dataclass(frozen=True, slots=True)
class Reply:
    """A response of the console."""

    status: int
    headers: http.client.HTTPMessage = field(repr=False)
    body: bytes = field(repr=False)

    @property
    def text(self) -> str:
        return self.body.decode()

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Browsing:
    """Requests to a console, which keep its cookie as a browser does."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.cookie: str | None = None

    def get(self, path: str, **headers: str) -> Reply:
        return self.send("GET", path, None, headers)

    def post(self, path: str, fields: dict[str, Any] | None = None, **headers: str) -> Reply:
        """Submit a form, as a page of the console does."""
        given = {"Origin": self.address, "Content-Type": "application/x-www-form-urlencoded", **headers}
        return self.send("POST", path, urlencode(fields or {}).encode(), given)

    def post_json(self, path: str, value: Any, **headers: str) -> Reply:
        given = {"Origin": self.address, "Content-Type": "application/json", **headers}
        return self.send("POST", path, json.dumps(value).encode(), given)

    def send(self, method: str, path: str, body: bytes | None, headers: dict[str, str]) -> Reply:
        parts = urlsplit(self.address)
        connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=120)
        try:
            cookies = {"Cookie": self.cookie} if self.cookie else {}
            named = {name.replace("_", "-"): value for name, value in headers.items()}
            connection.request(method, path, body, {**cookies, **named})
            response = connection.getresponse()
            reply = Reply(response.status, response.headers, response.read())
        finally:
            connection.close()
        if "Set-Cookie" in reply.headers:
            self.cookie = reply.headers["Set-Cookie"].partition(";")[0]
        return reply


def is_closed(raw: socket.socket) -> bool:
    """Whether the console closes the connection without sending another byte."""
    try:
        return raw.recv(1024) == b""
    except ConnectionError:  # The test sent data after the console had closed the connection.
        return True


@contextmanager
def console(bootstrap: str, **settings: Any) -> Iterator[Browsing]:
    """Run a console on a free port. Its observer samples without a rest.

    By default the observer rests for fifty times as long as a sample took: after one stall of half a second,
    a test would wait in vain for the next sample.
    """
    given = {"sample_share": 1.0, **settings}
    with Beside(ConsoleSettings(bootstrap=bootstrap, port=0, **given)) as running:
        yield Browsing(running.address)
