"""Runs a declared pipeline: one streaming query per sink, watched until it ends or is stopped.

A query stops when the broker is unavailable for too long, and Spark does not restart it. This module does,
because a restart is always safe: a decided batch is finished, and an undecided one is written again.

`explain` extracts a short message for a failed query, because Spark embeds the error of a Python process in
many pages. `News` reduces Spark's progress reports to the few numbers that show how a pipeline is doing.
"""

import json
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import urlsplit

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from semel.pipeline import DeclarationError, Delta, Lookup, Pipeline, Sink, Source
from semel.spark.driver.first_start import prepare_first_start
from semel.spark.errors import PipelineError
from semel.spark.partition_offsets import PartitionOffsets, of_json


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

    @classmethod
    def of(cls, pipeline: str, report: Mapping[str, Any]) -> "Progress":
        """Parse a report of Spark."""
        ends: PartitionOffsets = {}
        latest: PartitionOffsets = {}
        for source in report["sources"]:
            ends |= _vector(source.get("endOffset"))
            latest |= _vector(source.get("latestOffset"))
        return cls(
            pipeline=pipeline,
            batch=int(report["batchId"]),
            at=str(report["timestamp"]),
            rows=int(report["numInputRows"]),
            rows_per_second=float(report.get("processedRowsPerSecond") or 0.0),
            duration_ms=int(report["durationMs"].get("triggerExecution", 0)),
            lag=sum(max(0, offset - ends.get(key, 0)) for key, offset in latest.items()),
        )


class News:
    """The progress reports of one query; each is returned once."""

    def __init__(self, pipeline: str) -> None:
        self._pipeline = pipeline
        self._last: tuple[int, str] | None = None

    def of(self, query: StreamingQuery) -> Iterator[Progress]:
        """Return what the query has reported since the last call."""
        reports = [json.loads(each.json) for each in query.recentProgress]
        keys = [(int(each["batchId"]), str(each["timestamp"])) for each in reports]
        first = keys.index(self._last) + 1 if self._last in keys else 0
        if keys:
            self._last = keys[-1]
        for report in reports[first:]:
            yield Progress.of(self._pipeline, report)


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
#: was faster than a lookup; a Python process of Spark died; or queries that started at the same time have
#: damaged what they share, which `first_start` mends. Every message that says to start again is one of these.
_PASSING = re.compile(
    r"(?:^|: )semel\.client\.errors\.(BrokerUnreachable|ConnectionLost|RequestTimedOut): "
    r"|(?:^|: )semel\.wire\.errors\.KafkaError: (COORDINATOR_NOT_AVAILABLE|NOT_COORDINATOR"
    r"|LEADER_NOT_AVAILABLE|NOT_LEADER_OR_FOLLOWER|KAFKA_STORAGE_ERROR): "
    r"|(?:^|: )semel\.spark\.errors\.(AttemptsLost|BatchUnfinished|SnapshotOvertaken|TableBusy|TableChanged"
    r"|TableUnreachable): "
    r"|Python worker (exited unexpectedly|failed to connect back)"
    r"|Task not serializable",
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


@dataclass(frozen=True, slots=True)
class Place:
    """Where a pipeline runs, and how."""

    bootstrap_servers: str
    checkpoint: str  # the directory below which every query has its own
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
) -> dict[str, StreamingQuery]:
    """Start the queries of a pipeline; return them by pipeline id, which are those of its sinks.

    Each has its checkpoint in a directory of its own below `checkpoint`. With `once` they read what is there
    now, and end; else they start a batch every `trigger`. `client` has further settings of the client, such
    as `{"security.protocol": "SSL"}`. With `new`, a pipeline without a position begins even if one with
    another id has written the same to its output.
    """
    place = Place(bootstrap_servers, checkpoint, once, trigger, client or {}, new)
    started: dict[str, StreamingQuery] = {}
    prepare_first_start(spark)
    try:
        for pipeline_id in pipeline.sinks:
            started[pipeline_id] = start_query(spark, pipeline, pipeline_id, place)
    except BaseException:
        for query in started.values():
            query.stop()
        raise
    return started


def start_query(spark: SparkSession, pipeline: Pipeline, pipeline_id: str, place: Place) -> StreamingQuery:
    """Start the query of one sink."""
    sink = pipeline.sinks[pipeline_id]
    cluster = {**place.cluster, "pipeline.id": pipeline_id}
    frame = _result(spark, pipeline, pipeline_id, place)
    when: dict[str, Any] = {"availableNow": True} if place.once else {"processingTime": place.trigger}
    return (
        frame.writeStream.format("semel-delta" if isinstance(sink, Delta) else "semel")
        .options(**{**cluster, **_where(sink), **_relations(pipeline, pipeline_id, place), **sink.options})
        .option("checkpointLocation", _below(place.checkpoint, pipeline_id))
        .trigger(**when)
        .start()
    )


