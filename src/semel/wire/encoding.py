"""Generates encoders: one Python function for each declaration and version.

The function writes the whole message, with all structs inlined, into the bytearray `w`:

    def encode(m):
        parts = []
        w = bytearray()
        v1 = m.responses
        n2 = len(v1) + 1
        if n2 < 128:
            w.append(n2)
        else:
            w += uvarint(n2)
        for x3 in v1:
            v4 = x3.name.encode()
            ...
            w += PACK_ihqqqB(x6.index, x6.error_code, x6.base_offset, ...)

Adjacent fields of fixed width, with the length that follows them, are one `pack`. The bytearray is split only
for records of more than a few KiB: they go into the list of parts as they are, so that bytes read from a
chunk reach the socket without a copy.

A long message is written by a second function that is generated from the same declaration, a generator that
yields after every thousand elements.

An encoder itself checks little. A value out of range makes `struct`, `len` or `encode` fail; then
`Message.encode_parts` searches for the field.
"""

import struct
from collections.abc import Callable, Generator
from typing import Any

from semel.wire import primitives, spec
from semel.wire.decoding import SLICE_ELEMENTS
from semel.wire.source import SourceWriter

Encoder = Callable[[Any], list[spec.Buffer]]
SlicedEncoder = Callable[[Any], Generator[None, None, list[spec.Buffer]]]

_CONSTANTS = {
    "pack": struct.pack,
    "uvarint": primitives.uvarint,
    "string_uvarint": primitives.string_uvarint,
    "tag_prefix": primitives.tag_prefix,
    "bad_uuid": primitives.bad_uuid,
}


def compile_encoder(message: type, version: int, flexible: bool) -> Encoder:
    """Return the function that writes a message in this version as a list of buffers."""
    return _EncoderWriter(message, version, flexible, is_sliced=False).compile()


def compile_sliced_encoder(message: type, version: int, flexible: bool) -> SlicedEncoder:
    """Return the generator function that writes a message in slices."""
    return _EncoderWriter(message, version, flexible, is_sliced=True).compile()


