"""Clocks that a test turns."""

import time

from semel.broker.clock import Clock

TODAY_MS = 1_700_000_000_000


class later:  # noqa: N801  it stands for a module
    """Stands for the module `time`: more time has passed than really has, and who sleeps is awake at once."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds = seconds

    def time(self) -> float:
        return time.time() + self.seconds

    def monotonic(self) -> float:
        return time.monotonic() + self.seconds

    def sleep(self, seconds: float) -> None:
        self.seconds += seconds


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
