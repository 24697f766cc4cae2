"""Text from outside, made safe for a terminal and for a log.

Names, ids, keys and values come from clients, and whoever looks at them sits at a terminal, which obeys
control characters: they clear the screen, change its title, write into the clipboard, or make a line look
like another. Whatever is not printable is therefore shown as the escape that Python would write for it:
control characters of both sets, and the invisible ones that change the direction of text.
"""

import json
import re
from typing import Any

__all__ = ["as_json", "explained", "printable", "printable_lines"]

_NOT_IN_JSON = re.compile(r"[^\x00-\x7e]")


def printable(text: str) -> str:
    """The text in one line, with everything that is not printable escaped."""
    if text.isprintable():
        return text
    return "".join(sign if sign.isprintable() else _escape(sign) for sign in text)


def printable_lines(text: str) -> str:
    """The same for text of several lines: their ends, and tabs, stay what they are."""
    return "".join(sign if sign.isprintable() or sign in "\n\t" else _escape(sign) for sign in text)


def as_json(value: Any, indent: int | None = None) -> str:
    """JSON that a terminal can show: the same value, with what is not printable written as escapes."""
    text = json.dumps(value, indent=indent, ensure_ascii=False)
    if text.isascii() and "\x7f" not in text:
        return text
    return _NOT_IN_JSON.sub(lambda found: _json_escape(found[0]), text)


def explained(error: BaseException) -> str:
    """What an error says; one of the operating system about a file says its path and the reason."""
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return f"{error.filename}: {error.strerror}"
    return str(error)


def _escape(sign: str) -> str:
    return sign.encode("unicode_escape", "surrogatepass").decode("ascii")


def _json_escape(sign: str) -> str:
    if sign == "\x7f":
        return "\\u007f"  # the one that JSON leaves as it is
    return sign if sign.isprintable() else json.dumps(sign)[1:-1]
