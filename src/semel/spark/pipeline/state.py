"""Recognises the state of a pipeline in a checkpoint, so that no result goes on with that of another one.

Spark numbers the sources and the operators with state of a query, and keeps offsets and state by number. It
refuses a checkpoint with another number of sources. But it does not notice that a result was exchanged for
another one with state of the same types: one with another key or another window, or from another place of the
declaration. That would go on with the wrong state, silently.

So a start writes beside Spark's files what the state is of (`FILE`): for each result its operators with state
and the event time of its watermarks. The next start compares. It accepts everything that leaves the meaning
of the state as it is: other filters and columns, another delay of a watermark, results that change their
names or their order. Keys and windows are compared by how they are computed from the columns of the source.
What is aggregated may be computed in another way, or have another name, but not both.

State that no batch has completed yet is none, so such a checkpoint fits every declaration. So does one
without the note, from an older release, and one that was written by another version of Spark, which may show
the same plan in other words.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, NamedTuple, TypeAlias

import pyspark
from pyspark.sql import DataFrame

from semel.spark.checkpoint import Checkpoint
from semel.spark.partition_offsets import of_json

#: The note, in the directory of the checkpoint.
FILE: Final = "semel-state.json"
FORMAT: Final = 1
#: Longer descriptions of an expression are cut, and end in a fingerprint.
TEXT_MAX: Final = 300
#: Spark's operators with state, in words.
KINDS: Final = {
    "Aggregate": "aggregation",
    "Deduplicate": "deduplication",
    "DeduplicateWithinWatermark": "deduplication within the watermark",
    "FlatMapGroupsInPandasWithState": "applyInPandasWithState",
    "GlobalLimit": "limit",
    "Join": "join",
    "TransformWithStateInPandas": "transformWithStateInPandas",
    "TransformWithStateInPySpark": "transformWithState",
}
_MICROS: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class Operator:
    """An operator with state."""

    kind: str
    keys: tuple[str, ...]  # how they are computed from the columns of the sources
    values: tuple[str, ...] = ()  # what is kept for each key, with the names of its columns
    origins: tuple[str, ...] = ()  # the same, computed from the columns of the sources

    def is_that_of(self, other: "Operator") -> bool:
        """Whether both have the same state."""
        is_same = self.values == other.values or self.origins == other.origins
        return (self.kind, self.keys) == (other.kind, other.keys) and is_same

    def __str__(self) -> str:
        keys = f" by {', '.join(self.keys)}" if self.keys else ""
        return f"{self.kind}{keys}" + (f": {', '.join(self.values)}" if self.values else "")


@dataclass(frozen=True, slots=True)
class ResultState:
    """What the state of a result is of."""

    operators: tuple[Operator, ...]
    event_times: tuple[str, ...] = ()  # of the watermarks

    def is_that_of(self, other: "ResultState") -> bool:
        """Whether this result can go on with the state of the other."""
        if len(self.operators) != len(other.operators):
            return False
        # A watermark never goes back, so that of another column would drop rows. The first one drops none.
        has_same_time = not (self.event_times and other.event_times) or self.event_times == other.event_times
        pairs = zip(self.operators, other.operators, strict=True)
        return has_same_time and all(mine.is_that_of(its) for mine, its in pairs)

    def __str__(self) -> str:
        times = f", watermark of {', '.join(self.event_times)}" if self.event_times else ""
        return (" and ".join(map(str, self.operators)) or "no operator with state") + times


#: By the names of results, in the order in which Spark numbers their operators.
States: TypeAlias = Mapping[str, ResultState]
#: The topics that a source reads.
Topics: TypeAlias = frozenset[str]


class Change(NamedTuple):
    """A result whose state in the checkpoint is that of something else."""

    result: str
    was: ResultState | None
    now: ResultState | None

    def __str__(self) -> str:
        if self.was is None:
            return f"{self.result} is new: {self.now}"
        if self.now is None:
            return f"{self.result} was {self.was}, and is not declared any more"
        return f"{self.result} was {self.was}, and is {self.now}"


class Fit(NamedTuple):
    """How a declaration fits a checkpoint."""

    order: list[str]  # of the results, as Spark has numbered them
    changes: list[Change]
    is_known: bool = True  # whether it is known what the state in the checkpoint is of
    inputs: str | None = None  # how the sources differ, if they do

    def refusal(self, pipeline: object, location: str) -> str | None:
        """Return why the query cannot go on with the checkpoint; None if it can."""
        if not self.changes and self.inputs is None:
            return None
        found = [*map(str, self.changes), *([] if self.inputs is None else [self.inputs])]
        text = (
            f"{pipeline} has changed, and does not fit its checkpoint {location}: {'; '.join(found)}. Undo "
            "the change; or start with a new checkpoint directory: the pipeline continues at its position, "
            "and results with state begin with empty state. To compute such a result from the beginning, "
            "give it a pipeline of its own"
        )
        if self.inputs is None:
            text += f". If the state is the right one nevertheless, delete {location}/{FILE}"
        return text


# ---- checkpoint


def fit_states(checkpoint: Checkpoint, states: States) -> Fit:
    """Compare the state of results with that in a checkpoint."""
    if checkpoint.last_committed() is None:
        return Fit(list(states), [])
    known = _read(checkpoint) if checkpoint.has_state() else {}
    return Fit(list(states), [], is_known=False) if known is None else Fit(*_compare(known, states))


def inputs_differ(had: Sequence[Topics | None], has: Sequence[Topics | None]) -> str | None:
    """Return how the sources differ, which Spark recognises by their order alone."""
    names = ["; ".join(", ".join(sorted(each or {"?"})) for each in found) for found in (had, has)]
    if len(had) != len(has):
        return (
            f"it reads {len(has)} inputs ({names[1]}), and the checkpoint has {len(had)} ({names[0]}). "
            "Results without state share one input for each source, and results with state have their own"
        )
    if None in (*had, *has) or had == has or Counter(had) != Counter(has):
        return None  # If a source reads another topic, the source itself says what that means.
    return f"it reads its inputs in another order ({names[1]}) than the checkpoint has ({names[0]})"


def _compare(known: States, states: States) -> tuple[list[str], list[Change]]:
    order, changes, new = [], [], [name for name in states if name not in known]
    for name, was in known.items():
        now = states.get(name)
        # A result that has got another name is recognised if only one can be meant.
        renamed = [each for each in new if now is None and states[each].is_that_of(was)]
        if now is not None and now.is_that_of(was):
            order.append(name)
        elif len(renamed) == 1 and _is_only(name, known, states):
            new.remove(renamed[0])
            order.append(renamed[0])
        elif was.operators or (now is not None and now.operators):
            changes.append(Change(name, was, now))
    changes += [Change(name, None, states[name]) for name in new if states[name].operators]
    order += [name for name in states if name not in order]
    return (list(states) if changes else order), changes


def _is_only(name: str, known: States, states: States) -> bool:
    """Whether no other result that is gone has the same state."""
    return not any(
        other != name and other not in states and was.is_that_of(known[name]) for other, was in known.items()
    )


def record(checkpoint: Checkpoint, states: States) -> None:
    """Note what the state of a query is of, before its next batch."""
    before = checkpoint.read(FILE)
    content = {
        "format": FORMAT,
        "spark": _spark(),
        "results": [{"name": name, **asdict(each)} for name, each in states.items()],
    }
    text = json.dumps(content, indent=1)
    if text != before and (states or before is not None):
        checkpoint.write(FILE, text)


def _read(checkpoint: Checkpoint) -> States | None:
    """Return the note; None if it cannot be compared."""
    try:
        content: Any = json.loads(checkpoint.read(FILE) or "null")
        if (content["format"], content["spark"]) != (FORMAT, _spark()):
            return None
        return {each["name"]: _result(each) for each in content["results"]}
    except (ValueError, TypeError, KeyError):
        return None


def _result(found: Any) -> ResultState:
    operators = tuple(
        Operator(each["kind"], *(tuple(each[name]) for name in ("keys", "values", "origins")))
        for each in found["operators"]
    )
    return ResultState(operators, tuple(found["event_times"]))


def _spark() -> str:
    return ".".join(pyspark.__version__.split(".")[:2])


def topics_of(found: Mapping[str, Any] | None) -> Topics | None:
    """Return the topics in the offsets of a source."""
    return None if found is None else frozenset(topic for topic, _ in of_json(found))


# ---- plans


def state_of(frame: DataFrame) -> ResultState | None:
    """Return what the state of a result is of; None if that cannot be seen."""
    try:
        plan = frame._jdf.queryExecution().analyzed()
    except AttributeError:  # Spark Connect does not show plans.
        return None
    reader = _PlanReader(plan)
    return ResultState(tuple(reader.operators()), tuple(reader.event_times()))


class _PlanReader:
    """Describes the operators of an analyzed plan, without the numbers of columns, which always differ."""

    def __init__(self, plan: Any) -> None:
        self._nodes = list(nodes(plan))
        self._known: dict[int, str] = {}  # how a column is computed, by its number
        leaves = [each for each in self._nodes if not each.children().size() and each.isStreaming()]
        for number, leaf in enumerate(leaves, 1):
            for column in elements(leaf.output()):
                of = f"{number}." if len(leaves) > 1 else ""
                self._known[_id(column)] = f"{of}{column.name()}"
        for node in reversed(self._nodes):  # children before their parents
            self._define(node)

    def operators(self) -> Iterator[Operator]:
        """Describe the operators with state."""
        for node in self._nodes:
            kind = str(node.nodeName())
            if kind not in KINDS or not node.isStreaming():
                continue
            if kind == "Aggregate":
                keys = self._texts(node.groupingExpressions())
                found = [each for one in elements(node.aggregateExpressions()) for each in _aggregates(one)]
                values = tuple(self._typed(each, by_name=True) for each in found)
                yield Operator(KINDS[kind], keys, values, tuple(map(self._typed, found)))
            elif kind == "Join":
                if all(each.isStreaming() for each in elements(node.children())):
                    join = str(node.joinType().sql()).lower()
                    yield Operator(f"{join} {KINDS[kind]}", tuple(self._join_keys(node)))
            elif kind.startswith("Deduplicate"):
                yield Operator(KINDS[kind], self._texts(node.keys()))
            elif kind.startswith("TransformWithState"):
                count = node.groupingAttributesLen()
                columns = elements(node.children().apply(0).output())[:count]
                yield Operator(KINDS[kind], tuple(map(self._typed, columns)), (str(node.timeMode()),))
            elif kind == "FlatMapGroupsInPandasWithState":
                values = (node.stateType().simpleString(), str(node.timeout()))
                yield Operator(KINDS[kind], self._texts(node.groupingAttributes()), values)
            else:
                yield Operator(KINDS[kind], ())

    def event_times(self) -> Iterator[str]:
        """Describe the columns of the watermarks."""
        for node in self._nodes:
            if node.nodeName() == "EventTimeWatermark":
                yield self._text(node.eventTime())

    def _join_keys(self, join: Any) -> Iterator[str]:
        """Describe the equalities by which rows are joined. Other conditions choose among what is kept."""
        if join.condition().isEmpty():
            return
        waiting = [join.condition().get()]
        while waiting:
            found = waiting.pop(0)
            sides = elements(found.children())
            if found.nodeName() == "And":
                waiting = [*sides, *waiting]
            elif found.nodeName() in ("EqualTo", "EqualNullSafe"):
                yield " = ".join(sorted(map(self._typed, sides)))

    def _define(self, node: Any) -> None:
        """Note how a node computes its columns."""
        kind = node.nodeName()
        if kind == "Expand":
            rows = [elements(each) for each in elements(node.projections())]
            for column, *found in zip(elements(node.output()), *rows, strict=True):
                texts = dict.fromkeys(map(self._text, found))
                self._known.setdefault(_id(column), _short(" | ".join(texts)))
        elif kind == "Generate":
            generator = self._text(node.generator())
            for column in elements(node.generatorOutput()):
                self._known[_id(column)] = _short(f"{generator}.{column.name()}")
        elif kind in ("Project", "Aggregate"):
            for each in elements(node.expressions()):
                if each.nodeName() == "Alias":
                    self._known[_id(each)] = self._text(each)

    def _texts(self, expressions: Any) -> tuple[str, ...]:
        return tuple(map(self._typed, elements(expressions)))

    def _typed(self, expression: Any, *, by_name: bool = False) -> str:
        kind = "" if _is_window(expression) else f" {expression.dataType().simpleString()}"
        return _short(f"{self._text(expression, by_name=by_name)}{kind}")

    def _text(self, expression: Any, *, by_name: bool = False) -> str:
        return _short(self._long(expression, by_name))

    def _long(self, expression: Any, by_name: bool) -> str:
        name = str(expression.nodeName())
        if name == "AttributeReference":
            column = str(expression.name())
            # What no projection computes comes from a function whose code is not compared.
            return column if by_name else self._known.get(_id(expression), column)
        children = elements(expression.children())
        if not children:
            return str(expression.sql())
        if name == "CreateNamedStruct" and (window := self._window(children)):
            return window
        texts = [self._long(each, by_name) for each in children]
        if name in ("Alias", "KnownNullable"):
            return texts[0]
        if name == "AggregateExpression":
            return " filter ".join(texts)
        if name == "GetStructField":
            return f"{texts[0]}.{expression.extractFieldName()}"
        if name == "JsonToStructs":
            # The schema of a parsed value is not compared: its fields are its columns.
            return f"json({texts[0].removeprefix('cast(').removesuffix(' as string)')})"
        if name == "Cast":
            return f"cast({texts[0]} as {expression.dataType().simpleString()})"
        known = expression.name() if name in ("PythonUDF", "PythonUDAF") else expression.prettyName()
        return f"{known}({', '.join(texts)})"

    def _window(self, children: Sequence[Any]) -> str | None:
        """Describe a window of time, for which Spark computes the start and the end at length."""
        if [str(each.sql()) for each in children[::2]] != ["'start'", "'end'"]:
            return None
        leaves = [leaf for each in children[1::2] for leaf in elements(each.collectLeaves())]
        if not any(
            each.nodeName() == "PreciseTimestampConversion" for one in children for each in nodes(one)
        ):
            return None
        times = dict.fromkeys(self._text(each) for each in leaves if each.nodeName() != "Literal")
        spans = dict.fromkeys(_span(each) for each in leaves if each.nodeName() == "Literal")
        return f"window({', '.join([*times, *(each for each in spans if each != '0 s')])})"


def _is_window(expression: Any) -> bool:
    return str(expression.dataType().simpleString()) == "struct<start:timestamp,end:timestamp>"


def _span(literal: Any) -> str:
    if literal.dataType().simpleString() in ("bigint", "int"):
        value = int(literal.value())
        return f"{value // _MICROS} s" if value % _MICROS == 0 else f"{value} µs"
    return str(literal.sql())


def _aggregates(expression: Any) -> Iterator[Any]:
    """Yield the aggregate functions of an expression."""
    if expression.nodeName() in ("AggregateExpression", "PythonUDAF"):
        yield expression
        return
    for each in elements(expression.children()):
        yield from _aggregates(each)


def _short(text: str) -> str:
    if len(text) <= TEXT_MAX:
        return text
    return f"{text[: TEXT_MAX - 20]}… {hashlib.sha256(text.encode()).hexdigest()[:16]}"


def _id(column: Any) -> int:
    return int(column.exprId().id())


def nodes(plan: Any) -> Iterator[Any]:
    """Yield the nodes of a plan or an expression, parents first."""
    yield plan
    for child in elements(plan.children()):
        yield from nodes(child)


def elements(found: Any) -> list[Any]:
    """Return the elements of a list of Spark."""
    return [found.apply(index) for index in range(found.size())]
