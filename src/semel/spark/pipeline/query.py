"""The one query of a declared pipeline: what it reads, and how a batch is divided among the sinks.

All sinks of a batch are written by one `semel.spark.batch`, so they count together. The input is read once
where Spark allows it. The function of a pipeline returns a DataFrame for each sink; without state, such a
result is the same whether it is computed from a stream or from one batch of it. So the query streams the rows
of the sources, and the function is called again for every batch, with the rows of that batch.

A result with state (aggregations, joins of streams, `dropDuplicates`, `transformWithState`) has to be part of
the streaming query, which keeps the state. So the query is a union of *branches*: the rows of each source
that a result without state needs, and each result with state. Each branch reads the input once.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from py4j.protocol import Py4JError
from pyspark.sql import DataFrame, functions

from semel.pipeline import DeclarationError, Pipeline, Topic
from semel.spark.checkpoint import Checkpoint
from semel.spark.errors import PipelineMismatch
from semel.spark.pipeline.operators import ResultState, elements, nodes, state_of
from semel.spark.pipeline.parsing import Parsing
from semel.spark.pipeline.state import Fit, Topics, fit_states, inputs_differ, record, topics_of

#: The column with the number of the branch that a row is of, and the start of the columns with the rows.
BRANCH: Final = "branch"
ROW: Final = "row "

#: Operators of Spark's plans that keep no state, whether their input is a stream or one batch of it.
STATELESS: Final = frozenset(
    {
        "ArrowEvalPython",
        "BatchEvalPython",
        "EventTimeWatermark",
        "Filter",
        "Generate",
        "LateralJoin",
        "MapInArrow",
        "MapInPandas",
        "Project",
        "Repartition",
        "RepartitionByExpression",
        "ResolvedHint",
        "StreamingRelationV2",
        "SubqueryAlias",
        "Union",
        "UnresolvedHint",
        "View",
    }
)


@dataclass(frozen=True, slots=True)
class Branch:
    """A part of the query: the rows of a source, or the result for a sink."""

    name: str
    rows: DataFrame
    is_source: bool

    @property
    def inputs(self) -> list[Topics | None]:
        """The topics of each place that reads a source, as Spark numbers them."""
        leaves = elements(self.rows._jdf.queryExecution().analyzed().collectLeaves())
        return [_topics(each) for each in leaves if each.isStreaming()]


class OneQuery:
    """The query of a pipeline, as a streaming DataFrame and the division of its batches."""

    def __init__(
        self, pipeline: Pipeline, streams: Mapping[str, DataFrame], tables: Mapping[str, DataFrame]
    ) -> None:
        """`streams` are the sources that are topics, `tables` the lookups, both by name."""
        self._pipeline = pipeline
        self.parsing = {
            name: Parsing(name, source.parse, source.bad)
            for name, source in pipeline.sources.items()
            if isinstance(source, Topic) and source.parse is not None
        }
        streams = {
            name: self.parsing[name].parsed(frame) if name in self.parsing else frame
            for name, frame in streams.items()
        }
        given = self._given(streams)
        self._given_schemas = {name: frame.schema for name, frame in given.items()}
        results = results_of(pipeline, {**given, **tables})
        for name, frame in results.items():
            if not frame.isStreaming:
                raise DeclarationError(f"what {pipeline} returns for {name} does not come from a stream")
        #: The columns of the results, by the names of their sinks.
        self.schemas = {name: frame.schema for name, frame in results.items()}
        kept = {name: frame for name, frame in results.items() if keeps_state(frame)}
        self._stateless = [name for name in results if name not in kept]
        used = _used(streams, [results[name] for name in self._stateless])
        needed = [name for name in streams if name in used or name in self.parsing]
        self._branches = [Branch(name, streams[name], is_source=True) for name in needed]
        self._branches += [Branch(name, frame, is_source=False) for name, frame in kept.items()]
        #: How many branches read each stream. Spark counts the rows that all of them read.
        self.reads = Counter(needed)
        for frame in kept.values():
            self.reads.update(_used(streams, [frame]))
        #: What the state of each result is of; None if that cannot be seen.
        self.states: dict[str, ResultState] | None = {}
        for name, frame in kept.items():
            found = state_of(frame)
            self.states = None if self.states is None or found is None else {**self.states, name: found}

    def fit(self, checkpoint: Checkpoint) -> Fit | None:
        """Order the branches as the checkpoint has them, and return how they fit. None if plans are not seen.

        Spark knows sources and state by their numbers, so a change of the order alone is none.
        """
        if self.states is None:
            return None
        planned = checkpoint.last_planned()
        had = [] if planned is None else [topics_of(each) for each in checkpoint.inputs(planned)]
        fit = fit_states(checkpoint, self.states)
        self.states = {name: self.states[name] for name in fit.order}
        sources = [each for each in self._branches if each.is_source]
        if all(each.inputs[0] in had for each in sources):
            sources.sort(key=lambda each: had.index(each.inputs[0]))
        results = {each.name: each for each in self._branches if not each.is_source}
        self._branches = [*sources, *(results[name] for name in fit.order)]
        has = [topics for each in self._branches for topics in each.inputs]
        return fit if planned is None else fit._replace(inputs=inputs_differ(had, has))

    def go_on(self, checkpoint: Checkpoint) -> None:
        """Note in the checkpoint what the state is of. PipelineMismatch if it has that of something else."""
        fit = self.fit(checkpoint)
        if fit is None or self.states is None:
            return
        if refusal := fit.refusal(self._pipeline, checkpoint.location):
            raise PipelineMismatch(refusal)
        record(checkpoint, self.states)

    @property
    def rows(self) -> DataFrame:
        """The rows of all branches, as one stream."""
        if len(self._branches) == 1:
            return self._branches[0].rows
        frames = []
        for number, branch in enumerate(self._branches):
            columns = [functions.lit(number).alias(BRANCH)]
            for other, each in enumerate(self._branches):
                row = functions.struct("*") if other == number else functions.lit(None).cast(each.rows.schema)
                columns.append(row.alias(f"{ROW}{other}"))
            frames.append(branch.rows.select(*columns))
        found = frames[0]
        for frame in frames[1:]:
            found = found.unionAll(frame)
        return found

    def _given(self, streams: Mapping[str, DataFrame]) -> dict[str, DataFrame]:
        """Return what the function of the pipeline gets of these sources."""
        return {
            name: self.parsing[name].good(frame) if name in self.parsing else frame
            for name, frame in streams.items()
        }

    def divide(
        self, batch: DataFrame, tables: Mapping[str, DataFrame]
    ) -> tuple[dict[str, DataFrame], dict[str, DataFrame]]:
        """Return what a batch has for each sink, and the bad records of each source that is parsed."""
        if len(self._branches) == 1:
            parts = [batch]
        else:
            parts = [
                batch.where(functions.col(BRANCH) == number).select(f"`{ROW}{number}`.*")
                for number in range(len(self._branches))
            ]
        found = {
            branch.name: part
            for branch, part in zip(self._branches, parts, strict=True)
            if not branch.is_source
        }
        records = {
            branch.name: part for branch, part in zip(self._branches, parts, strict=True) if branch.is_source
        }
        bad = {name: each.bad(records[name]) for name, each in self.parsing.items()}
        if not self._stateless:
            return found, bad
        sources = self._given(records)
        # The function takes all sources. Those that no result without state needs were not read for this.
        empty = {
            name: batch.sparkSession.createDataFrame([], schema)
            for name, schema in self._given_schemas.items()
            if name not in sources
        }
        results = results_of(self._pipeline, {**empty, **sources, **tables})
        return {**found, **{name: results[name] for name in self._stateless}}, bad


def results_of(pipeline: Pipeline, sources: Mapping[str, DataFrame]) -> dict[str, DataFrame]:
    """Call the function of a pipeline. DeclarationError if it does not return DataFrames."""
    found = pipeline.results(sources)
    for name, frame in found.items():
        if not isinstance(frame, DataFrame):
            raise DeclarationError(
                f"the function of {pipeline} returns a DataFrame for every sink; for {name} it was "
                f"{type(frame).__name__}"
            )
    return found


def keeps_state(frame: DataFrame) -> bool:
    """Whether a streaming DataFrame may keep state from one batch to the next. If in doubt, it does."""
    try:
        plan = frame._jdf.queryExecution().analyzed()
    except AttributeError:  # Spark Connect does not show plans.
        return True
    return any(not _is_stateless(node) for node in nodes(plan) if node.isStreaming())


def _topics(leaf: Any) -> Topics | None:
    """Return the topics that a source names; None for a pattern, and for sources of other kinds."""
    try:
        options = {
            name.lower(): value for name, value in dict(leaf.extraOptions().asCaseSensitiveMap()).items()
        }
    except Py4JError:
        return None
    return frozenset(re.split(r"\s*,\s*", options["subscribe"].strip())) if "subscribe" in options else None


def _is_stateless(node: Any) -> bool:
    children = elements(node.children())
    if node.nodeName() == "Join":
        return sum(bool(each.isStreaming()) for each in children) == 1
    return str(node.nodeName()) in STATELESS


def _used(streams: Mapping[str, DataFrame], results: Iterable[DataFrame]) -> list[str]:
    """Return the streams that these results are computed from; all of them if that is not clear."""
    try:
        plans = [each._jdf.queryExecution().analyzed() for each in results]
    except AttributeError:  # Spark Connect does not show plans.
        return list(streams)
    if not plans:
        return []
    leaves = set().union(*map(_sources, plans))
    known = {name: _sources(frame._jdf.queryExecution().analyzed()) for name, frame in streams.items()}
    if leaves - set().union(*known.values()):
        return list(streams)
    return [name for name, mine in known.items() if mine & leaves]


def _sources(plan: Any) -> set[str]:
    """Return the streaming sources of a plan, by the names and numbers of their columns."""
    return {str(leaf.output()) for leaf in elements(plan.collectLeaves()) if leaf.isStreaming()}
