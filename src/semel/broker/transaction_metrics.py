"""Counters of transactions: how many end and why, how long their ends take, how many batches are refused."""

from collections import Counter
from typing import Final

from semel.broker.histogram import SECONDS, Histogram
from semel.broker.tick import Tick
from semel.core.facts import EndReason, TransactionEnded
from semel.core.partition import Appended
from semel.core.types import ErrorCode

REFUSED: Final = frozenset(
    {
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.TRANSACTION_ABORTABLE,
    }
)
"""The errors of a batch that does not belong to the transaction it claims to be in."""


class TransactionMetrics:
    """Totals since the start."""

    def __init__(self) -> None:
        self.ended: Counter[tuple[str, str]] = Counter()
        """By outcome ("commit", "abort") and reason."""
        self.fenced: Counter[str] = Counter()
        """Open transactions that were ended for their producer, by reason."""
        self.end_seconds = Histogram(SECONDS)
        self.verification_seconds = Histogram(SECONDS)
        self.verification_failures = 0

    def observe(self, tick: Tick) -> None:
        """Count a committed tick with transactions."""
        if len(tick.durable) < len(tick.facts):
            self._count_ends(tick)
        for each in tick.pending:
            if each.is_transactional:
                self.verification_seconds.observe(tick.decided_at - tick.started_at)
                self.verification_failures += sum(
                    answer.error in REFUSED for answer in each.answers if type(answer) is Appended
                )
            if each.submitted_at:
                self.end_seconds.observe(tick.committed_at - each.submitted_at)

    def _count_ends(self, tick: Tick) -> None:
        for fact in tick.facts:
            if type(fact) is TransactionEnded:
                self.ended["commit" if fact.is_commit else "abort", fact.reason] += 1
                if fact.reason != EndReason.CLIENT:
                    self.fenced[fact.reason] += 1
