"""Writes rows as records: the sink as Spark calls it. `batch_commit` commits the records exactly once.

Spark creates a new writer for every batch, in a Python process of the driver, and pickles it for the tasks.
Pickling makes the plan: before the first task starts, and not in the process that only commits. For a
streaming batch Spark commits with another writer, so the tasks return the plan with their messages.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import chain
from types import TracebackType
from typing import Any, NamedTuple, Self

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from semel.client import Client, ClientError, KafkaError, PreparedTransaction, Producer
from semel.client.consume.offsets import Partition
from semel.spark.checkpoint import Checkpoint
from semel.spark.clients import connect
from semel.spark.edge import faces_spark
from semel.spark.errors import OptionError, PipelineError
from semel.spark.options import Guarantee, SinkOptions
from semel.spark.partition_offsets import Span, TopicIds
from semel.spark.sink import batch_commit, planning, versions
from semel.spark.sink.batch_commit import BatchPlan, merged
from semel.spark.sink.foreach_batch import check_task, with_read
from semel.spark.sink.row_faults import TopicLimits
from semel.spark.sink.summary import Summary, total
from semel.spark.sink.versions import BATCH_PROPERTY, WriteName, current_stream_run, refuse_second_write, skip
from semel.spark.sink.writing import BrokerClock, RowWriter

COLUMNS = {
    "key": ("binary", "string"),
    "value": ("binary", "string"),
    "headers": ("array<struct<key:string,value:binary>>",),
    "topic": ("string",),
    "partition": ("int",),
}


@dataclass(frozen=True, slots=True)
class Written(WriterCommitMessage):
    """The message of a task to the driver: its transaction, if it wrote anything, and its contents."""

    plan: BatchPlan | None
    prepared: PreparedTransaction | None = None
    where: Partition | None = None  # a partition that was written to
    outputs: TopicIds = field(default_factory=dict)
    rows: Mapping[str, int] = field(default_factory=dict)  # how many it has written to each topic
    stream_run: str | None = None  # the run of the streaming query whose foreachBatch writes
    has_skipped: bool = False  # whether the task skipped rows because they were written before


def check_columns(schema: StructType, topic: str | None) -> None:
    """Refuse rows that cannot become records. Other columns are ignored, as in Spark."""
    found = {field.name: field.dataType.simpleString() for field in schema.fields}
    if "value" not in found:
        raise OptionError(f"the sink needs a column 'value'; there are {', '.join(found) or 'none'}")
    if topic is None and "topic" not in found:
        raise OptionError("the rows have no topic. Give the option topic, or a column of that name")
    for name, types in COLUMNS.items():
        if name in found and found[name] not in types:
            raise OptionError(f"the column {name!r} is {' or '.join(types)}, not {found[name]}; cast it")


class TaskAttempt(NamedTuple):
    """The numbers that distinguish the attempts of a run. That of the driver itself has zeros."""

    task: int = 0
    attempt: int = 0

    @classmethod
    def current(cls) -> "TaskAttempt":
        """Return the attempt that calls. If the driver writes a batch itself, no task does."""
        context = TaskContext.get()
        return cls() if context is None else cls(context.partitionId(), context.taskAttemptId())

    def __str__(self) -> str:
        return f"{self.task}.{self.attempt}"


class AttemptWriter:
    """The transaction of a task attempt, and what it writes to one output.

    `name` distinguishes the outputs of one attempt.
    """

    def __init__(self, plan: BatchPlan, options: SinkOptions, name: str = "") -> None:
        self._plan = plan
        self._client = connect(options.address)
        self._producer = batch_commit.begin_attempt(
            self._client,
            plan,
            f"{TaskAttempt.current()}{name}",
            transaction_timeout_ms=options.transaction_timeout_ms,
            codec=options.codec,
        )
        clock = BrokerClock(self._client, self._producer)
        self._rows = RowWriter(self._client, self._producer, options.topic, clock, options.codec)

    def faults(self, batch: pa.RecordBatch) -> dict[int, str]:
        """Return the rows that cannot become records, by their place, with the reason."""
        return self._rows.faults(batch)

    def limits(self, topic: str) -> TopicLimits:
        """Return what a topic takes."""
        return self._rows.limits(topic)

    def write(self, batch: pa.RecordBatch) -> None:
        """Add rows."""
        self._rows.write(batch)

    def prepare(self) -> Written:
        """Send all rows, and return the message to the driver. The transaction stays open."""
        self._rows.finish()
        prepared = self._producer.prepare()
        rows = self._rows
        return Written(
            self._plan, prepared, rows.where, rows.outputs, dict(rows.counts), current_stream_run()
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Abort the transaction after an error, and raise a more specific error if there is one."""
        if error is None:
            return
        # Keep this error rather than that of a failed abort; the next start aborts the transaction.
        with suppress(KafkaError, ClientError):
            self._producer.close()
        if isinstance(error, KafkaError):
            batch_commit.check_attempt(self._client, self._plan, self._producer, error)


