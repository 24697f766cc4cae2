"""Writes rows to Parquet files: the sink as Spark calls it. `batch_commit` commits the files exactly once.

As in the sink for topics, Spark creates a writer for every batch in a process of the driver and pickles it
for the tasks. Pickling makes the plan, which the tasks return with their messages.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from semel.spark.checkpoint import Checkpoint
from semel.spark.delta import batch_commit
from semel.spark.delta.data_source import DeltaOptions
from semel.spark.delta.files import Added, TaskFiles
from semel.spark.delta.leftovers import Attempt
from semel.spark.delta.position import TablePlan
from semel.spark.delta.storage import Storage
from semel.spark.edge import faces_spark
from semel.spark.errors import PipelineError
from semel.spark.sink.foreach_batch import check_task
from semel.spark.sink.versions import current_stream_run, refuse_second_write, remember, skip


@dataclass(frozen=True, slots=True)
class Written(WriterCommitMessage):
    """The message of a task to the driver: its key, and the files that it has written."""

    plan: TablePlan
    key: str
    added: tuple[Added, ...] = ()
    stream_run: str | None = None  # the run of the streaming query whose foreachBatch writes
    has_skipped: bool = False  # whether the task skipped rows that the table contains


@faces_spark
class _Writer:
    """The common part of both writers."""

    def __init__(self, options: DeltaOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._plan: TablePlan | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Plan the batch: the writer is about to be sent to the tasks."""
        if self._plan is None:
            self._plan = self._make_plan()
        return self.__dict__

    def _make_plan(self) -> TablePlan:
        raise NotImplementedError

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write the rows of one task."""
        plan, context = self._plan, TaskContext.get()
        assert plan is not None, "a writer is planned before it gets to a task"
        if plan.version is not None:
            check_task(plan.version)
        assert context is not None, "a task has a context"
        attempt = Attempt(plan.app, plan.number, plan.run, context.partitionId(), context.taskAttemptId())
        files = TaskFiles(Storage(self._options.location), attempt, plan.partition_by, plan.required)
        has_skipped = False
        try:
            for batch in iterator:
                # If the table contains the batch, the steps before the sink still run: they may keep state.
                if batch.num_rows and plan.is_done:
                    _skip(plan)
                    has_skipped = True
                elif batch.num_rows:
                    files.write(batch)
            return Written(plan, attempt.key, tuple(files.close()), current_stream_run(), has_skipped)
        except BaseException:
            files.discard()
            raise

    def _commit(self, written: Sequence[Written], plan: TablePlan) -> None:
        winners = [each.key for each in written if each.added]
        added = [file for each in written for file in each.added]
        place, run = self._options.location, next((each.stream_run for each in written), None)
        if plan.is_done:
            skip(place, plan.version, run, has_rows=any(each.has_skipped for each in written))
            return
        batch_commit.commit(self._options, self._schema, plan, winners, added, run)
        if plan.version is not None and run is not None:
            remember(place, plan.version, run)


@faces_spark
class StreamWriter(_Writer, DataSourceStreamArrowWriter):
    """Writes the batches of a streaming query."""

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Commit the files of the tasks to the table."""
        written = _written(messages)
        plan = written[0].plan if written else self._make_plan()
        if plan.batch_id != batchId:
            raise PipelineError(
                f"batch {batchId} was planned as batch {plan.batch_id}: the checkpoint that the sink was "
                "given, or found, is not that of this query. Give both the same checkpointLocation"
            )
        self._commit(written, plan)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Leave everything as it is: the commit may have been made, and the next plan finds out."""

    def _make_plan(self) -> TablePlan:
        return batch_commit.plan_stream(self._options, self._schema, Checkpoint(self._options.checkpoint))


@faces_spark
class BatchWriter(_Writer, DataSourceArrowWriter):
    """Writes a DataFrame once."""

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Commit the files of the tasks to the table."""
        written = _written(messages)
        self._commit(written, written[0].plan if written else self._make_plan())

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Leave everything as it is: the commit may have been made."""

    def _make_plan(self) -> TablePlan:
        return batch_commit.plan_batch(self._options, self._schema)


def _skip(plan: TablePlan) -> None:
    """Skip rows that the table contains."""
    if plan.version is not None:
        refuse_second_write(plan.version, plan.done_in)


def _written(messages: Sequence[WriterCommitMessage | None]) -> list[Written]:
    """Return the messages of the tasks; failed tasks have none."""
    return [each for each in messages if isinstance(each, Written)]
