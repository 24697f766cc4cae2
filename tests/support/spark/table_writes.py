"""Writes to tables as the sink makes them, without Spark."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.types import LongType, StringType, StructField, StructType

from semel.spark.checkpoint import Checkpoint
from semel.spark.delta import batch_commit
from semel.spark.delta.data_source import DeltaOptions
from semel.spark.delta.files import Added, TaskFiles
from semel.spark.delta.leftovers import Attempt
from semel.spark.delta.position import TablePlan
from semel.spark.delta.storage import Storage

ROWS = StructType([StructField("id", LongType()), StructField("word", StringType())])


def attempt(number: int = 1, task: int = 0, run: str = "abc") -> Attempt:
    return Attempt("archive", number, run, task, task)


def write(at: Path, batch: pa.RecordBatch, *partition_by: str, who: Attempt | None = None) -> list[Added]:
    task = TaskFiles(Storage(str(at)), who or attempt(), partition_by, ())
    task.write(batch)
    return task.close()


def batch_of(**columns: Any) -> pa.RecordBatch:
    return pa.record_batch(list(columns.values()), names=list(columns))


class Query:
    """A query, represented by its checkpoint."""

    def __init__(self, directory: Path, bootstrap: str, query_id: str) -> None:
        self.directory = directory / query_id
        self.options = DeltaOptions.of(
            {
                "path": str(directory / "table"),
                "pipeline.id": "archive",
                "kafka.bootstrap.servers": bootstrap,
                "checkpointLocation": str(self.directory),
            },
            is_stream=True,
        )
        (self.directory / "offsets").mkdir(parents=True)
        (self.directory / "metadata").write_text(json.dumps({"id": query_id}))

    def plan(self, number: int, end: int, began: int | None = None) -> TablePlan:
        offsets: dict[str, object] = {"in": {"0": end, "1": end}}
        if began is not None:
            offsets["began:"] = {"in": {"0": began, "1": began}}
        text = "\n".join(["v1", '{"batchWatermarkMs":0}', json.dumps(offsets)])
        (self.directory / "offsets" / str(number)).write_text(text)
        return batch_commit.plan_stream(self.options, ROWS, Checkpoint(str(self.directory)))

    def write(self, plan: TablePlan, number: int) -> list[Added]:
        who = Attempt(plan.app, plan.number, plan.run, 0, 0)
        return write(Path(self.options.location), batch_of(id=[number], word=["w"]), who=who)

    def commit(self, plan: TablePlan, added: list[Added]) -> None:
        batch_commit.commit(self.options, ROWS, plan, [f"{plan.run}-0.0"], added)
