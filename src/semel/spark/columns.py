"""Conversion of columns between the codec and Arrow: the buffers are shared, nothing is copied."""

from collections.abc import Sequence
from functools import lru_cache

import pyarrow as pa

from semel.wire.columns import Binary, Columns, Numbers

ARROW_TYPES = {
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestampType": pa.int32(),
    "headers": pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
}
_MILLISECONDS = pa.timestamp("ms", tz="UTC")


def to_arrow(columns: Columns, names: Sequence[str], topic: str, partition: int) -> pa.RecordBatch:
    """Convert records of one partition to the columns of these names."""
    arrays = [_array(columns, name, topic, partition) for name in names]
    return pa.RecordBatch.from_arrays(arrays, names=list(names))


def _array(columns: Columns, name: str, topic: str, partition: int) -> pa.Array:
    kind, rows = ARROW_TYPES[name], columns.rows
    match name:
        case "key" | "value":
            found = columns.keys if name == "key" else columns.values
            assert found is not None, "what is wanted was read"
            buffers = [found.validity, found.offsets, found.data]
            return pa.Array.from_buffers(kind, rows, [_buffer(each) for each in buffers], found.nulls)
        case "topic":
            return _repeated(name, topic, rows)
        case "partition":
            return _repeated(name, partition, rows)
        case "offset":
            return pa.Array.from_buffers(kind, rows, [None, _buffer(columns.offsets)], 0)
        case "timestampType":
            return pa.Array.from_buffers(kind, rows, [None, _buffer(columns.timestamp_types)], 0)
        case "timestamp":
            found = pa.Array.from_buffers(_MILLISECONDS, rows, [None, _buffer(columns.timestamps)], 0)
            return found.cast(kind)
        case _:
            return pa.array(columns.headers, kind)


@lru_cache(maxsize=8)
def _repeated(name: str, value: str | int, rows: int) -> pa.Array:
    """Return a constant column. Cached, because successive batches have the same number of rows."""
    return pa.repeat(pa.scalar(value, ARROW_TYPES[name]), rows)


def _buffer(data: object) -> pa.Buffer | None:
    return None if data is None else pa.py_buffer(data)


def binary_of(column: pa.Array) -> Binary:
    """Convert a column of bytes, or of text as UTF-8, for the codec."""
    if pa.types.is_large_binary(column.type) or pa.types.is_large_string(column.type):
        column = column.cast(pa.binary())
    validity, offsets, data = column.buffers()
    return Binary(
        offsets=memoryview(offsets) if offsets is not None else bytes(4),
        data=memoryview(data) if data is not None else b"",
        validity=memoryview(validity) if validity is not None else None,
        first=column.offset,
        nulls=column.null_count,
    )


def numbers_of(column: pa.Array) -> Numbers:
    """Convert a column of int32 for the codec."""
    validity, data = column.buffers()
    return Numbers(memoryview(data), None if validity is None else memoryview(validity), column.offset)