def _result(spark: SparkSession, pipeline: Pipeline, pipeline_id: str, place: Place) -> DataFrame:
    """Return the input of one sink. Every sink has its own readers, since they start at its position."""
    sources = {name: _load(spark, source, place, pipeline_id) for name, source in pipeline.sources.items()}
    frame = pipeline.results(sources)[pipeline_id]
    if not isinstance(frame, DataFrame):
        raise DeclarationError(
            f"the function of {pipeline} returns a DataFrame for every sink; for {pipeline_id} it was "
            f"{type(frame).__name__}"
        )
    if not frame.isStreaming:
        raise DeclarationError(f"what {pipeline} returns for {pipeline_id} does not come from a stream")
    return frame


def _load(spark: SparkSession, source: Source, place: Place, pipeline_id: str) -> DataFrame:
    options = {**place.cluster, "subscribe": source.name, **source.options}
    if isinstance(source, Lookup):
        return spark.read.format("semel").options(**{"newestByKey": "true", **options}).load()
    return spark.readStream.format("semel").options(**{"pipeline.id": pipeline_id, **options}).load()


def _where(sink: Sink) -> dict[str, str]:
    return {"path": sink.path} if isinstance(sink, Delta) else {"topic": sink.name}


def _relations(pipeline: Pipeline, pipeline_id: str, place: Place) -> dict[str, str]:
    """Return the options about pipelines with the same output: the sinks of one declaration may share it."""
    output = _output(pipeline.sinks[pipeline_id])
    beside = (
        name for name, each in pipeline.sinks.items() if name != pipeline_id and _output(each) == output
    )
    return {"pipeline.new": str(place.is_new).lower(), "pipeline.beside": ",".join(beside)}


def _output(sink: Sink) -> dict[str, str]:
    options = {name.lower(): value for name, value in {**_where(sink), **sink.options}.items()}
    return {name: options[name] for name in ("path", "topic") if name in options}


def _below(checkpoint: str, name: str) -> str:
    if urlsplit(checkpoint).scheme:
        return f"{checkpoint.rstrip('/')}/{name}"
    return str(PurePosixPath(checkpoint, name))


class Run:
    """All queries of a pipeline, from their start to their end."""

    def __init__(
        self,
        spark: SparkSession,
        pipeline: Pipeline,
        place: Place,
        patience_seconds: float = PATIENCE_SECONDS,
    ) -> None:
        self._spark = spark
        self._pipeline = pipeline
        self._place = place
        self._patience_seconds = patience_seconds
        self._queries: dict[str, StreamingQuery] = {}
        self._news: dict[str, News] = {}
        self._failing_since: dict[str, float] = {}

    def watch(self, is_stopping: Callable[[], bool]) -> Iterator[Progress | Restarted | None]:
        """Start the queries and report their progress, until all have ended or a stop is requested.

        Yields None if nothing is new. PipelineError if one of them fails for good. However it ends, no query
        is left running; after a requested stop, batches were given time to finish.
        """
        try:
            for name in self._pipeline.sinks:
                self._start(name)
            while self._is_any_active() and not is_stopping():
                for name in self._pipeline.sinks:
                    yield from self._look_at(name)
                yield None
                time.sleep(POLL_SECONDS)
            yield from self._let_batches_end()
        finally:
            for query in self._queries.values():
                query.stop()

    def _start(self, name: str) -> None:
        prepare_first_start(self._spark)
        try:
            self._queries[name] = start_query(self._spark, self._pipeline, name, self._place)
        except PySparkException as error:
            raise PipelineError(f"query {name} was not started: {explain(error)}") from error
        self._news[name] = News(name)

    def _is_any_active(self) -> bool:
        return any(query.isActive or query.exception() for query in self._queries.values())

    def _look_at(self, name: str) -> Iterator[Progress | Restarted]:
        query = self._queries[name]
        error = query.exception()
        for each in self._news[name].of(query):
            self._failing_since.pop(name, None)
            yield each
        if error is None:
            return
        since = self._failing_since.setdefault(name, time.monotonic())
        if not is_passing(error) or time.monotonic() - since > self._patience_seconds:
            raise PipelineError(f"query {name} has stopped: {explain(error)}") from error
        yield Restarted(name, explain(error))
        time.sleep(RESTART_PAUSE_SECONDS)
        self._start(name)

    def _let_batches_end(self) -> Iterator[Progress | None]:
        deadline = time.monotonic() + STOP_SECONDS
        waiting = dict(self._queries)
        while waiting and time.monotonic() < deadline:
            for name, query in list(waiting.items()):
                if not (query.isActive and query.status["isTriggerActive"]):
                    # Stop it before it starts another batch.
                    query.stop()
                    del waiting[name]
            yield None
            time.sleep(POLL_SECONDS / 4)
        for name, query in self._queries.items():
            yield from self._news[name].of(query)
