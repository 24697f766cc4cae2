"""Logins: guesses are counted before the broker is asked, and nobody waits for the guesses of others."""

import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

import pytest
from support.browsing import Browsing, console

import semel
from semel.console.login import NAMES_PER_ADDRESS, Attempts

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
