"""Writes Python source, for the generators of encoders, decoders and constructors.

It indents lines, provides unique names, and collects the constants that the generated function refers to:
classes, helpers, and the bound methods of `struct.Struct`, one for each format.
"""

import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


class SourceWriter:
    """The source of one function under construction."""

    def __init__(self, constants: dict[str, Any]) -> None:
        self.constants = dict(constants)
        self._lines: list[str] = []
        self._depth = 0
        self._names = 0

    def line(self, text: str) -> None:
        """Write one line at the current indentation."""
        self._lines.append("    " * self._depth + text)

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        """Write the head of a compound statement, and indent what follows."""
        self.line(head)
        self._depth += 1
        yield
        self._depth -= 1

    def name(self, prefix: str) -> str:
        """Return an unused local name."""
        self._names += 1
        return f"{prefix}{self._names}"

    def class_name(self, struct_class: type) -> str:
        """Return the name of a class in the generated source."""
        self.constants[struct_class.__name__] = struct_class
        return struct_class.__name__

    def packer(self, codes: str) -> str:
        """Return the name of the function that packs these struct codes."""
        return self._struct_method("PACK_", codes, "pack")

    def unpacker(self, codes: str) -> str:
        """Return the name of the function that unpacks these struct codes at a position."""
        return self._struct_method("UNPACK_", codes, "unpack_from")

    def _struct_method(self, prefix: str, codes: str, method: str) -> str:
        name = prefix + codes.replace("?", "t")
        if name not in self.constants:
            self.constants[name] = getattr(struct.Struct(">" + codes), method)
        return name

    def text(self) -> str:
        """Return the source so far."""
        return "\n".join(self._lines) + "\n"

    def function(self, name: str, title: str) -> Callable[..., Any]:
        """Compile the source, and return the function of that name."""
        namespace = dict(self.constants)
        exec(compile(self.text(), f"<semel.wire {title}>", "exec"), namespace)
        function: Callable[..., Any] = namespace[name]
        return function
