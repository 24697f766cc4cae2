"""Logins: guesses are counted before the broker is asked, and nobody waits for the guesses of others."""

import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from urllib.parse import urlsplit

import pytest
from support.browser.console import Browsing, console

import semel
from semel.console.app import create_app
from semel.console.login import NAMES_PER_ADDRESS, Attempts
from semel.console.pages import topics
from semel.console.serving import Beside
from semel.console.settings import ConsoleSettings

USERS = {"ann": "secret-a", "bob": "secret-b"}
SASL = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "SCRAM-SHA-256"}


@pytest.fixture(scope="module")
def guarded() -> Iterator[str]:
    with semel.embedded(users=USERS) as broker:
        yield broker.bootstrap_servers


def test_guesses_at_once_are_counted_too(guarded: str) -> None:
    with console(guarded, client=SASL, login=True, logins_per_minute=4) as browsing:

        def guess(number: int) -> int:
            fields = {"user": "ann", "password": f"guess-{number}"}
            return Browsing(browsing.address).post("/login.json", fields).status

        with ThreadPoolExecutor(16) as threads:
            statuses = list(threads.map(guess, range(16)))
        assert statuses.count(401) == 4
        assert statuses.count(429) == 12


def test_guesses_for_one_user_do_not_lock_out_others_at_the_same_address(guarded: str) -> None:
    with console(guarded, client=SASL, login=True, logins_per_minute=2) as browsing:
        for _ in range(3):
            browsing.post("/login", {"user": "ann", "password": "guess"})
        assert browsing.post("/login", {"user": "ann", "password": USERS["ann"]}).status == 429
        assert browsing.post("/login", {"user": "bob", "password": USERS["bob"]}).status == 303


def test_spaces_around_a_user_do_not_make_another_one(guarded: str) -> None:
    with console(guarded, client=SASL, login=True, logins_per_minute=3) as browsing:
        guesses = [{"user": "ann" + " " * number, "password": "guess"} for number in range(5)]
        assert [browsing.post("/login", each).status for each in guesses] == [401, 401, 401, 429, 429]


@pytest.mark.parametrize(("user", "password"), [(" ", "x"), ("ann", " "), ("", "")])
def test_spaces_are_no_user_and_no_password(guarded: str, user: str, password: str) -> None:
    with console(guarded, client=SASL, login=True) as browsing:
        assert browsing.post("/login.json", {"user": user, "password": password}).status == 400


def test_limits_of_a_user_hold_over_several_logins(guarded: str) -> None:
    with (
        console(guarded, client=SASL, login=True, live_per_user=2, live_max=6) as browsing,
        ExitStack() as all_,
    ):

        def begin(user: str) -> bytes:
            me = Browsing(browsing.address)
            me.post("/login", {"user": user, "password": USERS[user]})
            raw = all_.enter_context(
                socket.create_connection(("127.0.0.1", urlsplit(me.address).port or 0), 10)
            )
            head = f"GET /changes?of=catalogue HTTP/1.1\r\nHost: localhost\r\nCookie: {me.cookie}\r\n\r\n"
            raw.sendall(head.encode())
            return raw.recv(12)

        assert [begin("ann") for _ in range(4)] == 2 * [b"HTTP/1.1 200"] + 2 * [b"HTTP/1.1 503"]
        assert begin("bob") == b"HTTP/1.1 200"


def test_nobody_who_has_logged_out_is_sampled(guarded: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A change that is under way at that moment wants to sample what it has changed."""
    begun, may_end = threading.Event(), threading.Event()

    def create(*_: object) -> dict[str, str]:
        begun.set()
        assert may_end.wait(20)
        return {}

    monkeypatch.setattr(topics, "_create", create)
    settings = ConsoleSettings(bootstrap=guarded, port=0, client=SASL, login=True)
    app = create_app(settings)
    with Beside(settings, app) as beside, ThreadPoolExecutor() as threads:
        me = Browsing(beside.address)
        me.post("/login", {"user": "ann", "password": USERS["ann"]})
        change = threads.submit(me.post, "/topics.json", {"name": "late"})
        assert begun.wait(20)
        another = Browsing(beside.address)
        another.cookie = me.cookie
        another.post("/logout")
        may_end.set()
        assert change.result().status == 401
        assert not app.state.observers._by_identity


def test_logins_that_succeed_are_not_counted(guarded: str) -> None:
    with console(guarded, client=SASL, login=True, logins_per_minute=2) as browsing:
        for _ in range(5):
            assert browsing.post("/login", {"user": "bob", "password": USERS["bob"]}).status == 303


def test_an_address_that_tries_many_users_has_to_wait() -> None:
    attempts = Attempts(2)
    for number in range(2 * NAMES_PER_ADDRESS):
        assert attempts.begin("10.0.0.1", f"user-{number}")
    assert not attempts.begin("10.0.0.1", "another")
    assert attempts.begin("10.0.0.2", "another")


@pytest.mark.parametrize(("scheme", "is_secure"), [("http", False), ("https", True)])
def test_the_cookie_is_secure_if_a_proxy_ends_tls(guarded: str, scheme: str, is_secure: bool) -> None:
    with console(guarded, client=SASL, login=True) as browsing:
        origin = browsing.address.replace("http:", f"{scheme}:")
        reply = browsing.post("/login", {"user": "bob", "password": USERS["bob"]}, Origin=origin)
        assert ("secure" in reply.headers["Set-Cookie"].lower()) is is_secure


def test_the_body_of_a_login_is_small(guarded: str) -> None:
    with console(guarded, client=SASL, login=True) as browsing:
        reply = browsing.post("/login.json", {"user": "bob", "password": "x" * (65 << 10)})
        assert reply.status == 413
        assert "64.0 KiB" in reply.json["message"]


def test_a_browser_that_leaves_while_it_sends_is_no_bug(
    guarded: str, caplog: pytest.LogCaptureFixture
) -> None:
    with console(guarded, client=SASL, login=True) as browsing:
        parts = urlsplit(browsing.address)
        head = f"POST /login HTTP/1.1\r\nHost: {parts.netloc}\r\nOrigin: {browsing.address}\r\n"
        with socket.create_connection((parts.hostname or "", parts.port or 0), timeout=10) as raw:
            raw.sendall(f"{head}Content-Length: 100\r\n\r\nuser=".encode())
            assert browsing.get("/login").status == 200
    assert not [each for each in caplog.records if "failed" in each.getMessage()]
