"""Decodes Protobuf's binary format with the messages of .proto files, for display.

Fields that the message does not have are shown as `#` and their number. As in `avro`, the number of values
and the depth are bounded. Decoding raises `ProtoError` and nothing else.
"""

import struct
from collections.abc import Mapping, Sequence
from typing import Any, Final

from semel.console.messages.proto_files import ProtoError, ProtoField, ProtoFile, ProtoMessage, parse_proto

VALUES_MAX: Final = 200_000
DEPTH_MAX: Final = 64
VARINT, FIXED64, LENGTH, FIXED32 = 0, 1, 2, 5
_FIXED: Final = {
    "double": struct.Struct("<d"),
    "fixed64": struct.Struct("<Q"),
    "sfixed64": struct.Struct("<q"),
    "float": struct.Struct("<f"),
    "fixed32": struct.Struct("<I"),
    "sfixed32": struct.Struct("<i"),
}
_VARINTS: Final = ("int32", "int64", "uint32", "uint64", "sint32", "sint64", "bool")
_WELL_KNOWN: Final = """
syntax = "proto3"; package google.protobuf;
message Timestamp { int64 seconds = 1; int32 nanos = 2; }
message Duration { int64 seconds = 1; int32 nanos = 2; }
message Any { string type_url = 1; bytes value = 2; }
message Empty {}
message FieldMask { repeated string paths = 1; }
message DoubleValue { double value = 1; }
message FloatValue { float value = 1; }
message Int64Value { int64 value = 1; }
message UInt64Value { uint64 value = 1; }
message Int32Value { int32 value = 1; }
message UInt32Value { uint32 value = 1; }
message BoolValue { bool value = 1; }
message StringValue { string value = 1; }
message BytesValue { bytes value = 1; }
enum NullValue { NULL_VALUE = 0; }
message Struct { map<string, Value> fields = 1; }
message ListValue { repeated Value values = 1; }
message Value {
  NullValue null_value = 1; double number_value = 2; string string_value = 3; bool bool_value = 4;
  Struct struct_value = 5; ListValue list_value = 6;
}
"""


class ProtobufSchema:
    """The messages of a file and of those that it imports."""

    def __init__(self, text: str, references: Sequence[str] = ()) -> None:
        self._main = parse_proto(text)
        self._messages: dict[str, ProtoMessage] = {}
        self._enums: dict[str, Mapping[int, str]] = {}
        for each in (parse_proto(_WELL_KNOWN), *(parse_proto(other) for other in references), self._main):
            self._add(each)

    def _add(self, file: ProtoFile) -> None:
        self._messages.update(file.messages)
        self._enums.update(file.enums)

    def message(self, indexes: Sequence[int]) -> ProtoMessage:
        """Return a message by its indexes: the first in the file, each further one in the message before."""
        found: ProtoMessage | None = None
        for index in indexes or (0,):
            among = self._main.top if found is None else found.nested
            if not 0 <= index < len(among):
                raise ProtoError(f"the schema has no message at {list(indexes)}")
            found = among[index]
        assert found is not None
        return found

    def decode(self, data: bytes, message: ProtoMessage) -> dict[str, Any]:
        """Return the fields as plain data for JSON."""
        try:
            return _Decoder(self).message(memoryview(data), message, 0)
        except (IndexError, struct.error):
            raise ProtoError("the data ends too early") from None

    def find(self, name: str, space: str) -> ProtoMessage | Mapping[int, str] | None:
        """Look a type up, from the innermost scope outward."""
        if name.startswith("."):
            return self._messages.get(name[1:]) or self._enums.get(name[1:])
        while True:
            full = f"{space}.{name}" if space else name
            found = self._messages.get(full) or self._enums.get(full)
            if found is not None or not space:
                return found
            space = space.rpartition(".")[0]


