"""Histories as lines of JSON: one operation per line, in any order.

A line is an object: `op` names the kind, the other members are the fields of `semel.check.history`. Fields
with their default may be left out. Empty lines are skipped, and so is an incomplete last line: its writer was
killed.
"""

import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, Any

from semel.check.history import KINDS, NAMES, Claim, Operation

OUTCOMES = ("ok", "fail", "info")
ISOLATIONS = ("read_committed", "read_uncommitted", "commit_order")
VISIBILITIES = ("marker", "journal")
#: How many characters of a line an error shows.
SHOWN = 80

_encode = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode


class HistoryError(Exception):
    """A file is not a history. The message names the line, and what is wrong with it."""


def read_history(paths: Iterable[Path]) -> Iterator[Operation]:
    """Read the operations of files, one file after the other, lazily."""
    for path in paths:
        with path.open(encoding="utf-8", errors="surrogateescape") as file:
            yield from read_lines(file, str(path))


def read_lines(lines: Iterable[str], name: str = "history") -> Iterator[Operation]:
    """Read the operations in lines; errors name the line and its source, `name`."""
    for number, line in enumerate(lines, 1):
        if line.isspace():
            continue
        try:
            yield from_line(line)
        except HistoryError as error:
            if not line.endswith("\n") and not line.rstrip().endswith("}"):
                return  # An incomplete last line: its writer was killed.
            raise HistoryError(f"{name}, line {number}: {error}") from None


def write_lines(operations: Iterable[Operation], file: IO[str]) -> None:
    """Write operations, one per line."""
    for operation in operations:
        file.write(to_line(operation))


def to_line(operation: Operation) -> str:
    """Format an operation as a line, with the fields that differ from their defaults."""
    kind = type(operation)
    defaults = kind._field_defaults
    fields: dict[str, Any] = {"op": NAMES[kind]}
    for name, value in zip(kind._fields, operation, strict=True):
        if name not in defaults or value != defaults[name]:
            fields[name] = value
    return _encode(fields) + "\n"


def from_line(line: str) -> Operation:
    """Parse the operation in a line; raises `HistoryError` if it is invalid."""
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError):
        raise HistoryError(f"this is not JSON: {line.strip()[:SHOWN]!r}") from None
    if not isinstance(fields, dict):
        raise HistoryError(f"an operation is an object, not {line.strip()[:SHOWN]!r}")
    name = fields.pop("op", None)
    if not isinstance(name, str) or name not in KINDS:
        raise HistoryError(f"op is {name!r}; it must be one of {', '.join(KINDS)}")
    return _operation(name, fields)


def _operation(name: str, fields: dict[str, Any]) -> Operation:
    kind = KINDS[name]
    readers = READERS[name]
    for field, value in fields.items():
        reader = readers.get(field)
        if reader is None:
            raise HistoryError(f"{name} has no field {field!r}; it has {', '.join(kind._fields)}")
        try:
            fields[field] = reader(value)
        except (TypeError, ValueError) as error:
            raise HistoryError(f"{field} of {name} {error}, not {json.dumps(value)[:SHOWN]}") from None
    try:
        operation: Operation = kind(**fields)
    except TypeError:
        missing = [each for each in kind._fields if each not in fields and each not in kind._field_defaults]
        raise HistoryError(f"{name} lacks {', '.join(missing)}") from None
    ended = fields.get("ended")
    if ended is not None and ended < fields["started"]:
        raise HistoryError(f"{name} ended at {ended}, before it started at {fields['started']}")
    return operation


# ---- fields: each reader returns the value for the operation, or raises what is wrong with it


def _whole(value: Any) -> int:
    if type(value) is not int:
        raise TypeError("must be a whole number")
    return value


def _whole_or_none(value: Any) -> int | None:
    return None if value is None else _whole(value)


def _name(value: Any) -> int | str:
    if type(value) is not str and type(value) is not int:
        raise TypeError("must be a text or a whole number")
    return value


def _name_or_none(value: Any) -> int | str | None:
    return None if value is None else _name(value)


def _text(value: Any) -> str:
    if type(value) is not str:
        raise TypeError("must be a text")
    return value


def _text_or_none(value: Any) -> str | None:
    return None if value is None else _text(value)


def _truth(value: Any) -> bool:
    if type(value) is not bool:
        raise TypeError("must be true or false")
    return value


def _names(value: Any) -> tuple[int | str, ...]:
    if type(value) is not list or not value:
        raise TypeError("must be a list of one value or more")
    return tuple(map(_name, value))


def _records(value: Any) -> tuple[tuple[int, int | str], ...]:
    if type(value) is not list:
        raise TypeError("must be a list of [offset, value]")
    for each in value:
        if type(each) is not list or len(each) != 2 or type(each[0]) is not int:
            raise TypeError("must be a list of [offset, value]")
        _name(each[1])
    return tuple(map(tuple, value))


def _claims(value: Any) -> tuple[Claim, ...]:
    if type(value) is not list or not all(type(each) is list and len(each) == 4 for each in value):
        raise TypeError("must be a list of [topic, partition, first or null, until]")
    return tuple(
        Claim(_text(topic), _whole(partition), _whole_or_none(first), _whole(until))
        for topic, partition, first, until in value
    )


def _one_of(choices: tuple[str, ...]) -> Callable[[Any], str]:
    def read(value: Any) -> str:
        if value not in choices:
            raise ValueError(f"must be one of {', '.join(choices)}")
        return str(value)

    return read


_READER: dict[str, Callable[[Any], Any]] = {
    "process": _name,
    "started": _whole,
    "ended": _whole_or_none,
    "outcome": _one_of(OUTCOMES),
    "topic": _text,
    "partition": _whole,
    "visibility": _one_of(VISIBILITIES),
    "is_compacted": _truth,
    "has_other_writers": _truth,
    "transactional_id": _text,
    "producer_id": _whole,
    "epoch": _whole,
    "timeout": _whole_or_none,
    "error": _text_or_none,
    "transaction": _name_or_none,
    "values": _names,
    "offset": _whole_or_none,
    "is_idempotent": _truth,
    "group": _text,
    "claims": _claims,
    "position": _whole_or_none,
    "records": _records,
    "isolation": _one_of(ISOLATIONS),
    "last_stable": _whole_or_none,
    "is_stable": _truth,
    "is_only_attempt": _truth,
    "log_start": _whole_or_none,
    "high_watermark": _whole_or_none,
    "is_settled": _truth,
    "before": _whole,
}
#: Readers of fields that may not be null in operations of this kind, though they may be in others.
_GIVEN: dict[tuple[str, str], Callable[[Any], Any]] = {
    ("poll", "ended"): _whole,
    ("offset_commit", "position"): _whole,
    **{(name, "transaction"): _name for name in ("begin", "send_offsets", "commit", "abort")},
}
READERS: dict[str, dict[str, Callable[[Any], Any]]] = {
    name: {field: _GIVEN.get((name, field), _READER[field]) for field in kind._fields}
    for name, kind in KINDS.items()
}
