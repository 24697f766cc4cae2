"""The frame: pages and their JSON twins, errors as pages, streams that end with their browser."""

import socket
import subprocess
import sys
import threading
import time
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from anyio import to_thread
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from support.brokers.process import free_port
from support.browser.console import Browsing, console
from support.waiting import until

import semel
from semel.client import Admin, Client
from semel.console import app as application
from semel.console.app import create_app
from semel.console.events import EventStream
from semel.console.serving import Beside
from semel.console.settings import ConsoleSettings


def test_every_page_has_a_json_twin(browsing: Browsing) -> None:
    for path in ("/", "/topics"):
        assert browsing.get(path).headers["Content-Type"].startswith("text/html")
    assert browsing.get("/overview.json").json["cluster"]["brokers"][0]["id"] == 0
    assert browsing.get("/topics.json").json["topics"] is not None


def test_an_unknown_page_is_a_page_that_says_so(browsing: Browsing) -> None:
    reply = browsing.get("/nowhere")
    assert reply.status == 404
    assert "No such page" in reply.text
    assert browsing.get("/nowhere.json").json["error"] == "No such page"


def test_a_topic_whose_name_ends_in_json_has_an_address(browsing: Browsing, client: Client) -> None:
    Admin(client).topics.create("events.json")
    assert (
        browsing.post("/topics", {"name": "other.json"})
        .headers["Location"]
        .startswith("/topics/other%2Ejson?")
    )
    listed = until(lambda: [each["topic"] for each in browsing.get("/topics.json").json["topics"]])
    assert "other.json" in listed


def test_a_broker_that_is_away_is_reported_with_what_to_do() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        with console(f"127.0.0.1:{taken.getsockname()[1]}") as browsing:
            reply = browsing.get("/topics")
            assert reply.status == 503
            assert "cannot be reached" in reply.text
            assert browsing.get("/topics.json").json["status"] == 503


def test_pages_work_again_when_the_broker_is_back(tmp_path: Path) -> None:
    port = free_port()
    with console(f"127.0.0.1:{port}", sample_seconds=0.2) as browsing:
        with semel.embedded(tmp_path, port=port) as broker, Client(broker.bootstrap_servers) as client:
            Admin(client).topics.create("kept")
            until(lambda: "kept" in browsing.get("/topics.json").text)
        assert browsing.get("/topics/kept.json").status == 503
        until(lambda: browsing.get("/overview.json").json["health"]["state"] == "odd")
        with semel.embedded(tmp_path, port=port):
            until(lambda: browsing.get("/topics/kept.json").status == 200)
            until(lambda: browsing.get("/overview.json").json["health"]["state"] == "good")


@pytest.fixture
def counted(bootstrap: str) -> Iterator[tuple[Browsing, dict[str, Any]]]:
    """A console with a page that counts for ever, and one that takes long."""
    seen: dict[str, Any] = {name: threading.Event() for name in ("ended", "begun", "left")}

    def count(client: Client, stop: threading.Event) -> Generator[dict[str, int], None, None]:
        number = 0
        try:
            while not stop.wait(0.02):
                number += 1
                yield {"number": number}
        finally:
            seen["ended"].set()

    async def stream(request: Request) -> Response:
        return EventStream(request.app.state.workers.stream(request, count))

    def ask_for_long(client: Client) -> None:
        try:
            while True:
                client.describe(topics=())
                seen["begun"].set()
                time.sleep(0.02)
        finally:
            seen["left"].set()

    async def slow(request: Request) -> Response:
        await request.app.state.workers.run(request, ask_for_long)
        raise AssertionError("it never returns")

    settings = ConsoleSettings(bootstrap=bootstrap, port=0, live_per_user=2, request_seconds=60.0)
    app = create_app(settings)
    app.router.routes[:0] = [Route("/count", stream), Route("/slow", slow)]
    seen["workers"] = app.state.workers
    with Beside(settings, app) as running:
        yield Browsing(running.address), seen


def _open(browsing: Browsing, path: str) -> socket.socket:
    parts = urlsplit(browsing.address)
    made = socket.create_connection((parts.hostname or "", parts.port or 0), timeout=10)
    made.sendall(f"GET {path} HTTP/1.1\r\nHost: {parts.netloc}\r\n\r\n".encode())
    return made


def test_a_stream_ends_when_its_browser_goes_away(counted: tuple[Browsing, dict[str, Any]]) -> None:
    browsing, seen = counted
    browser = _open(browsing, "/count")
    received = b""
    while b'"number":3' not in received:
        received += browser.recv(4096)
    assert not seen["ended"].is_set()
    browser.close()
    assert seen["ended"].wait(10)


def test_a_page_stops_asking_when_its_browser_goes_away(counted: tuple[Browsing, dict[str, Any]]) -> None:
    browsing, seen = counted
    browser = _open(browsing, "/slow")
    assert seen["begun"].wait(20)
    assert not seen["left"].is_set()
    browser.close()
    assert seen["left"].wait(20)  # before the time of a page is over


def test_a_page_has_a_time_limit(
    counted: tuple[Browsing, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    browsing, seen = counted
    monkeypatch.setattr(seen["workers"], "_settings", ConsoleSettings(request_seconds=0.5))
    assert browsing.get("/slow").status == 504
    assert seen["left"].wait(20)


def test_streams_of_a_user_are_bounded(counted: tuple[Browsing, dict[str, Any]]) -> None:
    browsing, _ = counted
    browsers = [_open(browsing, "/count") for _ in range(2)]
    for each in browsers:
        assert b"200 OK" in each.recv(4096)
        assert b"number" in each.recv(4096) + each.recv(4096)
    reply = browsing.get("/count.json")
    assert reply.status == 503
    assert "live views run already" in reply.json["message"]
    for each in browsers:
        each.close()


def _fail_in_the_background(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Make a background task of the next console fail when the event is set."""
    may_fail = threading.Event()

    async def fail(_: object) -> None:
        await to_thread.run_sync(may_fail.wait, 20)
        raise ZeroDivisionError("a bug in the background")

    monkeypatch.setattr(application, "_sweep", fail)
    return may_fail


def test_a_console_ends_when_its_background_fails(
    bootstrap: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    may_fail = _fail_in_the_background(monkeypatch)
    with console(bootstrap) as browsing:
        assert browsing.get("/topics.json").status == 200
        may_fail.set()
        until(lambda: _refuses(browsing))
    assert "a bug in the background" in capsys.readouterr().err


def _refuses(browsing: Browsing) -> bool:
    parts = urlsplit(browsing.address)
    try:
        socket.create_connection((parts.hostname or "", parts.port or 0), timeout=10).close()
    except ConnectionRefusedError:
        return True
    return False


FAILING = """
import sys
from semel.console import app, serving
from semel.console.settings import ConsoleSettings

async def fail(_):
    raise ZeroDivisionError("a bug in the background")

app._sweep = fail
serving.serve(ConsoleSettings(bootstrap=sys.argv[1], port=0), print)
"""


def test_the_process_fails_when_the_background_of_its_console_fails(bootstrap: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", FAILING, bootstrap], capture_output=True, text=True, timeout=60
    )
    assert ended.returncode == 1
    assert "a bug in the background" in ended.stderr
