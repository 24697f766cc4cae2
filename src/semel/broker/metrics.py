"""Counters: what the broker has done, and how long it took.

Counting must cost next to nothing, because some of it happens for every request. So a counter is an
attribute and a histogram is a list of integers; everything runs on the event loop's one thread and needs
no lock. `prometheus_client` is used only when somebody asks: `Metrics.page` turns the numbers into text,
through a registry of this broker's own, so that two brokers in one process do not share theirs.

Who counts: `server/connection.py` requests and bytes, the commit loop its ticks (`observe_tick`),
`server/watch.py` the lag of the event loop. Owners of something with a size say how to ask for it
(`gauge`); it is read at the scrape.
"""

from collections.abc import Callable, Iterable
from typing import Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from semel.broker.histogram import SECONDS, Histogram
from semel.broker.transaction_metrics import TransactionMetrics
from semel.wire.messages import APIS

COMMANDS: Final = (1, 2, 5, 10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000)
REASONS_MAX: Final = 64


class ApiCounters:
    """What is counted of one API."""

    __slots__ = ("errors", "name", "requests", "seconds")

    def __init__(self, name: str) -> None:
        self.name = name
        self.requests = 0
        self.errors = 0
        """Requests that could not be answered: malformed, or a mistake of ours. Error codes are answers."""
        self.seconds = Histogram(SECONDS)


class Metrics:
    """All counters of one broker."""

    def __init__(self) -> None:
        self.apis: dict[int, ApiCounters] = {key: ApiCounters(api.name) for key, api in APIS.items()}
        self.bytes_in = 0
        self.bytes_out = 0
        self.connections = 0
        self.connections_accepted = 0
        self.connections_closed: dict[str, int] = {}
        """By reason, of those that we closed; clients that went away by themselves are not in here."""

        self.ticks = 0
        self.commands = 0
        self.facts = 0
        self.batch_bytes = 0
        self.compactions = 0
        self.compacted_bytes = 0
        self.commands_per_tick = Histogram(COMMANDS)
        self.decide_seconds = Histogram(SECONDS)
        self.commit_seconds = Histogram(SECONDS)
        self.flush_seconds = Histogram(SECONDS)
        self.transactions = TransactionMetrics()

        self.loop_lag_seconds = 0.0
        self.loop_lag_max_seconds = 0.0

        self.parked_fetches = 0
        self.cached_entities = 0
        self._gauges: dict[str, tuple[str, Callable[[], float]]] = {}
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(_Scrape(self))

    def observe_tick(
        self,
        commands: int,
        facts: int,
        batch_bytes: int,
        decide_seconds: float,
        commit_seconds: float,
        flush_seconds: float,
    ) -> None:
        """One turn of the commit loop. The flush is the part of the commit that waited for the disk."""
        self.ticks += 1
        self.commands += commands
        self.facts += facts
        self.batch_bytes += batch_bytes
        self.commands_per_tick.observe(commands)
        self.decide_seconds.observe(decide_seconds)
        self.commit_seconds.observe(commit_seconds)
        self.flush_seconds.observe(flush_seconds)

    def observe_loop_lag(self, seconds: float) -> None:
        """How much later than asked for the event loop woke the probe."""
        self.loop_lag_seconds = seconds
        if seconds > self.loop_lag_max_seconds:
            self.loop_lag_max_seconds = seconds

    def count_closed(self, reason: str) -> None:
        """We closed a connection. Reasons are words from our code; the bound guards against a slip."""
        closed = self.connections_closed
        if reason in closed or len(closed) < REASONS_MAX:
            closed[reason] = closed.get(reason, 0) + 1

    def gauge(self, name: str, documentation: str, read: Callable[[], float]) -> None:
        """Have `semel_<name>` read at every scrape."""
        self._gauges[name] = (documentation, read)

    def page(self) -> bytes:
        """Everything in Prometheus' text format."""
        return generate_latest(self._registry)

    def families(self) -> Iterable[Metric]:
        """Everything as Prometheus' metric families."""
        yield from self._api_families()
        for name, documentation, total in (
            ("semel_received_bytes", "Bytes received from clients.", self.bytes_in),
            ("semel_sent_bytes", "Bytes sent to clients.", self.bytes_out),
            ("semel_connections_accepted", "Connections accepted.", self.connections_accepted),
            ("semel_ticks", "Turns of the commit loop.", self.ticks),
            ("semel_commands", "Commands decided.", self.commands),
            ("semel_facts", "Facts written to the ledger.", self.facts),
            ("semel_batch_bytes", "Bytes of batches written to chunks.", self.batch_bytes),
            ("semel_compactions", "Steps of compaction that replaced batches.", self.compactions),
            ("semel_compacted_bytes", "Bytes that compaction took out of logs.", self.compacted_bytes),
        ):
            yield CounterMetricFamily(name, documentation, value=total)
        closed = CounterMetricFamily(
            "semel_connections_closed", "Connections that the broker closed.", labels=["reason"]
        )
        for reason, count in self.connections_closed.items():
            closed.add_metric([reason], count)
        yield closed
        for name, documentation, value in (
            ("semel_connections", "Open connections.", self.connections),
            ("semel_loop_lag_seconds", "Latest lag of the event loop.", self.loop_lag_seconds),
            (
                "semel_loop_lag_max_seconds",
                "Largest lag of the event loop so far.",
                self.loop_lag_max_seconds,
            ),
            ("semel_parked_fetches", "Fetch requests that wait for records.", self.parked_fetches),
            ("semel_cached_entities", "Entities kept in memory.", self.cached_entities),
        ):
            yield GaugeMetricFamily(name, documentation, value=value)
        for name, (documentation, read) in self._gauges.items():
            yield GaugeMetricFamily(f"semel_{name}", documentation, value=read())
        for name, documentation, histogram in (
            ("semel_commands_per_tick", "Commands in one tick.", self.commands_per_tick),
            ("semel_decide_seconds", "Time to decide a tick.", self.decide_seconds),
            ("semel_commit_seconds", "Time to commit a tick, flush included.", self.commit_seconds),
            ("semel_flush_seconds", "Time that a commit waited for the disk.", self.flush_seconds),
        ):
            family = HistogramMetricFamily(name, documentation)
            family.add_metric([], histogram.cumulative(), histogram.total)
            yield family
        yield from self.transactions.families()

    def _api_families(self) -> Iterable[Metric]:
        requests = CounterMetricFamily("semel_requests", "Requests answered.", labels=["api"])
        errors = CounterMetricFamily("semel_request_errors", "Requests not answered.", labels=["api"])
        seconds = HistogramMetricFamily("semel_request_seconds", "Time from frame to answer.", labels=["api"])
        for counters in self.apis.values():
            if not counters.requests and not counters.errors:
                continue
            requests.add_metric([counters.name], counters.requests)
            errors.add_metric([counters.name], counters.errors)
            seconds.add_metric([counters.name], counters.seconds.cumulative(), counters.seconds.total)
        return requests, errors, seconds


class _Scrape:
    """What `prometheus_client` calls at a scrape."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def collect(self) -> Iterable[Metric]:
        return self._metrics.families()
