"""Limits log lines: passes a few of each kind per period, and counts the rest.

`LoggedOnce` logs each thing once per period: clients repeat their requests and meet the same damage again.
"""

import time
from collections.abc import Callable, Hashable
from typing import Final

AGAIN_SECONDS: Final = 60.0
"""A line is logged once within this time."""
LOGGED_MAX: Final = 100
"""Lines logged within that time at most."""


class LoggedOnce:
    """Remembers what was logged a short time ago."""

    def __init__(self) -> None:
        self._logged: dict[Hashable, float] = {}

    def is_news(self, what: Hashable) -> bool:
        """Whether to log this now. If so, repetitions are suppressed for ``AGAIN_SECONDS``."""
        now = time.monotonic()
        logged = self._logged
        for each in [each for each, at in logged.items() if at + AGAIN_SECONDS <= now]:
            del logged[each]
        if what in logged or len(logged) >= LOGGED_MAX:
            return False
        logged[what] = now
        return True


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
