"""Generates decoders: one Python function for each declaration and version.

The function reads the whole message, with all structs inlined, in one pass from position `p` of buffer `b`:

    def decode(b, p):
        if type(b) is not memoryview:
            b = memoryview(b)
        end = len(b)
        m1 = new(ProduceRequest)
        n2 = b[p]
        p += 1
        if n2 > 127:
            n2, p = read_uvarint(b, p - 1)
        n2 -= 1
        if n2 < 0:
            m1.transactional_id = None
        else:
            e3 = p + n2
            if e3 > end or n2 > 32767:
                raise bad_length('ProduceRequest.transactional_id', n2, end - p)
            m1.transactional_id = str(b[p:e3], "utf-8")
            p = e3
        ...

Three things make it fast: adjacent fields of fixed width, with the length that follows them, are one
`unpack_from`; a length of one byte needs no call; and objects are created without calling `__init__`.

Reading past the end raises `struct.error` or `IndexError`; `Message.decode` turns those into `ProtocolError`.
Slicing never fails, so the end of each slice is compared with `end`. Before the first element of an array is
read, the array must fit into the remaining bytes, each element counted with its minimum size.

A message with records is read from a view of the frame, so that records are not copied. Other messages are
read from `bytes`, which is faster to index.

A long frame is read by a second function that is generated from the same declaration, a generator. It counts
the elements of all arrays and the tagged fields against a limit, and yields after every `SLICE_ELEMENTS` of
them, so that the event loop can do other work in between.
"""

import struct
from collections.abc import Callable, Generator
from typing import Any, Final

from semel.wire import primitives, spec
from semel.wire.source import SourceWriter

Decoder = Callable[[spec.Buffer, int], Any]
SlicedDecoder = Callable[[spec.Buffer, int, int], Generator[None, None, Any]]

SLICE_ELEMENTS: Final = 1_000
"""Elements that are read, or written, in one slice: about a millisecond of work."""

_CONSTANTS = {
    "new": object.__new__,
    "read_uvarint": primitives.read_uvarint,
    "read_tag": primitives.read_tag,
    "skip_tagged_fields": primitives.skip_tagged_fields,
    "too_many": primitives.too_many,
    "bad_length": primitives.bad_length,
    "bad_tag": primitives.bad_tag,
    "unpack_from": struct.unpack_from,
}


def compile_decoder(message: type, version: int, flexible: bool) -> Decoder:
    """Return the function that reads this message in this version from a buffer and a position."""
    return _DecoderWriter(message, version, flexible, is_sliced=False).compile()


def compile_sliced_decoder(message: type, version: int, flexible: bool) -> SlicedDecoder:
    """Return the generator function that reads the message: of a buffer, a position, an element limit."""
    return _DecoderWriter(message, version, flexible, is_sliced=True).compile()


