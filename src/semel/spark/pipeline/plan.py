"""Says what a start of a pipeline would do, before it does it. Nothing is changed anywhere.

It asks what a start asks, with the same code: the source where it would continue (`source`), the checkpoint
whether it fits (`state`), the decision whether the next batch follows it (`sink.planning`), and each table
whether it accepts the rows (`delta.prepared`). What these refuse is a finding here, so that all of it is
said at once. What a start would accept without a word is said too, if records would be lost or written again.
"""

import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable

from semel.client import (
    EARLIEST,
    Admin,
    Client,
    ClientError,
    KafkaError,
    Partition,
    ProducerIdAndEpoch,
)
from semel.client.consume.offsets import list_offsets
from semel.pipeline import FAIL, SKIP, Delta, Lookup, Pipeline, Topic
from semel.spark import partition_offsets
from semel.spark.checkpoint import Checkpoint, Step
from semel.spark.errors import DataLoss, OptionError, PipelineError, PipelineMismatch
from semel.spark.options import SinkOptions, SourceOptions
from semel.spark.pipeline.planned import (
    Finding,
    Kind,
    PipelinePlan,
    SinkPlan,
    SourcePlan,
    StatePlan,
    Then,
)
from semel.spark.pipeline.query import OneQuery
from semel.spark.pipeline.running import RunSettings, query_of, shared_options, source_options
from semel.spark.pipeline.state import Fit, topics_of
from semel.spark.pipeline.status import Doing, open_transactions
from semel.spark.relations import Relations
from semel.spark.sink.batch_commit import BatchPlan
from semel.spark.sink.continuity import inputs_after
from semel.spark.sink.decision import BEGINNING, Committed, read_committed
from semel.spark.sink.planning import foresee
from semel.spark.sink.sink import check_columns
from semel.spark.sink.versions import NO_BATCH, NO_QUERY
from semel.spark.source.positions import STARTING, Positions
from semel.spark.source.source import LogEnds, StreamReader

AUTO_CREATE = "auto.create.topics.enable"
NO_RUN = ProducerIdAndEpoch(-1, -1)
#: How often a plan is made, if the pipeline runs and makes a batch meanwhile.
TRIES = 5


def plan(spark: SparkSession, client: Client, pipeline: Pipeline, settings: RunSettings) -> PipelinePlan:
    """Return what a start of the pipeline with these settings would do."""
    query = query_of(spark, pipeline, settings)
    left = TRIES
    while True:
        planner, left = _Planner(client, pipeline, settings, query), left - 1
        found = planner.plan()
        if not planner.has_moved():
            return found
        if not left:
            moved = "the pipeline runs and has moved on: findings may be of the moment alone"
            return replace(found, findings=(*found.findings, Finding(Kind.NOTE, moved)))


@dataclass(slots=True)
class _Read:
    """A source: where the next batch begins and could end, and what is there."""

    name: str
    options: SourceOptions
    start: partition_offsets.PartitionOffsets
    end: dict[str, Any]
    before: partition_offsets.TopicIds  # the topics that were read before
    is_known: set[str]  # topics of which the pipeline has a position


class _Refusals:
    """Catches the errors of a start."""

    def __init__(self, note: Callable[[BaseException], None]) -> None:
        self._note = note

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if not isinstance(error, PipelineError | OptionError | DataLoss):
            return False
        self._note(error)
        return True


