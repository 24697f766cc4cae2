"""A request in flight: started and not yet answered."""

import time
from typing import Protocol

from semel.server.dispatch import HandlerResult


class Asker(Protocol):
    """The connection that sent a request."""

    def answered(self) -> None:
        """Called when one of its requests has its outcome."""


class InFlightRequest:
    """A request that was started and not answered. There is one for every request, so it is small."""

    __slots__ = (
        "api_key",
        "asker",
        "correlation_id",
        "is_done",
        "is_submitted",
        "outcome",
        "size",
        "started",
        "version",
    )

    def __init__(self, asker: Asker, api_key: int, version: int, correlation_id: int, size: int) -> None:
        self.asker = asker
        self.api_key = api_key
        self.version = version
        """The version of the response."""
        self.correlation_id = correlation_id
        self.size = size
        """The bytes that the request is charged."""
        self.started = time.monotonic()
        self.is_done = False
        self.is_submitted = False
        """Whether it continues after its client has disconnected."""
        self.outcome: HandlerResult | BaseException = None

    def done(self, outcome: HandlerResult | BaseException) -> None:
        """Set the outcome. Called once, on the event loop."""
        self.outcome = outcome
        self.is_done = True
        self.asker.answered()
