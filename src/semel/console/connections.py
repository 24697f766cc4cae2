"""Limits browser connections: closes those without a complete request, and bounds how many an address has."""

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

#: How long the head of a request may take, from connecting or from the end of the last response.
HEAD_SECONDS = 10.0
#: How long the body may take after that. It suffices for the largest file on a slow connection.
BODY_SECONDS = 120.0
CONNECTIONS_MAX = 1024
#: Connections from one address. The limit is large because all browsers may come through one proxy.
CONNECTIONS_PER_ADDRESS = CONNECTIONS_MAX // 2


class BoundedProtocol(H11Protocol):
    """Uvicorn's HTTP protocol with time limits. Uvicorn itself waits for a request forever."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._awaited: object = None
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Close the connection at once if its address has too many."""
        super().connection_made(transport)
        if self._is_one_too_many():
            transport.abort()
        else:
            self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the timer."""
        self._await(None)
        super().connection_lost(exc)

    def handle_events(self) -> None:
        """Handle what was received, and time the part of the request that is still to come."""
        super().handle_events()
        self._watch()

    def _watch(self) -> None:
        """Run a timer while a head or a body is awaited. More bytes of the same part do not restart it."""
        state = None if self.transport.is_closing() else self.conn.their_state
        if state is not self._awaited:
            self._await(state)

    def _await(self, state: object) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._awaited = state
        limits: dict[object, float] = {h11.IDLE: HEAD_SECONDS, h11.SEND_BODY: BODY_SECONDS}
        seconds = limits.get(state)
        self._timer = None if seconds is None else self.loop.call_later(seconds, self.transport.abort)

    def _is_one_too_many(self) -> bool:
        ours = [each.client for each in self.connections if isinstance(each, BoundedProtocol)]
        address = self.client[0] if self.client else None
        return sum(1 for each in ours if each and each[0] == address) > CONNECTIONS_PER_ADDRESS
