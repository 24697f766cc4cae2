"""Clocks that a test controls."""

import time

from semel.broker.clock import Clock

TODAY_MS = 1_700_000_000_000


class later:  # noqa: N801  it stands for a module
    """Stand for the module `time`, with more time passed than really has; `sleep` returns at once."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds = seconds

    def time(self) -> float:
        return time.time() + self.seconds

    def monotonic(self) -> float:
        return time.monotonic() + self.seconds

    def sleep(self, seconds: float) -> None:
        self.seconds += seconds


class TurnedClock(Clock):
    """A clock that advances, or is set, only when the test says so."""

    def __init__(self, day_ms: int = TODAY_MS) -> None:
        self.day_seconds = day_ms / 1000
        self.steady_seconds = 0.0
        super().__init__(lambda: self.day_seconds, lambda: self.steady_seconds)

    def passes(self, ms: int) -> None:
        """Advance both clocks."""
        self.day_seconds += ms / 1000
        self.steady_seconds += ms / 1000

    def is_set(self, ms: int) -> None:
        """Move only the time of day: it was set, or the machine slept and the steady clock stood still."""
        self.day_seconds += ms / 1000
