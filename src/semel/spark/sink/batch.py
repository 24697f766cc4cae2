"""`semel.spark.batch`: several writes of a `foreachBatch` function, with one decision.

    def write(orders: DataFrame, batch_id: int) -> None:
        with semel.spark.batch(orders, batch_id) as batch:
            batch.write(orders.selectExpr("key", "value"), Topic("copies"))
            batch.write(orders.where("amount > 100").selectExpr("key", "value"), Topic("large"))

All rows are written by one job, and the batch is read once for all of them. A task attempt writes to topics
in transactions of its own, which it leaves open, and to tables in files that no commit names. When all tasks
are done, one decision makes the batch count in every output, together with the position of the pipeline (see
`batch_commit`; for tables `delta.prepared`). If a write fails, none counts. If the function is run again for
a batch that was decided, nothing is written a second time.
"""

import pickle
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol, Self

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession, functions
from pyspark.sql.types import StructType

from semel.client import Client, ProducerIdAndEpoch
from semel.pipeline import FAIL, SKIP, Delta, Topic
from semel.spark.checkpoint import Checkpoint
from semel.spark.clients import connect
from semel.spark.edge import faces_spark
from semel.spark.errors import OptionError
from semel.spark.options import BATCH, SinkOptions
from semel.spark.sink import batch_commit, planning
from semel.spark.sink.batch_commit import BatchPlan, merged
from semel.spark.sink.dead_letters import BadOutput
from semel.spark.sink.decision import BatchDecision, TableState
from semel.spark.sink.foreach_batch import QUERY_PROPERTY
from semel.spark.sink.predecessors import Relations
from semel.spark.sink.sink import COLUMNS, AttemptWriter, Written, check_batch, check_columns

#: The column with the number of the output that a row is for.
NUMBER = "output"
#: The start of the columns with the rows of tables, each a structure.
ROW = "row "

#: The last decision that this process has made for each pipeline and completed, which need not be done again.
_finished: dict[str, tuple[ProducerIdAndEpoch, int]] = {}


def batch(
    frame: DataFrame,
    batch_id: int,
    *,
    pipeline_id: str | None = None,
    bootstrap_servers: str | None = None,
    checkpoint: str | None = None,
    client: Mapping[str, str] | None = None,
    new: bool = False,
) -> "Batch":
    """Return the batch that Spark has passed to a function of `foreachBatch`, as a context to write in.

    The pipeline id, the cluster and the checkpoint are those of the query, whose source has format `semel`
    and the option `pipeline.id`. Give them by name where Spark does not tell them: with Spark Connect, and in
    threads that the function starts. `client` has further settings of the client, such as
    `{"security.protocol": "SSL"}`. With `new`, the pipeline begins even if one with another id has written
    the same to its output.
    """
    given = {
        "pipeline.id": pipeline_id,
        "kafka.bootstrap.servers": bootstrap_servers,
        "checkpointLocation": checkpoint,
        **{f"kafka.{name}": value for name, value in (client or {}).items()},
        "pipeline.new": "true" if new else None,
    }
    known = {name: value for name, value in given.items() if value is not None}
    if not {"pipeline.id", "kafka.bootstrap.servers", "checkpointLocation"} <= known.keys():
        known = {**_of_query(frame.sparkSession), **known}
    return Batch(frame, batch_id, known)


