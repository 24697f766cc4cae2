"""Compares the input of a pipeline with its output: lost, duplicated, torn and foreign records.

Every record has an identity, a SQL expression over its columns. Inputs say how many outputs they should
produce (`expect`, usually one), so every identity has an expected and an actual count. It is a Spark job, so
it handles topics and tables of any size.

The pipeline may be running. Its position is read before the end of the output, and again afterwards: what was
committed before must be there, and what was committed since may be there.

An input with a dead letter makes no outputs: every input is in the output or in the dead letters. A retried
record is another input, so it counts by itself. The dead letter of a row that a sink could not take is an
output, until it is retried.

A batch is torn if some of its records are there and others are lost. The batch of a record is taken from
Spark's checkpoint, as far back as that goes.
"""

import json
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import reduce

from pyspark.sql import Column, DataFrame, SparkSession, functions

from semel.client import LATEST, Client, Isolation, Partition
from semel.client.consume.offsets import list_offsets
from semel.spark.checkpoint import Checkpoint
from semel.spark.delta.storage import location_of
from semel.spark.errors import OptionError, PipelineError
from semel.spark.partition_offsets import PartitionOffsets, to_json
from semel.spark.pipeline.dead import RETRIED, marks
from semel.spark.pipeline.status import Doing, Kind, Status, status
from semel.spark.sink.dead_letters import PIPELINE, REASON, SINK, TABLE
from semel.spark.sink.decision import read_committed

