"""Formats records for `semel consume`. The input of `semel produce`, and JSON, are in `record_lines`."""

import base64
from collections.abc import Iterable
from enum import StrEnum
from typing import TYPE_CHECKING

from semel.printable import as_json, printable, printable_lines
from semel.record_lines import record_as_json
from semel.times import time_text

if TYPE_CHECKING:
    from semel.client import ConsumedRecord


class OutputFormat(StrEnum):
    """How a record is printed."""

    text = "text"
    full = "full"
    json = "json"
    hex = "hex"
    base64 = "base64"


def write_record(
    record: "ConsumedRecord", form: OutputFormat, separator: bytes | None, *, is_escaped: bool = False
) -> bytes:
    """Format a record as a line with a newline; ``is_escaped`` escapes control characters."""
    if form is OutputFormat.json:
        return as_json(record_as_json(record)).encode() + b"\n"
    if form is OutputFormat.full:
        return _full(record).encode() + b"\n"
    parts = [_wrapped(record.value, form)]
    if separator is not None:
        parts.insert(0, _wrapped(record.key, form))
    line = (separator or b"").join(parts)
    if is_escaped:
        line = printable_lines(line.decode("utf-8", "backslashreplace")).encode()
    return line + b"\n"


def _wrapped(data: bytes | None, form: OutputFormat) -> bytes:
    if data is None:
        return b""
    if form is OutputFormat.hex:
        return data.hex().encode()
    if form is OutputFormat.base64:
        return base64.b64encode(data)
    return data


def _full(record: "ConsumedRecord") -> str:
    where = f"{printable(record.topic)}/{record.partition}@{record.offset}"
    parts = [where, time_text(record.timestamp) or "-"]
    if record.key is not None:
        parts.append(f"key={_printable(record.key)}")
    parts += _header_texts(record.headers)
    parts.append("null" if record.value is None else _printable(record.value))
    return "  ".join(parts)


def _header_texts(headers: Iterable[tuple[str, bytes | None]]) -> list[str]:
    return [f"{printable(name)}:{'null' if value is None else _printable(value)}" for name, value in headers]


def _printable(data: bytes) -> str:
    return printable(data.decode("utf-8", "backslashreplace"))