class _Decoder:
    def __init__(self, schema: ProtobufSchema) -> None:
        self._schema = schema
        self._left = VALUES_MAX

    def message(self, data: memoryview, message: ProtoMessage, depth: int) -> dict[str, Any]:
        if depth > DEPTH_MAX:
            raise ProtoError("the value is nested too deeply")
        made: dict[str, Any] = {}
        at = 0
        while at < len(data):
            tag, at = _varint(data, at)
            number, wire = tag >> 3, tag & 7
            raw, at = _raw(data, at, wire)
            self._count()
            known = message.fields.get(number)
            if known is None:
                made.setdefault(f"#{number}", []).append(_unknown(raw))
            else:
                self._put(made, known, raw, wire, message.name, depth)
        return made

    def _count(self) -> None:
        self._left -= 1
        if self._left < 0:
            raise ProtoError(f"the value has more than {VALUES_MAX:,} parts")

    def _put(
        self, made: dict[str, Any], known: ProtoField, raw: Any, wire: int, space: str, depth: int
    ) -> None:
        if known.map_key is not None:
            entry = ProtoMessage(
                space,
                {1: ProtoField("key", 1, known.map_key), 2: ProtoField("value", 2, known.type_name)},
            )
            pair = self.message(_bytes(raw), entry, depth + 1)
            made.setdefault(known.name, {})[str(pair.get("key", ""))] = pair.get("value")
        elif known.is_repeated:
            values = made.setdefault(known.name, [])
            if wire == LENGTH and self._is_packable(known.type_name, space):
                values.extend(self._packed(_bytes(raw), known.type_name, space, depth))
            else:
                values.append(self._value(known.type_name, raw, space, depth))
        else:
            made[known.name] = self._value(known.type_name, raw, space, depth)

    def _is_packable(self, kind: str, space: str) -> bool:
        if kind in ("string", "bytes"):
            return False
        return (
            kind in _FIXED or kind in _VARINTS or not isinstance(self._schema.find(kind, space), ProtoMessage)
        )

    def _packed(self, data: memoryview, kind: str, space: str, depth: int) -> list[Any]:
        wire = VARINT if kind not in _FIXED else FIXED64 if _FIXED[kind].size == 8 else FIXED32
        found, at = [], 0
        while at < len(data):
            raw, at = _raw(data, at, wire)
            self._count()
            found.append(self._value(kind, raw, space, depth))
        return found

    def _value(self, kind: str, raw: Any, space: str, depth: int) -> Any:
        if kind == "string":
            return bytes(_bytes(raw)).decode(errors="replace")
        if kind == "bytes":
            return bytes(_bytes(raw))
        if kind in _FIXED:
            return _FIXED[kind].unpack(_bytes(raw))[0]
        if kind in _VARINTS:
            return _scalar(kind, _number(raw))
        found = self._schema.find(kind, space)
        if isinstance(found, ProtoMessage):
            return self.message(_bytes(raw), found, depth + 1)
        if found is None:
            raise ProtoError(f"the schema does not define the type {kind!r}")
        number = _number(raw)
        return found.get(number, number)


def message_indexes(data: bytes) -> tuple[list[int], int]:
    """Read the indexes of the message that follows, which a count precedes; return them and their end."""
    count, at = _zigzag(data, 0)
    if not 0 <= count <= DEPTH_MAX:
        raise ProtoError(f"{count} message indexes")
    indexes = []
    for _ in range(count):
        index, at = _zigzag(data, at)
        indexes.append(index)
    return indexes or [0], at


def _scalar(kind: str, value: int) -> Any:
    if kind == "bool":
        return value != 0
    if kind in ("sint32", "sint64"):
        return (value >> 1) ^ -(value & 1)
    if kind in ("int32", "int64") and value >= 1 << 63:
        return value - (1 << 64)
    return value


def _raw(data: memoryview, at: int, wire: int) -> tuple[int | memoryview, int]:
    if wire == VARINT:
        return _varint(data, at)
    if wire == LENGTH:
        size, at = _varint(data, at)
    elif wire in (FIXED64, FIXED32):
        size = 8 if wire == FIXED64 else 4
    else:
        raise ProtoError(f"wire type {wire} is not supported")
    if size > len(data) - at:
        raise ProtoError(f"a field of {size:,} bytes where {len(data) - at:,} are left")
    return data[at : at + size], at + size


def _bytes(raw: Any) -> memoryview:
    if not isinstance(raw, memoryview):
        raise ProtoError("a number where the schema has bytes")
    return raw


def _number(raw: Any) -> int:
    if not isinstance(raw, int):
        raise ProtoError("bytes where the schema has a number")
    return raw


def _unknown(raw: Any) -> Any:
    return bytes(raw) if isinstance(raw, memoryview) else raw


def _varint(data: memoryview | bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFF_FFFF_FFFF_FFFF, at
        shift += 7
        if shift > 63:
            raise ProtoError("a number is longer than 64 bits")


def _zigzag(data: bytes, at: int) -> tuple[int, int]:
    try:
        value, at = _varint(data, at)
    except IndexError:
        raise ProtoError("the data ends too early") from None
    return (value >> 1) ^ -(value & 1), at