EXAMPLES_MAX = 10
#: How long the transactions of a fresh decision may take to end.
ENDS_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Question:
    """What to compare."""

    bootstrap_servers: str
    pipeline_id: str
    outputs: tuple[str, ...] = ()  # topics and tables; not needed if the pipeline has one
    input_identity: str = "key"
    output_identity: str = "key"
    expect: str = "1"
    start: str = "earliest"  # where the pipeline started
    checkpoint: str | None = None  # of the query
    client: Mapping[str, str] = field(default_factory=dict)  # other settings of the client


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of the comparison."""

    inputs: int
    expected: int
    found: int
    lost: int
    doubled: int
    foreign: int  # outputs without an input
    dead: int  # dead letters that were not retried
    retried: int
    torn_batches: tuple[int, ...] | None  # None if the records of each batch are not known
    unended: tuple[str, ...]  # transactions that were decided and not committed
    examples: dict[str, list[str]] = field(default_factory=dict)

    @property
    def is_right(self) -> bool:
        """Whether every input counts as it should, and nothing else does."""
        return not (self.lost or self.doubled or self.foreign or self.unended)


def check(client: Client, question: Question) -> None:
    """Check the question. PipelineError if the pipeline does not exist, OptionError if they do not match."""
    found = status(client, question.pipeline_id)
    if found.kind is Kind.WRITE:
        raise OptionError(f"pipeline {found.pipeline!r} is a batch write, which has no input to compare")
    topics, _ = _chosen(question, found)
    _partitions(client, topics)


def verify(spark: SparkSession, client: Client, question: Question) -> Answer:
    """Compare. Call `check` first."""
    found, unended = _settled(client, question.pipeline_id)
    before = {(each.topic, each.partition): each.offset for each in found.lags}
    topics, tables = _chosen(question, found)
    dead = [] if found.decision is None else _existing(client, found.decision.dead)
    ends = _ends(client, [*topics, *dead])
    letters = _letters(spark, question, dead, ends).persist() if dead else None
    outputs = _outputs(spark, question, topics, tables, ends, letters)
    after = read_committed(client, question.pipeline_id, require_stable=False).offsets
    inputs = _inputs(spark, client, question, before, after, letters)
    both = _side_by_side(inputs, outputs).persist()
    try:
        names = ("inputs", "expected", "found", "dead", "retried", "lost", "doubled", "foreign")
        totals = both.agg(*(functions.coalesce(functions.sum(name), functions.lit(0)) for name in names))
        numbers = dict(zip(names, (int(each) for each in totals.collect()[0]), strict=True))
        wrong = [name for name in ("lost", "doubled", "foreign") if numbers[name]]
        return Answer(
            **numbers,
            torn_batches=_torn(spark, inputs, both, question.checkpoint, is_any_lost="lost" in wrong),
            unended=unended,
            examples={name: _examples(both, name) for name in wrong},
        )
    finally:
        both.unpersist()
        if letters is not None:
            letters.unpersist()


def _settled(client: Client, pipeline_id: str) -> tuple[Status, tuple[str, ...]]:
    """Return the pipeline once its last decision is completed, and what was not completed in time."""
    deadline = time.monotonic() + ENDS_SECONDS
    while True:
        found = status(client, pipeline_id)
        unended = tuple(each.transactional_id for each in found.open if each.doing is Doing.DECIDED)
        if not unended or time.monotonic() > deadline:
            return found, unended
        time.sleep(0.1)


def _outputs(
    spark: SparkSession,
    question: Question,
    topics: list[str],
    tables: list[str],
    ends: Mapping[Partition, int],
    letters: DataFrame | None,
) -> DataFrame:
    """Return the output up to its end, with the rows that became dead letters instead."""
    identity = functions.expr(question.output_identity).alias("id")
    is_found, is_dead = (functions.lit(kind).alias("kind") for kind in ("found", "dead"))
    outputs = []
    if topics:
        outputs.append(_read(spark, question, topics, "earliest", ends).select(identity, is_found))
        if letters is not None:
            refused = letters.where(letters.to_topic.isin(topics))
            kind = functions.when(refused.is_retried, "retried").otherwise("dead").alias("kind")
            outputs.append(refused.select(identity, kind))
    for table in tables:
        rows = _table(spark, table)
        outputs.append(rows.select(identity, is_found))
        if letters is not None:
            row = functions.from_json(letters.value.cast("string"), rows.schema).alias("row")
            refused = letters.where(letters.to_table == table).select(row).select("row.*")
            outputs.append(refused.select(identity, is_dead))
    return reduce(DataFrame.unionAll, outputs)


def _letters(
    spark: SparkSession, question: Question, topics: list[str], ends: Mapping[Partition, int]
) -> DataFrame:
    """Return the dead letters of the pipeline, with their places and whether they were retried."""
    records = _read(spark, question, topics, "earliest", ends)

    def header(name: str) -> Column:
        found = functions.filter("headers", lambda each: each.key == name)
        return functions.get(found, functions.lit(0)).value.cast("string")

    ours = records.where(header(PIPELINE) == question.pipeline_id)
    marked = ours.where(header(RETRIED).isNotNull()).select("topic", "partition", "value").collect()
    retried = marks(((row.topic, row.partition), bytes(row.value)) for row in marked)
    ranges = [(*key, first, last) for key, found in retried.items() for first, last in found]
    done = spark.createDataFrame(ranges, "topic STRING, partition INT, start BIGINT, stop BIGINT")
    where = (
        (ours.topic == done.topic)
        & (ours.partition == done.partition)
        & ours["offset"].between(done.start, done.stop)
    )
    return (
        ours.where(header(REASON).isNotNull())
        .join(functions.broadcast(done), where, "left")
        .select(
            *(ours[name] for name in ("key", "value", "headers")),
            done.start.isNotNull().alias("is_retried"),
            *(header(f"semel.{name}").alias(f"from_{name}") for name in ("topic", "partition", "offset")),
            header(SINK).alias("to_topic"),
            header(TABLE).alias("to_table"),
        )
    )


def _existing(client: Client, topics: Iterable[str]) -> list[str]:
    """Return the topics of these that exist. Dead letters may be deleted with their topic."""
    return sorted(each.name for each in client.describe(sorted(topics)).topics) if topics else []


def _ends(client: Client, topics: Iterable[str]) -> dict[Partition, int]:
    """Return where these topics end. Asked for together, so that a retry is in all of them or in none."""
    keys = dict.fromkeys(_partitions(client, topics), LATEST)
    return {
        key: each.offset
        for key, each in list_offsets(client, keys, isolation=Isolation.READ_COMMITTED).items()
    }


def _chosen(question: Question, found: Status) -> tuple[list[str], list[str]]:
    """Return the topics and the tables to compare. OptionError if they have to be named."""
    if found.table is not None:
        return [], [found.table]
    known = {} if found.decision is None else found.decision.tables
    outputs = question.outputs or found.outputs
    if not question.outputs and len(outputs) != 1:
        raise OptionError("name the topics and tables that the pipeline writes to with --output")
    tables = [each for each in outputs if each in known or location_of(each) in known]
    return [each for each in outputs if each not in tables], [
        each if each in known else location_of(each) for each in tables
    ]


def _table(spark: SparkSession, location: str) -> DataFrame:
    from deltalake import DeltaTable

    files = DeltaTable(location).file_uris()
    if not files:
        raise PipelineError(f"the table {location} has no rows yet")
    return spark.read.option("basePath", location).parquet(*files)


def _inputs(
    spark: SparkSession,
    client: Client,
    question: Question,
    before: PartitionOffsets,
    after: PartitionOffsets,
    letters: DataFrame | None,
) -> DataFrame:
    """Return the committed input with its expected output; `is_due` marks what must be there.

    `dead` and `retried` say whether an input is a dead letter, and `twice` how often it is one too many.
    """
    topics = sorted({topic for topic, _ in after})
    # The group may have partitions that are gone, and lack new ones.
    ends = {key: after.get(key, 0) for key in _partitions(client, topics)}
    records = _read(spark, question, topics, question.start, ends)
    made = records.select(
        functions.expr(question.input_identity).alias("id"),
        functions.expr(question.expect).cast("bigint").alias("makes"),
        (records["offset"] < _at(before, records)).alias("is_due"),
        "topic",
        "partition",
        "offset",
    )
    if letters is None:
        return made.selectExpr("*", "0 AS dead", "0 AS retried", "0 AS twice")
    of_inputs = (
        letters.where("to_topic IS NULL AND to_table IS NULL")
        .groupBy("from_topic", "from_partition", "from_offset")
        .agg(functions.count("*").alias("letters"), functions.max("is_retried").alias("is_retried"))
    )
    where = (
        (made.topic == of_inputs.from_topic)
        & (made.partition == of_inputs.from_partition.cast("int"))
        & (made["offset"] == of_inputs.from_offset.cast("bigint"))
    )
    return made.join(of_inputs, where, "left").selectExpr(
        "id", "if(letters IS NULL, makes, 0) AS makes", "is_due", "topic", "partition", "offset",
        "if(letters IS NULL OR is_retried, 0, 1) AS dead", "if(is_retried, 1, 0) AS retried",
        "coalesce(letters - 1, 0) AS twice",
    )  # fmt: skip


def _read(
    spark: SparkSession, question: Question, topics: Iterable[str], start: str, ends: Mapping[Partition, int]
) -> DataFrame:
    settings = {"bootstrap.servers": question.bootstrap_servers, **question.client}
    cluster = {f"kafka.{name}": value for name, value in settings.items()}
    reader = spark.read.format("semel").options(**cluster)
    names = set(topics)
    ends = {key: offset for key, offset in ends.items() if key[0] in names}
    reader = reader.option("subscribe", ",".join(sorted(names))).option("startingOffsets", start)
    return reader.option("endingOffsets", json.dumps(to_json(ends))).option("includeHeaders", "true").load()


def _partitions(client: Client, topics: Iterable[str]) -> list[Partition]:
    found = client.describe(list(topics)).topics
    if missing := set(topics) - {each.name for each in found}:
        raise OptionError(f"there is no topic {', '.join(sorted(missing))}")
    return [(topic.name, each.partition) for topic in found for each in topic.partitions]


def _at(vector: PartitionOffsets, records: DataFrame) -> Column:
    """Return the offset for the partition of a record; 0 if it has none."""
    pairs = [functions.lit(each) for key, at in vector.items() for each in (f"{key[0]}/{key[1]}", at)]
    known = functions.create_map(*pairs)
    name = functions.concat_ws("/", records.topic, records.partition.cast("string"))
    return functions.coalesce(functions.try_element_at(known, name), functions.lit(0))


def _side_by_side(inputs: DataFrame, outputs: DataFrame) -> DataFrame:
    """Return the expected and the actual number of outputs for every identity."""
    due = functions.when(inputs.is_due, inputs.makes).otherwise(0)
    left = inputs.groupBy("id").agg(
        functions.count("*").alias("inputs"),
        functions.sum(due).alias("least"),
        functions.sum("makes").alias("most"),
        *(functions.sum(name).alias(name) for name in ("dead", "retried", "twice")),
    )
    kinds = ("found", "dead", "retried")
    right = outputs.groupBy(outputs.id.alias("other_id")).agg(
        *(functions.count_if(outputs.kind == kind).alias(f"{kind}_out") for kind in kinds)
    )
    both = left.join(right, left.id.eqNullSafe(right.other_id), "full_outer").selectExpr(
        "inputs IS NOT NULL AS is_known",
        "if(inputs IS NULL, other_id, id) AS id",
        *(
            f"coalesce({name}, 0) AS {name}"
            for name in ("inputs", "least", "most", "dead", "retried", "twice")
        ),
        *(f"coalesce({kind}_out, 0) AS {kind}_out" for kind in kinds),
    )
    return both.selectExpr(
        "id",
        "inputs",
        "least AS expected",
        "found_out AS found",
        "dead + dead_out AS dead",
        "retried + retried_out AS retried",
        "greatest(least - found_out - dead_out, 0) AS lost",
        "if(is_known, greatest(found_out + dead_out - most, 0) + twice, 0) AS doubled",
        "if(is_known, 0, found_out + dead_out) AS foreign",
    )


def _examples(both: DataFrame, name: str) -> list[str]:
    rows = both.where(both[name] > 0).selectExpr("CAST(id AS STRING)").take(EXAMPLES_MAX)
    return [str(row[0]) for row in rows]


def _torn(
    spark: SparkSession, inputs: DataFrame, both: DataFrame, checkpoint: str | None, *, is_any_lost: bool
) -> tuple[int, ...] | None:
    """Return batches of which some records are there and others are not."""
    if not is_any_lost:
        return ()
    if checkpoint is None:
        return None
    ranges = spark.createDataFrame(
        _batches(checkpoint), "batch INT, topic STRING, partition INT, start BIGINT, end BIGINT"
    )
    lost = both.where("lost > 0").selectExpr("id AS lost_id", "true AS is_lost")
    where = (
        (inputs.topic == ranges.topic)
        & (inputs.partition == ranges.partition)
        & (inputs["offset"] >= ranges.start)
        & (inputs["offset"] < ranges.end)
    )
    records = inputs.join(functions.broadcast(ranges), where).join(
        lost, inputs.id.eqNullSafe(lost.lost_id), "left"
    )
    is_lost = functions.coalesce(records.is_lost, functions.lit(False))
    some = records.groupBy("batch").agg(
        functions.min(is_lost).alias("all"), functions.max(is_lost).alias("any")
    )
    return tuple(sorted(int(row.batch) for row in some.where("any AND NOT all").collect()))


def _batches(checkpoint: str) -> list[tuple[int, str, int, int, int]]:
    """Return the ranges of all batches that are still in the checkpoint."""
    kept = Checkpoint(checkpoint)
    found = []
    for batch in range(kept.newest_batch(), -1, -1):
        try:
            step = kept.step(batch)
        except PipelineError:
            break  # Spark keeps the last hundred or so.
        for (topic, partition), end in step.end.items():
            found.append((batch, topic, partition, step.start.get((topic, partition), 0), end))
    return found
