"""Runs a declared pipeline: one streaming query, watched until it ends or is stopped.

A query stops when the broker is unavailable for too long, and Spark does not restart it. This module does,
because a restart is always safe: a decided batch is finished, and an undecided one is written again.

`explain` extracts a short message for a failed query, because Spark embeds the error of a Python process in
many pages. `News` reduces Spark's progress reports to the few numbers that show how a pipeline is doing.
"""

import json
import re
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from semel.pipeline import Lookup, Pipeline, Topic
from semel.spark.checkpoint import Checkpoint
from semel.spark.driver.first_start import prepare_first_start
from semel.spark.driver.spark_session import state_store_for
from semel.spark.errors import PipelineError
from semel.spark.partition_offsets import PartitionOffsets, of_json
from semel.spark.pipeline.query import OneQuery
from semel.spark.sink.batch import Batch
from semel.spark.sink.summary import Ended, is_idle


@dataclass(frozen=True, slots=True)
class Progress:
    """One batch of one query."""

    pipeline: str
    batch: int
    at: str  # when it started
    rows: int
    rows_per_second: float
    duration_ms: int
    lag: int  # offsets that were still waiting after it
    late: int = 0  # rows that came after the watermark and were dropped
    state_rows: int = 0
    state_bytes: int = 0  # in memory, as Spark reports it
    written: Mapping[str, int] = field(default_factory=dict)  # rows by sink
    dead: Mapping[str, int] = field(default_factory=dict)  # records that could not be parsed, by source
    dead_by_sink: Mapping[str, int] = field(default_factory=dict)  # rows that a sink could not take
    is_idle: bool = False  # no batch: Spark also reports while it waits for input

    @property
    def all_dead(self) -> int:
        """The bad records and rows of the batch."""
        return sum(self.dead.values()) + sum(self.dead_by_sink.values())

    @property
    def has_rows(self) -> bool:
        """Whether it has read or written rows. State also returns rows when a time has come."""
        return bool(self.rows or self.all_dead or any(self.written.values()))

    @classmethod
    def of(
        cls, pipeline: str, report: Mapping[str, Any], reads: Mapping[str, int], counted: "Counted | None"
    ) -> "Progress":
        """Parse a report of Spark. `reads` says how often a batch reads each topic, if more than once."""
        ends: PartitionOffsets = {}
        latest: PartitionOffsets = {}
        rows = 0
        for source in report["sources"]:
            end = _vector(source.get("endOffset"))
            rows += int(source["numInputRows"]) // max((reads.get(topic, 1) for topic, _ in end), default=1)
            ends |= end
            latest |= _vector(source.get("latestOffset"))
        ended = Ended.of(report)
        return cls(
            pipeline=pipeline,
            batch=ended.batch_id,
            at=str(report["timestamp"]),
            rows=rows,
            rows_per_second=rows * 1000 / max(1, ended.duration_ms),
            duration_ms=ended.duration_ms,
            lag=sum(max(0, offset - ends.get(key, 0)) for key, offset in latest.items()),
            late=ended.late,
            state_rows=ended.state_rows,
            state_bytes=ended.state_bytes,
            written=counted.written if counted else {},
            dead=counted.dead if counted else {},
            dead_by_sink=counted.dead_by_sink if counted else {},
            is_idle=is_idle(report),
        )


class Counted(NamedTuple):
    """What one batch has written, as its function has counted it."""

    written: Mapping[str, int]
    dead: Mapping[str, int]
    dead_by_sink: Mapping[str, int]

    @classmethod
    def of(cls, batch: Batch, sinks: Iterable[str], sources: Iterable[str]) -> "Counted":
        """Count what a batch has written to its sinks, and set aside of its sources."""
        names = list(sinks)
        written = {name: rows - dead for name, rows, dead in zip(names, batch.rows, batch.dead, strict=False)}
        by_source = dict(zip(sources, batch.dead[len(names) :], strict=True))
        by_sink = dict(zip(names, batch.dead, strict=False))
        return cls(
            written, *({name: rows for name, rows in each.items() if rows} for each in (by_source, by_sink))
        )