class _EncoderWriter:
    """Generates one encoder. The current run is the fixed-width values that are not emitted yet."""

    def __init__(self, message: type, version: int, flexible: bool, *, is_sliced: bool) -> None:
        self.message = message
        self.version = version
        self.flexible = flexible
        self.is_sliced = is_sliced
        self.out = SourceWriter(_CONSTANTS)
        self.run: list[tuple[str, str]] = []
        #: The current bytearray: the message's, or that of one tagged field.
        self.buffer = "w"

    def compile(self) -> Callable[..., Any]:
        with self.out.block("def encode(m):"):
            cut = spec.has_records(self.message, self.version)
            if cut:
                self.out.line("parts = []")
            self.out.line("w = bytearray()")
            if self.is_sliced:
                self.out.line(f"left = {SLICE_ELEMENTS}")
                self.out.line("yield")
            self.struct("m", self.message)
            self.flush()
            if cut:
                self.out.line("parts.append(w)")
            self.out.line("return parts" if cut else "return [w]")
        return self.out.function("encode", f"encoder of {self.message.__name__} v{self.version}")

    def flush(self) -> None:
        """Emit the current run as one pack."""
        if len(self.run) == 1 and self.run[0][0] in "xB":
            self.out.line(f"{self.buffer}.append({self.run[0][1] or 0})")
        elif self.run:
            self.out.line(f"{self.buffer} += {self.pack(self.run)}")
        self.run = []

    def pack(self, run: list[tuple[str, str]]) -> str:
        packer = self.out.packer("".join(code for code, _ in run))
        return f"{packer}({', '.join(value for _, value in run if value)})"

    def byte_or_varint(self, value: str, helper: str = "uvarint") -> None:
        """Write the current run and a varint, in one pack when the varint is one byte. Ends the run."""
        run, self.run = self.run, []
        with self.out.block(f"if {value} < 128:"):
            if run:
                self.out.line(f"{self.buffer} += {self.pack([*run, ('B', value)])}")
            else:
                self.out.line(f"{self.buffer}.append({value})")
        with self.out.block("else:"):
            if run:
                self.out.line(f"{self.buffer} += {self.pack(run)}")
            self.out.line(f"{self.buffer} += {helper}({value})")

    def length(self, kind: str, count: str) -> None:
        """Write a length, which is incremented by one in a flexible version. Ends the run."""
        if self.flexible:
            self.byte_or_varint(count, "string_uvarint" if kind == "string" else "uvarint")
        else:
            self.run.append(("h" if kind == "string" else "i", count))
            self.flush()

    def struct(self, source: str, struct_class: type) -> None:
        """Write the struct that the expression `source` names."""
        for member in spec.untagged_members(struct_class, self.version):
            name = f"{struct_class.__name__}.{member.name}"
            self.value(f"{source}.{member.name}", name, member.field)
        if self.flexible:
            self.tags(source, struct_class)

    def value(self, source: str, name: str, field: spec.Field) -> None:
        """Write one value, such as `m.topics`."""
        nullable = field.nullable is not None and self.version in field.nullable
        if field.kind in spec.FIXED_CODES:
            if field.kind == "uuid":
                with self.out.block(f"if len({source}) != 16:"):
                    self.out.line(f"raise bad_uuid({name!r})")
            self.run.append((spec.FIXED_CODES[field.kind], source))
        elif field.kind == "nested":
            assert isinstance(field.element, type)
            self.nested(source, field.element, nullable)
        else:
            self.sized(source, field, nullable)

    def nested(self, source: str, struct_class: type, nullable: bool) -> None:
        inner = self.out.name("m")
        self.out.line(f"{inner} = {source}")
        if not nullable:
            self.struct(inner, struct_class)
            return
        self.flush()
        with self.out.block(f"if {inner} is None:"):
            self.out.line(f"{self.buffer}.append(255)")
        with self.out.block("else:"):
            self.run.append(("b", "1"))
            self.struct(inner, struct_class)
            self.flush()

    def sized(self, source: str, field: spec.Field, nullable: bool) -> None:
        """Write a length and what it counts: text, bytes or elements."""
        value, count = self.out.name("v"), self.out.name("n")
        self.out.line(f"{value} = {source}")
        null, extra = ("0", " + 1") if self.flexible else ("-1", "")
        if nullable:
            with self.out.block(f"if {value} is None:"):
                self.out.line(f"{count} = {null}")
                self.out.line(f"{value} = {'()' if field.kind == 'array' else repr(b'')}")
            with self.out.block("else:"):
                self.measure(value, count, field.kind, extra)
        else:
            self.measure(value, count, field.kind, extra)
        self.length(field.kind, count)
        if field.kind == "records":
            self.records(value, count)
        elif field.kind == "array":
            assert field.element is not None
            self.elements(value, field.element)
        else:
            self.out.line(f"{self.buffer} += {value}")

    def measure(self, value: str, count: str, kind: str, extra: str) -> None:
        if kind == "string":
            self.out.line(f"{value} = {value}.encode()")
        self.out.line(f"{count} = len({value}){extra}")

    def records(self, value: str, count: str) -> None:
        """Pass large records by reference: close this bytearray, and start another after them."""
        with self.out.block(f"if {count} > {primitives.COPY_LIMIT}:"):
            self.out.line("parts.append(w)")
            self.out.line(f"parts.append({value})")
            self.out.line("w = bytearray()")
        with self.out.block("else:"):
            self.out.line(f"w += {value}")

    def elements(self, value: str, element: str | type) -> None:
        if isinstance(element, str) and element in spec.FIXED_CODES:
            self.out.line(f"{self.buffer} += pack(f'>{{len({value})}}{spec.FIXED_CODES[element]}', *{value})")
            return
        item = self.out.name("x")
        with self.out.block(f"for {item} in {value}:"):
            if self.is_sliced:
                self.out.line("left -= 1")
                with self.out.block("if left < 0:"):
                    self.out.line(f"left = {SLICE_ELEMENTS}")
                    self.out.line("yield")
            if isinstance(element, str):
                self.sized(item, spec.element_field(element), nullable=False)
            else:
                self.struct(item, element)
            self.flush()

    def tags(self, source: str, struct_class: type) -> None:
        """Write the tagged fields that differ from their defaults. Ends the run."""
        tagged = spec.tagged_members(struct_class, self.version)
        if not tagged:
            self.run.append(("x", ""))
            return
        present = []
        for member in tagged:
            present.append(self.out.name("t"))
            self.out.line(f"{present[-1]} = {self.differs(f'{source}.{member.name}', member.field)}")
        self.run.append(("B", " + ".join(present)))
        self.flush()
        for flag, member in zip(present, tagged, strict=True):
            with self.out.block(f"if {flag}:"):
                self.tag(source, struct_class, member)

    def tag(self, source: str, struct_class: type, member: spec.Member) -> None:
        """Write one tagged field: its value is encoded first, because its size precedes it."""
        outer, self.buffer = self.buffer, self.out.name("w")
        self.out.line(f"{self.buffer} = bytearray()")
        self.value(f"{source}.{member.name}", f"{struct_class.__name__}.{member.name}", member.field)
        self.flush()
        inner, self.buffer = self.buffer, outer
        self.out.line(f"{self.buffer} += tag_prefix({member.field.tag}, len({inner}))")
        self.out.line(f"{self.buffer} += {inner}")

    def differs(self, source: str, field: spec.Field) -> str:
        """Return the expression that tells whether a value differs from the default of its field."""
        if field.default is None:
            return f"({source} is not None)"
        if field.kind == "array":
            return f"({source} != [])"
        if field.kind == "nested":
            assert isinstance(field.element, type)
            tests = (
                self.differs(f"{source}.{member.name}", member.field)
                for member in spec.members(field.element)
            )
            return f"({' or '.join(tests)})"
        return f"({source} != {field.default!r})"
