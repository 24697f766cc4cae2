"""The pipeline on Spark: Semel's source and sink on Semel, beside Spark's own connector on Apache Kafka.

Semel's sink is exactly-once. Spark's sink is at-least-once, because it has no transactions.
"""

import statistics
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Self

from pyspark.sql import DataFrame, SparkSession

from bench.results import Metric
from bench.side_by_side.measuring import LESS, Cell, Size, Workload
from bench.spark import Bench, start_spark
from bench.subjects import ROOT, FlushingKafka, Mock, Semel, Subject
from peers.programs import CannotBuild, fetch_spark_connector

SOURCE, SINK, COPY, SMALL = "source", "sink", "end to end", "small batches"
RATE, LATENCY = "rows per second", "micro-batch"
BATCHES = 5
SMALL_BATCHES, SMALL_ROWS = 12, 1_000
WARM_ROWS = 50_000
"""Rows that the sink writes before it is measured."""


@dataclass(frozen=True)
class Step(Cell):
    """A part of the pipeline."""

    name: str

    @property
    def label(self) -> str:
        return self.name


class Pipeline(Workload[Step]):
    """One Spark session for all subjects."""

    name = "pipeline"
    title = "The pipeline on Spark"
    text = (
        "Spark with two cores and values of 100 bytes. Semel is measured with its own format,"
        " exactly-once; Apache Kafka with Spark's Java connector, which writes at least once. *source*"
        " reads all columns of a topic and discards them, *sink* writes generated rows, *end to end*"
        " copies a topic in four micro-batches after a first one that is not counted, *small batches*"
        f" copies {SMALL_ROWS:,} rows per batch."
    )
    metrics: ClassVar = (Metric(RATE, "rows/s"), Metric(LATENCY, "ms", False))

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._spark: SparkSession | None = None
        self._directory = Path()
        self._no_connector: str | None = None
        self._filled: dict[tuple[str, int], tuple[str, int]] = {}

    def __enter__(self) -> Self:
        settings: dict[str, str] = {}
        try:
            settings["spark_jars"] = ",".join(map(str, fetch_spark_connector()))
        except CannotBuild as error:
            self._no_connector = f"Spark's own connector: {error}"
        self._directory = Path(
            self._stack.enter_context(tempfile.TemporaryDirectory(prefix="semel-bench-", dir=ROOT))
        )
        self._spark = start_spark(**settings)
        self._stack.callback(self._spark.stop)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def cells(self, size: Size) -> list[Step]:
        return [Step(name) for name in (SOURCE, SINK, COPY, SMALL)]

    def why_not(self, subject: Subject, cell: Step) -> str | None:
        if subject.name == Mock.name:
            return "the mock cluster keeps too few records to read"
        if subject.name == FlushingKafka.name:
            return LESS
        return None if isinstance(subject, Semel) else self._no_connector

    def measure(self, subject: Subject, cell: Step, size: Size) -> dict[str, float]:
        assert self._spark is not None
        on = Side(self._spark, subject, self._directory / self.fresh("checkpoints"))
        if cell.name == SINK:
            topic = self.fresh("sink")
            return {RATE: on.write(topic, self.fresh("pipeline"), size.rows)}
        rows = SMALL_ROWS * SMALL_BATCHES if cell.name == SMALL else size.rows
        source, written = self._source(on, rows)
        if cell.name == SOURCE:
            return {RATE: on.read(source, written)}
        target = self.fresh("copy")
        each = SMALL_ROWS if cell.name == SMALL else written // BATCHES
        rate, latency = on.copy(source, target, self.fresh("pipeline"), each)
        return {RATE: rate, LATENCY: latency}

    def _source(self, on: "Side", rows: int) -> tuple[str, int]:
        """Return a topic with about this many rows, filled once for each subject, and its number of rows."""
        key = (on.subject.name, rows)
        if key not in self._filled:
            topic = self.fresh("source")
            on.create(topic)
            self._filled[key] = (topic, on.fill(topic, rows))
            # Warm up Java and Python for the sink as for the source.
            on.read(*self._filled[key])
            on.write(self.fresh("warm"), self.fresh("pipeline"), WARM_ROWS)
        return self._filled[key]


class Side(Bench):
    """A subject seen from Spark, through the connector that belongs to it."""

    def __init__(self, spark: SparkSession, subject: Subject, directory: Path) -> None:
        super().__init__(spark, subject.bootstrap, directory)
        self.subject = subject
        self.is_ours = isinstance(subject, Semel)
        self.format = "semel" if self.is_ours else "kafka"

    def reading(self, topic: str, **more: str) -> dict[str, str]:
        wanted = {"subscribe": topic, "startingOffsets": "earliest", **more}
        # Semel's source reads only committed records by default, so Spark's must too.
        return self.options(**wanted, **{"kafka.isolation.level": "read_committed"})

    def writing(self, topic: str, pipeline: str) -> dict[str, str]:
        return self.options(topic=topic) | ({"pipeline.id": pipeline} if self.is_ours else {})

    def read(self, topic: str, rows: int) -> float:
        """Return the rows per second of a batch job that discards them."""
        frame = self.spark.read.format(self.format).options(**self.reading(topic)).load()
        began = time.perf_counter()
        frame.write.format("noop").mode("overwrite").save()
        return rows / (time.perf_counter() - began)

    def write(self, topic: str, pipeline: str, rows: int) -> float:
        """Return the rows per second of a batch job that writes generated rows."""
        self.create(topic)
        frame = synthetic_rows(self.spark, rows)
        writer = frame.write.format(self.format).options(**self.writing(topic, pipeline)).mode("append")
        began = time.perf_counter()
        writer.save()
        return rows / (time.perf_counter() - began)

    def copy(self, source: str, target: str, pipeline: str, batch_rows: int) -> tuple[float, float]:
        """Return rows per second, and milliseconds of a micro-batch, of all batches except the first."""
        self.create(target)
        options = self.reading(source, maxOffsetsPerTrigger=str(batch_rows))
        if self.is_ours:
            options |= {"pipeline.id": pipeline}
        rows = self.spark.readStream.format(self.format).options(**options).load().select("key", "value")
        query = self.start(rows, self.format, {"availableNow": True}, **self.writing(target, pipeline))
        query.awaitTermination()
        batches = [each for each in query.recentProgress[1:] if each["numInputRows"]]
        took = [each["durationMs"]["triggerExecution"] for each in batches]
        return sum(each["numInputRows"] for each in batches) / sum(took) * 1e3, statistics.median(took)


def synthetic_rows(spark: SparkSession, rows: int) -> DataFrame:
    """Generate rows with a key of 12 and a value of 100 bytes, in as many tasks as there are cores."""
    return spark.range(0, rows, 1, 2).selectExpr(
        "CAST(concat('key ', lpad(CAST(id AS string), 8, '0')) AS binary) AS key",
        "CAST(rpad(CAST(id AS string), 100, 'x') AS binary) AS value",
    )