class Started(NamedTuple):
    """A query that was started, and what is known of its batches besides Spark's reports."""

    query: StreamingQuery
    reads: Mapping[str, int]  # how often a batch reads each topic
    counted: dict[int, Counted]  # by batch; the newest ones


class News:
    """The progress reports of one query; each is returned once."""

    def __init__(self, pipeline: str, started: Started) -> None:
        self._pipeline = pipeline
        self._started = started
        self._last: tuple[int, str] | None = None

    def new(self) -> Iterator[Progress]:
        """Return what the query has reported since the last call."""
        for report in _reports_after(self._last, self._started.query):
            self._last = _key(report)
            counted = self._started.counted.get(int(report["batchId"]))
            yield Progress.of(self._pipeline, report, self._started.reads, counted)


def _reports_after(last: tuple[int, str] | None, query: StreamingQuery) -> list[dict[str, Any]]:
    """Return the reports of a query that follow one of them, or all.

    PySpark converts each of the last hundred reports value by value, thousands of calls to Java every time.
    So the list is read in Java, from its end.
    """
    try:
        reports = query._jsq.recentProgress()
        texts = (reports[at].json() for at in reversed(range(len(reports))))
    except AttributeError:  # Spark Connect has all reports in Python.
        texts = (each.json for each in reversed(query.recentProgress))
    found: list[dict[str, Any]] = []
    for report in map(json.loads, texts):
        if _key(report) == last:
            break
        found.append(report)
    return found[::-1]


def _key(report: Mapping[str, Any]) -> tuple[int, str]:
    return int(report["batchId"]), str(report["timestamp"])


def _vector(found: Any) -> PartitionOffsets:
    """Return the offsets of a Semel source; those of other sources cannot be counted here."""
    try:
        return of_json(json.loads(found) if isinstance(found, str) else found)
    except (ValueError, AttributeError):
        return {}


#: What follows the message: Spark's description of the query, and the Java stack trace.
_BEHIND = ("\n=== Streaming Query ===", "\n\tat ", "\nDriver stacktrace:", "\nJVM stacktrace:")
_TRACEBACK = "Traceback (most recent call last):\n"
_STATE = re.compile(r"\s*SQLSTATE: ")
_OURS = "semel."
#: How `edge` starts an error of ours, before any traceback.
_HEADLINE = re.compile(r"\bsemel(?:\.\w+)+: (.+?)\n\nThe above exception was the direct cause", re.DOTALL)
#: Failures that a restart may resolve: the broker, a table, or the storage of either was unavailable; the
#: broker has aborted transactions that were not decided yet; another program has changed a table; compaction
#: was faster than a lookup; or a Python process of Spark died. Every message that says to start again is one
#: of these.
_PASSING = re.compile(
    r"(?:^|: )semel\.client\.errors\.(BrokerUnreachable|ConnectionLost|RequestTimedOut): "
    r"|(?:^|: )semel\.wire\.errors\.KafkaError: (COORDINATOR_NOT_AVAILABLE|NOT_COORDINATOR"
    r"|LEADER_NOT_AVAILABLE|NOT_LEADER_OR_FOLLOWER|KAFKA_STORAGE_ERROR): "
    r"|(?:^|: )semel\.spark\.errors\.(AttemptsLost|BatchUnfinished|SnapshotOvertaken|TableBusy|TableChanged"
    r"|TableUnreachable): "
    r"|Python worker (exited unexpectedly|failed to connect back)",
    re.MULTILINE,
)


def is_passing(error: BaseException) -> bool:
    """Whether the same query is likely to succeed after a restart."""
    return _PASSING.search(str(error)) is not None


