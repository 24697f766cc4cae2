"""`semel.spark.batch`: several writes of a `foreachBatch` function, with one decision.

    def write(orders: DataFrame, batch_id: int) -> None:
        with semel.spark.batch(orders, batch_id) as batch:
            batch.write(orders.selectExpr("key", "value"), Topic("copies"))
            batch.write(orders.where("amount > 100").selectExpr("key", "value"), Topic("large"))

All rows are written by one job, and the batch is read once for all of them. A task attempt writes to topics
in transactions of its own, which it leaves open, and to tables in files that no commit names. The few rows of
a small batch are written by the driver in the same way, which saves the Python workers. When all is written,
one decision makes the batch count in every output, together with the position of the pipeline (see
`batch_commit`; for tables `delta.prepared`). If a write fails, none counts. If the function is run again for
a batch that was decided, nothing is written a second time.
"""

import functools
import json
import pickle
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol, Self

import pyarrow as pa
import pyarrow.compute as pc
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession, functions

from semel.client import Client
from semel.pipeline import FAIL, SKIP, Delta, Topic
from semel.spark.checkpoint import Checkpoint
from semel.spark.clients import connect
from semel.spark.edge import faces_spark
from semel.spark.errors import OptionError
from semel.spark.options import BATCH, SinkOptions
from semel.spark.relations import Relations
from semel.spark.sink import batch_commit, planning
from semel.spark.sink.batch_commit import BatchPlan, merged
from semel.spark.sink.dead_letters import (
    PLACES,
    RECORD,
    BadOutput,
    Guard,
    GuardedWriter,
    SetAside,
    check_topic,
    record_column,
)
from semel.spark.sink.decision import Committed, TableState
from semel.spark.sink.foreach_batch import QUERY_PROPERTY
from semel.spark.sink.sink import COLUMNS, AttemptWriter, Written, check_batch, check_columns
from semel.spark.sink.summary import Ended, Summary, is_idle, total
from semel.spark.sink.versions import RUN_PROPERTY

#: The column with the number of the output that a row is for.
NUMBER = "output"
#: The start of the columns with the rows of tables, each a structure.
ROW = "row "
#: The driver writes up to this many rows of a small batch itself, if none is larger than that as text.
ROWS_FEW, ROW_SIZE_FEW = 2_000, 16 << 10
#: The number of a row that is larger.
TOO_LARGE = -1

