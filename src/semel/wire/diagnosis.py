"""Finds the field that makes a message impossible to encode.

Encoders do not check values; `struct` does, and its error names no field. `find_fault` walks over the message
and finds the first value that its field cannot hold. It runs only after an encoder failed.
"""

from typing import Any

from semel.wire.primitives import MAX_STRING
from semel.wire.spec import FIXED_SIZES, Field, element_field, members


def find_fault(value: Any, struct_class: type, version: int) -> str | None:
    """Return a sentence such as `responses[0].error_code: 99999 does not fit int16`, or None."""
    for member in members(struct_class):
        if version in member.field.versions:
            fault = _field_fault(getattr(value, member.name), member.field, version)
            if fault is not None:
                return member.name + fault
    return None


def _field_fault(value: Any, field: Field, version: int) -> str | None:
    if value is None:
        nullable = field.nullable is not None and version in field.nullable
        return None if nullable else ": must not be None"
    if field.kind == "array":
        return _array_fault(value, field, version)
    if field.kind == "nested":
        assert isinstance(field.element, type)
        return _struct_fault(value, field.element, version)
    return _value_fault(value, field.kind)


def _array_fault(value: Any, field: Field, version: int) -> str | None:
    if not isinstance(value, list | tuple):
        return f": {type(value).__name__} is not a list"
    for index, item in enumerate(value):
        if isinstance(field.element, type):
            fault = _struct_fault(item, field.element, version)
        else:
            fault = _field_fault(item, element_field(str(field.element)), version)
        if fault is not None:
            return f"[{index}]{fault}"
    return None


def _struct_fault(value: Any, struct_class: type, version: int) -> str | None:
    if not isinstance(value, struct_class):
        return f": {type(value).__name__} is not a {struct_class.__name__}"
    fault = find_fault(value, struct_class, version)
    return None if fault is None else f".{fault}"


def _value_fault(value: Any, kind: str) -> str | None:
    if kind == "string":
        return _string_fault(value)
    if kind in ("bytes", "records", "uuid"):
        if not isinstance(value, bytes | bytearray | memoryview):
            return f": {type(value).__name__} is not bytes"
        return ": a uuid has 16 bytes" if kind == "uuid" and len(value) != 16 else None
    if kind in ("boolean", "float64"):
        return None
    if not isinstance(value, int):
        return f": {type(value).__name__} is not an integer"
    bits = FIXED_SIZES[kind] * 8
    low, high = (0, 1 << bits) if kind.startswith("uint") else (-(1 << bits - 1), 1 << bits - 1)
    return None if low <= value < high else f": {value} does not fit {kind}"


def _string_fault(value: Any) -> str | None:
    if not isinstance(value, str):
        return f": {type(value).__name__} is not a string"
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        return ": not valid Unicode"
    return None if size <= MAX_STRING else f": {size} bytes are more than a string holds ({MAX_STRING})"
