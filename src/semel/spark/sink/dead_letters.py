"""Records that a pipeline cannot process, and rows that a sink cannot take.

They stop the pipeline, are counted, or become dead letters: records with the original key and value, whose
headers say what is wrong, and where the record was that they come from. A dead letter is written by the batch
that would have processed the record, and counts with the batch.
"""

import base64
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from types import TracebackType
from typing import Any, Final, NamedTuple, Protocol

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from semel.client import Client
from semel.client.net.cluster import UNKNOWN_TOPIC_WAIT_S
from semel.pipeline import FAIL, SKIP
from semel.spark.columns import ARROW_TYPES
from semel.spark.errors import BadRecords, OptionError
from semel.spark.options import SinkOptions
from semel.spark.sink.batch_commit import BatchPlan
from semel.spark.sink.row_faults import shorten
from semel.spark.sink.sink import AttemptWriter, Written
from semel.spark.sink.writing import known, topic_configs

#: How many records an error names.
NAMED_MAX: Final = 10
#: The headers of a dead letter: what is wrong, and which pipeline has written it.
REASON, PIPELINE = "semel.reason", "semel.pipeline"
#: The place of the record that it comes from, if that is known, and what they have in a row.
PLACES: Final = {
    "semel.topic": "topic",
    "semel.partition": "partition",
    "semel.offset": "offset",
    "semel.timestamp": "timestamp",
}
#: The topic or the table that could not take the row. Records that could not be parsed have neither.
SINK, TABLE = "semel.sink", "semel.table"
#: How long key and value were, if they are cut to what the topic for dead letters takes.
KEY_BYTES, VALUE_BYTES = "semel.key.bytes", "semel.value.bytes"
#: The start of all of these names.
OURS: Final = "semel."
#: The column of rows for topics with the place of the record that a row comes from.
RECORD: Final = "record "
#: Longer headers of the record are left out.
_HEADERS_BYTES: Final = 4_096
_TEXT_MAX: Final = 200
_NUMBERS: Final = frozenset({"tinyint", "smallint", "int", "bigint", "float", "double"})


class Letter(NamedTuple):
    """A dead letter. `about` has the values of the headers above, `headers` are those of the record."""

    key: bytes | None
    value: bytes | None
    about: Mapping[str, Any]
    headers: Sequence[tuple[str, bytes | None]] = ()

    @property
    def name(self) -> str:
        """The record or the row, for an error."""
        topic, partition, offset, _ = (self.about.get(each) for each in PLACES)
        if topic is not None:
            return f"{topic}/{partition} offset {offset}"
        if TABLE in self.about:
            return f"the row {(self.value or b'')[:_TEXT_MAX].decode(errors='replace')}"
        return "a row without a key" if self.key is None else f"the row with key {self.key[:_TEXT_MAX]!r}"