#: What this process has decided last for each pipeline, and completed.
_completed: dict[str, Committed] = {}
#: The run of a query, and the batch of it, that was written last by a pipeline in this process.
_written_last: dict[str, tuple[str, int]] = {}


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
        #: After the decision, in the order of the writes: the rows of each, and the dead letters among them.
        self.rows: list[int] = []
        self.dead: list[int] = []

    def write(self, rows: DataFrame, sink: Topic | Delta) -> None:
        """Write rows to a topic or a table when the context ends.

        The columns for a topic are those of format `semel`, and those for a table are its own. `bad` of the
        sink says what happens to rows that it cannot take.
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
            guard = Guard(topic.topic or "", False, sink.bad, self._letters_to(sink.bad))
            self._topics[number] = _TopicOutput(rows, topic, guard)
            return
        from semel.spark.delta.merging import merge_of  # Late: Delta tables need deltalake.
        from semel.spark.delta.output import TableOutput, options_of

        table = options_of({**self._options, "path": sink.path, **sink.options})
        self._check_shared(f"the table {sink.path}", table.pipeline_id, table.address, table.checkpoint)
        if table.location in (each.options.location for each in self._tables.values()):
            raise OptionError(
                f"two writes of this batch go to the table {table.location}. Write the union of their rows"
            )
        guard = Guard(table.location, True, sink.bad, self._letters_to(sink.bad))
        self._tables[number] = TableOutput(rows, table, merge_of(sink, rows.schema), guard)

    def set_aside(self, rows: DataFrame, bad: str, types: Mapping[str, str]) -> None:
        """Stop the batch if there are such rows, count them, or write them to a topic as dead letters.

        The rows have a record each: `value`, `key`, `topic`, `partition`, `offset`, `timestamp`.
        """
        self._bad[self._next_number] = BadOutput(rows, bad, types, self._letters_to(bad))

    def _letters_to(self, bad: str) -> SinkOptions | None:
        """Return the options of the topic for dead letters, if there is one."""
        if bad in (FAIL, SKIP):
            return None
        return SinkOptions.of({**self._options, "topic": bad}, is_stream=True)

    @property
    def _dead_letter_topics(self) -> set[str]:
        guards = [each.guard for each in (*self._topics.values(), *self._tables.values())]
        return {each.bad for each in (*guards, *self._bad.values()) if each.options is not None}

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
        run = self._check_first()
        plan = self._plan(client)
        check_batch(plan, self._batch_id)
        outputs: dict[int, Output] = {}
        outputs.update(self._topics)
        outputs.update(self._tables)
        outputs.update(self._bad)
        planned: dict[int, PlannedOutput] = {}
        if not plan.is_done:
            for topic in self._dead_letter_topics:
                check_topic(client, topic)
            planned = {number: each.plan(client, plan) for number, each in sorted(outputs.items())}
        try:
            messages = self._run(plan, outputs, planned)
            if not plan.is_done:
                _completed[plan.pipeline_id] = self._decide(client, plan, planned, messages)
        except BaseException:
            batch_commit.abandon(client, plan)
            raise
        if run is not None:
            _written_last[self._shared.pipeline_id or ""] = (run, self._batch_id)
        self.rows = [sum(count for of, count, _ in messages if of == number) for number in sorted(outputs)]
        self.dead = [sum(each.rows for of, _, each in messages if of == number) for number in sorted(outputs)]

    def _check_first(self) -> str | None:
        """Refuse a second context for the batch: it is decided, so these writes would be skipped.

        After a restart, the query has another run, and a batch that was decided is rightly skipped. Returns
        the run; None if Spark does not tell.
        """
        try:
            run = self._frame.sparkSession.sparkContext.getLocalProperty(RUN_PROPERTY)
        except (AttributeError, PySparkException):  # Spark Connect has no context.
            return None
        if run is not None and _written_last.get(self._shared.pipeline_id or "") == (run, self._batch_id):
            raise OptionError(
                f"batch {self._batch_id} has been written by another semel.spark.batch of this run. Its "
                "outputs count together, so what this one writes would never be written. Put all writes of "
                "the batch into one 'with'"
            )
        return run

    def _decide(
        self,
        client: Client,
        plan: BatchPlan,
        planned: Mapping[int, PlannedOutput],
        messages: list[tuple[int, int, SetAside]],
    ) -> Committed:
        """Prepare the commits of the tables, and decide."""
        written = [each.message for _, _, each in messages if isinstance(each.message, Written)]
        letters = [each.letters for _, _, each in messages if each.letters is not None]
        tables: dict[str, TableState] = {}
        for number, each in self._tables.items():
            of_table = [found.message for of, _, found in messages if of == number]
            tables[each.options.location] = each.prepare(planned[number], of_table)
        prepared = [each.prepared for each in (*written, *letters) if each.prepared is not None]
        outputs, dead = (merged(each.outputs for each in found) for found in (written, letters))
        return batch_commit.decide(client, plan, prepared, outputs, tables, self._summary(messages), dead)

    def _summary(self, messages: list[tuple[int, int, SetAside]]) -> Summary:
        """What the batch has done, and what Spark has reported of the one before."""
        rows = [
            each.message.rows
            if isinstance(each.message, Written)
            else {self._tables[number].options.location: count - each.rows}
            for number, count, each in messages
            if number not in self._bad
        ]
        dead = sum(each.rows for _, _, each in messages)
        return Summary(total(rows), dead, _ended(self._frame.sparkSession, self._batch_id - 1))

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

    def _plan(self, client: Client) -> BatchPlan:
        """Plan the batch. It needs one request if this process has decided and completed the one before."""
        pipeline_id, checkpoint = self._shared.pipeline_id or "", Checkpoint(self._shared.checkpoint or "")
        # Whatever fails from here on, the next plan asks the cluster.
        known = _completed.pop(pipeline_id, None)
        if known is not None and known.decision is not None and known.decision.outputs:
            plan = planning.plan_next(client, pipeline_id, checkpoint, known)
            if plan is not None:
                return plan
        return planning.plan_stream(
            client,
            pipeline_id,
            checkpoint,
            None,
            self._relations(),
            written=self._written(),
            may_be_unfinished=lambda last: True,
        )

    def _run(
        self, plan: BatchPlan, outputs: Mapping[int, Output], planned: Mapping[int, PlannedOutput]
    ) -> list[tuple[int, int, SetAside]]:
        """Run the job that writes all rows; return its outputs, their rows and messages, by task."""
        if not outputs:
            return []
        task = _Task(plan, dict(planned))
        topics = {number: each.rows for number, each in self._topics.items()}
        others = {number: each.rows for number, each in {**self._tables, **self._bad}.items()}
        rows = _union(topics, others)
        # Without this, each output would read the input of the batch again.
        is_shared = len(outputs) > 1 and not self._frame.is_cached
        if is_shared:
            self._frame.persist()
        try:
            collected = _collect_few(rows) if plan.is_small else None
            if collected is not None:
                found = [each for batch in task.run(iter(collected)) for each in batch.column(0).to_pylist()]
            else:
                job = rows.mapInArrow(lambda batches: task.run(batches), "message binary")
                found = [row.message for row in job.collect()]
            return [pickle.loads(each) for each in found]
        finally:
            if is_shared:
                self._frame.unpersist()


@dataclass(frozen=True, slots=True)
class _TopicOutput:
    """A topic, or the topics that the rows name."""

    rows: DataFrame
    options: SinkOptions
    guard: Guard

    def plan(self, client: Client, plan: BatchPlan) -> "_PlannedTopic":
        """Return the output for the tasks."""
        return _PlannedTopic(self.options, self.guard)


@dataclass(frozen=True, slots=True)
class _PlannedTopic:
    options: SinkOptions
    guard: Guard

    def begin(self, plan: BatchPlan, number: int) -> GuardedWriter:
        """Begin a transaction for this attempt."""
        attempt = AttemptWriter(plan, self.options, f".{number}" if number else "")
        return self.guard.begin(attempt, plan, number)


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


def _collect_few(rows: DataFrame) -> list[pa.RecordBatch] | None:
    """Return these rows, without a Python worker; None if they are not few, or one of them is large.

    Little input may become many rows, or large ones. So the conditions are checked where the rows are made:
    what does not pass does not get into the driver. All rows are in one Spark partition, so they are counted
    together.
    """
    few = rows.coalesce(1).where(f"monotonically_increasing_id() <= {ROWS_FEW}")
    fits = f"octet_length(CAST(struct(*) AS STRING)) <= {ROW_SIZE_FEW}"
    columns = [f"IF({fits}, `{name}`, NULL) AS `{name}`" for name in rows.schema.names if name != NUMBER]
    found = few.selectExpr(f"IF({fits}, {NUMBER}, {TOO_LARGE}) AS {NUMBER}", *columns).toArrow()
    if found.num_rows > ROWS_FEW or pc.any(pc.equal(found.column(NUMBER), TOO_LARGE)).as_py():
        return None
    batches: list[pa.RecordBatch] = found.to_batches()
    return batches


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
            yield number, part.select([each for each in part.schema.names if each in (*COLUMNS, RECORD)])


def _union(topics: Mapping[int, DataFrame], others: Mapping[int, DataFrame]) -> DataFrame:
    """Return the rows of all outputs. Those of topics share columns; others have a column of their own."""
    frames = []
    for number, frame in sorted({**topics, **others}.items()):
        # Expressions in SQL need one call to Java together; columns made of functions, a dozen each.
        if number in topics:
            names = [name for name in COLUMNS if name in frame.schema.names]
            row = [f"CAST({name} AS {COLUMNS[name][0]}) AS {name}" for name in names]
            if record := record_column(frame.schema):
                quoted = record.replace("`", "``")
                place = ", ".join(f"`{quoted}`.{each} AS {each}" for each in PLACES.values())
                row.append(f"struct({place}) AS `{RECORD}`")
        else:
            frame, row = _nullable(frame), [f"struct(*) AS `{ROW}{number}`"]
        frames.append(frame.selectExpr(f"{number} AS {NUMBER}", *row))
    return functools.reduce(lambda left, right: left.unionByName(right, allowMissingColumns=True), frames)


def _nullable(frame: DataFrame) -> DataFrame:
    """Return rows whose columns all may be null, as they are in the rows of other outputs."""
    kind = frame.schema.toNullable()
    if kind == frame.schema:
        return frame
    return frame.select(functions.struct("*").cast(kind).alias("row")).select("row.*")


def _of_query(spark: SparkSession) -> dict[str, str]:
    """Return the options of the streaming query whose function runs in this thread."""
    advice = "Give pipeline_id, bootstrap_servers and checkpoint of the query by name"
    execution = _execution(spark)
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


def _ended(spark: SparkSession, batch_id: int) -> Ended | None:
    """Return what Spark has reported of an earlier batch of the query. None if that is not known."""
    execution = _execution(spark)
    # The batch does not depend on it.
    with suppress(AttributeError, LookupError, Py4JError, PySparkException):
        reports = execution.recentProgress()
        for index in range(len(reports) - 1, -1, -1):
            report = json.loads(reports[index].json())
            if not is_idle(report):
                return Ended.of(report) if report["batchId"] == batch_id else None
    return None


def _execution(spark: SparkSession) -> Any:
    """Return Spark's execution of the query whose function runs in this thread; None if it does not tell.

    The session of a batch is a copy that does not know its query.
    """
    try:
        query_id = spark.sparkContext.getLocalProperty(QUERY_PROPERTY)
    except (AttributeError, PySparkException):  # Spark Connect has no context.
        return None
    if query_id is None:
        return None
    for session in (SparkSession._instantiatedSession, SparkSession.getActiveSession()):
        query = None if session is None else session.streams.get(query_id)
        if query is not None:
            return query._jsq.streamingQuery()
    return None
