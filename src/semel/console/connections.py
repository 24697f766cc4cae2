"""Connections of browsers: one that sends no request is closed, and one address cannot take all of them."""

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

#: How long the head of a request may take, from the connection or from the end of the last answer.
HEAD_SECONDS = 10.0
CONNECTIONS_MAX = 1024
#: Of one address. It is large because all browsers may come through one proxy.
CONNECTIONS_PER_ADDRESS = CONNECTIONS_MAX // 2


class BoundedProtocol(H11Protocol):
    """HTTP as uvicorn speaks it. Uvicorn itself waits for the first request for ever."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Close the connection at once if its address has too many."""
        super().connection_made(transport)
        if self._is_one_too_many():
            transport.abort()
        else:
            self._watch_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the timer."""
        self._forget_timer()
        super().connection_lost(exc)

    def handle_events(self) -> None:
        """Handle what was received, and see whether the head of a request is complete."""
        super().handle_events()
        self._watch_head()

    def _watch_head(self) -> None:
        """Run the timer while a head is awaited. More bytes of the same head do not start it anew."""
        if self.conn.their_state is not h11.IDLE or self.transport.is_closing():
            self._forget_timer()
        elif self._head_timer is None:
            self._head_timer = self.loop.call_later(HEAD_SECONDS, self.transport.abort)

    def _forget_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _is_one_too_many(self) -> bool:
        ours = [each.client for each in self.connections if isinstance(each, BoundedProtocol)]
        address = self.client[0] if self.client else None
        return sum(1 for each in ours if each and each[0] == address) > CONNECTIONS_PER_ADDRESS
