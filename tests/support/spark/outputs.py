"""Pipelines whose batches are written to several sinks: by `semel.spark.batch`, and by a declaration."""

from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from pathlib import Path
from time import sleep
from typing import Any

from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import semel.spark
from semel.client import Client, Producer
from semel.pipeline import Delta, Json, Topic
from semel.pipeline import Pipeline as Declaration
from support.faults.decision_points import POINTS, catching
from support.spark.jobs import BATCH, Numbers, Pipeline, committed, values
from support.spark.lake import content, unnamed_files


class TwoOutputs(Pipeline):
    """Writes every record to both topics, which count a batch together."""

    def __init__(
        self,
        spark: SparkSession | None,
        bootstrap: str,
        directory: Path,
        name: str = "copy",
        topics: tuple[str, str, str] = ("in", "out", "out-2"),
    ) -> None:
        super().__init__(spark, bootstrap, directory, name, topics[:2])
        self.sink_options["second"] = topics[2]
        self.before: Callable[[int], None] = lambda batch_id: None
        self.after: Callable[[int], None] = lambda batch_id: None
        """Called in the function, before and after its writes."""

    @property
    def outputs(self) -> tuple[str, str]:
        return self.sink_options["topic"], self.sink_options["second"]

    def start(self, frame: DataFrame | None = None, **trigger: Any) -> StreamingQuery:
        rows = self.change(self.source()) if frame is None else frame
        writer = rows.writeStream.foreachBatch(self.write)
        writer = writer.option("checkpointLocation", str(self.checkpoint))
        return writer.trigger(**(trigger or {"availableNow": True})).start()

    def write(self, frame: DataFrame, batch_id: int) -> None:
        with semel.spark.batch(frame, batch_id) as batch:
            for name in self.outputs:
                batch.write(frame, Topic(name))
            self.before(batch_id)
        self.after(batch_id)


class TwiceNumbers(Numbers):
    """The input of a pipeline with two outputs, each of which has to be equal to it."""

    def check_outputs(self) -> None:
        assert isinstance(self.pipeline, TwoOutputs)
        for output in self.pipeline.outputs:
            found, want = committed(self.pipeline.bootstrap, output), values(range(self.count))
            assert found == want, (output, found - want, want - found)


class TopicAndDeadLetters(TwoOutputs):
    """Writes every record to a topic, except for those that name a partition which it does not have."""

    def write(self, frame: DataFrame, batch_id: int) -> None:
        output, dead = self.outputs
        partition = "if(CAST(substring(CAST(value AS STRING), 7) AS INT) % 10 = 3, 99, NULL) AS partition"
        with semel.spark.batch(frame, batch_id) as batch:
            batch.write(frame.selectExpr("key", "value", partition), Topic(output, bad=dead))
            self.before(batch_id)
        self.after(batch_id)


class NumbersOrDeadLetters(Numbers):
    """The input of such a pipeline, of which the output and the dead letters each have a part."""

    def check_outputs(self) -> None:
        assert isinstance(self.pipeline, TopicAndDeadLetters)
        good, dead = (committed(self.pipeline.bootstrap, each) for each in self.pipeline.outputs)
        numbers = range(self.count)
        assert dead == values(each for each in numbers if each % 10 == 3)
        assert good == values(each for each in numbers if each % 10 != 3)


class TopicAndTable(TwoOutputs):
    """Writes every record to a topic and to a Delta table, which count a batch together."""

    @property
    def table(self) -> Path:
        return self.checkpoint.parent / "table"

    def write(self, frame: DataFrame, batch_id: int) -> None:
        with semel.spark.batch(frame, batch_id) as batch:
            batch.write(frame, Topic(self.outputs[0]))
            batch.write(frame.selectExpr("CAST(value AS STRING) AS value"), Delta(str(self.table)))
            self.before(batch_id)
        self.after(batch_id)


class TopicAndTableNumbers(Numbers):
    """The input of a pipeline to a topic and a table."""

    def check_outputs(self) -> None:
        assert isinstance(self.pipeline, TopicAndTable)
        found = Counter(value.encode() for value in content(self.pipeline.table)["value"])
        assert found == values(range(self.count))
        super().check_outputs()

    def check(self) -> None:
        super().check()
        assert isinstance(self.pipeline, TopicAndTable)
        assert unnamed_files(self.pipeline.table) == []