class _Planner:
    """Collects the plan of one pipeline."""

    def __init__(self, client: Client, pipeline: Pipeline, settings: RunSettings, query: OneQuery) -> None:
        self._client = client
        self._pipeline = pipeline
        self._settings = settings
        self._query = query
        self._findings: list[Finding] = []
        self._options = shared_options(pipeline, settings)
        self._checkpoint = Checkpoint(self._options["checkpointLocation"])
        self._seen = self._batches()
        self._planned, finished = self._seen
        self._is_repeated = self._planned is not None and self._planned != finished
        self._committed = Committed({}, None)

    def plan(self) -> PipelinePlan:
        """Return the plan."""
        with self._refusals():
            self._committed = read_committed(self._client, self._id, require_stable=False)
        fit = self._query.fit(self._checkpoint)
        states = tuple(self._states(fit))
        reads = [each for name in self._pipeline.sources if (each := self._read(name)) is not None]
        step = self._step(reads)
        sources = tuple(self._sources(reads, step))
        done = False if step is None else self._follows(step)
        sinks = tuple(self._sinks(step))
        self._unfinished()
        return PipelinePlan(
            self._pipeline.id,
            self._id,
            self._position(),
            self._continues(done),
            sinks,
            sources,
            states,
            tuple(sorted(self._findings, key=lambda each: list(Kind).index(each.kind))),
        )

    def has_moved(self) -> bool:
        """Whether the pipeline has made a batch meanwhile."""
        with self._refusals():
            now = read_committed(self._client, self._id, require_stable=False)
            return now != self._committed or self._batches() != self._seen
        return False

    def _batches(self) -> tuple[int | None, int | None]:
        """Return the last batch that Spark has planned, and the last that it has finished."""
        return self._checkpoint.last_planned(), self._checkpoint.last_committed()

    @property
    def _id(self) -> str:
        return self._pipeline.pipeline_id

    @property
    def _streams(self) -> list[str]:
        """The sources that are read as streams."""
        return [name for name in self._pipeline.sources if name in self._query.reads]

    @property
    def _has_decided(self) -> bool:
        last = self._committed.decision
        return last is not None and last.number != BEGINNING

    @property
    def _batch_id(self) -> int:
        """The next batch."""
        return 0 if self._planned is None else self._planned + (not self._is_repeated)

    def _find(self, kind: Kind, text: str) -> None:
        if (kind, text) not in self._findings:
            self._findings.append(Finding(kind, text))

    def _refusals(self) -> "_Refusals":
        """Note errors that a start would raise."""
        return _Refusals(lambda error: self._find(Kind.REFUSED, str(error)))

    # ---- position and checkpoint

    def _position(self) -> str:
        last = self._committed.decision
        if last is None or last.number == BEGINNING:
            return "none"
        return f"batch {last.batch_id}, decision {last.number}"

    def _continues(self, done: bool) -> str:
        if self._planned is None:
            return "new, continues at the position" if self._has_decided else "new"
        if done:
            return f"batch {self._batch_id} was decided and is not written again"
        return f"batch {self._batch_id} is {'repeated' if self._is_repeated else 'next'}"

    def _query_id(self) -> str:
        """Return the id of the query; a new checkpoint gets one at the start."""
        return NO_QUERY if self._planned is None else self._checkpoint.query_id()

    def _unfinished(self) -> None:
        """Note what the start has to complete."""
        last = self._committed.decision
        found = open_transactions(self._client, self._id, last)
        count = {doing: sum(each.doing is doing for each in found) for doing in Doing}
        if decided := count[Doing.DECIDED]:
            self._find(Kind.NOTE, f"the start commits what is decided and still open, {decided} transactions")
        if left := count[Doing.LEFT]:
            self._find(Kind.NOTE, f"the start aborts what an older run has left open, {left} transactions")
        if count[Doing.WRITING] or count[Doing.DECIDING]:
            self._find(
                Kind.NOTE,
                "a batch is being written: the pipeline runs, or was killed. If it runs, the start takes "
                "over from it",
            )
        with self._refusals():
            for location, state in ({} if last is None else last.tables).items():
                from semel.spark.delta.prepared import lacks_commit  # Late: Delta tables need deltalake.

                if lacks_commit(self._id, location, state):
                    self._find(
                        Kind.NOTE,
                        f"commit {state.number} of the table {location} is decided and not made: the start "
                        "makes it",
                    )

    # ---- state

    def _states(self, fit: Fit | None) -> Iterator[StatePlan]:
        refusal = None if fit is None else fit.refusal(self._pipeline, self._checkpoint.location)
        if refusal is not None:
            self._find(Kind.REFUSED, refusal)
        changed = {each.result for each in fit.changes} if fit is not None else set()
        for name, state in (self._query.states or {}).items():
            yield StatePlan(name, str(state), self._then_of_state(name in changed, fit))
        if self._query.states and self._planned is None and self._has_decided:
            self._find(
                Kind.LOST,
                f"the checkpoint {self._checkpoint.location} is new: the state of "
                f"{', '.join(self._query.states)} begins empty, without what was read before",
            )

    def _then_of_state(self, is_changed: bool, fit: Fit | None) -> Then:
        if is_changed or (fit is not None and fit.inputs is not None):
            return Then.REFUSED
        if self._checkpoint.last_committed() is None:
            return Then.BEGINS_EMPTY if self._has_decided and self._planned is None else Then.BEGINS
        if fit is None or not fit.is_known:
            self._find(
                Kind.NOTE,
                f"the checkpoint {self._checkpoint.location} does not say what its state is of. It is taken "
                "for that of this declaration; the start notes it",
            )
            return Then.UNKNOWN
        return Then.CONTINUES

    # ---- sources

    def _read(self, name: str) -> _Read | None:
        """Return where a source continues; None if it does not, or is read anew by every batch."""
        source = self._pipeline.sources[name]
        if isinstance(source, Topic) and name not in self._streams:
            return None  # The function does not use it.
        if isinstance(source, Lookup):
            if not self._client.describe([source.name]).topics:
                self._find(Kind.REFUSED, f"there is no topic {source.name}, which {name} looks up")
            return None
        with self._refusals():
            options = SourceOptions.of(source_options(self._pipeline, source, self._settings), is_stream=True)
            logged = self._logged().get(name)
            return self._begins(name, options) if logged is None else self._goes_on(name, options, logged)
        return None

    def _logged(self) -> dict[str, Mapping[str, Any]]:
        """Return the offsets of the sources in the checkpoint, as Spark assigns them."""
        inputs = [] if self._planned is None else self._checkpoint.inputs(self._planned)
        rest = {topics: each for each in reversed(inputs) if (topics := topics_of(each)) and each is not None}
        found, others = {}, []
        for name in self._streams:
            topics = frozenset(each.strip() for each in self._pipeline.sources[name].name.split(","))
            if topics in rest:
                found[name] = rest.pop(topics)
            else:
                others.append(name)  # It has read other topics before, or a pattern.
        return {**found, **dict(zip(others, rest.values(), strict=False))}

    def _goes_on(self, name: str, options: SourceOptions, logged: Mapping[str, Any]) -> _Read:
        end = StreamReader(options, ()).latestOffset(dict(logged), ReadAllAvailable())
        found = partition_offsets.of_json(logged)
        return _Read(
            name, options, found, end, partition_offsets.ids_of(logged), {topic for topic, _ in found}
        )

    def _begins(self, name: str, options: SourceOptions) -> _Read:
        positions, last = Positions(options, require_stable=False), self._committed.decision
        partitions, ids = positions.layout()
        start = positions.resolve(options.start, partitions, STARTING)
        ends = LogEnds(positions, fail_on_data_loss=options.fail_on_data_loss)
        found = ends.next(start, ids)
        end = partition_offsets.to_json(
            found.end,
            began=found.begin,
            ids=found.ids,
            pipeline_id=options.pipeline_id,
            reader=secrets.token_hex(4),
        )
        before = {} if last is None else {topic: each.topic_id for topic, each in last.inputs.items()}
        known = {topic for topic, _ in self._committed.offsets}
        return _Read(name, options, found.begin, end, {t: i for t, i in before.items() if i}, known)

    def _step(self, reads: list[_Read]) -> Step | None:
        """Return the next batch; None if a source does not go on."""
        if len(reads) < len(self._streams):
            return None
        with self._refusals():
            if self._is_repeated and self._planned is not None:
                return self._checkpoint.step(self._planned)
            return self._checkpoint.step_after(self._planned, [each.end for each in reads])
        return None

    def _sources(self, reads: list[_Read], step: Step | None) -> Iterator[SourcePlan]:
        found: set[str] = set()
        for read in reads:
            end = partition_offsets.of_json(read.end)
            starts = {key: self._start(read, step, key) for key in end}
            first = list_offsets(self._client, dict.fromkeys(end, EARLIEST))
            lost = {key: max(0, first[key].offset - offset) for key, offset in starts.items()}
            self._data_loss(read, end, lost)
            for topic in sorted({topic for topic, _ in end}):
                found.add(topic)
                keys = [key for key in sorted(end) if key[0] == topic]
                yield SourcePlan(
                    read.name,
                    topic,
                    self._then_of_source(read, topic),
                    {key[1]: starts[key] for key in keys},
                    sum(max(0, end[key] - starts[key]) for key in keys),
                    sum(lost[key] for key in keys),
                )
        for name in [each for each in self._streams if each not in {read.name for read in reads}]:
            topics = self._pipeline.sources[name].name
            found.update(each.strip() for each in topics.split(","))
            yield SourcePlan(name, topics, Then.REFUSED)
        for topic in sorted({topic for topic, _ in self._committed.offsets} - found):
            offsets = {key[1]: at for key, at in sorted(self._committed.offsets.items()) if key[0] == topic}
            yield SourcePlan(None, topic, Then.REMOVED, offsets)

    def _start(self, read: _Read, step: Step | None, key: Partition) -> int:
        # A partition that is missing from the start is new, and is read from offset 0.
        return step.start.get(key, 0) if step is not None else read.start.get(key, 0)

    def _then_of_source(self, read: _Read, topic: str) -> Then:
        if topic in partition_offsets.recreated(read.before, partition_offsets.ids_of(read.end)):
            return Then.STARTS_OVER
        return Then.CONTINUES if topic in read.is_known else Then.BEGINS

    def _data_loss(
        self, read: _Read, end: partition_offsets.PartitionOffsets, lost: Mapping[Partition, int]
    ) -> None:
        """Note what cannot be read any more. What the source refuses itself is noted already."""
        anew = partition_offsets.recreated(read.before, partition_offsets.ids_of(read.end))
        for topic in sorted(anew):
            self._find(
                Kind.LOST,
                f"topic {topic} was deleted and created again: what was not read of the old one is lost, and "
                "the new one is read from its start",
            )
        for (topic, partition), offset in sorted(partition_offsets.without_topics(read.start, anew).items()):
            key = (topic, partition)
            if key not in end:
                self._find(Kind.LOST, f"{topic}/{partition} is not read any more; its position is {offset}")
            elif end[key] < offset:
                self._find(
                    Kind.LOST,
                    f"{topic}/{partition} ends at {end[key]}, before the position {offset}: what is written "
                    "next is read from the end on",
                )
        for (topic, partition), count in sorted(lost.items()):
            if count:
                fails = read.options.fail_on_data_loss
                advice = ". failOnDataLoss=false goes on without them" if fails else ""
                self._find(
                    Kind.REFUSED if fails else Kind.LOST,
                    f"{count:,} offsets of {topic}/{partition} were deleted before they were read{advice}",
                )

    # ---- the pipeline id, and what it has decided

    def _follows(self, step: Step) -> bool:
        """Whether the next batch was decided. Notes what its plan would refuse."""
        relations = self._relations()
        names = [each for each in self._output_topics() if each]
        outputs = partition_offsets.topic_ids(self._client.describe(names).topics) if names else {}

        def follow(relations: Relations) -> bool:
            query_id = self._query_id()
            return foresee(self._client, self._id, query_id, self._batch_id, step, relations, outputs)

        if relations.is_new and not self._has_decided:
            try:
                follow(Relations(False, relations.beside))
            except PipelineMismatch as error:
                self._find(Kind.AGAIN, f"with --new the start is not refused although {error}")
        if self._pipeline.id != self._id and self._committed.decision is None:
            self._find(
                Kind.AGAIN,
                f"renamed_from is {self._id!r}, and no pipeline has a position under that id: everything is "
                "read from the start. Check the name",
            )
        with self._refusals():
            return follow(relations)
        return False

    def _relations(self) -> Relations:
        found = []
        for name, sink in self._pipeline.sinks.items():
            if isinstance(sink, Topic):
                with self._refusals(), _named(name):
                    found.append(self._topic_options(sink).relations)
        beside = frozenset().union(*(each.beside for each in found))
        return Relations(self._settings.is_new or any(each.is_new for each in found), beside)

    def _topic_options(self, sink: Topic) -> SinkOptions:
        return SinkOptions.of({**self._options, "topic": sink.name, **sink.options}, is_stream=True)

    # ---- sinks

    def _output_topics(self) -> dict[str, str]:
        """Return the topics that are written to, with the names of their sinks."""
        found = {each.name: name for name, each in self._pipeline.sinks.items() if isinstance(each, Topic)}
        for name, parsing in self._query.parsing.items():
            if parsing.bad_go_to not in (FAIL, SKIP):
                found.setdefault(parsing.bad_go_to, f"bad records of {name}")
        for name, sink in self._pipeline.sinks.items():
            if sink.bad not in (FAIL, SKIP):
                found.setdefault(sink.bad, f"bad rows of {name}")
        return found

    def _sinks(self, step: Step | None) -> Iterator[SinkPlan]:
        last = self._committed.decision
        topics, tables, wrong = self._output_topics(), set(), set()
        for name, sink in self._pipeline.sinks.items():
            if isinstance(sink, Delta):
                found = self._table(name, sink, step)
                tables.add(found.writes_to)
                yield found
                continue
            wrong.add(name)
            with self._refusals(), _named(name):
                check_columns(self._query.schemas[name], self._topic_options(sink).topic)
                wrong.remove(name)
        for topic, name in topics.items():
            yield self._topic(name, topic) if name not in wrong else SinkPlan(name, topic, Then.REFUSED)
        if last is not None:
            gone = [*(each for each in last.outputs if each not in topics), *(last.tables.keys() - tables)]
            for each in sorted(gone):
                yield SinkPlan(None, each, Then.ORPHANED)

    def _topic(self, name: str, topic: str) -> SinkPlan:
        last = self._committed.decision
        known = None if last is None else last.outputs.get(topic)
        exists = bool(self._client.describe([topic]).topics)
        if known is not None and not exists:
            self._find(
                Kind.REFUSED,
                f"topic {topic} of {name} was deleted, so what pipeline {self._id!r} has written "
                "there is gone. Start with a new pipeline.id, with startingOffsets=earliest to write "
                "everything again, or where the old one stopped",
            )
            return SinkPlan(name, topic, Then.REFUSED, "was deleted")
        if exists:
            has_letters = last is not None and topic in last.dead
            has_rows = known is not None or has_letters
            return SinkPlan(name, topic, Then.CONTINUES if has_rows else Then.BEGINS)
        creates = self._creates_topics()
        if creates is False:
            advice = f"there is no topic {topic} for {name}. Create it with 'semel topics create'"
            if name in self._pipeline.sinks:
                self._find(Kind.REFUSED, advice)
                return SinkPlan(name, topic, Then.REFUSED, "does not exist")
            self._find(Kind.NOTE, f"{advice}, before the first of them stops the pipeline")
            return SinkPlan(name, topic, Then.BEGINS, "does not exist")
        return SinkPlan(name, topic, Then.BEGINS, "is created by the broker" if creates else "does not exist")

    def _creates_topics(self) -> bool | None:
        """Whether the broker creates topics; None if this user may not know."""
        try:
            node = self._client.describe(topics=()).nodes[0].node_id
            configs = {each.name: each.value for each in Admin(self._client).configs.of_broker(node)}
        except (KafkaError, ClientError):
            return None
        return configs.get(AUTO_CREATE) == "true" if AUTO_CREATE in configs else None

    def _table(self, name: str, sink: Delta, step: Step | None) -> SinkPlan:
        last = self._committed.decision
        then, details, location = Then.REFUSED, "", sink.path
        with self._refusals(), _named(name):
            from semel.spark.delta.merging import merge_of  # Late: Delta tables need deltalake.
            from semel.spark.delta.output import options_of
            from semel.spark.delta.prepared import foresee_table

            options = options_of({**self._options, "path": sink.path, **sink.options})
            location, schema = options.location, self._query.schemas[name]
            merge_of(sink, schema)
            new = foresee_table(self._client, options, schema, self._batch(step))
            known = None if last is None else last.tables.get(location)
            then = Then.BEGINS if known is None else Then.CONTINUES
            details = "is created" if new is None else f"gets {', '.join(new)}" if new else ""
        return SinkPlan(name, location, then, details)

    def _batch(self, step: Step | None) -> BatchPlan:
        """Return the plan of the next batch, as far as a table compares it."""
        last = self._committed.decision
        return BatchPlan(
            self._id,
            NO_RUN,
            0 if last is None else last.number + 1,
            self._query_id(),
            NO_BATCH if step is None else self._batch_id,
            is_done=False,
            spans={} if step is None else step.spans,
            inputs={} if step is None else inputs_after(self._committed, step),
            tables={} if last is None else last.tables,
        )


@contextmanager
def _named(sink: str) -> Iterator[None]:
    """Name the sink whose rows do not fit."""
    try:
        yield
    except OptionError as error:
        raise OptionError(f"sink {sink!r}: {error}") from error