class OutputWriter(Protocol):
    """Writes rows of a task to one output. After an error, `__exit__` discards what was written."""

    def write(self, rows: pa.RecordBatch) -> None:
        """Add rows."""

    def prepare(self) -> Any:
        """Finish without committing; return the message to the driver."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class PlannedOutput(Protocol):
    """An output as the tasks get it."""

    def begin(self, plan: BatchPlan, number: int) -> OutputWriter:
        """Return a writer for this attempt. The number distinguishes the outputs of a batch."""
        ...


class Output(Protocol):
    """An output as the driver sees it."""

    def plan(self, client: Client, plan: BatchPlan) -> PlannedOutput:
        """Plan the output, before the first task starts."""
        ...


class Batch:
    """One batch of a streaming query, and what is written of it. The end of the context decides."""

    def __init__(self, frame: DataFrame, batch_id: int, options: Mapping[str, str]) -> None:
        self._frame = frame
        self._batch_id = batch_id
        self._options = dict(options)
        self._shared = SinkOptions.of(self._options, is_stream=True)
        self._topics: dict[int, _TopicOutput] = {}
        self._tables: dict[int, Any] = {}  # Any: `TableOutput` is imported late
        self._bad: dict[int, BadOutput] = {}
        #: After the decision: the rows of each write, in the order of the writes.
        self.rows: list[int] = []

    def write(self, rows: DataFrame, sink: Topic | Delta) -> None:
        """Write rows to a topic or a table when the context ends.

        The columns for a topic are those of format `semel`, and those for a table are its own.
        """
        if rows.isStreaming:
            raise OptionError("the rows of a batch come from the DataFrame that Spark passes to the function")
        number = self._next_number
        if isinstance(sink, Topic):
            topic = SinkOptions.of({**self._options, "topic": sink.name, **sink.options}, is_stream=True)
            self._check_shared(f"topic {sink.name!r}", topic.pipeline_id, topic.address, topic.checkpoint)
            if topic.guarantee is not self._shared.guarantee:
                raise OptionError(
                    "delivery.guarantee cannot be chosen for a write: a batch counts exactly once"
                )
            check_columns(rows.schema, topic.topic)
            self._topics[number] = _TopicOutput(rows, topic)
            return
        from semel.spark.delta.merging import merge_of  # Late: Delta tables need deltalake.
        from semel.spark.delta.output import TableOutput, options_of

        table = options_of({**self._options, "path": sink.path, **sink.options})
        self._check_shared(f"the table {sink.path}", table.pipeline_id, table.address, table.checkpoint)
        if table.location in (each.options.location for each in self._tables.values()):
            raise OptionError(
                f"two writes of this batch go to the table {table.location}. Write the union of their rows"
            )
        self._tables[number] = TableOutput(rows, table, merge_of(sink, rows.schema))

    def set_aside(self, rows: DataFrame, bad: str, types: Mapping[str, str]) -> None:
        """Stop the batch if there are such rows, count them, or write them to a topic as dead letters.

        The rows have a record each: `value`, `key`, `topic`, `partition`, `offset`, `timestamp`.
        """
        options = None
        if bad not in (FAIL, SKIP):
            options = SinkOptions.of({**self._options, "topic": bad}, is_stream=True)
        self._bad[self._next_number] = BadOutput(rows, bad, types, options)

    @property
    def _next_number(self) -> int:
        return len(self._topics) + len(self._tables) + len(self._bad)

    def _check_shared(self, what: str, *found: object) -> None:
        shared = self._shared
        if found != (shared.pipeline_id, shared.address, shared.checkpoint):
            raise OptionError(
                f"the options of {what} name another pipeline, cluster or checkpoint than that of the batch. "
                "All writes of a batch share them"
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Write and decide, unless the function has failed: then nothing counts."""
        if error is None:
            self.commit()

    def commit(self) -> None:
        """Write all rows, and decide the batch."""
        client = connect(self._shared.address)
        plan = planning.plan_stream(
            client,
            self._shared.pipeline_id or "",
            Checkpoint(self._shared.checkpoint or ""),
            None,
            self._relations(),
            written=self._written(),
            may_be_unfinished=self._may_be_unfinished,
        )
        check_batch(plan, self._batch_id)
        outputs: dict[int, Output] = {}
        outputs.update(self._topics)
        outputs.update(self._tables)
        outputs.update(self._bad)
        planned: dict[int, PlannedOutput] = {}
        if not plan.is_done:
            planned = {number: each.plan(client, plan) for number, each in sorted(outputs.items())}
        try:
            messages = self._run(plan, outputs, planned)
            if not plan.is_done:
                self._decide(client, plan, planned, messages)
        except BaseException:
            batch_commit.abandon(client, plan)
            raise
        _finished[plan.pipeline_id] = (plan.run, plan.number)
        self.rows = [sum(count for of, count, _ in messages if of == number) for number in sorted(outputs)]

    def _decide(
        self,
        client: Client,
        plan: BatchPlan,
        planned: Mapping[int, PlannedOutput],
        messages: list[tuple[int, int, Any]],
    ) -> None:
        """Prepare the commits of the tables, and decide."""
        written = [each for _, _, each in messages if isinstance(each, Written)]
        tables: dict[str, TableState] = {}
        for number, each in self._tables.items():
            of_table = [message for of, _, message in messages if of == number]
            tables[each.options.location] = each.prepare(planned[number], of_table)
        prepared = [each.prepared for each in written if each.prepared is not None]
        batch_commit.decide(client, plan, prepared, merged(each.outputs for each in written), tables)

    def _written(self) -> set[str] | None:
        """The topics that this batch writes to; None if its rows name them."""
        options = [
            *(each.options for each in self._topics.values()),
            *(each.options for each in self._bad.values()),
        ]
        found = {each.topic for each in options if each is not None}
        return None if None in found else {each for each in found if each is not None}

    def _relations(self) -> Relations:
        """What the options of the batch, and of its writes to topics, say about other pipelines."""
        found = [self._shared.relations, *(each.options.relations for each in self._topics.values())]
        beside = frozenset().union(*(each.beside for each in found))
        return Relations(any(each.is_new for each in found), beside)

    def _may_be_unfinished(self, last: BatchDecision) -> bool:
        """Whether a decision may not have been completed, because the function has hidden an error."""
        return _finished.get(self._shared.pipeline_id or "") != (last.run, last.number)

    def _run(
        self, plan: BatchPlan, outputs: Mapping[int, Output], planned: Mapping[int, PlannedOutput]
    ) -> list[tuple[int, int, Any]]:
        """Run the job that writes all rows; return its outputs, their rows and messages, by task."""
        if not outputs:
            return []
        task = _Task(plan, dict(planned))
        topics = {number: each.rows for number, each in self._topics.items()}
        others = {number: each.rows for number, each in {**self._tables, **self._bad}.items()}
        job = _union(topics, others).mapInArrow(lambda batches: task.run(batches), "message binary")
        # Without this, each output would read the input of the batch again.
        is_shared = len(outputs) > 1 and not self._frame.is_cached
        if is_shared:
            self._frame.persist()
        try:
            return [pickle.loads(row.message) for row in job.collect()]
        finally:
            if is_shared:
                self._frame.unpersist()


