"""Connections that send no whole request are closed, and one address does not take all of them."""

import asyncio
import socket
from contextlib import ExitStack
from urllib.parse import urlsplit

import pytest
from support.browser.console import Browsing, console, is_closed
from support.waiting import until

from semel.console import serving

REQUEST = b"GET /login HTTP/1.1\r\nHost: localhost\r\n\r\n"


def connected(browsing: Browsing) -> socket.socket:
    parts = urlsplit(browsing.address)
    return socket.create_connection((parts.hostname or "", parts.port or 0), timeout=10)


@pytest.mark.parametrize("begun", [b"", b"GET / HTTP/1.1\r\nHost: "])
def test_a_connection_without_a_request_is_closed(
    bootstrap: str, monkeypatch: pytest.MonkeyPatch, begun: bytes
) -> None:
    monkeypatch.setattr(serving, "HEAD_SECONDS", 0.3)
    with console(bootstrap) as browsing, connected(browsing) as raw:
        raw.sendall(begun)
        assert is_closed(raw)


def test_a_head_that_comes_drop_by_drop_is_not_waited_for(
    bootstrap: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "HEAD_SECONDS", 0.3)
    with console(bootstrap) as browsing, connected(browsing) as raw:
        until(lambda: _is_refused(raw, b"G"))  # It sends, and pauses, again and again.


def test_a_body_that_comes_drop_by_drop_is_not_waited_for(
    bootstrap: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "BODY_SECONDS", 0.3)
    head = "POST /topics HTTP/1.1\r\nHost: localhost\r\nOrigin: {}\r\nContent-Length: 1000\r\n\r\n"
    with console(bootstrap) as browsing, connected(browsing) as raw:
        raw.sendall(head.format(browsing.address).encode())
        until(lambda: _is_refused(raw, b"n"))


def _is_refused(raw: socket.socket, data: bytes) -> bool:
    try:
        raw.sendall(data)
    except OSError:
        return True
    return False


def test_a_connection_is_used_again_and_a_slow_answer_is_waited_for(
    bootstrap: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    timers: list[asyncio.TimerHandle | None] = []

    class Noted(serving.BoundedProtocol):
        def _await(self, state: object) -> None:
            super()._await(state)
            timers.append(self._timer)

    def running() -> list[asyncio.TimerHandle]:
        """The timers that would close a connection."""
        return [each for each in timers if each is not None and not each.cancelled()]

    monkeypatch.setattr(serving, "BoundedProtocol", Noted)
    with console(bootstrap, sample_seconds=0.2) as browsing, connected(browsing) as raw:
        until(running)
        raw.sendall(REQUEST)
        assert b"303" in raw.recv(4096)
        until(lambda: len(running()) == 1)
        raw.sendall(b"GET /changes?of=catalogue HTTP/1.1\r\nHost: localhost\r\n\r\n")
        received = b""
        while received.count(b'{"catalogue":') < 3:
            received += (got := raw.recv(4096))
            assert got
            # However long it takes, nothing ends it.
            assert running() == []


def test_one_address_does_not_take_all_connections(bootstrap: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "CONNECTIONS_PER_ADDRESS", 3)
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
