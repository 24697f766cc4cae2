"""Work whose browser has gone, or whose time is over: it ends, and leaves nothing behind."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import pytest
from starlette.applications import Starlette
from support.browser.console import Browsing
from support.waiting import until

from semel.client import Admin, Client
from semel.console.app import create_app
from semel.console.messages import producing
from semel.console.messages.scanning import Scan
from semel.console.pages import records
from semel.console.serving import Beside
from semel.console.settings import ConsoleSettings


@contextmanager
def running(bootstrap: str) -> Iterator[tuple[Starlette, str]]:
    settings = ConsoleSettings(bootstrap=bootstrap, port=0)
    app = create_app(settings)
    with Beside(settings, app) as beside:
        yield app, beside.address


def sent(address: str, method: str, path: str, body: bytes = b"") -> socket.socket:
    """A connection on which a request was sent."""
    parts = urlsplit(address)
    raw = socket.create_connection((parts.hostname or "", parts.port or 0), timeout=10)
    head = f"{method} {path} HTTP/1.1\r\nHost: {parts.netloc}\r\nOrigin: {address}\r\n"
    raw.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    return raw


class Slow:
    """Sends, and then waits until the test says otherwise. `stop` is that of the work."""

    def __init__(self, step: Callable[..., Any]) -> None:
        self._step = step
        self.stop = threading.Event()
        self.begun = threading.Event()
        self.may_end = threading.Event()

    def __call__(self, *args: Any) -> Any:
        found = self._step(*args)
        self.stop = args[0]._client.stop
        self.begun.set()
        assert self.may_end.wait(20)
        return found


@pytest.fixture
def slow_send(monkeypatch: pytest.MonkeyPatch) -> Iterator[Slow]:
    """Records are written, and then the broker takes its time."""
    slow = Slow(producing._send)
    monkeypatch.setattr(producing, "_send", slow)
    yield slow
    slow.may_end.set()


def test_a_browser_that_leaves_does_not_leave_a_transaction_open(
    bootstrap: str, client: Client, slow_send: Slow
) -> None:
    Admin(client).topics.create("left")
    with running(bootstrap) as (app, address):
        path = "/topics/left/produce/file.json?outcome=commit&transactional_id=of-the-console"
        with sent(address, "POST", path, b"one\ntwo\n"):
            assert slow_send.begun.wait(20)
            assert Admin(client).transactions.describe("of-the-console").state == "Ongoing"
        assert slow_send.stop.wait(20)
        slow_send.may_end.set()
        until(lambda: not app.state.workers._running)
    assert Admin(client).transactions.describe("of-the-console").state == "CompleteCommit"


def test_a_change_that_took_too_long_may_have_been_made(
    bootstrap: str, client: Client, slow_send: Slow, monkeypatch: pytest.MonkeyPatch
) -> None:
    Admin(client).topics.create("late")
    with running(bootstrap) as (app, address):
        monkeypatch.setattr(app.state.workers, "_settings", ConsoleSettings(request_seconds=0.5))
        reply = Browsing(address).post("/topics/late/produce.json", {"value": "once"})
        assert reply.status == 504
        assert "may have been made" in reply.json["message"]
        assert "look before you try again" in reply.json["message"]


class Endless(Scan[Any]):
    """A search that finds nothing, in a log without an end."""

    def rounds(self) -> Iterator[list[Any]]:
        while not self._stop.wait(0.01):
            yield []


def test_an_export_ends_when_its_browser_goes_before_the_first_line(
    bootstrap: str, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    Admin(client).topics.create("much")
    monkeypatch.setattr(records, "Scan", Endless)
    with running(bootstrap) as (app, address):
        with sent(address, "GET", "/topics/much/messages/export?q=nothing"):
            until(lambda: app.state.workers.streams == 1)
        until(lambda: app.state.workers.streams == 0)


def test_an_export_that_is_refused_is_no_file(browsing: Browsing) -> None:
    assert browsing.get("/topics/unknown/messages/export").status == 404
