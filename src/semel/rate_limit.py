"""Limits log lines: passes a few of each kind per period, and counts the rest."""

import time
from collections.abc import Callable
from typing import Final


class RateLimit:
    """Passes a few lines of each kind per period; the next line that passes carries the count of the rest."""

    __slots__ = ("_clock", "_kinds", "_lines", "_seconds")

    KINDS_MAX: Final = 256

    def __init__(
        self, lines: int = 5, seconds: float = 10.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._lines = lines
        self._seconds = seconds
        self._clock = clock
        self._kinds: dict[str, tuple[float, int]] = {}

    def suppressed(self, kind: str) -> int | None:
        """Count a line. Returns None to suppress it, else the lines suppressed since the last written one."""
        now = self._clock()
        since, count = self._kinds.get(kind, (now, 0))
        if now - since >= self._seconds:
            self._kinds[kind] = (now, 1)
            return max(0, count - self._lines)
        if kind not in self._kinds and len(self._kinds) >= self.KINDS_MAX:
            self._kinds.clear()
        self._kinds[kind] = (since, count + 1)
        return 0 if count < self._lines else None
