"""Bound the rate of repeated log lines: clients repeat their requests and meet the same damage again."""

import time
from collections.abc import Hashable
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
