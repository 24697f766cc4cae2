"""Counts and logs queries that met a row that the ledger has lost.

They are logged at a bounded rate: clients repeat their requests.
"""

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from semel.store.interface import LedgerDamaged

log = logging.getLogger("semel.damage")

AGAIN_SECONDS: Final = 60.0
"""The same is logged once within this time."""
LOGGED_MAX: Final = 100
"""Lines within that time."""


class LostRows:
    """What one broker has met."""

    def __init__(self) -> None:
        self.met = 0
        self._logged: dict[str, float] = {}

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Count and log a LedgerDamaged that is raised within."""
        try:
            yield
        except LedgerDamaged as damaged:
            self._note(str(damaged))
            raise

    def _note(self, text: str) -> None:
        self.met += 1
        now = time.monotonic()
        for each in [each for each, at in self._logged.items() if at + AGAIN_SECONDS <= now]:
            del self._logged[each]
        if text not in self._logged and len(self._logged) < LOGGED_MAX:
            self._logged[text] = now
            log.error("%s", text)