class EverySink(Pipeline):
    """A declared pipeline to two topics, a table and a merged table, with a topic of dead letters.

    Every record is in both topics and both tables, or it is bad and a dead letter. The driver waits at the
    point that the option `point` names, and goes on when the file of the fault changes.
    """

    def __init__(
        self, spark: SparkSession | None, bootstrap: str, directory: Path, name: str = "copy"
    ) -> None:
        super().__init__(spark, bootstrap, directory, name, (f"in-{name}", f"out-{name}"))
        self.sink_options["tables"] = str(directory)
        self._kept = ExitStack()

    @property
    def table(self) -> Path:
        return Path(self.sink_options["tables"], "table")

    @property
    def merged(self) -> Path:
        return Path(self.sink_options["tables"], "merged")

    @property
    def topics(self) -> tuple[str, str, str]:
        """The topics to write to, the last of them for dead letters."""
        return f"out-{self.name}", f"more-{self.name}", f"dead-{self.name}"

    def declaration(self) -> Declaration:
        first, second, dead = self.topics
        options = {"maxOffsetsPerTrigger": str(BATCH)}
        return Declaration(
            self.name,
            _to_every_sink,
            Topic(self.source_options["subscribe"], options, parse=Json("number BIGINT"), bad=dead),
            {
                "first": Topic(first),
                "second": Topic(second),
                "table": Delta(str(self.table)),
                "merged": Delta(str(self.merged), merge_on="number"),
            },
        )

    def start(self, frame: DataFrame | None = None, **trigger: Any) -> StreamingQuery:
        assert self.spark is not None
        if "point" in self.sink_options:
            # The driver is a process of its own, so this is never undone.
            point = POINTS[self.sink_options["protocol"]][self.sink_options["point"]]
            self._kept.enter_context(catching(point, self.wait))
        return semel.spark.start(
            self.spark,
            self.declaration(),
            bootstrap_servers=self.bootstrap,
            checkpoint=str(self.checkpoint),
            once=True,
        )

    def wait(self) -> None:
        """Say that the driver has come to the point, and wait."""
        self.fault.write_text(WAITING)
        while self.fault.read_text() == WAITING:
            sleep(0.02)

    @property
    def is_waiting(self) -> bool:
        """Whether the driver has come to its point."""
        return self.fault.exists() and self.fault.read_text() == WAITING


def _to_every_sink(rows: DataFrame) -> dict[str, DataFrame]:
    values = rows.selectExpr("CAST(number AS STRING) AS value")
    return {
        "first": values,
        "second": values,
        "table": rows,
        "merged": rows.selectExpr("number", "number AS n"),
    }


WAITING = "waiting"


class EveryNumber(Numbers):
    """The input of a pipeline to every sink. One record of five is bad."""

    def add(self) -> None:
        """Add input for one more batch."""
        with Client(self.pipeline.bootstrap) as client, Producer(client) as producer:
            for number in range(self.count, self.count + BATCH):
                value = b"%d" % number if number % 5 == 4 else b'{"number": %d}' % number
                producer.send(self.topic, value, partition=number % 2)
        self.count += BATCH

    def check_outputs(self) -> None:
        assert isinstance(self.pipeline, EverySink)
        pipeline, every = self.pipeline, range(self.count)
        good = [number for number in every if number % 5 != 4]
        first, second, dead = (committed(pipeline.bootstrap, topic) for topic in pipeline.topics)
        assert first == _texts(good)
        assert second == _texts(good)
        assert dead == _texts(each for each in every if each % 5 == 4)
        assert sorted(content(pipeline.table)["number"]) == good
        merged = content(pipeline.merged)
        assert sorted(zip(merged["number"], merged["n"], strict=True)) == [(each, each) for each in good]

    def check(self) -> None:
        super().check()
        assert isinstance(self.pipeline, EverySink)
        for table in (self.pipeline.table, self.pipeline.merged):
            assert unnamed_files(table) == []
            assert DeltaTable(table).transaction_version(self.pipeline.name) == self.count // BATCH


def _texts(numbers: Iterable[int]) -> Counter[bytes]:
    return Counter(b"%d" % number for number in numbers)
