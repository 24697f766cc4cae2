"""Writes the rows of one task to Parquet files in the table's directory. No commit names them yet.

Every attempt has unique file names, so that attempts cannot overwrite each other's files. A file is announced
before it is created (`leftovers`), so that it can be found if it is never committed.

Splits rows by the values of their partition columns, and formats the values.

Delta stores the values as text in its commit. Directories are named after them too, in Hive style, for people
only; the names are not parsed.

Computes the file statistics of a commit, so that readers can skip files: counts, minimum, maximum.

They come from the Parquet footer. A bound that cannot be exact in JSON is left out: a missing bound is
harmless, but a wrong one would make readers skip rows.
"""

import datetime as dt
import hashlib
import json
import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, TypeAlias
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from semel.spark.delta.leftovers import Attempt, announce, file_name
from semel.spark.delta.schema import in_utc
from semel.spark.delta.storage import Storage, reaching
from semel.spark.errors import PipelineError, TableUnreachable

#: Columns with statistics, and characters of text in them, both as in Delta by default.
COLUMNS_MAX = 32
TEXT_MAX = 32
#: Digits that survive as a JSON number.
DIGITS_MAX = 15
LAST_CHARACTER = "\U0010ffff"


def stats_of(footer: Any, schema: pa.Schema, with_nan: Collection[str]) -> str:
    """Return the statistics of a file as Delta's JSON. Columns that contain NaN have no bounds."""
    paths = [footer.schema.column(index).path for index in range(footer.num_columns)]
    least: dict[str, Any] = {}
    greatest: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    for column in list(schema)[:COLUMNS_MAX]:
        if pa.types.is_nested(column.type) or paths.count(column.name) != 1:
            continue
        index = paths.index(column.name)
        found = [footer.row_group(number).column(index).statistics for number in range(footer.num_row_groups)]
        if any(each is None or not each.has_null_count for each in found):
            continue
        nulls[column.name] = sum(each.null_count for each in found)
        if column.name not in with_nan and _has_bounds(column.type):
            _add_bounds(column.name, found, least, greatest)
    content = {"numRecords": footer.num_rows, "minValues": least, "maxValues": greatest, "nullCount": nulls}
    return json.dumps(content, allow_nan=False, ensure_ascii=False)


def _has_bounds(kind: pa.DataType) -> bool:
    if pa.types.is_decimal(kind):
        return bool(kind.precision <= DIGITS_MAX)
    return not (pa.types.is_boolean(kind) or pa.types.is_binary(kind))


def _add_bounds(name: str, found: list[Any], least: dict[str, Any], greatest: dict[str, Any]) -> None:
    # A row group of nulls has no bounds and needs none.
    bounded = [each for each in found if each.has_min_max]
    if not bounded or any(each.num_values and not each.has_min_max for each in found):
        return
    try:
        low, high = min(each.min for each in bounded), max(each.max for each in bounded)
    except (ValueError, OverflowError):
        return  # a date outside Python's range
    below, above = lower_bound(low), upper_bound(high)
    if below is not None:
        least[name] = below
    if above is not None:
        greatest[name] = above


def lower_bound(value: Any) -> Any:
    """Return a JSON value that is not above this one; None if there is none."""
    return value[:TEXT_MAX] if isinstance(value, str) else _exact(value)


def upper_bound(value: Any) -> Any:
    """Return a JSON value that is not below this one; None if there is none."""
    if not isinstance(value, str):
        return _exact(value)
    if len(value) <= TEXT_MAX:
        return value
    return None if value[TEXT_MAX] == LAST_CHARACTER else value[:TEXT_MAX] + LAST_CHARACTER


def _exact(value: Any) -> Any:
    match value:
        case float():
            return value if math.isfinite(value) else None
        case Decimal():
            return float(value)
        case dt.datetime(tzinfo=None):
            return value.isoformat("T", "microseconds")
        case dt.datetime():
            return value.astimezone(dt.UTC).replace(tzinfo=None).isoformat("T", "microseconds") + "Z"
        case dt.date():
            return value.isoformat()
        case int():
            return value
        case _:
            return None


#: Values of the partition columns, in the order of the columns.
Values: TypeAlias = tuple[str | None, ...]

NULL = "__HIVE_DEFAULT_PARTITION__"
#: File systems allow 255 bytes for a name.
NAME_MAX = 200


def split(batch: pa.RecordBatch, columns: Sequence[str]) -> Iterator[tuple[Values, pa.RecordBatch]]:
    """Return the rows of each partition, without the partition columns."""
    if not columns:
        yield (), batch
        return
    codes = _codes(batch, columns)
    order = pc.sort_indices(codes)
    # `value_counts` keeps the order of a sorted column, so each count is the length of one partition.
    counted = pc.value_counts(codes.take(order))
    rows = batch.take(order)
    rest = [name for name in batch.schema.names if name not in columns]
    begin = 0
    for count in counted.field("counts").to_pylist():
        part = rows.slice(begin, count)
        yield tuple(text_of(part.column(name)[0].as_py()) for name in columns), part.select(rest)
        begin += count


