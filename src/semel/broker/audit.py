"""Audit of transactions that were not ended by their own producer, on the logger ``semel.audit``.

They time out, are fenced by a new instance, or are aborted by an administrator, whose request has a line of
its own. Clients can cause any number of them, so the lines are limited.
"""

import logging
from typing import Final

from semel.core.facts import TransactionEnded

log = logging.getLogger("semel.audit")

PERIOD_SECONDS: Final = 10.0
LINES_MAX: Final = 100


class EndedTransactions:
    """The lines of one broker."""

    def __init__(self) -> None:
        self._began = 0.0
        self._lines = 0

    def write(self, fact: TransactionEnded, now: float) -> None:
        """Log the end of a transaction, unless there were too many lines in the last seconds."""
        if now - self._began >= PERIOD_SECONDS:
            if self._lines > LINES_MAX:
                log.info(
                    "more transactions were aborted", extra={"fields": {"more": self._lines - LINES_MAX}}
                )
            self._began, self._lines = now, 0
        self._lines += 1
        if self._lines <= LINES_MAX:
            outcome = "transaction committed" if fact.is_commit else "transaction aborted"
            fields = {"transactional_id": fact.transactional_id, "reason": str(fact.reason)}
            log.info(outcome, extra={"fields": fields})
