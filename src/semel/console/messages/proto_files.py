"""Parses the parts of .proto files that decoding needs: fields, enums, maps, nested types.

Options, services, extensions and reserved ranges are skipped. `ProtoError` says what could not be read.
"""

import re
from dataclasses import dataclass, field
from typing import Final

_TOKEN: Final = re.compile(
    r"""\s+|//[^\n]*|/\*.*?\*/|("(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')|([\w.+-]+)|([{}\[\]();=<>,:])""",
    re.DOTALL,
)
TOKENS_MAX: Final = 200_000
DEPTH_MAX: Final = 32


class ProtoError(ValueError):
    """A file cannot be read, or data does not fit a message."""


@dataclass(frozen=True, slots=True)
class ProtoField:
    """A field of a message. `type_name` is as written; `map_key` is set for maps."""

    name: str
    number: int
    type_name: str
    is_repeated: bool = False
    map_key: str | None = None


@dataclass(slots=True)
class ProtoMessage:
    """A message, with its full name."""

    name: str
    fields: dict[int, ProtoField] = field(default_factory=dict)
    nested: list["ProtoMessage"] = field(default_factory=list)


@dataclass(slots=True)
class ProtoFile:
    """The messages and enums of a file; nested ones are in the tables under their full name."""

    package: str = ""
    top: list[ProtoMessage] = field(default_factory=list)
    messages: dict[str, ProtoMessage] = field(default_factory=dict)
    enums: dict[str, dict[int, str]] = field(default_factory=dict)


def parse_proto(text: str) -> ProtoFile:
    """Read a file."""
    return _Parser(_tokens(text)).file()


def _tokens(text: str) -> list[str]:
    found, at = [], 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise ProtoError(f"{text[at : at + 20]!r} is not part of a .proto file")
        if match.lastindex is not None:
            found.append(match[match.lastindex])
        at = match.end()
        if len(found) > TOKENS_MAX:
            raise ProtoError("the file is too long")
    return found


class _Parser:
    def __init__(self, tokens: list[str]) -> None:
        self._tokens = tokens
        self._at = 0
        self._made = ProtoFile()

    def file(self) -> ProtoFile:
        while self._at < len(self._tokens):
            word = self._next()
            if word == "package":
                self._made.package = self._next()
                self._skip_statement()
            elif word == "message":
                self._made.top.append(self._message(self._made.package, 0))
            elif word == "enum":
                self._enum(self._made.package)
            elif word != ";":
                self._skip_statement()
        return self._made

    def _next(self) -> str:
        if self._at >= len(self._tokens):
            raise ProtoError("the file ends too early")
        self._at += 1
        return self._tokens[self._at - 1]

    def _peek(self) -> str:
        return self._tokens[self._at] if self._at < len(self._tokens) else ""

    def _expect(self, wanted: str) -> None:
        if (found := self._next()) != wanted:
            raise ProtoError(f"{found!r} where {wanted!r} was expected")

    def _skip_statement(self) -> None:
        """Skip to the end of a statement, or over its block."""
        depth = 0
        while self._at < len(self._tokens):
            word = self._next()
            if word in "{[(":
                depth += 1
            elif word in "}])":
                depth -= 1
                if depth == 0 and word == "}":
                    return
            elif word == ";" and depth == 0:
                return

    def _message(self, space: str, depth: int) -> ProtoMessage:
        if depth > DEPTH_MAX:
            raise ProtoError("messages are nested too deeply")
        name = self._next()
        made = ProtoMessage(f"{space}.{name}" if space else name)
        self._made.messages[made.name] = made
        self._expect("{")
        self._members(made, depth)
        return made

    def _members(self, made: ProtoMessage, depth: int) -> None:
        while (word := self._next()) != "}":
            if word == ";":
                continue
            if word == "message":
                made.nested.append(self._message(made.name, depth + 1))
            elif word == "enum":
                self._enum(made.name)
            elif word == "oneof":
                self._next()
                self._expect("{")
                self._members(made, depth)
            elif word in ("option", "reserved", "extensions", "extend", "group"):
                self._skip_statement()
            else:
                self._field(made, word)

    def _field(self, made: ProtoMessage, word: str) -> None:
        is_repeated, map_key = word == "repeated", None
        kind = self._next() if word in ("repeated", "optional", "required") else word
        if kind == "map" and self._peek() == "<":
            self._expect("<")
            map_key = self._next()
            self._expect(",")
            kind = self._next()
            self._expect(">")
        name = self._next()
        self._expect("=")
        number = _number(self._next())
        made.fields[number] = ProtoField(name, number, kind, is_repeated, map_key)
        self._skip_statement()

    def _enum(self, space: str) -> None:
        name = self._next()
        values: dict[int, str] = {}
        self._expect("{")
        while (word := self._next()) != "}":
            if word in ("option", "reserved"):
                self._skip_statement()
            elif word != ";":
                self._expect("=")
                values.setdefault(_number(self._next()), word)
                self._skip_statement()
        self._made.enums[f"{space}.{name}" if space else name] = values


def _number(text: str) -> int:
    try:
        return int(text, 0)
    except ValueError:
        raise ProtoError(f"{text!r} where a number was expected") from None