class Letters:
    """Writes the dead letters of one attempt, in a transaction of their own."""

    def __init__(self, plan: BatchPlan, options: SinkOptions, name: str) -> None:
        self._plan, self._options, self._name = plan, options, name
        self._attempt: AttemptWriter | None = None

    def write(self, letters: Iterable[Letter]) -> None:
        """Add letters."""
        if self._attempt is None:
            self._attempt = AttemptWriter(self._plan, self._options, self._name)
        limit = self._attempt.limits(self._options.topic or "").batch_bytes_max
        columns = zip(*(self._fitted(each, limit) for each in letters), strict=True)
        names = ("key", "value", "headers")
        arrays = [pa.array(each, ARROW_TYPES[name]) for name, each in zip(names, columns, strict=True)]
        self._attempt.write(pa.RecordBatch.from_arrays(arrays, list(names)))

    def _fitted(self, letter: Letter, limit: int | None) -> tuple[bytes | None, bytes | None, list[Any]]:
        about = {PIPELINE: self._plan.pipeline_id, **letter.about}
        ours = [(name, _text(each)) for name, each in about.items() if each is not None]
        theirs = [each for each in letter.headers if not each[0].startswith(OURS)]
        room = _HEADERS_BYTES if limit is None else min(_HEADERS_BYTES, limit // 2)
        if sum(len(name) + len(each or b"") for name, each in theirs) > room:
            theirs = []
        lengths = [(KEY_BYTES, _text(len(letter.key or b""))), (VALUE_BYTES, _text(len(letter.value or b"")))]
        key, value = shorten(letter.key, letter.value, [*theirs, *ours, *lengths], limit)
        cut = [key != letter.key, value != letter.value]
        headers = [*theirs, *ours, *(each for each, is_cut in zip(lengths, cut, strict=True) if is_cut)]
        return key, value, [{"key": name, "value": each} for name, each in headers]

    def prepare(self) -> Written | None:
        """Send everything; return the message to the driver, if there were any letters."""
        return None if self._attempt is None else self._attempt.prepare()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Discard what was written, after an error."""
        if self._attempt is not None:
            self._attempt.__exit__(kind, error, trace)


@dataclass(slots=True)
class BadRows:
    """What one attempt has found to be bad, for one source or sink."""

    bad: str
    letters: Letters | None
    named: list[str] = field(default_factory=list)
    count: int = 0

    @classmethod
    def of(cls, bad: str, options: SinkOptions | None, plan: BatchPlan, name: str) -> "BadRows":
        """Return the bad rows of an attempt that has found none yet."""
        return cls(bad, None if options is None else Letters(plan, options, name))

    def add(self, count: int, letters: Iterator[Letter]) -> None:
        """Add as many rows."""
        self.count += count
        if self.letters is not None:
            self.letters.write(letters)
        elif self.bad == FAIL:
            first = islice(letters, NAMED_MAX - len(self.named))
            self.named += [f"{each.name}: {each.about[REASON]}" for each in first]

    def prepare(self, what: str, where: str) -> Written | None:
        """Finish. BadRecords if the pipeline is to stop."""
        if self.count and self.bad == FAIL:
            raise BadRecords(
                f"{self.count} {what}. {'; '.join(self.named)}. Set bad= at the {where} to the name of a "
                f"topic that gets them, or to {SKIP!r} to leave them out"
            )
        return None if self.letters is None else self.letters.prepare()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Discard what was written, after an error."""
        if self.letters is not None:
            self.letters.__exit__(kind, error, trace)


class SetAside(NamedTuple):
    """What a task tells the driver of an output, besides the message of the output itself."""

    message: Any
    rows: int  # that are dead letters, or were left out
    letters: Written | None


# ---- sources


@dataclass(frozen=True, slots=True)
class BadOutput:
    """The bad records of a batch, and what becomes of them."""

    rows: DataFrame
    bad: str
    types: Mapping[str, str]  # of the columns that the values should have had
    options: SinkOptions | None  # of the topic for dead letters

    def plan(self, client: Client, plan: BatchPlan) -> "PlannedBad":
        """Return the output for the tasks."""
        return PlannedBad(self.bad, self.types, self.options)


@dataclass(frozen=True, slots=True)
class PlannedBad:
    """The bad records, as the tasks get them."""

    bad: str
    types: Mapping[str, str]
    options: SinkOptions | None

    def begin(self, plan: BatchPlan, number: int) -> "BadWriter":
        """Return a writer for this attempt."""
        return BadWriter(self.types, BadRows.of(self.bad, self.options, plan, f".{number}"))


@dataclass(slots=True)
class BadWriter:
    """Handles the bad records of one attempt."""

    types: Mapping[str, str]
    found: BadRows

    def write(self, rows: pa.RecordBatch) -> None:
        """Add records."""
        self.found.add(rows.num_rows, self._letters(rows))

    def _letters(self, rows: pa.RecordBatch) -> Iterator[Letter]:
        for each in rows.to_pylist():
            about = {REASON: why_bad(each["value"], self.types), **_place(each)}
            yield Letter(each["key"], each["value"], about, _pairs(each.get("headers")))

    def prepare(self) -> SetAside:
        """Finish. BadRecords if the pipeline is to stop."""
        letters = self.found.prepare("records of a task cannot be parsed", "source")
        return SetAside(None, self.found.count, letters)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Discard what was written, after an error."""
        self.found.__exit__(kind, error, trace)


# ---- sinks


class CheckedWriter(Protocol):
    """Writes rows to an output that may be unable to take some of them."""

    def faults(self, rows: pa.RecordBatch, /) -> dict[int, str]:
        """Return the rows that cannot be written, by their place, with the reason."""

    def write(self, rows: pa.RecordBatch, /) -> None:
        """Add rows."""

    def prepare(self) -> Any:
        """Finish without committing; return the message to the driver."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


@dataclass(frozen=True, slots=True)
class Guard:
    """What becomes of rows that a sink cannot take."""

    sink: str  # the topic or the table; "" if rows name their topic
    is_table: bool
    bad: str
    options: SinkOptions | None  # of the topic for dead letters

    def begin(self, writer: CheckedWriter, plan: BatchPlan, number: int) -> "GuardedWriter":
        """Return a writer for this attempt, around that of the output."""
        return GuardedWriter(self, writer, BadRows.of(self.bad, self.options, plan, f".{number}.dead"))


@dataclass(slots=True)
class GuardedWriter:
    """Writes rows to an output, except for those that it cannot take."""

    guard: Guard
    writer: CheckedWriter
    found: BadRows

    def write(self, rows: pa.RecordBatch) -> None:
        """Write the rows, or set them aside."""
        faults = self.writer.faults(rows)
        if faults:
            places = sorted(faults)
            bad = rows.take(pa.array(places))
            self.found.add(len(places), self._letters(bad, [faults[at] for at in places]))
            rows = rows.take(pa.array([at for at in range(rows.num_rows) if at not in faults], pa.int64()))
        if rows.num_rows:
            self.writer.write(rows)

    def _letters(self, rows: pa.RecordBatch, reasons: Sequence[str]) -> Iterator[Letter]:
        record = RECORD if RECORD in rows.schema.names else _record_of(rows.schema)
        for each, reason in zip(_pylist(rows), reasons, strict=True):
            about = {REASON: reason, **_place((each[record] if record else None) or {})}
            if self.guard.is_table:
                text = json.dumps(each, default=_json, ensure_ascii=False)
                yield Letter(None, text.encode(), {**about, TABLE: self.guard.sink})
            else:
                sink = self.guard.sink or each.get("topic") or ""  # if the row names none
                headers = _pairs(each.get("headers"))
                yield Letter(_bytes(each.get("key")), _bytes(each["value"]), {**about, SINK: sink}, headers)

    def prepare(self) -> SetAside:
        """Finish. BadRecords if the pipeline is to stop."""
        to = f"{'table' if self.guard.is_table else 'topic'} {self.guard.sink}"
        to = to if self.guard.sink else "the topics that they name"
        letters = self.found.prepare(f"rows of a task cannot be written to {to}", "sink")
        return SetAside(self.writer.prepare(), self.found.count, letters)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Discard what was written, after an error."""
        self.found.__exit__(kind, error, trace)
        self.writer.__exit__(kind, error, trace)


def record_column(schema: StructType) -> str | None:
    """Return the column that has the record of a row; see `Json.record`."""
    for each in schema.fields:
        if isinstance(each.dataType, StructType) and {"key", *PLACES.values()} <= {*each.dataType.names}:
            return str(each.name)
    return None


def _record_of(schema: pa.Schema) -> str | None:
    for each in schema:
        names = {part.name for part in each.type} if pa.types.is_struct(each.type) else set()
        if {"key", *PLACES.values()} <= names:
            return str(each.name)
    return None


def _pylist(rows: pa.RecordBatch) -> list[dict[str, Any]]:
    """Return the rows. Times that Python does not know are text."""
    columns = [
        column.cast(pa.string()) if pa.types.is_temporal(column.type) else column for column in rows.columns
    ]
    return list(pa.RecordBatch.from_arrays(columns, rows.schema.names).to_pylist())


def _place(found: Mapping[str, Any]) -> dict[str, Any]:
    return {name: found.get(column) for name, column in PLACES.items()}


def _pairs(headers: Sequence[Mapping[str, Any] | None] | None) -> list[tuple[str, bytes | None]]:
    """Return headers as pairs, without those that no record can have."""
    return [(each["key"], each["value"]) for each in headers or () if each and each["key"] is not None]


def _json(value: Any) -> str:
    return base64.b64encode(value).decode() if isinstance(value, bytes) else str(value)


def _bytes(value: bytes | str | None) -> bytes | None:
    return value.encode() if isinstance(value, str) else value


def _text(value: Any) -> bytes:
    if hasattr(value, "timestamp"):
        return b"%d" % round(value.timestamp() * 1000)
    return str(value).encode()


# ---- the topic


def check_topic(client: Client, topic: str) -> None:
    """Check that a topic exists and keeps dead letters. OptionError if it does not."""
    known(client, f"dead letters {topic}", lambda: _check(client, topic))


def _check(client: Client, topic: str) -> None:
    client.topic(topic, create=True, wait_s=UNKNOWN_TOPIC_WAIT_S)
    configs = {each.name: each.value or "" for each in topic_configs(client, topic)}
    if "compact" in configs.get("cleanup.policy", ""):
        raise OptionError(
            f"topic {topic!r} is for dead letters, and it is compacted: of several with one key it would "
            "keep the last. Give dead letters a topic with cleanup.policy=delete"
        )


# ---- reasons


def why_bad(value: bytes, types: Mapping[str, str]) -> str:
    """Say why a value is not JSON of these columns."""
    try:
        found = json.loads(value.decode())
    except UnicodeDecodeError:
        return "the value is not UTF-8"
    except (ValueError, RecursionError) as error:
        return f"the value is not JSON: {error}"[:_TEXT_MAX]
    if not isinstance(found, dict):
        return "the value is no JSON object"
    for name, kind in types.items():
        if name in found and not _may_be(found[name], kind):
            return f"{name} is {json.dumps(found[name])}, and should be {kind}"[:_TEXT_MAX]
    return "the value does not fit the schema"


def _may_be(value: Any, kind: str) -> bool:
    """Whether a JSON value may be of a type of Spark. True if that is not certain."""
    if value is None:
        return True
    if kind in _NUMBERS:
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    if kind == "boolean":
        return isinstance(value, bool)
    if kind.startswith("array"):
        return isinstance(value, list)
    if kind.startswith(("struct", "map")):
        return isinstance(value, dict)
    return kind == "string" or isinstance(value, (str, int, float))
