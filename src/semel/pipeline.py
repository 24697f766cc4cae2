"""Declares a pipeline: a function from DataFrames to DataFrames, with its sources and sinks.

    from pyspark.sql import DataFrame
    from semel.pipeline import Topic, pipeline

    @pipeline("billing", source=Topic("orders"), sink=Topic("invoices"))
    def billing(orders: DataFrame) -> DataFrame:
        return orders.selectExpr("key", "concat('invoice for ', CAST(value AS string)) AS value")

`semel pipeline run` runs the file with the declaration, and `semel.spark.start` runs it in a program. Several
sources are passed as a mapping, and the function has a parameter with the name of each. Several sinks are
passed as a mapping too, and the function returns a dict with a DataFrame for each name. A pipeline is one
streaming query: a batch is read once, and counts in all sinks or in none.

The function is called on the driver, for the query and again for every batch, and only describes what to do
with the rows. This module does not depend on Spark, so a test can inspect a declaration as data, and call the
function directly.
"""

import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

OUTPUT_MODES = ("append", "update", "complete")
#: What happens to bad records, if they do not go to a topic.
FAIL, SKIP = "fail", "skip"

_NAME = re.compile(r"[A-Za-z0-9._-]{1,200}")


class DeclarationError(Exception):
    """An invalid declaration of a pipeline; the text says what is wrong with it."""


