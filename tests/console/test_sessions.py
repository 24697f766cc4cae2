"""What a session has open: it is counted, and it ends with the session."""

import http.client
import socket
import threading
from collections.abc import Generator, Iterator
from urllib.parse import urlsplit

import pytest
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from support.browser.console import Browsing, console
from support.waiting import until

import semel
from semel.client import Admin, Client, Security
from semel.console.app import create_app
from semel.console.events import Download
from semel.console.serving import Beside
from semel.console.settings import ConsoleSettings

USERS = {"admin": "secret-a", "second": "secret-s", "third": "secret-t"}
SASL = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "SCRAM-SHA-256"}


@pytest.fixture(scope="module")
def guarded() -> Iterator[str]:
    """A broker with users who may do everything."""
    with semel.embedded(users=USERS) as broker:
        with Client(broker.bootstrap_servers, security=security_of("admin")) as client:
            Admin(client).topics.create("orders")
        yield broker.bootstrap_servers


def security_of(user: str) -> Security:
    return Security.of({**SASL, "sasl.username": user, "sasl.password": USERS[user]})


def logged_in(address: str, user: str) -> Browsing:
    browsing = Browsing(address)
    reply = browsing.post("/login", {"user": user, "password": USERS[user]})
    assert reply.status == 303, reply.text
    return browsing


class Stream:
    """An open stream of events, read until it ends."""

    def __init__(self, browsing: Browsing, path: str) -> None:
        parts = urlsplit(browsing.address)
        self._connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=60)
        self._connection.request("GET", path, headers={"Cookie": browsing.cookie or ""})
        response = self._connection.getresponse()
        self.status = response.status
        self.lines: list[bytes] = []
        self.ended = threading.Event()

        def read() -> None:
            try:
                while line := response.readline():
                    self.lines.append(line)
            except OSError:
                pass
            finally:
                response.close()
                self._connection.close()
                self.ended.set()

        threading.Thread(target=read, daemon=True).start()

    def has(self, text: bytes) -> bool:
        return any(text in line for line in self.lines)


def test_a_logout_ends_a_download_which_does_not_look_complete(
    guarded: str, caplog: pytest.LogCaptureFixture
) -> None:
    settings = ConsoleSettings(bootstrap=guarded, port=0, client=SASL, login=True)
    app = create_app(settings)

    def drops(client: Client, stop: threading.Event) -> Generator[bytes, None, None]:
        while not stop.wait(0.02):
            yield b"drop\n"

    async def drip(request: Request) -> Response:
        return Download(request.app.state.workers.stream(request, drops), "text/plain", {})

    app.router.routes[:0] = [Route("/drip", drip)]
    with Beside(settings, app) as running:
        session = logged_in(running.address, "admin")
        parts = urlsplit(running.address)
        with socket.create_connection((parts.hostname or "", parts.port or 0), timeout=20) as raw:
            head = f"GET /drip HTTP/1.1\r\nHost: {parts.netloc}\r\nCookie: {session.cookie}\r\n\r\n"
            raw.sendall(head.encode())
            received = b""
            while b"drop" not in received:
                received += raw.recv(4096)
            session.post("/logout")
            while more := raw.recv(4096):
                received += more
        assert not received.endswith(b"0\r\n\r\n")  # the end of a whole body
        until(lambda: app.state.workers.streams == 0)
    assert "failed" not in caplog.text


@pytest.mark.parametrize("path", ["/changes?of=catalogue", "/topics/orders/messages/tail"])
def test_a_logout_ends_open_streams_of_that_session_only(guarded: str, path: str) -> None:
    with console(guarded, client=SASL, login=True, sample_seconds=60.0) as browsing:
        first, second = logged_in(browsing.address, "admin"), logged_in(browsing.address, "admin")
        leaving, staying = Stream(first, path), Stream(second, path)
        for each in (leaving, staying):
            until(lambda each=each: each.has(b": open"))  # type: ignore[misc]
        assert first.post("/logout").status == 303
        assert leaving.ended.wait(20)
        assert leaving.has(b"event: failed")
        assert leaving.has(b"logged out")
        assert staying.status == 200
        assert not staying.ended.is_set()
        assert second.get("/topics.json").status == 200
        # An open stream would hold up the end of the console.
        assert second.post("/logout").status == 303
        assert staying.ended.wait(20)


def test_streams_of_a_session_that_is_not_used_end(guarded: str) -> None:
    settings = ConsoleSettings(bootstrap=guarded, port=0, client=SASL, login=True, sessions_max=1)
    with Beside(settings) as running:
        first = Stream(logged_in(running.address, "admin"), "/changes?of=catalogue")
        until(lambda: first.has(b": open"))
        for user in ("second", "third"):  # The session unused for longest makes room.
            logged_in(running.address, user)
        assert first.ended.wait(20)


def test_pages_that_refresh_themselves_are_counted(guarded: str) -> None:
    with console(guarded, client=SASL, login=True, live_per_user=2) as browsing:
        session = logged_in(browsing.address, "admin")
        streams = [Stream(session, "/changes?of=catalogue") for _ in range(2)]
        for each in streams:
            until(lambda each=each: each.has(b": open"))  # type: ignore[misc]
        until(lambda: session.get("/changes.json?of=catalogue").status == 503)
        assert "refresh themselves" in session.get("/changes.json?of=catalogue").json["message"]
        other = logged_in(browsing.address, "second")
        streams.append(Stream(other, "/changes?of=catalogue"))
        assert streams[-1].status == 200
        for user in (session, other):  # Open streams would hold up the end of the console.
            user.post("/logout")
        assert all(each.ended.wait(20) for each in streams)


def test_a_stream_ends_when_its_observer_makes_room_for_another(guarded: str) -> None:
    """The browser connects again then. An open stream that is told nothing would look live."""
    settings = ConsoleSettings(bootstrap=guarded, port=0, client=SASL, login=True, observers_max=1)
    app = create_app(settings)
    with Beside(settings, app) as running:
        stream = Stream(logged_in(running.address, "admin"), "/changes?of=catalogue")
        until(lambda: stream.has(b": open"))
        assert logged_in(running.address, "second").get("/topics.json").status == 200
        assert stream.ended.wait(20)
        assert stream.has(b"event: end")
        until(lambda: app.state.workers.streams == 0)


def test_a_user_whom_the_broker_refuses_sees_nothing_and_is_logged_out() -> None:
    users = {"admin": USERS["admin"], "removed": "secret-r"}
    with semel.embedded(users=users) as broker:
        bootstrap = broker.bootstrap_servers
        with (
            Client(bootstrap, security=security_of("admin")) as client,
            console(bootstrap, client=SASL, login=True, sample_seconds=0.1, sample_share=1.0) as browsing,
        ):
            Admin(client).topics.create("orders")
            assert browsing.post("/login", {"user": "removed", "password": "secret-r"}).status == 303
            until(lambda: "orders" in browsing.get("/topics.json").text)
            stream = Stream(browsing, "/changes?of=catalogue")
            Admin(client).users.remove("removed")
            until(lambda: browsing.get("/topics.json").status == 401)
            assert stream.ended.wait(20)
