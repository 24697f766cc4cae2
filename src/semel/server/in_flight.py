"""A request between its beginning and its answer."""

import time
from typing import Protocol

from semel.server.dispatch import HandlerResult


class Asker(Protocol):
    """Who wants the answer."""

    def answered(self) -> None:
        """One of the requests has its outcome."""


class InFlightRequest:
    """A request that was begun and is not answered. One is made for every request, so it is small."""

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
        """Of the response."""
        self.correlation_id = correlation_id
        self.size = size
        """What the request was charged."""
        self.started = time.monotonic()
        self.is_done = False
        self.is_submitted = False
        """Whether it goes on without its client."""
        self.outcome: HandlerResult | BaseException = None

    def done(self, outcome: HandlerResult | BaseException) -> None:
        """The answer is there. Called once, on the event loop."""
        self.outcome = outcome
        self.is_done = True
        self.asker.answered()
