"""Pipelines into Delta tables for tests, and the content of the tables."""

from collections import Counter
from pathlib import Path
from typing import Any

from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from semel.client import LATEST, Admin, Client

COLUMNS = ("CAST(value AS string) AS value", "partition", "offset", "timestamp")


class LakePipeline:
    """A query from the topic `in` to a table, with faults."""

    def __init__(self, spark: SparkSession, bootstrap: str, directory: Path, name: str = "archive") -> None:
        self.spark = spark
        self.bootstrap = bootstrap
        self.name = name
        directory.mkdir(exist_ok=True)
        self.table = directory / "table"
        self.checkpoint = directory / "checkpoint"
        self.fault = directory / "fault"
        self.source_options: dict[str, Any] = {"subscribe": "in"}
        self.sink_options: dict[str, Any] = {}

    def source(self) -> DataFrame:
        reader = (
            self.spark.readStream.format("semel").options(**self._cluster()).options(**self.source_options)
        )
        return reader.load()

    def start(self, frame: DataFrame | None = None) -> StreamingQuery:
        rows = self.source().selectExpr(*COLUMNS) if frame is None else frame
        writer = rows.writeStream.format("semel-delta-faulty").option("fault.file", str(self.fault))
        writer = writer.options(**self._cluster()).options(**self.sink_options)
        writer = writer.option("checkpointLocation", str(self.checkpoint))
        return writer.trigger(availableNow=True).start(str(self.table))

    def run(self, frame: DataFrame | None = None) -> StreamingQuery:
        """Write the available input, and stop."""
        query = self.start(frame)
        query.awaitTermination()
        return query

    def values(self) -> Counter[bytes]:
        """Count the values in the table."""
        return Counter(value.encode() for value in content(self.table)["value"])

    def lag(self) -> int:
        """Return how far the group is behind the end of the log."""
        with Client(self.bootstrap) as client:
            admin = Admin(client)
            ends = admin.topics.offsets(dict.fromkeys(admin.topics.partitions(["in"]), LATEST))
            reached = admin.groups.offsets(self.name)
        return sum(each.offset - reached[key].offset for key, each in ends.items())

    def _cluster(self) -> dict[str, str]:
        return {"kafka.bootstrap.servers": self.bootstrap, "pipeline.id": self.name}


def content(table: Path | str) -> dict[str, list[Any]]:
    """Return the columns of a table, as deltalake reads it."""
    found: dict[str, list[Any]] = DeltaTable(table).to_pyarrow_table().to_pydict()
    return found


def unnamed_files(table: Path) -> list[str]:
    """Return data files that no commit of the table names, and remaining announcements."""
    named = {Path(uri) for uri in DeltaTable(table).file_uris()}
    found = [path for path in table.rglob("*.parquet") if "_delta_log" not in path.parts]
    return sorted(str(path) for path in [*found, *table.glob("_semel/**/*.json")] if path not in named)
