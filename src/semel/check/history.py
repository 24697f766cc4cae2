"""Histories: what the clients of a log did and saw, one record per operation.

A history is a set of operations. Each has its process, the times at which it started and ended, and its
outcome:

- `ok`: it was acknowledged, so it happened;
- `fail`: it was refused, so it certainly did not happen, and never will;
- `info`: it is unknown whether it happened. Use it when in doubt; `semel.check.transactions` has the table.

A *process* is one client in one life: a client that crashes or is recreated is another process, and a process
does one thing after the other. Times are integers of one clock that all processes share, usually nanoseconds
of `time.monotonic_ns()`. A *value* identifies a record: it is unique in its partition. A *transaction* has a
unique name in the whole history, such as "copier-3/17".

The records are plain tuples, which are fast to create, for programs that record many.

A file has one operation per line, as JSON and in any order (docs/checker.md). A line is an object: `op` names
the kind, the other members are the fields. Fields
with their default may be left out. Empty lines are skipped, and so is an incomplete last line: its writer was
killed.
"""

import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, Any, Final, Literal, NamedTuple, TypeAlias

Name: TypeAlias = int | str
Outcome: TypeAlias = Literal["ok", "fail", "info"]
Isolation: TypeAlias = Literal["read_committed", "read_uncommitted", "commit_order"]
Visibility: TypeAlias = Literal["marker", "journal"]
Partition: TypeAlias = tuple[str, int]

OK: Final = "ok"
FAIL: Final = "fail"
INFO: Final = "info"

READ_COMMITTED: Final = "read_committed"
READ_UNCOMMITTED: Final = "read_uncommitted"
#: Committed records in commit order, one transaction after another, not by offset.
COMMIT_ORDER: Final = "commit_order"

MARKER: Final = "marker"
JOURNAL: Final = "journal"


class Topic(NamedTuple):
    """A declared topic. An undeclared one has `marker` visibility and no other writers."""

    topic: str
    visibility: Visibility = MARKER
    is_compacted: bool = False
    has_other_writers: bool = False
    """Clients whose operations are not in the history write to it too."""


class Init(NamedTuple):
    """A producer takes over a transactional id (InitProducerId), which fences its previous owner."""

    process: Name
    started: int
    ended: int | None
    outcome: Outcome
    transactional_id: str
    producer_id: int = -1
    epoch: int = -1
    timeout: int | None = None
    """The transaction timeout in units of the clock. If given, the checker reports needless fences."""
    error: str | None = None


class Begin(NamedTuple):
    """A transaction begins in the client, under a transactional id."""

    process: Name
    started: int
    ended: int | None
    outcome: Outcome
    transaction: Name
    transactional_id: str


class Produce(NamedTuple):
    """Records are sent to a partition: one, or a batch, which has consecutive offsets."""

    process: Name
    started: int
    ended: int | None
    outcome: Outcome
    topic: str
    partition: int
    values: tuple[Name, ...]
    offset: int | None = None
    """Offset of the first value; None if the broker returned none, as in a transaction on a journal topic."""
    transaction: Name | None = None
    is_idempotent: bool = True
    """Without idempotence a record may be written more than once."""
    error: str | None = None


class Claim(NamedTuple):
    """Input of a transaction: the records of a partition from `first` up to, but not including, `until`.

    `until` becomes the position of the group. If `first` is unknown, only the position is checked.
    """

    topic: str
    partition: int
    first: int | None
    until: int


class SendOffsets(NamedTuple):
    """A group's positions, and the claims they imply, become part of a transaction (TxnOffsetCommit)."""

    process: Name
    started: int
    ended: int | None
    outcome: Outcome
    transaction: Name
    group: str
    claims: tuple[Claim, ...]
    error: str | None = None


class Commit(NamedTuple):
    """A commit of a transaction, from its first request. Another attempt is another operation."""

    process: Name
    started: int
    ended: int | None
    outcome: Outcome
    transaction: Name
    error: str | None = None


class Abort(NamedTuple):
    """An abort of a transaction."""

    process: Name
    started: int
    ended: int | None
    outcome: Outcome
    transaction: Name
    error: str | None = None


class Assign(NamedTuple):
    """A process reads a partition from a position: an assignment, a rebalance, a seek, a rewind."""

    process: Name
    started: int
    ended: int | None
    outcome: Outcome
    topic: str
    partition: int
    position: int | None = None
    """None if it is unknown: then the first read determines it."""


class Poll(NamedTuple):
    """The records that a process received from one partition, in order."""

    process: Name
    started: int
    ended: int
    outcome: Outcome
    topic: str
    partition: int
    records: tuple[tuple[int, Name], ...]
    """Offset and value of each."""
    isolation: Isolation = READ_COMMITTED
    transaction: Name | None = None
    """The process's own transaction in which it read."""
    position: int | None = None
    """The position afterwards, if known: after the last record, or further."""
    last_stable: int | None = None
    """The last stable offset that was returned with the records."""
    error: str | None = None


class OffsetCommit(NamedTuple):
    """A group's position is set outside of transactions, forwards or back."""

    process: Name
    started: int
    ended: int | None
    outcome: Outcome
    group: str
    topic: str
    partition: int
    position: int
    error: str | None = None
    is_only_attempt: bool = False
    """It was sent once. Otherwise a delayed attempt may set the position again, at any later time."""


class OffsetFetch(NamedTuple):
    """A group's position is read."""

    process: Name
    started: int
    ended: int | None
    outcome: Outcome
    group: str
    topic: str
    partition: int
    position: int | None
    """None: the group has none."""
    is_stable: bool = True
    """Whether the broker refuses to return a position that has a pending change."""
    error: str | None = None


class Ends(NamedTuple):
    """The start and the ends of a partition, as the broker returned them; None if not requested."""

    process: Name
    started: int
    ended: int | None
    outcome: Outcome
    topic: str
    partition: int
    log_start: int | None = None
    last_stable: int | None = None
    high_watermark: int | None = None
    is_settled: bool = False
    """Every transaction must have ended by now: all have, or their timeouts have passed."""
    error: str | None = None


class Trim(NamedTuple):
    """Records before an offset may be gone from now on: deleted on request or by retention."""

    process: Name
    started: int
    ended: int | None
    outcome: Outcome
    topic: str
    partition: int
    before: int
    error: str | None = None


Timed: TypeAlias = (
    Init
    | Begin
    | Produce
    | SendOffsets
    | Commit
    | Abort
    | Assign
    | Poll
    | OffsetCommit
    | OffsetFetch
    | Ends
    | Trim
)
"""Operations with a start and an end."""
Operation: TypeAlias = Topic | Timed

#: The name of each kind in a line of JSON.
KINDS: dict[str, type[Operation]] = {
    "topic": Topic,
    "init": Init,
    "begin": Begin,
    "produce": Produce,
    "send_offsets": SendOffsets,
    "commit": Commit,
    "abort": Abort,
    "assign": Assign,
    "poll": Poll,
    "offset_commit": OffsetCommit,
    "offset_fetch": OffsetFetch,
    "ends": Ends,
    "trim": Trim,
}
NAMES: dict[type[Operation], str] = {kind: name for name, kind in KINDS.items()}

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
