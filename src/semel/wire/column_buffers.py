"""Columns as buffers: what the columnar codec (`columns`) gives and takes.

The layouts are those of Arrow, so that whoever has Arrow can wrap the buffers without a copy. Nothing here
or in the codec needs Arrow itself. Numbers are in the byte order of the machine.
"""

from typing import NamedTuple, TypeAlias

from semel.wire.schema import Buffer

__all__ = ["Binary", "ColumnHeaders", "Columns", "Numbers", "Packed"]

#: For each row its headers, or None if it has none.
ColumnHeaders: TypeAlias = list[list[tuple[str, bytes | None]] | None]


class Binary(NamedTuple):
    """A column of bytes: row `i` is `data[offsets[first + i] : offsets[first + i + 1]]`.

    A row is null if its bit in `validity`, from the lowest on and also counted from `first`, is 0. Without
    `validity` no row is null.
    """

    offsets: Buffer  # int32, one more than there are rows
    data: Buffer
    validity: Buffer | None = None
    first: int = 0
    nulls: int = 0


class Numbers(NamedTuple):
    """A column of int32, some of which may be null."""

    data: Buffer
    validity: Buffer | None = None
    first: int = 0


class Columns(NamedTuple):
    """Records as columns. Those that were not asked for are None."""

    rows: int
    offsets: Buffer  # int64
    timestamps: Buffer  # int64, milliseconds
    timestamp_types: Buffer  # int32: 0 is the producer's time, 1 the broker's
    keys: Binary | None
    values: Binary | None
    headers: ColumnHeaders | None


class Packed(NamedTuple):
    """The records of one batch as bytes, numbered from 0, before compression and without a header."""

    payload: Buffer
    record_count: int
    base_timestamp: int
    max_timestamp: int
