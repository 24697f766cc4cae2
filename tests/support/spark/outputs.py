"""A pipeline whose batches are written to two topics by `semel.spark.batch`."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import semel.spark
from semel.pipeline import Delta, Topic
from support.spark.jobs import Numbers, Pipeline, committed, values
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
