"""The two implementations of the columnar codec, and columns in a form that tests compare."""

import importlib
import struct
from types import ModuleType
from typing import Any

from semel.wire import _columns_py
from semel.wire.batch import HEADER_BYTES, read_header
from semel.wire.column_buffers import Binary, Columns
from semel.wire.compression import decompress
from semel.wire.records import DECOMPRESSED_LIMIT_BYTES, Header, Record
from semel.wire.schema import Buffer

ALL_OFFSETS = (0, (1 << 63) - 1)


def halves() -> list[ModuleType]:
    """Return the pure Python implementation, and the compiled one if it was built and is enabled."""
    try:
        return [_columns_py, importlib.import_module("semel.wire._columns")]
    except ImportError:
        return [_columns_py]


def name_of(half: ModuleType) -> str:
    return half.__name__.rpartition(".")[2]


def payload_of(batch: Buffer) -> Buffer:
    header = read_header(batch)
    packed = memoryview(batch)[HEADER_BYTES : header.length]
    return decompress(header.codec, packed, DECOMPRESSED_LIMIT_BYTES)


def read_with(half: Any, *batches: Buffer, offsets: tuple[int, int] = ALL_OFFSETS) -> list[Record]:
    reader = half.Reader(True, True, True)
    for batch in batches:
        reader.add(payload_of(batch), read_header(batch), *offsets)
    return rows_of(reader.take())


def rows_of(columns: Columns) -> list[Record]:
    assert columns.keys is not None
    assert columns.values is not None
    assert columns.headers is not None
    rows = columns.rows
    return [
        Record(offset, timestamp, key, value, tuple(Header(*each) for each in headers or ()))
        for offset, timestamp, key, value, headers in zip(
            struct.unpack(f"={rows}q", columns.offsets),
            struct.unpack(f"={rows}q", columns.timestamps),
            bytes_of(columns.keys, rows),
            bytes_of(columns.values, rows),
            columns.headers,
            strict=True,
        )
    ]


def bytes_of(column: Binary, rows: int) -> list[bytes | None]:
    offsets = struct.unpack(f"={len(column.offsets) // 4}i", column.offsets)
    assert len(offsets) == rows + 1
    assert offsets[0] == 0
    assert offsets[-1] == len(column.data)
    found: list[bytes | None] = []
    for row in range(rows):
        is_null = column.validity is not None and not column.validity[row >> 3] >> (row & 7) & 1
        found.append(None if is_null else bytes(column.data[offsets[row] : offsets[row + 1]]))
    assert found.count(None) == column.nulls
    return found


def column_of(values: list[bytes | None], before: list[bytes | None] | None = None) -> Binary:
    """Build a column as the codec may get it: `before` precedes its first row in the same buffers."""
    all_values = [*(before or []), *values]
    offsets, data, bits = [0], b"", bytearray((len(all_values) + 7) // 8)
    for row, value in enumerate(all_values):
        data += value or b""
        bits[row >> 3] |= (value is not None) << (row & 7)
        offsets.append(len(data))
    packed = struct.pack(f"={len(offsets)}i", *offsets)
    return Binary(packed, data, bytes(bits) if None in all_values else None, len(before or []))