def _codes(batch: pa.RecordBatch, columns: Sequence[str]) -> pa.Array:
    """Return one number per row, equal for rows with the same values; null is a value."""
    codes = pa.repeat(pa.scalar(0, pa.int64()), batch.num_rows)
    for name in columns:
        found = batch.column(name).dictionary_encode(null_encoding="encode")
        codes = pc.add(pc.multiply(codes, len(found.dictionary)), found.indices.cast(pa.int64()))
    return codes


def text_of(value: Any) -> str | None:
    """Format a value as Delta does. Empty text is null, as in Spark."""
    match value:
        case None | "":
            return None
        case bool():
            return str(value).lower()
        case float():
            return {"inf": "Infinity", "-inf": "-Infinity", "nan": "NaN"}.get(repr(value), repr(value))
        case Decimal():
            return format(value, "f")
        case dt.datetime(tzinfo=None):
            return value.isoformat(" ", "microseconds")
        case dt.datetime():
            return value.astimezone(dt.UTC).replace(tzinfo=None).isoformat("T", "microseconds") + "Z"
        case dt.date():
            return value.isoformat()
        case _:
            return str(value)


def directory_of(columns: Sequence[str], values: Values) -> str:
    """Return the directory of a partition: `day=2026-11-15/country=DE/`."""
    return "".join(f"{_name(f'{quote(name)}=', value)}/" for name, value in zip(columns, values, strict=True))


def _name(prefix: str, value: str | None) -> str:
    text = NULL if value is None else quote(value, safe=" ")
    if len(prefix) + len(text) > NAME_MAX:
        text = hashlib.sha256(text.encode()).hexdigest()
    return prefix + text


#: Files that a task has open at once when it writes to many partitions. A closed file is not opened again.
OPEN_MAX = 64


@dataclass(frozen=True, slots=True)
class Added:
    """A complete file: what a commit records about it."""

    path: str
    size: int
    values: Values
    stats: str

    @property
    def rows(self) -> int:
        """The number of rows in it."""
        found: int = json.loads(self.stats)["numRecords"]
        return found


@dataclass(slots=True)
class _Open:
    path: str
    stream: Any
    writer: Any
    footers: list[Any]
    with_nan: set[str] = field(default_factory=set)


class TaskFiles:
    """The files of one attempt."""

    def __init__(
        self, storage: Storage, attempt: Attempt, partition_by: Sequence[str], required: Sequence[str]
    ) -> None:
        self._storage = storage
        self._attempt = attempt
        self._partition_by = partition_by
        self._required = required
        self._open: dict[Values, _Open] = {}
        self._added: list[Added] = []
        self._announced: list[str] = []
        self._announcements = 0

    def write(self, batch: pa.RecordBatch) -> None:
        """Write rows to the files of their partitions."""
        for name in self._required:
            if batch.column(name).null_count:
                raise PipelineError(
                    f"the column {name!r} of the table is not nullable, and a row has a null there"
                )
        parts = list(split(batch.cast(in_utc(batch.schema)), self._partition_by))
        paths = self._announce([values for values, _ in parts if values not in self._open])
        for values, part in parts:
            if values not in self._open:
                # The file of these values may have been closed since, to make room for another.
                path = paths.get(values) or self._announce([values])[values]
                self._begin(values, path, part.schema)
            file = self._open[values]
            file.with_nan.update(_columns_with_nan(part))
            with reaching(self._storage.location):
                file.writer.write_batch(part)

    def close(self) -> list[Added]:
        """Finish all files."""
        for values in list(self._open):
            self._finish(values)
        return self._added

    def discard(self) -> None:
        """Delete the files of this attempt; it has failed, so they will not be committed."""
        for file in self._open.values():
            with suppress(OSError, pa.ArrowException):
                file.writer.close()
            with suppress(OSError, pa.ArrowException):
                file.stream.close()
        with suppress(TableUnreachable):
            for path in self._announced:
                self._storage.delete(path)

    def _announce(self, partitions: Sequence[Values]) -> dict[Values, str]:
        """Announce new files, and return their names."""
        attempt, paths = self._attempt, {}
        for number, values in enumerate(partitions, len(self._announced)):
            name = file_name(attempt.app, attempt.number, attempt.key, number)
            paths[values] = directory_of(self._partition_by, values) + name
        if paths:
            announce(self._storage, attempt, self._announcements, paths.values())
            self._announcements += 1
            self._announced.extend(paths.values())
        return paths

    def _begin(self, values: Values, path: str, schema: pa.Schema) -> None:
        if len(self._open) >= OPEN_MAX:
            self._finish(next(iter(self._open)))
        stream = self._storage.open(path)
        footers: list[Any] = []
        # Without Arrow's own schema: readers use that of the table.
        writer = pq.ParquetWriter(stream, schema, store_schema=False, metadata_collector=footers)
        self._open[values] = _Open(path, stream, writer, footers)

    def _finish(self, values: Values) -> None:
        file = self._open.pop(values)
        with reaching(self._storage.location):
            file.writer.close()
            size = file.stream.tell()
            file.stream.close()
        self._storage.flush(file.path)
        (footer,) = file.footers
        stats = stats_of(footer, file.writer.schema, file.with_nan)
        self._added.append(Added(file.path, size, values, stats))


def _columns_with_nan(batch: pa.RecordBatch) -> Iterable[str]:
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        if pa.types.is_floating(column.type) and pc.any(pc.is_nan(column)).as_py():
            yield name