@dataclass(frozen=True, slots=True)
class _TopicOutput:
    """A topic, or the topics that the rows name."""

    rows: DataFrame
    options: SinkOptions

    def plan(self, client: Client, plan: BatchPlan) -> "_PlannedTopic":
        """Return the output for the tasks."""
        return _PlannedTopic(self.options)


@dataclass(frozen=True, slots=True)
class _PlannedTopic:
    options: SinkOptions

    def begin(self, plan: BatchPlan, number: int) -> AttemptWriter:
        """Begin a transaction for this attempt."""
        return AttemptWriter(plan, self.options, f".{number}" if number else "")


@faces_spark
@dataclass(frozen=True, slots=True)
class _Task:
    """What a task does: it writes each row to its output."""

    plan: BatchPlan
    outputs: Mapping[int, PlannedOutput]

    def run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write the rows of a task; return its messages to the driver as rows."""
        check_batch(self.plan)
        if self.plan.is_done:
            # Consume the rows anyway: the steps before may keep state, so they must run again.
            for _ in batches:
                pass
            return
        writers: dict[int, OutputWriter] = {}
        counts: Counter[int] = Counter()
        try:
            for rows in batches:
                for number, part in _by_output(rows):
                    if number not in writers:
                        writers[number] = self.outputs[number].begin(self.plan, number)
                    writers[number].write(part)
                    counts[number] += part.num_rows
            found = [(number, counts[number], each.prepare()) for number, each in writers.items()]
        except BaseException as error:
            for each in writers.values():
                each.__exit__(type(error), error, error.__traceback__)
            raise
        messages = pa.array([pickle.dumps(each) for each in found], pa.binary())
        yield pa.RecordBatch.from_arrays([messages], ["message"])


def _by_output(rows: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Return the rows of each output, with the columns that it was given."""
    numbers = rows.column(NUMBER)
    present = pc.unique(numbers).to_pylist()
    for number in present:
        part = rows if len(present) == 1 else rows.filter(pc.equal(numbers, number))
        name = f"{ROW}{number}"
        if name in part.schema.names:
            yield number, pa.RecordBatch.from_struct_array(part.column(name))
        else:
            yield number, part.select([each for each in part.schema.names if each in COLUMNS])


