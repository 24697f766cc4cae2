"""Describes the operators with state in the plan of a result, so that state can be recognised (`state`).

A description is the same in every run. A key is described by how it is computed from the columns of the
sources, whatever names these have on the way. What is aggregated is described in the same way, and also by
the names of its columns alone.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql import DataFrame

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
        self._fields: dict[int, dict[str, str]] = {}  # the same of the fields of structures
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
                    self._fields[_id(each)] = self._fields_of(each.child())

    def _fields_of(self, expression: Any) -> dict[str, str]:
        """Return how the fields of a structure are computed, if it is made of columns."""
        parts = elements(expression.children()) if expression.nodeName() == "CreateNamedStruct" else []
        if self._window(parts) or any(each.nodeName() != "Literal" for each in parts[::2]):
            return {}
        return {
            str(name.value()): self._text(each) for name, each in zip(parts[::2], parts[1::2], strict=True)
        }

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
            field = str(expression.extractFieldName())
            is_column = not by_name and children[0].nodeName() == "AttributeReference"
            known = self._fields.get(_id(children[0]), {}) if is_column else {}
            return known.get(field, f"{texts[0]}.{field}")
        if name == "JsonToStructs":
            # The schema of a parsed value is not compared: its fields are its columns.
            return f"json({texts[0].removeprefix('cast(').removesuffix(' as string)')})"
        if name == "Cast":
            return f"cast({texts[0]} as {expression.dataType().simpleString()})"
        function = expression.name() if name in ("PythonUDF", "PythonUDAF") else expression.prettyName()
        return f"{function}({', '.join(texts)})"

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
