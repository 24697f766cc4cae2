"""A raw client that never gives up: when its connection breaks, it reconnects and repeats the request.

Client libraries do the same, and a broker has to recognise it: the same request arrives twice, and the first
copy perhaps after the second.
"""

import contextlib
from typing import Any

from semel.wire.schema import Request
from support.clients.raw import RawClient
from support.waiting import until


class StubbornClient(RawClient):
    """A client with one connection at a time, replaced when it breaks."""

    def __init__(self, bootstrap: str, timeout_seconds: float = 15.0) -> None:
        self.connections = 1
        self._bootstrap = bootstrap
        self._timeout_seconds = timeout_seconds
        super().__init__(bootstrap, "stubborn", timeout_seconds)

    def ask(self, request: Request, version: int) -> Any:
        """Return the answer, on whichever connection it arrives."""
        ask = super().ask

        def answer() -> list[Any]:
            # RawClient reports a connection that the broker has closed as a failed assertion.
            with contextlib.suppress(OSError, AssertionError):
                return [ask(request, version)]
            self.reconnect()
            return []

        return until(answer, what=f"an answer to {type(request).__name__}")[0]

    def reconnect(self) -> None:
        """Close this connection and open another; wait for the broker if it is away."""
        self.close()
        until(self._connect, what="the broker")

    def _connect(self) -> bool:
        with contextlib.suppress(OSError):
            super().__init__(self._bootstrap, "stubborn", self._timeout_seconds)
            self.connections += 1
            return True
        return False
