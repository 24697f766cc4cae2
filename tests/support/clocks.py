"""Clocks that a test turns."""

import time
from types import SimpleNamespace

from semel.broker.clock import Clock

TODAY_MS = 1_700_000_000_000


def later(seconds: float) -> SimpleNamespace:
    """Stands for the module `time` where that is asked how much time has passed: so much more than has."""
    return SimpleNamespace(monotonic=lambda: time.monotonic() + seconds)


class TurnedClock(Clock):
    """Time passes, and the machine's clock is set, only when the test says so."""

    def __init__(self, day_ms: int = TODAY_MS) -> None:
        self.day_seconds = day_ms / 1000
        self.steady_seconds = 0.0
        super().__init__(lambda: self.day_seconds, lambda: self.steady_seconds)

    def passes(self, ms: int) -> None:
        """Both clocks go on."""
        self.day_seconds += ms / 1000
        self.steady_seconds += ms / 1000

    def is_set(self, ms: int) -> None:
        """Somebody corrects the time of day; or the machine slept, and only the steady clock stood still."""
        self.day_seconds += ms / 1000
