"""Decodes Avro's binary format with a schema, for display.

A hostile record must not cost more than a real one, but a block of a billion nulls takes no bytes, and
records can nest without end. So the number of values and the depth are bounded, and every length is checked
against the remaining bytes. Decoding raises `AvroError` and nothing else.
"""

import datetime as dt
import json
import struct
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any, Final

VALUES_MAX: Final = 200_000
DEPTH_MAX: Final = 64
DECIMAL_BYTES_MAX: Final = 64
_DOUBLE: Final = struct.Struct("<d")
_FLOAT: Final = struct.Struct("<f")
_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
PRIMITIVES: Final = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")


class AvroError(ValueError):
    """The schema or the data is not Avro; the text says what is wrong."""


class AvroSchema:
    """A parsed schema, with the named types of the schemas that it refers to."""

    def __init__(self, text: str, references: Sequence[str] = ()) -> None:
        self._names: dict[str, Any] = {}
        try:
            for each in references:
                self._register(_loaded(each), "", 0)
            self._root = _loaded(text)
            self._register(self._root, "", 0)
        except (KeyError, TypeError, AttributeError) as error:
            raise AvroError(f"the schema is not one of Avro: {error!r}") from None

    @property
    def name(self) -> str:
        """The name of the record, or the type."""
        return str(self._root.get("name", "avro")) if isinstance(self._root, dict) else "avro"

    def decode(self, data: bytes) -> Any:
        """Return the value as plain data for JSON."""
        try:
            decoder = _Decoder(data, self._names)
            value = decoder.value(self._root, "", 0)
        except AvroError:
            raise
        except (LookupError, struct.error, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise AvroError(f"the data does not fit the schema: {error}") from None
        if decoder.at != len(data):
            raise AvroError(f"{len(data) - decoder.at} bytes are left after the value")
        return value

    def _register(self, schema: Any, space: str, depth: int) -> None:
        """Register the named types inside a schema."""
        if depth > DEPTH_MAX:
            raise AvroError("the schema is nested too deeply")
        if isinstance(schema, list):
            for each in schema:
                self._register(each, space, depth + 1)
        if not isinstance(schema, dict):
            return
        kind = schema.get("type")
        if kind in ("record", "error", "enum", "fixed"):
            name, space = _full_name(schema, space)
            self._names[name] = {**schema, "#space": space}
            for member in schema.get("fields", ()):
                self._register(member.get("type"), space, depth + 1)
        elif kind in ("array", "map"):
            self._register(schema.get("items", schema.get("values")), space, depth + 1)
        elif isinstance(kind, dict | list):
            self._register(kind, space, depth + 1)


class _Decoder:
    """Reads one value."""

    def __init__(self, data: bytes, names: Mapping[str, Any]) -> None:
        self._data = data
        self._names = names
        self._left = VALUES_MAX
        self.at = 0

    def value(self, schema: Any, space: str, depth: int) -> Any:
        self._left -= 1
        if self._left < 0 or depth > DEPTH_MAX:
            raise AvroError(f"the value has more than {VALUES_MAX:,} parts, or is nested too deeply")
        if isinstance(schema, list):
            return self._union(schema, space, depth)
        if isinstance(schema, str):
            if schema in PRIMITIVES:
                return self._primitive(schema)
            return self._named(self._find(schema, space), depth)
        kind = schema["type"]
        if kind == "array":
            return self._blocks(lambda: self.value(schema["items"], space, depth + 1))
        if kind == "map":
            pairs = self._blocks(lambda: (self._text(), self.value(schema["values"], space, depth + 1)))
            return dict(pairs)
        if kind in ("record", "error", "enum", "fixed"):
            return self._named(self._find(_full_name(schema, space)[0], ""), depth)
        return _logical(schema, self.value(kind, space, depth + 1))

    def _find(self, name: str, space: str) -> Any:
        full = f"{space}.{name}" if space and "." not in name else name
        found = self._names.get(full) or self._names.get(name)
        if found is None:
            raise AvroError(f"the schema does not define the type {name!r}")
        return found

    def _named(self, schema: Any, depth: int) -> Any:
        if schema["type"] == "enum":
            return schema["symbols"][self._index(len(schema["symbols"]))]
        if schema["type"] == "fixed":
            return _logical(schema, self._take(int(schema["size"])))
        space = schema["#space"]
        return {each["name"]: self.value(each["type"], space, depth + 1) for each in schema["fields"]}

    def _union(self, branches: Sequence[Any], space: str, depth: int) -> Any:
        return self.value(branches[self._index(len(branches))], space, depth + 1)

    def _index(self, count: int) -> int:
        index = self._long()
        if not 0 <= index < count:
            raise AvroError(f"branch {index} of {count}")
        return index

    def _primitive(self, kind: str) -> Any:
        if kind == "null":
            return None
        if kind == "boolean":
            return self._take(1) != b"\x00"
        if kind in ("int", "long"):
            return self._long()
        if kind == "float":
            return _FLOAT.unpack(self._take(4))[0]
        if kind == "double":
            return _DOUBLE.unpack(self._take(8))[0]
        return self._text() if kind == "string" else self._take(self._long())

    def _blocks(self, read: Callable[[], Any]) -> list[Any]:
        found: list[Any] = []
        while count := self._long():
            if count < 0:
                count = -count
                self._long()  # the size of the block, for readers that skip it
            if count > self._left:
                raise AvroError(f"a block of {count:,} values")
            found.extend(read() for _ in range(count))
        return found

    def _text(self) -> str:
        return self._take(self._long()).decode(errors="replace")

    def _take(self, size: int) -> bytes:
        if not 0 <= size <= len(self._data) - self.at:
            raise AvroError(f"a value of {size:,} bytes where {len(self._data) - self.at:,} are left")
        self.at += size
        return self._data[self.at - size : self.at]

    def _long(self) -> int:
        folded = shift = 0
        while True:
            byte = self._data[self.at]
            self.at += 1
            folded |= (byte & 0x7F) << shift
            if byte < 0x80:
                return (folded >> 1) ^ -(folded & 1)
            shift += 7
            if shift > 63:
                raise AvroError("a number is longer than 64 bits")


def _logical(schema: Mapping[str, Any], value: Any) -> Any:
    """Format dates, times and decimals for people; return any other value unchanged."""
    kind = schema.get("logicalType")
    try:
        if kind == "decimal" and isinstance(value, bytes) and len(value) <= DECIMAL_BYTES_MAX:
            return str(
                Decimal(int.from_bytes(value, "big", signed=True)).scaleb(-int(schema.get("scale", 0)))
            )
        if kind == "date" and isinstance(value, int):
            return (_EPOCH + dt.timedelta(days=value)).date().isoformat()
        if kind in ("timestamp-millis", "timestamp-micros") and isinstance(value, int):
            unit = 1000 if kind == "timestamp-millis" else 1
            return (_EPOCH + dt.timedelta(microseconds=value * unit)).isoformat()
    except (ArithmeticError, ValueError, TypeError):
        return value
    return value


def _full_name(schema: Mapping[str, Any], space: str) -> tuple[str, str]:
    name = str(schema["name"])
    if "." in name:
        return name, name.rpartition(".")[0]
    own = str(schema.get("namespace", space))
    return (f"{own}.{name}" if own else name), own


def _loaded(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        # A schema that is only a name may be written without quotes.
        if text.strip() in PRIMITIVES:
            return text.strip()
        raise AvroError("the schema is not JSON") from None
