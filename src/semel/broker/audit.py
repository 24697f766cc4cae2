"""Logs transactions that were not ended by their own producer, on the logger ``semel.audit``.

They time out, are fenced by a new instance of the producer, or are aborted by an administrator, whose request
is logged in a line of its own. Clients can cause any number of them, so the lines are rate-limited.
"""

import logging
from typing import Final

from semel.core.facts import TransactionEnded
from semel.rate_limit import RateLimit

log = logging.getLogger("semel.audit")

PERIOD_SECONDS: Final = 10.0
LINES_MAX: Final = 100


class EndedTransactions:
    """Writes the lines of one broker."""

    def __init__(self) -> None:
        self._limit = RateLimit(LINES_MAX, PERIOD_SECONDS)

    def write(self, fact: TransactionEnded) -> None:
        """Log the end of a transaction, unless there were too many lines in the last seconds."""
        suppressed = self._limit.suppressed("ended")
        if suppressed is None:
            return
        fields: dict[str, object] = {"transactional_id": fact.transactional_id, "reason": str(fact.reason)}
        if suppressed:
            fields["suppressed"] = suppressed
        outcome = "transaction committed" if fact.is_commit else "transaction aborted"
        log.info(outcome, extra={"fields": fields})