@dataclass(frozen=True, slots=True)
class Json:
    """How values are parsed: as JSON objects with these columns, in Spark's notation.

    With `record`, rows have a column of that name too, with the key, topic, partition, offset and timestamp
    of the record.
    """

    schema: str
    record: str | None = None


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic, to read as a stream or to write to. Options are those of format `semel`.

    A source with `parse` has the columns of the schema. `bad` says what happens to records that cannot be
    parsed, and to rows that cannot be written to a sink: "fail" stops the pipeline, "skip" leaves them out
    and counts them, and any other word is the name of a topic that gets them, with the reason.
    """

    name: str
    options: Mapping[str, str] = field(default_factory=dict)
    parse: Json | None = None
    bad: str = FAIL


@dataclass(frozen=True, slots=True)
class Lookup:
    """A topic for lookups: a table with the newest record of each key, which every batch reads again.

    Its records have keys. A record with a null value deletes its key.
    """

    name: str
    options: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Delta:
    """A Delta table to write to. Options are those of format `semel-delta`.

    With `merge_on`, the names of one or more columns, a row replaces the one with the same values there. A
    batch may have one row for each key; if it can have several, the one that is greatest in the column
    `order_by` counts. A row whose other columns are all null deletes.

    `bad` says what happens to rows that the table cannot have, as for a `Topic`.
    """

    path: str
    options: Mapping[str, str] = field(default_factory=dict)
    merge_on: str | Sequence[str] = ()
    order_by: str | None = None
    bad: str = FAIL

    @property
    def keys(self) -> tuple[str, ...]:
        """The columns of `merge_on`."""
        return (self.merge_on,) if isinstance(self.merge_on, str) else tuple(self.merge_on)


Source: TypeAlias = Topic | Lookup
Sink: TypeAlias = Topic | Delta


class Pipeline:
    """A function with its sources and sinks. It can still be called."""

    def __init__(
        self,
        pipeline_id: str,
        function: Callable[..., Any],
        source: Source | Mapping[str, Source],
        sink: Sink | Mapping[str, Sink],
        renamed_from: str | None = None,
        output_mode: str = "append",
    ) -> None:
        _check_name("the id of a pipeline", pipeline_id)
        _check_name(f"renamed_from of pipeline {pipeline_id!r}", renamed_from or pipeline_id)
        self.id = pipeline_id
        #: The id under which the position is stored: the first one that the pipeline had.
        self.pipeline_id = renamed_from or pipeline_id
        if output_mode not in OUTPUT_MODES:
            raise DeclarationError(
                f"output_mode of {self} must be {' or '.join(OUTPUT_MODES)}, not {output_mode!r}"
            )
        self.output_mode = output_mode
        self.function = function
        parameters = list(inspect.signature(function).parameters)
        #: By the name of the function's parameter.
        self.sources: dict[str, Source] = self._sources(source, parameters)
        self._has_named_sinks = isinstance(sink, Mapping)
        #: By name; a single sink has that of the pipeline.
        self.sinks: dict[str, Sink] = dict(sink) if isinstance(sink, Mapping) else {self.id: sink}
        _check_kinds(f"a sink of {self}", self.sinks, (Topic, Delta))
        if not self.sinks:
            raise DeclarationError(f"{self} has no sink")
        for name, each in self.sinks.items():
            _check_name(f"the name of a sink of {self}", name)
            if isinstance(each, Topic) and each.parse is not None:
                raise DeclarationError(f"parse is for sources, and {name!r} is a sink of {self}")
        self._check_dead_letters()
        self._check_options()

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Call the function itself, for tests."""
        return self.function(*arguments, **named)

    def __str__(self) -> str:
        return f"pipeline {self.id!r}"

    def results(self, sources: Mapping[str, Any]) -> dict[str, Any]:
        """Call the function; return its results by the names of their sinks."""
        returned = self.function(**sources)
        if not self._has_named_sinks:
            return dict.fromkeys(self.sinks, returned)
        if not isinstance(returned, Mapping):
            raise DeclarationError(
                f"{self} has named sinks, so its function must return a dict with a DataFrame for each, "
                f"not {type(returned).__name__}"
            )
        if returned.keys() != self.sinks.keys():
            raise DeclarationError(
                f"the function of {self} returned {_list(returned)}; its sinks are {_list(self.sinks)}"
            )
        return {name: returned[name] for name in self.sinks}

    def _sources(self, source: Source | Mapping[str, Source], parameters: list[str]) -> dict[str, Source]:
        if isinstance(source, Mapping):
            found = dict(source)
            if found.keys() != set(parameters):
                raise DeclarationError(
                    f"the function of {self} must have a parameter for every source, by its name. The "
                    f"sources are {_list(found)}; the parameters are {_list(parameters)}"
                )
        else:
            if len(parameters) != 1:
                raise DeclarationError(
                    f"{self} has one source, so its function must have one parameter, not {_list(parameters)}"
                )
            found = {parameters[0]: source}
        _check_kinds(f"a source of {self}", found, (Topic, Lookup))
        for name, each in found.items():
            if isinstance(each, Topic) and each.parse is None and each.bad != FAIL:
                raise DeclarationError(
                    f"the source {name!r} of {self} has bad={each.bad!r}, and nothing is parsed. Add "
                    "parse=Json(…)"
                )
        if not any(isinstance(each, Topic) for each in found.values()):
            raise DeclarationError(f"{self} reads no stream: one of its sources must be a Topic")
        return found

    def _check_dead_letters(self) -> None:
        """Check that no dead letter becomes input, or output, of the pipeline."""
        topics = {
            each.name for each in {**self.sources, **self.sinks}.values() if not isinstance(each, Delta)
        }
        for name, each in (*self.sources.items(), *self.sinks.items()):
            if not isinstance(each, Lookup) and each.bad in topics:
                raise DeclarationError(
                    f"{name!r} of {self} has bad={each.bad!r}, and {self} reads or writes that topic. Give "
                    "dead letters a topic of their own"
                )

    def _check_options(self) -> None:
        """Check that no option names another pipeline: the position is stored under the id."""
        for name, each in {**self.sources, **self.sinks}.items():
            given = {option.lower(): value for option, value in each.options.items()}.get("pipeline.id")
            if given not in (None, self.pipeline_id):
                raise DeclarationError(
                    f"{name!r} of {self} has pipeline.id {given!r}. The position is stored under "
                    f"{self.pipeline_id!r}: leave the option out, and say renamed_from if the pipeline had "
                    "another id"
                )


def pipeline(
    pipeline_id: str,
    *,
    source: Source | Mapping[str, Source],
    sink: Sink | Mapping[str, Sink],
    renamed_from: str | None = None,
    output_mode: str = "append",
) -> Callable[[Callable[..., Any]], Pipeline]:
    """Declare a function as a pipeline.

    Its position is stored under the id. If you change the id, set `renamed_from` to the first id. With
    `output_mode` "update", an aggregation returns the rows that a batch has changed; with "complete", all.
    """
    return lambda function: Pipeline(pipeline_id, function, source, sink, renamed_from, output_mode)


def _check_name(what: str, name: str) -> None:
    if not _NAME.fullmatch(name):
        raise DeclarationError(f"{what} must be 1 to 200 letters, digits, '.', '_' or '-', not {name!r}")


def _check_kinds(what: str, found: Mapping[str, object], kinds: tuple[type, ...]) -> None:
    for name, each in found.items():
        if not isinstance(each, kinds):
            known = " or ".join(kind.__name__ for kind in kinds)
            raise DeclarationError(f"{what} must be a {known}; {name!r} is {each!r}")


def _list(names: Iterable[str]) -> str:
    return ", ".join(map(repr, names)) or "none"
