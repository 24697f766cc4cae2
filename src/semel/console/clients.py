"""Pools clients of the broker by session. A client is used by one thread at a time."""

import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from semel.client import Client, Connection
from semel.console.sessions import LoginSession
from semel.console.settings import ConsoleSettings


class WorkStopped(Exception):
    """The work was stopped: its time is over, or the browser has gone.

    It is not a `ClientError`, because those are retried.
    """


class StoppableClient(Client):
    """A client that refuses further requests once its work is stopped.

    So a page that makes a thousand requests ends soon after the browser has gone, without checks of its own.
    """

    stop: threading.Event | None = None

    def connection(self, node: int | None = None) -> Connection:
        """As in `Client`. WorkStopped if the work was stopped."""
        if self.stop is not None and self.stop.is_set():
            raise WorkStopped("the work was stopped: its time is over, or the browser has gone.")
        return super().connection(node)

    def finish(self) -> None:
        """Allow requests again, so that stopped work can complete what it has begun."""
        self.stop = None


class ClientPool:
    """Idle clients by session. Its lock is one of threads: they take and return clients without the loop."""

    def __init__(self, settings: ConsoleSettings) -> None:
        self._settings = settings
        self._idle: dict[LoginSession, list[tuple[float, StoppableClient]]] = {}
        self._lock = threading.Lock()
        self._is_closed = False

    @contextmanager
    def client(self, session: LoginSession, stop: threading.Event) -> Iterator[StoppableClient]:
        """Lend a client to one thread until `stop`. It connects when it is first used."""
        client = self._take(session)
        client.stop = stop
        try:
            yield client
        finally:
            client.stop = None
            self._give_back(session, client)

    def _take(self, session: LoginSession) -> StoppableClient:
        with self._lock:
            idle = self._idle.get(session)
            if idle:
                return idle.pop()[1]
        return StoppableClient(
            self._settings.bootstrap,
            client_id="semel-console",
            timeout_s=self._settings.request_seconds,
            security=session.security,
        )

    def _give_back(self, session: LoginSession, client: StoppableClient) -> None:
        """Keep a client for the next request, or close it if there are enough."""
        with self._lock:
            idle = self._idle.setdefault(session, [])
            if not self._is_closed and len(idle) < self._settings.clients_per_user:
                idle.append((time.monotonic(), client))
                return
        client.close()

    def forget(self, sessions: Iterable[LoginSession]) -> None:
        """Close the clients of sessions that are over."""
        with self._lock:
            gone = [pair for session in sessions for pair in self._idle.pop(session, [])]
        _close(gone)

    def close_idle(self) -> None:
        """Close clients that were unused for `idle_client_seconds`."""
        before = time.monotonic() - self._settings.idle_client_seconds
        gone: list[tuple[float, StoppableClient]] = []
        with self._lock:
            for session, idle in list(self._idle.items()):
                gone += [pair for pair in idle if pair[0] < before]
                kept = [pair for pair in idle if pair[0] >= before]
                if kept:
                    self._idle[session] = kept
                else:
                    del self._idle[session]
        _close(gone)

    def close(self) -> None:
        """Close all idle clients, and those that are lent, when they come back."""
        with self._lock:
            self._is_closed = True
            gone = [pair for idle in self._idle.values() for pair in idle]
            self._idle.clear()
        _close(gone)


def _close(gone: Iterable[tuple[float, Any]]) -> None:
    for _, client in gone:
        client.close()
