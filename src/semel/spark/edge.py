"""The boundary to Spark: errors of the data source are reported with their message on the first line.

Spark's Python workers report an error as Python prints it: causes first, and the message at the end of the
traceback, which Spark then embeds in pages of Java. Python prints the causes of an error before the error
itself, so the error gets one more cause: a `Headline` at the root, with the same type name and text and no
traceback. Spark's output then starts with `semel.spark.errors.DataLoss: records of … are lost`.

By default Spark removes the cause of an error before it prints it. So the error becomes an instance of a
subclass of its own type, with the same name, whose cause cannot be changed.
"""

import functools
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, TypeVar

from semel.spark.workers import end_quietly

end_quietly()

T = TypeVar("T")

#: The methods of data sources, readers and writers that Spark calls.
CALLED_BY_SPARK = (
    "schema",
    "reader",
    "streamReader",
    "writer",
    "streamWriter",
    "partitions",
    "read",
    "initialOffset",
    "latestOffset",
    "reportLatestOffset",
    "prepareForTriggerAvailableNow",
    "write",
    "commit",
    "abort",
    "run",
    "__getstate__",
)


class Headline(Exception):
    """Precedes an error with its type name and its text."""


def faces_spark(cls: type[T]) -> type[T]:
    """Make errors that leave the methods of a class start with their message."""
    for name in CALLED_BY_SPARK:
        if name in vars(cls):
            setattr(cls, name, _headed(vars(cls)[name]))
    return cls


def _headed(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            result = method(*args, **kwargs)
        except Exception as error:
            _add_headline(error)
            raise
        # The errors of an iterator are raised when it is read.
        return _headed_items(result) if isinstance(result, Iterator) else result

    return call


def _headed_items(items: Iterator[Any]) -> Iterator[Any]:
    try:
        yield from items
    except Exception as error:
        _add_headline(error)
        raise


def _add_headline(error: Exception) -> None:
    root: BaseException = error
    while (before := _cause(root)) is not None:
        root = before
    if isinstance(root, Headline):
        return  # Another wrapped method has added it.
    kind = type(error)
    named = {"__module__": kind.__module__, "__qualname__": kind.__qualname__}
    root.__cause__ = type(kind.__name__, (Headline,), named)(str(error))
    # The type of a built-in error cannot be replaced; the errors of this package are all written in Python.
    with suppress(TypeError):
        error.__class__ = _keeping_cause(kind, error.__cause__, named)


def _keeping_cause(
    kind: type[Exception], cause: BaseException | None, named: dict[str, Any]
) -> type[Exception]:
    def reduce(self: Exception) -> tuple[Any, ...]:
        """Pickle it as its original type."""
        made: Any = super(kept, self).__reduce__()
        return (kind, *made[1:])

    content = {
        "__slots__": (),
        "__cause__": property(lambda self: cause, lambda self, changed: None),
        "__reduce__": reduce,
    }
    kept: type[Exception] = type(kind.__name__, (kind,), named | content)
    return kept


def _cause(error: BaseException) -> BaseException | None:
    """Return what Python prints before an error."""
    if error.__cause__ is not None or error.__suppress_context__:
        return error.__cause__
    return error.__context__