def _union(topics: Mapping[int, DataFrame], others: Mapping[int, DataFrame]) -> DataFrame:
    """Return the rows of all outputs. Those of topics share columns; others have a column of their own."""
    of_records = [name for name in COLUMNS if any(name in frame.schema.names for frame in topics.values())]
    frames = []
    for number, frame in sorted({**topics, **others}.items()):
        columns = [functions.lit(number).alias(NUMBER)]
        columns += [_record_column(frame.schema, name, number in topics) for name in of_records]
        for other, rows in others.items():
            kind = rows.schema
            row = functions.struct(*(_named(name) for name in kind.names)) if other == number else None
            columns.append((functions.lit(None).cast(kind) if row is None else row).alias(f"{ROW}{other}"))
        frames.append(frame.select(*columns))
    found = frames[0]
    for each in frames[1:]:
        found = found.unionAll(each)
    return found


def _record_column(schema: StructType, name: str, is_of_topic: bool) -> Column:
    found = _named(name) if is_of_topic and name in schema.names else functions.lit(None)
    return found.cast(COLUMNS[name][0]).alias(name)


def _named(name: str) -> Column:
    return functions.col("`{}`".format(name.replace("`", "``")))


def _of_query(spark: SparkSession) -> dict[str, str]:
    """Return the options of the streaming query whose function runs in this thread."""
    advice = "Give pipeline_id, bootstrap_servers and checkpoint of the query by name"
    try:
        query_id = spark.sparkContext.getLocalProperty(QUERY_PROPERTY)
    except (AttributeError, PySparkException):  # Spark Connect has no context.
        query_id = None
    execution = None if query_id is None else _execution(query_id)
    if execution is None:
        raise OptionError(f"Spark does not tell which streaming query this thread works for. {advice}")
    leaves = execution.logicalPlan().collectLeaves()
    relations = [leaves.apply(index) for index in range(leaves.size())]
    sources = [
        dict(each.relation().options().asCaseSensitiveMap())
        for each in relations
        if each.nodeName() == "StreamingDataSourceV2ScanRelation"
    ]
    found = [
        {name: value for name, value in each.items() if name.lower() in BATCH}
        for each in sources
        if any(name.lower() == "pipeline.id" for name in each)
    ]
    if not found:
        raise OptionError(
            "no source of this query has format 'semel' and the option pipeline.id, so there is no position "
            f"that can be committed. {advice}"
        )
    return {**found[0], "checkpointLocation": str(execution.resolvedCheckpointRoot())}


def _execution(query_id: str) -> Any:
    """Return Spark's execution of a query. The session of a batch is a copy that does not know its query."""
    for session in (SparkSession._instantiatedSession, SparkSession.getActiveSession()):
        query = None if session is None else session.streams.get(query_id)
        if query is not None:
            return query._jsq.streamingQuery()
    return None
