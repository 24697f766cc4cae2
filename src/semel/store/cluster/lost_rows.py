"""Count and log queries that needed a row that the ledger has lost."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from semel.store.contract import LedgerDamaged
from semel.store.logged_once import LoggedOnce

log = logging.getLogger("semel.damage")


class LostRows:
    """The lost rows that one broker has met."""

    def __init__(self) -> None:
        self.met = 0
        self._logged = LoggedOnce()

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Count and log a LedgerDamaged that is raised within."""
        try:
            yield
        except LedgerDamaged as damaged:
            self.met += 1
            if self._logged.is_news(str(damaged)):
                log.error("%s", damaged)
            raise
