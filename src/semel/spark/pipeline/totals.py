"""What a run of a pipeline has done so far, for the terminal and as metrics for Prometheus.

The totals are those of this process. What the cluster knows of a pipeline, its position and its last batch,
is shown by `status`.
"""

import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime
from itertools import accumulate
from typing import Final, Self

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from semel.pipeline import Pipeline, Topic
from semel.spark.pipeline.running import Progress, Restarted

#: The bounds of the histogram of batches.
SECONDS: Final = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0)


class RunTotals:
    """Adds up the events of a run. `page` may be called in another thread."""

    def __init__(self, pipeline: str, sinks: Iterable[str] = (), parsed: Iterable[str] = ()) -> None:
        """`parsed` are the sources that are parsed, and may have records that cannot be."""
        self.pipeline = pipeline
        self.rows = self.late = self.restarts = 0
        # All names from the start: an alert cannot be written for a series that appears with the first row.
        self.written = Counter(dict.fromkeys(sinks, 0))
        self.dead = Counter(dict.fromkeys(parsed, 0))
        self.dead_by_sink = Counter(dict.fromkeys(self.written, 0))
        self.last: Progress | None = None
        self._durations = [0] * (len(SECONDS) + 1)
        self._seconds = 0.0
        self._lock = threading.Lock()

    @classmethod
    def of(cls, pipeline: Pipeline) -> Self:
        """Return the totals of a run that begins."""
        sources = pipeline.sources.items()
        parsed = [name for name, each in sources if isinstance(each, Topic) and each.parse is not None]
        return cls(pipeline.id, pipeline.sinks, parsed)

    def add(self, event: Progress | Restarted) -> None:
        """Add an event."""
        with self._lock:
            if isinstance(event, Restarted):
                self.restarts += 1
                return
            if event.is_idle:
                self.last = self.last and replace(self.last, lag=event.lag)
                return
            self.rows += event.rows
            self.late += event.late
            self.written.update(event.written)
            self.dead.update(event.dead)
            self.dead_by_sink.update(event.dead_by_sink)
            self._durations[bisect_left(SECONDS, event.duration_ms / 1000)] += 1
            self._seconds += event.duration_ms / 1000
            self.last = event

    def page(self) -> bytes:
        """Return the metrics in Prometheus' text format."""
        registry = CollectorRegistry(auto_describe=False)
        registry.register(self)
        return generate_latest(registry)

    def collect(self) -> Iterable[Metric]:
        """Return the metrics: `prometheus_client` calls this."""
        with self._lock:
            return list(self._families())

    def _families(self) -> Iterable[Metric]:
        own = [self.pipeline]
        for name, documentation, total in (
            ("semel_pipeline_read_rows", "Rows read from the sources.", self.rows),
            ("semel_pipeline_late_rows", "Rows dropped because they came after the watermark.", self.late),
            ("semel_pipeline_restarts", "Restarts of the query after temporary failures.", self.restarts),
        ):
            counter = CounterMetricFamily(name, documentation, labels=["pipeline"])
            counter.add_metric(own, total)
            yield counter
        for name, documentation, label, totals in (
            ("semel_pipeline_written_rows", "Rows written, by sink.", "sink", self.written),
            ("semel_pipeline_dead_records", "Records that could not be parsed.", "source", self.dead),
            ("semel_pipeline_dead_rows", "Rows that a sink could not take.", "sink", self.dead_by_sink),
        ):
            counter = CounterMetricFamily(name, documentation, labels=["pipeline", label])
            for each, total in totals.items():
                counter.add_metric([*own, each], total)
            yield counter
        batches = HistogramMetricFamily(
            "semel_pipeline_batch_seconds", "Durations of batches.", labels=["pipeline"]
        )
        bounds = [*map(str, SECONDS), "+Inf"]
        counts = accumulate(self._durations)
        batches.add_metric(own, list(zip(bounds, counts, strict=True)), self._seconds)
        yield batches
        if (last := self.last) is None:
            return
        ended_at = datetime.fromisoformat(last.at).timestamp() + last.duration_ms / 1000
        for name, documentation, value in (
            ("semel_pipeline_lag_offsets", "Offsets to be read after the last batch.", last.lag),
            ("semel_pipeline_state_rows", "Rows of state after the last batch.", last.state_rows),
            ("semel_pipeline_state_bytes", "Memory of the state after the last batch.", last.state_bytes),
            ("semel_pipeline_last_batch_timestamp_seconds", "When the last batch ended.", ended_at),
        ):
            gauge = GaugeMetricFamily(name, documentation, labels=["pipeline"])
            gauge.add_metric(own, value)
            yield gauge