class _DecoderWriter:
    """Generates one decoder. The current run is the fixed-width reads that are not emitted yet."""

    def __init__(self, message: type, version: int, flexible: bool, *, is_sliced: bool) -> None:
        self.message = message
        self.version = version
        self.flexible = flexible
        self.is_sliced = is_sliced
        self.views = spec.has_records(message, version)
        self.out = SourceWriter(_CONSTANTS)
        self.run: list[tuple[str, str]] = []
        self.run_size = 0

    def compile(self) -> Callable[..., Any]:
        kind = "memoryview" if self.views else "bytes"
        with self.out.block("def decode(b, p, left):" if self.is_sliced else "def decode(b, p):"):
            with self.out.block(f"if type(b) is not {kind}:"):
                self.out.line(f"b = {kind}(b)")
            self.out.line("end = len(b)")
            if self.is_sliced:
                self.out.line(f"most, pause = left, max(left - {SLICE_ELEMENTS}, 0)")
                # Makes the function a generator even if the message has no arrays.
                self.out.line("yield")
            target = self.struct(self.message)
            self.flush()
            self.out.line(f"return {target}")
        return self.out.function("decode", f"decoder of {self.message.__name__} v{self.version}")

    def count(self, elements: str) -> None:
        """Count elements against the limit; yield at the end of a slice."""
        if not self.is_sliced:
            return
        self.out.line(f"left -= {elements}")
        with self.out.block("if left < pause:"):
            with self.out.block("if left < 0:"):
                self.out.line("raise too_many(most)")
            self.out.line(f"pause = max(left - {SLICE_ELEMENTS}, 0)")
            self.out.line("yield")

    def read_fixed(self, kind: str, target: str) -> None:
        self.run.append((spec.FIXED_CODES[kind], target))
        self.run_size += spec.FIXED_SIZES[kind]

    def flush(self) -> None:
        """Emit the current run as one unpack."""
        if self.run_size == 1 and self.run[0][0] == "B":
            self.out.line(f"{self.run[0][1]} = b[p]")
            self.out.line("p += 1")
        elif self.run:
            unpack = self.out.unpacker("".join(code for code, _ in self.run))
            targets = ", ".join(target for _, target in self.run)
            self.out.line(f"{targets}{',' if len(self.run) == 1 else ''} = {unpack}(b, p)")
            self.out.line(f"p += {self.run_size}")
        self.run, self.run_size = [], 0

    def length(self, kind: str) -> str:
        """Read a length; return the name that holds it, negative for null. Ends the run."""
        name = self.out.name("n")
        if not self.flexible:
            self.read_fixed("int16" if kind == "string" else "int32", name)
            self.flush()
            return name
        self.read_byte(name)
        with self.out.block(f"if {name} > 127:"):
            self.out.line(f"{name}, p = read_uvarint(b, p - 1)")
        self.out.line(f"{name} -= 1")
        return name

    def read_byte(self, name: str) -> None:
        """Read one unsigned byte: a varint, unless its high bit is set. Ends the run."""
        self.run.append(("B", name))
        self.run_size += 1
        self.flush()

    def struct(self, struct_class: type) -> str:
        """Read a struct; return the name that holds it."""
        target = self.out.name("m")
        self.out.line(f"{target} = new({self.out.class_name(struct_class)})")
        present = list(spec.untagged_members(struct_class, self.version))
        tagged = spec.tagged_members(struct_class, self.version) if self.flexible else []
        for member in spec.members(struct_class):
            if member not in present:
                self.default(f"{target}.{member.name}", member.field)
        for member in present:
            self.value(f"{target}.{member.name}", f"{struct_class.__name__}.{member.name}", member.field)
        if self.flexible:
            self.tags(struct_class, target, tagged)
        return target

    def default(self, target: str, field: spec.Field) -> None:
        """Set a field to its default. Called for fields that this version lacks, and for tagged fields."""
        if field.kind == "array" and field.default is not None:
            self.out.line(f"{target} = []")
        elif field.kind == "nested" and field.default is not None:
            inner = self.out.name("m")
            assert isinstance(field.element, type)
            self.out.line(f"{inner} = new({self.out.class_name(field.element)})")
            for member in spec.members(field.element):
                self.default(f"{inner}.{member.name}", member.field)
            self.out.line(f"{target} = {inner}")
        else:
            self.out.line(f"{target} = {field.default!r}")

    def value(self, target: str, name: str, field: spec.Field) -> None:
        """Read one value into a target, such as `m1.topics`."""
        nullable = field.nullable is not None and self.version in field.nullable
        if field.kind in spec.FIXED_CODES:
            self.read_fixed(field.kind, target)
        elif field.kind == "nested":
            assert isinstance(field.element, type)
            self.nested(target, field.element, nullable)
        else:
            length = self.length(field.kind)
            if nullable:
                with self.out.block(f"if {length} < 0:"):
                    self.out.line(f"{target} = None")
                with self.out.block("else:"):
                    self.sized(target, name, field, length, "")
            else:
                self.sized(target, name, field, length, f"{length} < 0 or ")

    def nested(self, target: str, struct_class: type, nullable: bool) -> None:
        if not nullable:
            self.out.line(f"{target} = {self.struct(struct_class)}")
            return
        present = self.out.name("n")
        self.read_fixed("int8", present)
        self.flush()
        with self.out.block(f"if {present} < 0:"):
            self.out.line(f"{target} = None")
        with self.out.block("else:"):
            inner = self.struct(struct_class)
            self.flush()
            self.out.line(f"{target} = {inner}")

    def sized(self, target: str, name: str, field: spec.Field, length: str, also: str) -> None:
        """Read the value after a length that is not null; `also` is one more condition of a bad length."""
        if field.kind == "array":
            assert field.element is not None
            self.array(target, name, field.element, length, also)
            return
        stop = self.out.name("e")
        self.out.line(f"{stop} = p + {length}")
        if field.kind == "string" and self.flexible:
            also += f"{length} > {primitives.MAX_STRING} or "
        with self.out.block(f"if {also}{stop} > end:"):
            self.out.line(f"raise bad_length({name!r}, {length}, end - p)")
        piece = f"b[p:{stop}]"
        if field.kind == "string":
            piece = f'str({piece}, "utf-8")' if self.views else f"{piece}.decode()"
        elif field.kind == "bytes" and self.views:
            piece = f"bytes({piece})"
        self.out.line(f"{target} = {piece}")
        self.out.line(f"p = {stop}")

    def array(self, target: str, name: str, element: str | type, length: str, also: str) -> None:
        least = spec.least_size(element, self.version, self.flexible)
        left = "end - p" if least == 1 else f"(end - p) // {least}"
        with self.out.block(f"if {also}{length} > {left}:"):
            self.out.line(f"raise bad_length({name!r}, {length}, end - p)")
        if isinstance(element, str) and element in spec.FIXED_CODES:
            self.count(length)
            self.out.line(f"{target} = list(unpack_from(f'>{{{length}}}{spec.FIXED_CODES[element]}', b, p))")
            self.out.line(f"p += {length} * {least}")
            return
        items, item = self.out.name("a"), self.out.name("x")
        self.out.line(f"{target} = {items} = []")
        with self.out.block(f"for _ in range({length}):"):
            self.count("1")
            if isinstance(element, str):
                length = self.length(element)
                self.sized(item, name, spec.element_field(element), length, f"{length} < 0 or ")
            else:
                item = self.struct(element)
            self.flush()
            self.out.line(f"{items}.append({item})")

    def tags(self, struct_class: type, target: str, tagged: list[spec.Member]) -> None:
        """Read the section of tagged fields that ends every struct of a flexible version."""
        count = self.out.name("t")
        self.read_byte(count)
        with self.out.block(f"if {count}:"):
            if not tagged:
                if self.is_sliced:
                    self.out.line(f"{count}, _ = read_uvarint(b, p - 1)")
                    self.count(count)
                self.out.line("p = skip_tagged_fields(b, p - 1, end)")
                return
            self.out.line(f"{count}, p = read_uvarint(b, p - 1)")
            self.count(count)
            tag, stop = self.out.name("tag"), self.out.name("stop")
            self.out.line(f"{tag} = -1")
            with self.out.block(f"for _ in range({count}):"):
                self.out.line(f"{tag}, p, {stop} = read_tag(b, p, end, {tag})")
                for member in tagged:
                    name = f"{struct_class.__name__}.{member.name}"
                    with self.out.block(f"if {tag} == {member.field.tag}:"):
                        self.value(f"{target}.{member.name}", name, member.field)
                        self.flush()
                        with self.out.block(f"if p != {stop}:"):
                            self.out.line(f"raise bad_tag({name!r})")
                self.out.line(f"p = {stop}")