def explain(error: BaseException) -> str:
    """Return why a query failed: its Python error if there is one, else Spark's own message.

    The Python error is the headline of our data source, else the error at the end of the last traceback.
    """
    text = str(error)
    headline = _HEADLINE.search(text.partition(_TRACEBACK)[0])
    if headline is not None:
        return headline[1]
    for mark in _BEHIND:
        text = text.partition(mark)[0]
    _, found, trace = text.rpartition(_TRACEBACK)
    lines = (trace if found else text).splitlines()
    if found:
        # The lines of a traceback are indented; the first that is not is the error.
        while lines and (not lines[0].strip() or lines[0].startswith(" ")):
            lines.pop(0)
        said = "\n".join(lines)
    else:
        said = lines[0] if lines else type(error).__name__
    said = _STATE.split(said)[0].strip()
    name, colon, rest = said.partition(": ")
    if not colon or not re.fullmatch(r"[\w.]+", name):
        return said
    # Semel's own errors are sentences. Others need their name to be understood.
    return rest if name.startswith(_OURS) else f"{name.rpartition('.')[2]}: {rest}"


TRIGGER = "1 second"
PATIENCE_SECONDS = 300.0
POLL_SECONDS = 0.2
RESTART_PAUSE_SECONDS = 1.0
#: How long a batch may take to finish after a stop was requested. Then it is cancelled, and repeated later.
STOP_SECONDS = 20.0
#: Batches whose counts are kept until Spark has reported them.
COUNTED_MAX = 100


@dataclass(frozen=True, slots=True)
class RunSettings:
    """Where a pipeline runs, and how."""

    bootstrap_servers: str
    checkpoint: str  # the directory below which the query has its own
    once: bool = False  # read what is there, and end
    trigger: str = TRIGGER
    client: Mapping[str, str] = field(default_factory=dict)  # other settings of the client, by Kafka's names
    is_new: bool = False  # begin although another pipeline has written the same to the same output

    @property
    def cluster(self) -> dict[str, str]:
        """The options of a source or a sink that describe the cluster."""
        settings = {"bootstrap.servers": self.bootstrap_servers, **self.client}
        return {f"kafka.{name}": value for name, value in settings.items()}


@dataclass(frozen=True, slots=True)
class Restarted:
    """A query stopped for a temporary reason, and was restarted."""

    pipeline: str
    why: str


def start(
    spark: SparkSession,
    pipeline: Pipeline,
    *,
    bootstrap_servers: str,
    checkpoint: str,
    once: bool = False,
    trigger: str = TRIGGER,
    client: Mapping[str, str] | None = None,
    new: bool = False,
) -> StreamingQuery:
    """Start the query of a pipeline.

    Its checkpoint is in a directory of its own below `checkpoint`. With `once` it reads what is there now and
    ends; else it starts a batch every `trigger`. `client` has further settings of the client, such as
    `{"security.protocol": "SSL"}`. With `new`, a pipeline without a position begins even if one with another
    id has written the same to its output. PipelineMismatch if the checkpoint has the state of something else.
    """
    settings = RunSettings(bootstrap_servers, checkpoint, once, trigger, client or {}, new)
    return start_query(spark, pipeline, settings).query


def start_query(spark: SparkSession, pipeline: Pipeline, settings: RunSettings) -> Started:
    """Start the query of a pipeline."""
    prepare_first_start(spark)
    shared, query = shared_options(pipeline, settings), query_of(spark, pipeline, settings)
    query.go_on(Checkpoint(shared["checkpointLocation"]))
    reads = {pipeline.sources[name].name: times for name, times in query.reads.items()}
    counted: dict[int, Counted] = {}

    def write(frame: DataFrame, batch_id: int) -> None:
        # The session of a batch is a copy of that of the query.
        results, bad = query.divide(frame, _tables(frame.sparkSession, pipeline, settings))
        with Batch(frame, batch_id, shared) as batch:
            for name, rows in results.items():
                batch.write(rows, pipeline.sinks[name])
            for name, rows in bad.items():
                batch.set_aside(rows, query.parsing[name].bad_go_to, query.parsing[name].types)
        counted[batch_id] = Counted.of(batch, results, bad)
        counted.pop(batch_id - COUNTED_MAX, None)

    when: dict[str, Any] = {"availableNow": True} if settings.once else {"processingTime": settings.trigger}
    rows = query.rows
    writer = rows.writeStream.foreachBatch(write).outputMode(pipeline.output_mode)
    writer = writer.option("checkpointLocation", shared["checkpointLocation"])
    with state_store_for(rows):
        return Started(writer.trigger(**when).start(), reads, counted)


