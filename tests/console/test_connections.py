"""Connections that send no whole request are closed, and one address does not take all of them."""

import socket
import time
from contextlib import ExitStack
from urllib.parse import urlsplit

import pytest
from support.browsing import Browsing, console
from support.waiting import until

from semel.console import connections

REQUEST = b"GET /login HTTP/1.1\r\nHost: localhost\r\n\r\n"


def connected(browsing: Browsing) -> socket.socket:
    parts = urlsplit(browsing.address)
    return socket.create_connection((parts.hostname or "", parts.port or 0), timeout=10)


def is_closed(raw: socket.socket) -> bool:
    try:
        return raw.recv(1024) == b""
    except ConnectionError:
        return True


@pytest.mark.parametrize("begun", [b"", b"GET / HTTP/1.1\r\nHost: "])
def test_a_connection_without_a_request_is_closed(
    bootstrap: str, monkeypatch: pytest.MonkeyPatch, begun: bytes
) -> None:
    monkeypatch.setattr(connections, "HEAD_SECONDS", 0.3)
    with console(bootstrap) as browsing, connected(browsing) as raw:
        raw.sendall(begun)
        assert is_closed(raw)


def test_a_head_that_comes_drop_by_drop_is_not_waited_for(
    bootstrap: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "HEAD_SECONDS", 0.3)
    with console(bootstrap) as browsing, connected(browsing) as raw:
        began = time.monotonic()
        while not _is_refused(raw, b"G"):
            time.sleep(0.02)  # a slow sender is what is tested
            assert time.monotonic() - began < 5


def test_a_body_that_comes_drop_by_drop_is_not_waited_for(
    bootstrap: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "BODY_SECONDS", 0.3)
    head = "POST /topics HTTP/1.1\r\nHost: localhost\r\nOrigin: {}\r\nContent-Length: 1000\r\n\r\n"
    with console(bootstrap) as browsing, connected(browsing) as raw:
        raw.sendall(head.format(browsing.address).encode())
        began = time.monotonic()
        while not _is_refused(raw, b"n"):
            time.sleep(0.02)  # a slow sender is what is tested
            assert time.monotonic() - began < 5


def _is_refused(raw: socket.socket, data: bytes) -> bool:
    try:
        raw.sendall(data)
    except OSError:
        return True
    return False


def test_a_connection_is_used_again_and_a_slow_answer_is_waited_for(
    bootstrap: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "HEAD_SECONDS", 0.5)
    with console(bootstrap, sample_seconds=0.2) as browsing, connected(browsing) as raw:
        raw.sendall(REQUEST)
        assert b"303" in raw.recv(4096)
        raw.sendall(b"GET /changes?of=catalogue HTTP/1.1\r\nHost: localhost\r\n\r\n")
        until_s, received = time.monotonic() + 1.5, b""
        while time.monotonic() < until_s:
            received += (got := raw.recv(4096))
            assert got
        assert b"catalogue" in received


def test_one_address_does_not_take_all_connections(bootstrap: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "CONNECTIONS_PER_ADDRESS", 3)
    with console(bootstrap) as browsing, ExitStack() as stack:
        first = [stack.enter_context(connected(browsing)) for _ in range(3)]
        assert is_closed(stack.enter_context(connected(browsing)))
        for each in first:
            each.sendall(REQUEST)
            assert b"303" in each.recv(4096)
            each.close()
        until(lambda: _answers(browsing))


def _answers(browsing: Browsing) -> bool:
    try:
        return browsing.get("/login").status == 303
    except OSError:
        return False
