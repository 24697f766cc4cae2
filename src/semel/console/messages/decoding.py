"""Shows the bytes of a key, a value or a header as text, within a bound.

The result is text for people: control characters, terminal sequences and characters that change the direction
of a line are shown as escapes, and bytes that are not UTF-8 as `\\xNN`. Templates and scripts insert it as
text, never as markup.
"""

import codecs
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import msgspec

from semel.console.messages.limits import PARSED_BYTES_MAX
from semel.console.messages.registry import Decoded, Registry, SchemaProblem
from semel.printable import printable_lines

HEX_BYTES_MAX: Final = 64 << 10
_LINE_BYTES: Final = 16
_UTF8: Final = codecs.getincrementaldecoder("utf-8")


class View(StrEnum):
    """How bytes are shown."""

    AUTO = "auto"
    JSON = "json"
    TEXT = "text"
    HEX = "hex"
    RAW = "raw"


@dataclass(frozen=True, slots=True)
class Shown:
    """Bytes as text. `kind` is the format they were decoded as; `note` says what failed."""

    text: str
    kind: str
    size_bytes: int
    is_truncated: bool = False
    schema: str | None = None
    note: str | None = None


class Decoding:
    """Shows bytes in one view, with the schemas of a registry if there is one."""

    def __init__(self, view: View = View.AUTO, registry: Registry | None = None) -> None:
        self.view = view
        self._registry = registry

    def show(self, data: bytes | None, most: int, *, pretty: bool = False) -> Shown:
        """Show at most `most` bytes; `pretty` breaks JSON and hex into lines."""
        if data is None:
            return Shown("", "null", 0)
        if self.view is View.HEX:
            return _hex(data, most, pretty)
        if self.view is View.RAW:
            text = data[:most].decode("latin-1").encode("unicode_escape").decode("ascii")
            return Shown(text, "raw", len(data), len(data) > most)
        note: str | None = None
        if self.view is not View.TEXT:
            try:
                decoded = self.decode(data)
            except SchemaProblem as problem:
                note, decoded = str(problem), None
            if decoded is not None:
                return _schema_value(decoded, len(data), most, pretty)
        if self.view is View.JSON or (self.view is View.AUTO and _looks_like_json(data)):
            shown = _json(data, most, pretty)
            if shown is not None:
                return shown
            if self.view is View.JSON:
                note = note or "this is not JSON"
        if self.view is View.AUTO and not _is_text(data[:most]):
            shown = _hex(data, most, pretty)
            return Shown(shown.text, "hex", len(data), shown.is_truncated, note=note)
        return Shown(_text(data, most), "text", len(data), len(data) > most, note=note)

    def decode(self, data: bytes) -> Decoded | None:
        """Decode with the schema of the registry. None if there is no registry, or no schema id."""
        if self._registry is None or len(data) > PARSED_BYTES_MAX:
            return None
        return self._registry.decode(data)


def _schema_value(decoded: Decoded, size_bytes: int, most: int, pretty: bool) -> Shown:
    encoded = msgspec.json.encode(decoded.value, enc_hook=str)
    whole = msgspec.json.format(encoded, indent=2) if pretty and len(encoded) <= most else encoded
    schema = f"{decoded.name} (schema {decoded.schema_id})"
    return Shown(_text(whole, most), decoded.kind, size_bytes, len(whole) > most, schema)


def _json(data: bytes, most: int, pretty: bool) -> Shown | None:
    """Format JSON without parsing it into objects, so that numbers and repeated names stay as they are."""
    if len(data) > most or not pretty:
        return Shown(_text(data, most), "json", len(data), len(data) > most)
    try:
        whole = msgspec.json.format(data, indent=2)
        whole.decode()
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return None
    return Shown(_text(whole, len(whole)), "json", len(data))


def _looks_like_json(data: bytes) -> bool:
    head = data[:64].lstrip()
    return head[:1] in (b"{", b"[") and _is_text(data[:1024])


def _is_text(data: bytes) -> bool:
    """Whether bytes are UTF-8 without binary zeros. A character that is cut off at the end is allowed."""
    try:
        return "\0" not in _UTF8("strict").decode(data)
    except UnicodeDecodeError:
        return False


def _text(data: bytes, most: int) -> str:
    # An incremental decoder omits a character that is cut off at the end.
    text = _UTF8("backslashreplace").decode(data[:most], final=len(data) <= most)
    return text if text.isprintable() else printable_lines(text)


def _hex(data: bytes, most: int, pretty: bool) -> Shown:
    most = min(most, HEX_BYTES_MAX)
    part = data[:most]
    if not pretty:
        short = part[: most // 3]
        return Shown(short.hex(" "), "hex", len(data), len(data) > len(short))
    lines = []
    for at in range(0, len(part), _LINE_BYTES):
        line = part[at : at + _LINE_BYTES]
        signs = "".join(chr(byte) if 0x20 <= byte < 0x7F else "." for byte in line)
        lines.append(f"{at:08x}  {line.hex(' '):<{_LINE_BYTES * 3 - 1}}  {signs}")
    return Shown("\n".join(lines), "hex", len(data), len(data) > most)
