"""Snapshots as Spark reads them, without Spark."""

from typing import Any

from semel.spark.options import SourceOptions
from semel.spark.source.source import BatchReader

COLUMNS = ["topic", "partition", "offset", "key", "value"]


class Reading:
    """Does in this process what Spark does with a batch reader."""

    def __init__(self, servers: str, topics: str, **options: str) -> None:
        given = {"kafka.bootstrap.servers": servers, "subscribe": topics, "snapshot": "true"}
        given["kafkaConsumer.pollTimeoutMs"] = "15000"
        self._reader = BatchReader(SourceOptions.of(given | options, is_stream=False), COLUMNS)
        self.tasks = list(self._reader.partitions())

    @property
    def ranges(self) -> list[Any]:
        return [found for each in self.tasks for found in each.value]

    def rows(self) -> list[dict[str, Any]]:
        return [row for task in self.tasks for batch in self._reader.read(task) for row in batch.to_pylist()]

    def values(self) -> list[bytes]:
        return [row["value"] for row in self.rows()]