def shared_options(pipeline: Pipeline, settings: RunSettings) -> dict[str, str]:
    """Return the options that all sinks of a pipeline share."""
    return {
        **settings.cluster,
        "pipeline.id": pipeline.pipeline_id,
        "pipeline.new": str(settings.is_new).lower(),
        "checkpointLocation": _below(settings.checkpoint, pipeline.pipeline_id),
    }


def source_options(pipeline: Pipeline, source: Topic, settings: RunSettings) -> dict[str, str]:
    """Return the options of a source that is read as a stream."""
    shared = {**settings.cluster, "subscribe": source.name, "pipeline.id": pipeline.pipeline_id}
    return {**shared, **source.options}


def query_of(spark: SparkSession, pipeline: Pipeline, settings: RunSettings) -> OneQuery:
    """Return the query of a pipeline."""
    streams = {
        name: spark.readStream.format("semel").options(**source_options(pipeline, source, settings)).load()
        for name, source in pipeline.sources.items()
        if isinstance(source, Topic)
    }
    return OneQuery(pipeline, streams, _tables(spark, pipeline, settings))


def _tables(spark: SparkSession, pipeline: Pipeline, settings: RunSettings) -> dict[str, DataFrame]:
    """Return the lookups. Every batch reads them again."""
    return {
        name: spark.read.format("semel")
        .options(**{**settings.cluster, "subscribe": source.name, "newestByKey": "true", **source.options})
        .load()
        for name, source in pipeline.sources.items()
        if isinstance(source, Lookup)
    }


def _below(checkpoint: str, name: str) -> str:
    if urlsplit(checkpoint).scheme:
        return f"{checkpoint.rstrip('/')}/{name}"
    return str(PurePosixPath(checkpoint, name))


class Run:
    """The query of a pipeline, from its start to its end."""

    def __init__(
        self,
        spark: SparkSession,
        pipeline: Pipeline,
        settings: RunSettings,
        patience_seconds: float = PATIENCE_SECONDS,
    ) -> None:
        self._spark = spark
        self.pipeline = pipeline
        self._settings = settings
        self._patience_seconds = patience_seconds
        self._failing_since: float | None = None

    def watch(self, is_stopping: Callable[[], bool]) -> Generator[Progress | Restarted | None, None, None]:
        """Start the query and report its progress, until it has ended or a stop is requested.

        Yields None if nothing is new. PipelineError if it fails for good. However it ends, no query is left
        running; after a requested stop, a batch was given time to finish.
        """
        query, news = self._start()
        try:
            while (query.isActive or query.exception() is not None) and not is_stopping():
                error = query.exception()
                for each in news.new():
                    self._failing_since = None
                    yield each
                if error is not None:
                    yield self._failed(error)
                    time.sleep(RESTART_PAUSE_SECONDS)
                    query, news = self._start()
                yield None
                time.sleep(POLL_SECONDS)
            yield from self._let_batch_end(query, news)
        finally:
            query.stop()

    def _start(self) -> tuple[StreamingQuery, News]:
        try:
            started = start_query(self._spark, self.pipeline, self._settings)
        except PySparkException as error:
            raise PipelineError(f"{self.pipeline} was not started: {explain(error)}") from error
        return started.query, News(self.pipeline.pipeline_id, started)

    def _failed(self, error: BaseException) -> Restarted:
        if self._failing_since is None:
            self._failing_since = time.monotonic()
        if not is_passing(error) or time.monotonic() - self._failing_since > self._patience_seconds:
            raise PipelineError(f"{self.pipeline} has stopped: {explain(error)}") from error
        return Restarted(self.pipeline.pipeline_id, explain(error))

    def _let_batch_end(self, query: StreamingQuery, news: News) -> Iterator[Progress | None]:
        deadline = time.monotonic() + STOP_SECONDS
        while query.isActive and query.status["isTriggerActive"] and time.monotonic() < deadline:
            yield None
            time.sleep(POLL_SECONDS / 4)
        # Stop it before it starts another batch.
        query.stop()
        yield from news.new()
