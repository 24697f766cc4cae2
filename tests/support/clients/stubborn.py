"""A raw client that does not give up: when its connection breaks it makes a new one and asks again.

That is what client libraries do, and it is what a broker has to recognise: the same request a second time,
and perhaps the first one later.
"""

import contextlib
import time
from typing import Any

from semel.wire.schema import Request
from support.clients.raw import RawClient
from support.waiting import PAUSE_SECONDS

PATIENCE_SECONDS = 60.0


class StubbornClient(RawClient):
    """One connection after another."""

    def __init__(self, bootstrap: str, timeout_seconds: float = 15.0) -> None:
        self.connections = 1
        self._bootstrap = bootstrap
        self._timeout_seconds = timeout_seconds
        super().__init__(bootstrap, "stubborn", timeout_seconds)

    def ask(self, request: Request, version: int) -> Any:
        """The answer, on whichever connection it comes."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            # RawClient tells a connection that the broker has closed by a failed assertion.
            with contextlib.suppress(OSError, AssertionError):
                return super().ask(request, version)
            assert time.monotonic() < deadline, f"no answer to {type(request).__name__}"
            self.reconnect(deadline)

    def reconnect(self, deadline: float | None = None) -> None:
        """Leave this connection and make another; wait for the broker if it is away."""
        self.close()
        deadline = time.monotonic() + PATIENCE_SECONDS if deadline is None else deadline
        while True:
            with contextlib.suppress(OSError):
                super().__init__(self._bootstrap, "stubborn", self._timeout_seconds)
                self.connections += 1
                return
            assert time.monotonic() < deadline, "the broker is away for too long"
            time.sleep(PAUSE_SECONDS)
