"""The counters, histograms and gauges of the broker.

Counting must be cheap, because some of it happens for every request. So a counter is an attribute and a
histogram is a list of integers; all code runs on the event loop's thread and needs no lock. `metrics_text`
formats them at a scrape.

`server/connection.py` counts requests and bytes, the commit loop its ticks (`observe_tick`),
`server/server.py` the lag of the event loop. Components register a function for each gauge (`gauge`), and for
counters of their own (`counter`); it is called at the scrape.

Logs transactions that were not ended by their own producer, on the logger ``semel.audit``.

They time out, are fenced by a new instance of the producer, or are aborted by an administrator, whose request
is logged in a line of its own. Clients can cause any number of them, so the lines are rate-limited.
"""

import logging
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final

from semel.broker.commit.tick import Tick
from semel.core.facts import EndReason, TransactionEnded
from semel.core.log.partition import Appended
from semel.core.types import ErrorCode
from semel.rate_limit import RateLimit
from semel.wire.messages import APIS

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


# fmt: off
SECONDS: Final = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025,
    0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
)
# fmt: on
COMMANDS: Final = (1, 2, 5, 10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000)
REASONS_MAX: Final = 64
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


class Histogram:
    """Counts values by the bounds between which they fall, as a list of integers."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        """Count one value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def cumulative(self) -> list[tuple[str, float]]:
        """Prometheus' form: for each bound, the number of values up to it."""
        buckets: list[tuple[str, float]] = []
        below = 0
        for bound, count in zip((*self.bounds, float("inf")), self.counts, strict=True):
            below += count
            buckets.append(("+Inf" if bound == float("inf") else repr(float(bound)), below))
        return buckets


class ApiCounters:
    """The counters of one API."""

    __slots__ = ("errors", "name", "requests", "seconds")

    def __init__(self, name: str) -> None:
        self.name = name
        self.requests = 0
        self.errors = 0
        """Requests without an answer, because they are malformed or hit a bug. Error codes are answers."""
        self.seconds = Histogram(SECONDS)


class TransactionMetrics:
    """Transactions: how many end and why, how long their ends take, how many batches are refused."""

    def __init__(self) -> None:
        self.ended: Counter[tuple[str, str]] = Counter()
        """By outcome ("commit", "abort") and reason."""
        self.fenced: Counter[str] = Counter()
        """Open transactions that were ended for their producer, by reason."""
        self.end_seconds = Histogram(SECONDS)
        self.verification_seconds = Histogram(SECONDS)
        self.verification_failures = 0
        self._audit = EndedTransactions()

    def observe(self, tick: Tick) -> None:
        """Count the transactions of a committed tick."""
        for each in tick.pending:
            if each.is_transactional:
                self.verification_seconds.observe(tick.decided_at - tick.started_at)
                for answer in each.answers:
                    if type(answer) is Appended and answer.error in REFUSED:
                        self.verification_failures += 1
            if each.submitted_at:
                self.end_seconds.observe(tick.committed_at - each.submitted_at)
        # Transactions that time out are ended by the broker itself, in a tick without commands of producers.
        for fact in tick.transient:
            if type(fact) is TransactionEnded:
                self.ended["commit" if fact.is_commit else "abort", fact.reason] += 1
                if fact.reason != EndReason.CLIENT:
                    self.fenced[fact.reason] += 1
                    self._audit.write(fact)


class Metrics:
    """All counters of one broker."""

    def __init__(self) -> None:
        self.apis: dict[int, ApiCounters] = {key: ApiCounters(api.name) for key, api in APIS.items()}
        self.bytes_in = 0
        self.bytes_out = 0
        self.connections = 0
        self.connections_accepted = 0
        self.failed_authentications = 0
        self.administrative_changes = 0
        self.connections_closed: dict[str, int] = {}
        """Connections closed by the broker, by reason; those closed by clients are not included."""

        self.ticks = 0
        self.unsynced_ticks = 0
        self.flushes = 0
        self.commands = 0
        self.facts = 0
        self.batch_bytes = 0
        self.compactions = 0
        self.compacted_bytes = 0
        self.damaged_batches = 0
        self.scrubbed_bytes = 0
        self.commands_per_tick = Histogram(COMMANDS)
        self.decide_seconds = Histogram(SECONDS)
        self.commit_seconds = Histogram(SECONDS)
        self.flush_seconds = Histogram(SECONDS)
        self.transactions = TransactionMetrics()

        self.loop_lag_seconds = 0.0
        self.loop_lag_max_seconds = 0.0

        self.parked_fetches = 0
        self.denied_requests = 0
        """Requests of which at least a part was denied by ACLs."""
        self.gauges: dict[str, tuple[str, Callable[[], float], Callable[[], dict[str, str]]]] = {}
        """Help text and function of each gauge."""
        self.counters: dict[str, tuple[str, Callable[[], float]]] = {}
        """Help text and function of each counter that a component keeps itself."""
        self.counter(
            "denied_requests", "Requests that ACLs denied, or a part of.", lambda: self.denied_requests
        )
        self.counter(
            "failed_authentications",
            "Authentications that failed.",
            lambda: self.failed_authentications,
        )
        self.counter(
            "administrative_changes",
            "Topics, configs, ACLs, users, quotas and so on that requests have changed.",
            lambda: self.administrative_changes,
        )

    def observe_tick(self, tick: Tick, flush_seconds: float) -> None:
        """Count a tick that was committed. The flush is the part of the commit that waited for the disk.

        A tick without a commit is not in ``commit_seconds``, one without a flush not in ``flush_seconds``.
        """
        commands = tick.commands
        self.ticks += 1
        self.commands += commands
        self.facts += len(tick.durable)
        self.batch_bytes += sum(map(len, tick.batches))
        self.commands_per_tick.observe(commands)
        self.decide_seconds.observe(tick.decided_at - tick.started_at)
        if tick.is_synced:
            self.flushes += 1
            self.flush_seconds.observe(flush_seconds)
            self.commit_seconds.observe(tick.committed_at - tick.decided_at)
        elif tick.is_unsynced:
            self.unsynced_ticks += 1
            self.commit_seconds.observe(tick.committed_at - tick.decided_at)
        self.transactions.observe(tick)

    def observe_loop_lag(self, seconds: float) -> None:
        """Set how much later than requested the event loop woke the probe."""
        self.loop_lag_seconds = seconds
        if seconds > self.loop_lag_max_seconds:
            self.loop_lag_max_seconds = seconds

    def count_closed(self, reason: str) -> None:
        """Count a connection that the broker closed. Reasons are constants; the bound is a safeguard."""
        closed = self.connections_closed
        if reason in closed or len(closed) < REASONS_MAX:
            closed[reason] = closed.get(reason, 0) + 1

    def gauge(
        self,
        name: str,
        documentation: str,
        read: Callable[[], float],
        labels: Callable[[], dict[str, str]] = dict,
    ) -> None:
        """Register the gauge `semel_<name>`: one value and its labels, read at every scrape."""
        self.gauges[name] = (documentation, read, labels)

    def counter(self, name: str, documentation: str, read: Callable[[], float]) -> None:
        """Register the counter `semel_<name>_total`, read at every scrape."""
        self.counters[name] = (documentation, read)
