"""Declarations as plain values: versions, fields and sizes.

`schema` creates these values from the declared classes; `encoding` and `decoding` turn them into code. This
module depends on neither.
"""

from dataclasses import dataclass
from functools import cache
from typing import TypeAlias

Buffer: TypeAlias = bytes | bytearray | memoryview

#: The struct codes of all fixed-width kinds.
FIXED_CODES = {
    "int8": "b",
    "int16": "h",
    "int32": "i",
    "int64": "q",
    "uint16": "H",
    "uint32": "I",
    "float64": "d",
    "boolean": "?",
    "uuid": "16s",
}

FIXED_SIZES = {
    "int8": 1,
    "int16": 2,
    "int32": 4,
    "int64": 8,
    "uint16": 2,
    "uint32": 4,
    "float64": 8,
    "boolean": 1,
    "uuid": 16,
}


@dataclass(frozen=True, slots=True)
class Versions:
    """An inclusive range of versions; `last` is None if the range is open."""

    first: int
    last: int | None

    @classmethod
    @cache
    def parse(cls, text: str) -> "Versions":
        """Parse `"3-12"`, `"7+"` or `"5"`."""
        if text.endswith("+"):
            return cls(int(text[:-1]), None)
        first, dash, last = text.partition("-")
        return cls(int(first), int(last if dash else first))

    def __contains__(self, version: int) -> bool:
        return self.first <= version and (self.last is None or version <= self.last)


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a struct, for all versions.

    `kind` is a key of `FIXED_CODES`, or one of `string`, `bytes`, `records`, `array`, `nested`.
    `element` is what an array holds (a kind, or a struct class) and the struct class of a nested field.
    The default of an array may be an empty list, and that of a nested field `...`: a struct of defaults.
    """

    kind: str
    versions: Versions
    nullable: Versions | None
    default: object
    tag: int | None
    element: str | type | None = None
    is_shown: bool = True
    """Whether repr shows it."""


@dataclass(frozen=True, slots=True)
class Member:
    """A field with its name in the class."""

    name: str
    field: Field


def element_field(kind: str) -> Field:
    """Return the field for the elements of an array of strings or numbers."""
    return Field(kind, Versions(0, None), None, "", None)


def members(struct_class: type) -> list[Member]:
    """Return the declared fields of a struct or message class, in wire order."""
    declared: dict[str, Field] = struct_class.declared  # type: ignore[attr-defined]  # set by `declare`
    return [Member(name, field) for name, field in declared.items()]


def untagged_members(struct_class: type, version: int) -> list[Member]:
    """Return the untagged fields of this version, which every struct carries, in wire order."""
    return [
        member
        for member in members(struct_class)
        if member.field.tag is None and version in member.field.versions
    ]


def tagged_members(struct_class: type, version: int) -> list[Member]:
    """Return the tagged fields of this version, ordered by tag."""
    tagged = [
        member
        for member in members(struct_class)
        if member.field.tag is not None and version in member.field.versions
    ]
    return sorted(tagged, key=lambda member: member.field.tag or 0)


def has_records(struct_class: type, version: int) -> bool:
    """Whether a message carries record batches in this version."""
    return any(
        member.field.kind == "records"
        or (isinstance(member.field.element, type) and has_records(member.field.element, version))
        for member in members(struct_class)
        if version in member.field.versions
    )


def least_size(element: str | type, version: int, flexible: bool) -> int:
    """Return the minimum number of bytes of an array element; never zero."""
    if isinstance(element, str):
        return FIXED_SIZES.get(element) or (1 if flexible else 2 if element == "string" else 4)
    size = 1 if flexible else 0
    for member in untagged_members(element, version):
        field = member.field
        if field.kind != "nested":
            size += least_size(field.kind, version, flexible)
        elif field.nullable is not None and version in field.nullable:
            size += 1
        else:
            assert isinstance(field.element, type)
            size += least_size(field.element, version, flexible)
    return max(size, 1)
