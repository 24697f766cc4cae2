"""The counters in Prometheus' text format.

Separate from `metrics`, so that a broker that is never scraped does not load `prometheus_client`. Each page
has its own registry, so that two brokers in one process do not share one.
"""

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from semel.broker.metrics import Metrics, TransactionMetrics


def page(metrics: Metrics) -> bytes:
    """All metrics as text."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Scrape(metrics))
    return generate_latest(registry)


class _Scrape:
    """The collector that `prometheus_client` calls at a scrape."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def collect(self) -> Iterable[Metric]:
        return _families(self._metrics)


def _families(metrics: Metrics) -> Iterable[Metric]:
    """All metrics as Prometheus' metric families."""
    yield from _api_families(metrics)
    for name, documentation, total in (
        ("semel_received_bytes", "Bytes received from clients.", metrics.bytes_in),
        ("semel_sent_bytes", "Bytes sent to clients.", metrics.bytes_out),
        ("semel_connections_accepted", "Connections accepted.", metrics.connections_accepted),
        ("semel_ticks", "Ticks of the commit loop.", metrics.ticks),
        ("semel_unsynced_ticks", "Ticks answered before they were flushed.", metrics.unsynced_ticks),
        ("semel_flushes", "Commits that flushed, with all unsynced work before them.", metrics.flushes),
        ("semel_commands", "Commands decided.", metrics.commands),
        ("semel_facts", "Facts written to the ledger.", metrics.facts),
        ("semel_batch_bytes", "Bytes of batches written to chunks.", metrics.batch_bytes),
        ("semel_compactions", "Steps of compaction that replaced batches.", metrics.compactions),
        ("semel_compacted_bytes", "Bytes that compaction took out of logs.", metrics.compacted_bytes),
        (
            "semel_damaged_batches",
            "How often a batch was met that is damaged on the disk, or whose row is lost.",
            metrics.damaged_batches,
        ),
        ("semel_scrubbed_bytes", "Bytes of batches that the scrub has read.", metrics.scrubbed_bytes),
    ):
        yield CounterMetricFamily(name, documentation, value=total)
    closed = CounterMetricFamily(
        "semel_connections_closed", "Connections that the broker closed.", labels=["reason"]
    )
    for reason, count in metrics.connections_closed.items():
        closed.add_metric([reason], count)
    yield closed
    for name, documentation, value in (
        ("semel_connections", "Open connections.", metrics.connections),
        ("semel_loop_lag_seconds", "Latest lag of the event loop.", metrics.loop_lag_seconds),
        (
            "semel_loop_lag_max_seconds",
            "Largest lag of the event loop so far.",
            metrics.loop_lag_max_seconds,
        ),
        ("semel_parked_fetches", "Fetch requests that wait for records.", metrics.parked_fetches),
    ):
        yield GaugeMetricFamily(name, documentation, value=value)
    for name, (documentation, read) in metrics.counters.items():
        yield CounterMetricFamily(f"semel_{name}", documentation, value=read())
    for name, (documentation, read, labels) in metrics.gauges.items():
        gauge, found = GaugeMetricFamily(f"semel_{name}", documentation), labels()
        gauge.add_sample(gauge.name, found, read())
        yield gauge
    for name, documentation, histogram in (
        ("semel_commands_per_tick", "Commands in one tick.", metrics.commands_per_tick),
        ("semel_decide_seconds", "Time to decide a tick.", metrics.decide_seconds),
        ("semel_commit_seconds", "Time to commit a tick, flush included.", metrics.commit_seconds),
        ("semel_flush_seconds", "Time that a commit waited for the disk.", metrics.flush_seconds),
    ):
        family = HistogramMetricFamily(name, documentation)
        family.add_metric([], histogram.cumulative(), histogram.total)
        yield family
    yield from _transaction_families(metrics.transactions)


def _api_families(metrics: Metrics) -> Iterable[Metric]:
    requests = CounterMetricFamily("semel_requests", "Requests answered.", labels=["api"])
    errors = CounterMetricFamily("semel_request_errors", "Requests not answered.", labels=["api"])
    seconds = HistogramMetricFamily("semel_request_seconds", "Time from frame to answer.", labels=["api"])
    for counters in metrics.apis.values():
        if not counters.requests and not counters.errors:
            continue
        requests.add_metric([counters.name], counters.requests)
        errors.add_metric([counters.name], counters.errors)
        seconds.add_metric([counters.name], counters.seconds.cumulative(), counters.seconds.total)
    return requests, errors, seconds


def _transaction_families(metrics: TransactionMetrics) -> Iterable[Metric]:
    """The metric families of transactions."""
    ended = CounterMetricFamily(
        "semel_transactions_ended", "Transactions ended.", labels=["outcome", "reason"]
    )
    for (outcome, reason), count in metrics.ended.items():
        ended.add_metric([outcome, reason], count)
    yield ended
    fenced = CounterMetricFamily(
        "semel_producers_fenced",
        "Producers whose open transaction the broker ended, by reason.",
        labels=["reason"],
    )
    for reason, count in metrics.fenced.items():
        fenced.add_metric([reason], count)
    yield fenced
    yield CounterMetricFamily(
        "semel_transaction_verification_failures",
        "Batches that are not in the transaction they claim to be in.",
        value=metrics.verification_failures,
    )
    for name, documentation, histogram in (
        (
            "semel_transaction_end_seconds",
            "Time from a request to end a transaction to its answer.",
            metrics.end_seconds,
        ),
        (
            "semel_transaction_verification_seconds",
            "Time to decide a request to write in a transaction, verification included.",
            metrics.verification_seconds,
        ),
    ):
        family = HistogramMetricFamily(name, documentation)
        family.add_metric([], histogram.cumulative(), histogram.total)
        yield family
