"""Columns as buffers: the input and output of the columnar codec (`columns`).

The layouts are those of Arrow, so that the buffers can be wrapped without a copy. Neither this module nor the
codec needs Arrow itself. Numbers are in native byte order.
"""

from typing import NamedTuple, TypeAlias

from semel.wire.schema import Buffer

#: The headers of each row, or None if it has none.
ColumnHeaders: TypeAlias = list[list[tuple[str, bytes | None]] | None]


class Binary(NamedTuple):
    """A column of bytes: row `i` is `data[offsets[first + i] : offsets[first + i + 1]]`.

    Row `i` is null if bit `first + i` of `validity`, counted from the lowest, is 0. Without `validity` no row
    is null.
    """

    offsets: Buffer  # int32, one more than there are rows
    data: Buffer
    validity: Buffer | None = None
    first: int = 0
    nulls: int = 0


class Numbers(NamedTuple):
    """A column of int32, which may contain nulls."""

    data: Buffer
    validity: Buffer | None = None
    first: int = 0


class Columns(NamedTuple):
    """Records as columns. Columns that were not requested are None."""

    rows: int
    offsets: Buffer  # int64
    timestamps: Buffer  # int64, milliseconds
    timestamp_types: Buffer  # int32: 0 is the producer's timestamp, 1 the broker's
    keys: Binary | None
    values: Binary | None
    headers: ColumnHeaders | None


class Packed(NamedTuple):
    """The records of one batch as bytes, numbered from 0, before compression and without a header."""

    payload: Buffer
    record_count: int
    base_timestamp: int
    max_timestamp: int
