"""What is to be logged at a bounded rate: clients repeat their requests, and meet the same damage again."""

import time
from collections.abc import Hashable
from typing import Final

AGAIN_SECONDS: Final = 60.0
"""The same is logged once within this time."""
LOGGED_MAX: Final = 100
"""Lines within that time."""


class LoggedOnce:
    """Remembers what was logged a short time ago."""

    def __init__(self) -> None:
        self._logged: dict[Hashable, float] = {}

    def is_news(self, what: Hashable) -> bool:
        """Whether to log this now. If so, it is not news for a while."""
        now = time.monotonic()
        logged = self._logged
        for each in [each for each, at in logged.items() if at + AGAIN_SECONDS <= now]:
            del logged[each]
        if what in logged or len(logged) >= LOGGED_MAX:
            return False
        logged[what] = now
        return True
