"""Reads and writes records as lines of JSON or text, for the command line and the console.

Reading and writing are symmetric: written lines can be read again. In JSON, bytes that are UTF-8 are text,
other bytes are `{"base64": "..."}`, and null is null. Any other JSON value in the input is sent as compact
JSON text.
"""

import base64
import binascii
import json
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple

from semel.times import time_text

if TYPE_CHECKING:
    from semel.client import ConsumedRecord


_JSON_NAMES = {"topic", "partition", "offset", "timestamp", "time", "key", "value", "headers"}


class InputFormat(StrEnum):
    """How a line is parsed."""

    text = "text"
    json = "json"
    hex = "hex"
    base64 = "base64"


class LineError(OSError):
    """A line that cannot be parsed as a record."""


class Line(NamedTuple):
    """The fields of a record in a line."""

    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    partition: int | None = None
    timestamp_ms: int | None = None


def read_line(line: bytes, form: InputFormat, separator: bytes | None) -> Line:
    """Parse a record from a line without its line end. LineError says what is wrong with it."""
    if form is InputFormat.json:
        return _from_json(line)
    key: bytes | None = None
    value = line
    if separator is not None:
        key, found, value = line.partition(separator)
        if not found:
            raise LineError(f"it does not contain the --key-separator, {separator.decode()!r}")
    return Line(None if key is None else _unwrapped(key, form), _unwrapped(value, form))


def _unwrapped(data: bytes, form: InputFormat) -> bytes:
    try:
        if form is InputFormat.hex:
            return bytes.fromhex(data.decode("ascii"))
        if form is InputFormat.base64:
            return base64.b64decode(data.strip(), validate=True)
    except (ValueError, binascii.Error) as error:
        raise LineError(f"it is not {form.value}: {error}") from None
    return data


def _from_json(line: bytes) -> Line:
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise LineError(f"it is not JSON: {error}") from None
    if not isinstance(fields, dict) or "value" not in fields:
        raise LineError(
            'it must be an object with "value", and optionally "key", "headers", "partition" and "timestamp"'
        )
    if unknown := sorted(fields.keys() - _JSON_NAMES):
        raise LineError(f"it has an unknown member {unknown[0]!r}")
    headers = fields.get("headers") or []
    listed = headers.items() if isinstance(headers, dict) else headers
    try:
        read = tuple((_utf8(str(name)).decode(), _bytes(value)) for name, value in listed)
    except (TypeError, ValueError):
        raise LineError('"headers" must be an object or a list of pairs') from None
    return Line(
        key=_bytes(fields.get("key")),
        value=_bytes(fields["value"]),
        headers=read,
        partition=_number(fields, "partition"),
        timestamp_ms=_number(fields, "timestamp"),
    )


def _number(fields: dict[str, Any], name: str) -> int | None:
    value = fields.get(name)
    if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
        raise LineError(f'"{name}" must be a whole number')
    return value


def _utf8(text: str) -> bytes:
    """Encode a text. LineError for half a surrogate pair, which JSON allows and UTF-8 does not."""
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise LineError(f"it has a text that is not Unicode: {error.reason}") from None


def _bytes(value: Any) -> bytes | None:
    if value is None:
        return None
    if isinstance(value, str):
        return _utf8(value)
    if isinstance(value, dict) and value.keys() == {"base64"} and isinstance(value["base64"], str):
        return _unwrapped(value["base64"].encode(), InputFormat.base64)
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def record_as_json(record: "ConsumedRecord") -> dict[str, Any]:
    """Return the members of the JSON object for a record."""
    return {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        "time": time_text(record.timestamp),
        "key": bytes_as_json(record.key),
        "value": bytes_as_json(record.value),
        "headers": [[name, bytes_as_json(value)] for name, value in record.headers],
    }


def bytes_as_json(data: bytes | None) -> str | dict[str, str] | None:
    """Return bytes as a JSON value: text if they are UTF-8."""
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}
