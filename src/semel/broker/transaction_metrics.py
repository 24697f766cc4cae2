"""Counters of transactions: how many end and why, how long their ends take, what is refused.

The commit loop shows every decision about a transaction to ``Watch`` while it decides, and calls ``count``
when the commit that holds them is there.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from semel.broker.histogram import SECONDS, Histogram
from semel.core.facts import TransactionChanged
from semel.core.partition import Append
from semel.core.state import BrokerState
from semel.core.transactions.attempts import CommitTransactions
from semel.core.transactions.commands import NO_CONNECTION, AbortOpen, EndTransaction, InitProducer
from semel.core.types import Command, Decision, ErrorCode, Fact, TransactionState

CLIENT: Final = "client"
FENCED: Final = "fenced"
TIMEOUT: Final = "timeout"
DISCONNECT: Final = "disconnect"
TERM: Final = "term"
ADMIN: Final = "admin"

NOT_A_MEMBER: Final = frozenset(
    {
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.TRANSACTION_ABORTABLE,
    }
)
"""What a batch is answered that does not belong to the transaction it claims to be in."""


class TransactionMetrics:
    """Totals since the start."""

    def __init__(self) -> None:
        self.ended: Counter[tuple[str, str]] = Counter()
        """By outcome ("commit", "abort") and by who ended it."""
        self.fenced: Counter[str] = Counter()
        """Producers whose epoch was taken away by somebody else, by reason."""
        self.end_seconds = Histogram(SECONDS)
        self.verification_seconds = Histogram(SECONDS)
        self.verification_failures = 0
        self.unsynced_ticks = 0
        self.flushes = 0


class Watch:
    """What one tick does to transactions. It counts when the tick is committed, or not at all."""

    def __init__(self, metrics: TransactionMetrics, state: BrokerState) -> None:
        self._metrics = metrics
        self._state = state
        self._ended: list[tuple[str, str]] = []
        self._fenced: list[str] = []
        self._begun = 0.0

    def begin(self) -> Callable[[Command, int], Decision]:
        """A request begins: what decides its commands."""
        self._begun = time.perf_counter()
        return self.decide

    def decide(self, command: Command, now: int) -> Decision:
        """Decide, and look at what comes of it."""
        state = self._state
        if isinstance(command, Append):
            decision = state.decide(command, now)
            if (
                not decision.facts
                and decision.answer.error in NOT_A_MEMBER
                and command.transaction_context is not None
            ):
                self._metrics.verification_failures += 1
            return decision
        if isinstance(command, CommitTransactions):
            return self._see_all(command, state.decide(command, now))
        was_open = getattr(command, "transactional_id", None) in state.ongoing
        decision = state.decide(command, now)
        if decision.facts:
            self._see(command, decision.facts, was_open)
        return decision

    def end(self, commands: Sequence[Command]) -> None:
        """All its commands are decided. If it writes, all its batches were held against their transaction."""
        if isinstance(commands[0], Append) and commands[0].transaction_context is not None:
            self._metrics.verification_seconds.observe(time.perf_counter() - self._begun)

    def _see_all(self, command: CommitTransactions, decision: Decision) -> Decision:
        """Several are ended by one command, all of them committed, unless they were before."""
        if decision.facts:
            open_now = self._state.ongoing
            ended = [each for each in command.transactions if each.transactional_id in open_now]
            self._ended += [("commit", CLIENT)] * len(ended)
        return decision

    def _see(self, command: Command, facts: Iterable[Fact], was_open: bool) -> None:
        reason = reason_of(command)
        is_open = was_open
        for fact in facts:
            if type(fact) is TransactionChanged:
                is_open = fact.transaction.state is TransactionState.ONGOING
        if was_open and not is_open:
            is_commit = isinstance(command, EndTransaction) and command.is_commit
            self._ended.append(("commit" if is_commit else "abort", reason))
        if reason != CLIENT and (was_open or isinstance(command, AbortOpen)):
            self._fenced.append(reason)

    def count(self, end_seconds: Iterable[float]) -> None:
        """The tick is committed; how long those have waited who asked for an end."""
        self._metrics.ended.update(self._ended)
        self._metrics.fenced.update(self._fenced)
        for seconds in end_seconds:
            self._metrics.end_seconds.observe(seconds)


def reason_of(command: Command) -> str:
    """Why a command ends a transaction, in one word."""
    if isinstance(command, AbortOpen):
        if command.overdue_only:
            return TIMEOUT
        if command.connection != NO_CONNECTION:
            return DISCONNECT
        return TERM if command.before_term else ADMIN
    return FENCED if isinstance(command, InitProducer) else CLIENT
