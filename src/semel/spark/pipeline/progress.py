"""Reduces Spark's progress reports to the few numbers that show how a pipeline is doing."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pyspark.sql.streaming.query import StreamingQuery

from semel.spark.partition_offsets import PartitionOffsets, of_json


@dataclass(frozen=True, slots=True)
class Progress:
    """One batch of one query."""

    pipeline: str
    batch: int
    at: str  # when it started
    rows: int
    rows_per_second: float
    duration_ms: int
    lag: int  # offsets that were still waiting after it

    @classmethod
    def of(cls, pipeline: str, report: Mapping[str, Any]) -> "Progress":
        """Parse a report of Spark."""
        ends: PartitionOffsets = {}
        latest: PartitionOffsets = {}
        for source in report["sources"]:
            ends |= _vector(source.get("endOffset"))
            latest |= _vector(source.get("latestOffset"))
        return cls(
            pipeline=pipeline,
            batch=int(report["batchId"]),
            at=str(report["timestamp"]),
            rows=int(report["numInputRows"]),
            rows_per_second=float(report.get("processedRowsPerSecond") or 0.0),
            duration_ms=int(report["durationMs"].get("triggerExecution", 0)),
            lag=sum(max(0, offset - ends.get(key, 0)) for key, offset in latest.items()),
        )


class News:
    """The progress reports of one query; each is returned once."""

    def __init__(self, pipeline: str) -> None:
        self._pipeline = pipeline
        self._last: tuple[int, str] | None = None

    def of(self, query: StreamingQuery) -> Iterator[Progress]:
        """Return what the query has reported since the last call."""
        reports = [json.loads(each.json) for each in query.recentProgress]
        keys = [(int(each["batchId"]), str(each["timestamp"])) for each in reports]
        first = keys.index(self._last) + 1 if self._last in keys else 0
        if keys:
            self._last = keys[-1]
        for report in reports[first:]:
            yield Progress.of(self._pipeline, report)


def _vector(found: Any) -> PartitionOffsets:
    """Return the offsets of a Semel source; those of other sources cannot be counted here."""
    try:
        return of_json(json.loads(found) if isinstance(found, str) else found)
    except (ValueError, AttributeError):
        return {}
