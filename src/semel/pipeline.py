"""Declares a pipeline: a function from DataFrames to DataFrames, with its sources and sinks.

    from pyspark.sql import DataFrame
    from semel.pipeline import Topic, pipeline

    @pipeline("billing", source=Topic("orders"), sink=Topic("invoices"))
    def billing(orders: DataFrame) -> DataFrame:
        return orders.selectExpr("key", "concat('invoice for ', CAST(value AS string)) AS value")

`semel pipeline run` runs the file with the declaration, and `semel.spark.start` runs it in a program. Several
sources are passed as a mapping, and the function has a parameter with the name of each. Several sinks are
passed as a mapping too, and the function returns a dict with a DataFrame for each name. Every sink is a query
of its own: it is exactly-once independently of the others, under its own id, `<pipeline>.<sink>`. With
`renamed_from`, a renamed sink keeps its id, and with the id its position.

The function is called once for every sink, on the driver, and only describes what to do with the rows. This
module does not depend on Spark, so a test can inspect a declaration as data, and call the function directly.
"""

import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

_NAME = re.compile(r"[A-Za-z0-9._-]{1,200}")


class DeclarationError(Exception):
    """An invalid declaration of a pipeline; the text says what is wrong with it."""


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic, to read as a stream or to write to. Options are those of format `semel`.

    For a renamed sink, `renamed_from` is its former name or its former id.
    """

    name: str
    options: Mapping[str, str] = field(default_factory=dict)
    renamed_from: str | None = None


@dataclass(frozen=True, slots=True)
class Lookup:
    """A topic for lookups: a table with the newest record of each key, which every batch reads again.

    Its records have keys. A record with a null value deletes its key.
    """

    name: str
    options: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Delta:
    """A Delta table to write to. Options are those of format `semel-delta`; `renamed_from` as for a topic.

    With `merge_on`, the names of one or more columns, a row replaces the one with the same values there. A
    batch may have one row for each key; if it can have several, the one that is greatest in the column
    `order_by` counts. A row whose other columns are all null deletes.
    """

    path: str
    options: Mapping[str, str] = field(default_factory=dict)
    renamed_from: str | None = None
    merge_on: str | Sequence[str] = ()
    order_by: str | None = None

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
    ) -> None:
        _check_name("the id of a pipeline", pipeline_id)
        _check_name(f"renamed_from of pipeline {pipeline_id!r}", renamed_from or pipeline_id)
        self.id = pipeline_id
        self._first_id = renamed_from or pipeline_id
        self.function = function
        parameters = list(inspect.signature(function).parameters)
        #: By the name of the function's parameter.
        self.sources: dict[str, Source] = self._sources(source, parameters)
        self._has_named_sinks = isinstance(sink, Mapping)
        sinks = sink if isinstance(sink, Mapping) else {self.id: sink}
        #: The pipeline ids of the sinks, by their names.
        self._ids: dict[str, str] = self._sink_ids(sinks)
        #: By pipeline id.
        self.sinks: dict[str, Sink] = {self._ids[name]: each for name, each in sinks.items()}
        self._check_options()

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Call the function itself, for tests."""
        return self.function(*arguments, **named)

    def __str__(self) -> str:
        return f"pipeline {self.id!r}"

    def results(self, sources: Mapping[str, Any]) -> dict[str, Any]:
        """Call the function; return its results by the pipeline id of their sinks."""
        returned = self.function(**sources)
        if not self._has_named_sinks:
            return dict.fromkeys(self.sinks, returned)
        if not isinstance(returned, Mapping):
            raise DeclarationError(
                f"{self} has named sinks, so its function must return a dict with a DataFrame for each, "
                f"not {type(returned).__name__}"
            )
        if returned.keys() != self._ids.keys():
            raise DeclarationError(
                f"the function of {self} returned {_list(returned)}; its sinks are {_list(self._ids)}"
            )
        return {self._ids[name]: result for name, result in returned.items()}

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
            if isinstance(each, Topic) and each.renamed_from is not None:
                raise DeclarationError(
                    f"renamed_from is for sinks, and {name!r} is a source of {self}. Nothing is stored under "
                    "the name of a source, so it may change"
                )
        if not any(isinstance(each, Topic) for each in found.values()):
            raise DeclarationError(f"{self} reads no stream: one of its sources must be a Topic")
        return found

    def _check_options(self) -> None:
        """Check that no option gives a Topic source a pipeline.id other than that of its sink."""
        for sink_id, sink in self.sinks.items():
            wanted = _id_option(sink, sink_id)
            for name, source in self.sources.items():
                given = _id_option(source, sink_id)
                if isinstance(source, Topic) and given != wanted:
                    raise DeclarationError(
                        f"the source {name!r} of {self} has pipeline.id {given!r}, and the sink that it is "
                        f"read for has {wanted!r}. The position is stored under the id of the sink: leave "
                        "the option out, and say renamed_from if the pipeline had another id"
                    )

    def _sink_ids(self, sinks: Mapping[str, Sink]) -> dict[str, str]:
        _check_kinds(f"a sink of {self}", sinks, (Topic, Delta))
        if not sinks:
            raise DeclarationError(f"{self} has no sink")
        found = {name: self._sink_id(name, each) for name, each in sinks.items()}
        for sink_id in found.values():
            if list(found.values()).count(sink_id) > 1:
                raise DeclarationError(
                    f"two sinks of {self} have the id {sink_id!r}. renamed_from is for a sink whose former "
                    "name no other sink has"
                )
        return found

    def _sink_id(self, name: str, sink: Sink) -> str:
        """Return the pipeline id of a sink: derived from its name, or its former id if it was renamed."""
        if self._has_named_sinks:
            _check_name(f"the name of a sink of {self}", name)
        former = sink.renamed_from
        if former is None:
            return f"{self._first_id}.{name}" if self._has_named_sinks else self._first_id
        _check_name(f"renamed_from of a sink of {self}", former)
        # Otherwise `former` is the former name of a sink of this pipeline.
        is_id = "." in former or former == self._first_id or not self._has_named_sinks
        return former if is_id else f"{self._first_id}.{former}"


def pipeline(
    pipeline_id: str,
    *,
    source: Source | Mapping[str, Source],
    sink: Sink | Mapping[str, Sink],
    renamed_from: str | None = None,
) -> Callable[[Callable[..., Any]], Pipeline]:
    """Declare a function as a pipeline.

    Its position is stored under the id. If you change the id, set `renamed_from` to the first id.
    """
    return lambda function: Pipeline(pipeline_id, function, source, sink, renamed_from)


def _check_name(what: str, name: str) -> None:
    if not _NAME.fullmatch(name):
        raise DeclarationError(f"{what} must be 1 to 200 letters, digits, '.', '_' or '-', not {name!r}")


def _check_kinds(what: str, found: Mapping[str, object], kinds: tuple[type, ...]) -> None:
    for name, each in found.items():
        if not isinstance(each, kinds):
            known = " or ".join(kind.__name__ for kind in kinds)
            raise DeclarationError(f"{what} must be a {known}; {name!r} is {each!r}")


def _id_option(of: Source | Sink, default: str) -> str:
    return {name.lower(): value for name, value in of.options.items()}.get("pipeline.id", default)


def _list(names: Iterable[str]) -> str:
    return ", ".join(map(repr, names)) or "none"
