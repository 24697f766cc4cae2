"""A raw client that does not give up: when its connection breaks it makes a new one and asks again.

That is what client libraries do, and it is what a broker has to recognise: the same request a second time,
and perhaps the first one later.
"""

import contextlib
from typing import Any

from semel.wire.schema import Request
from support.clients.raw import RawClient
from support.waiting import until


class StubbornClient(RawClient):
    """One connection after another."""

    def __init__(self, bootstrap: str, timeout_seconds: float = 15.0) -> None:
        self.connections = 1
        self._bootstrap = bootstrap
        self._timeout_seconds = timeout_seconds
        super().__init__(bootstrap, "stubborn", timeout_seconds)

    def ask(self, request: Request, version: int) -> Any:
        """The answer, on whichever connection it comes."""
        ask = super().ask

        def answer() -> list[Any]:
            # RawClient tells a connection that the broker has closed by a failed assertion.
            with contextlib.suppress(OSError, AssertionError):
                return [ask(request, version)]
            self.reconnect()
            return []

        return until(answer, what=f"an answer to {type(request).__name__}")[0]

    def reconnect(self) -> None:
        """Leave this connection and make another; wait for the broker if it is away."""
        self.close()
        until(self._connect, what="the broker")

    def _connect(self) -> bool:
        with contextlib.suppress(OSError):
            super().__init__(self._bootstrap, "stubborn", self._timeout_seconds)
            self.connections += 1
            return True
        return False
