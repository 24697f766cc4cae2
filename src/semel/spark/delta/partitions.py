"""Splits rows by the values of their partition columns, and formats the values.

Delta stores the values as text in its commit. Directories are named after them too, in Hive style, for people
only; the names are not parsed.
"""

import datetime as dt
import hashlib
from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import Any, TypeAlias
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc

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