class _Writer:
    """The common part of both writers."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        check_columns(schema, options.topic)
        self._options = options
        self._plan: BatchPlan | None = None

    @property
    def _client(self) -> Client:
        return connect(self._options.address)

    @property
    def _is_exact(self) -> bool:
        return self._options.guarantee is Guarantee.EXACTLY_ONCE

    @property
    def _pipeline_id(self) -> str:
        return self._options.pipeline_id or ""

    def _write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        batches = (batch for batch in iterator if batch.num_rows)
        plan = self._plan
        if plan is None:
            patience_s = self._options.address.patience_s
            with Producer(self._client, codec=self._options.codec, delivery_timeout_s=patience_s) as producer:
                rows = RowWriter(self._client, producer, self._options.topic, codec=self._options.codec)
                for batch in batches:
                    rows.write(batch)
                rows.finish()
            return Written(None)
        if plan.is_done:
            # Consume the rows anyway: the steps before the sink may keep state, so they must run again.
            has_skipped = False
            for _ in batches:
                self._skip(plan)
                has_skipped = True
            return Written(plan, stream_run=current_stream_run(), has_skipped=has_skipped)
        return self._write_in_transaction(plan, batches)

    def _skip(self, plan: BatchPlan) -> None:
        """Skip rows that were written before."""

    def _write_in_transaction(self, plan: BatchPlan, batches: Iterator[pa.RecordBatch]) -> Written:
        first = next(batches, None)
        if first is None:
            return Written(plan, stream_run=current_stream_run())
        with AttemptWriter(plan, self._options) as attempt:
            for batch in chain([first], batches):
                attempt.write(batch)
            return attempt.prepare()


@faces_spark
class StreamWriter(_Writer, DataSourceStreamArrowWriter):
    """Writes the batches of a streaming query."""

    def __getstate__(self) -> dict[str, Any]:
        """Plan the batch: the writer is about to be sent to the tasks."""
        if self._is_exact and self._plan is None:
            self._plan = self._make_plan()
        return self.__dict__

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write the rows of one task."""
        if self._plan is not None:
            check_batch(self._plan)
        return self._write(iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Decide the batch, and end the transactions of its tasks."""
        if not self._is_exact:
            return
        written = _written(messages)
        plan = next((each.plan for each in written if each.plan is not None), None) or self._make_plan()
        check_batch(plan, batchId)
        if not plan.is_done:
            batch_commit.decide(
                self._client,
                plan,
                _prepared(written),
                merged(each.outputs for each in written),
                summary=Summary(total(each.rows for each in written)),
            )

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Abort the batch, unless it was decided."""
        _discard(self._client, messages)

    def _make_plan(self) -> BatchPlan:
        checkpoint = Checkpoint(self._options.checkpoint or "")
        options = self._options
        return planning.plan_stream(
            self._client, self._pipeline_id, checkpoint, options.topic, options.relations
        )


@faces_spark
class BatchWriter(_Writer, DataSourceArrowWriter):
    """Writes a DataFrame once, or once per version if it has one."""

    def __getstate__(self) -> dict[str, Any]:
        """Plan the write: the writer is about to be sent to the tasks."""
        if self._is_exact and self._plan is None:
            options = self._options = replace(self._options, version=with_read(self._options.version))
            self._plan = planning.plan_batch(self._client, self._pipeline_id, options.version, options.topic)
        return self.__dict__

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write the rows of one task."""
        if self._options.version is not None:
            check_task(self._options.version)
        return self._write(iterator)

    def _skip(self, plan: BatchPlan) -> None:
        name, version = WriteName.of_query_id(plan.query_id), self._options.version
        if name is not None and version is not None:
            refuse_second_write(version, name.stream_run)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Decide the write, and end the transactions of its tasks."""
        plan = self._plan  # Spark commits with a copy of the writer that it planned with
        if plan is None:
            return
        results, version = _written(messages), self._options.version
        run = next((each.stream_run for each in results), None)
        if plan.is_done:
            skip(plan.pipeline_id, version, run, has_rows=any(each.has_skipped for each in results))
            return
        written = [each for each in results if each.prepared is not None]
        if version is not None:
            name = WriteName(version.app, self._options.topic, run, version.read)
            plan = replace(plan, query_id=name.to_query_id())
        # A batch write has no input offsets to commit, so its decision is stored at an output partition.
        places = {each.where for each in written[:1] if each.where is not None} or self._places(plan)
        if places:
            plan = replace(plan, spans=dict.fromkeys(places, Span(0, plan.number)))
            summary = Summary(total(each.rows for each in written))
            batch_commit.decide(self._client, plan, _prepared(written), summary=summary)
            if version is not None and plan.number == 1:
                planning.note_write(self._client, plan.pipeline_id)
        if version is not None and run is not None:
            versions.remember(plan.pipeline_id, version, run)

    def _places(self, plan: BatchPlan) -> set[Partition]:
        """Return the partitions that store the decision of a write without rows; none without a version.

        If there is no such partition, the version is not recorded: nothing was ever written under the name,
        so a repeated write cannot write anything twice.
        """
        topic = self._options.topic
        if self._options.version is None:
            return set()
        if plan.spans or topic is None:
            return set(plan.spans)
        return {(each.name, 0) for each in self._client.describe([topic]).topics}

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Abort the write, unless it was decided."""
        _discard(self._client, messages)


def _discard(client: Client, messages: Sequence[WriterCommitMessage | None]) -> None:
    written = _written(messages)
    for each in written[:1]:
        if each.plan is not None:
            batch_commit.discard(client, each.plan, _prepared(written))


def _written(messages: Sequence[WriterCommitMessage | None]) -> list[Written]:
    """Return the messages of the tasks; failed tasks have none."""
    return [each for each in messages if isinstance(each, Written)]


def _prepared(written: Iterable[Written]) -> list[PreparedTransaction]:
    return [each.prepared for each in written if each.prepared is not None]


def check_batch(plan: BatchPlan, batch_id: int | None = None) -> None:
    """PipelineError if this is not the batch that was planned. A task learns from Spark which one it is."""
    if batch_id is None:
        context = TaskContext.get()
        known = context.getLocalProperty(BATCH_PROPERTY) if context is not None else None
        batch_id = None if known is None else int(known)
    if batch_id not in (None, plan.batch_id):
        raise PipelineError(
            f"batch {batch_id} was planned as batch {plan.batch_id}: the checkpoint that the sink was given, "
            "or found, is not that of this query. Give both the same checkpointLocation"
        )
