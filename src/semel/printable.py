"""Makes text from outside safe for a terminal and for a log.

Names, ids, keys and values come from clients, and terminals obey control characters: they clear the screen,
change its title, write to the clipboard, or make a line look like another. So every unprintable character is
shown as its Python escape: the control characters C0 and C1, and the invisible characters that change the
direction of text.
"""

import json
import re
from typing import Any

_NOT_IN_JSON = re.compile(r"[^\x00-\x7e]")


def printable(text: str) -> str:
    """Return the text in one line, with everything unprintable escaped."""
    if text.isprintable():
        return text
    return "".join(sign if sign.isprintable() else _escape(sign) for sign in text)


def printable_lines(text: str) -> str:
    """Return text of several lines with everything unprintable escaped, except line ends and tabs."""
    return "".join(sign if sign.isprintable() or sign in "\n\t" else _escape(sign) for sign in text)


def as_json(value: Any, indent: int | None = None) -> str:
    """Return JSON that a terminal can show: the same value, with everything unprintable escaped."""
    text = json.dumps(value, indent=indent, ensure_ascii=False)
    if text.isascii() and "\x7f" not in text:
        return text
    return _NOT_IN_JSON.sub(lambda found: _json_escape(found[0]), text)


def explained(error: BaseException) -> str:
    """Return the message of an error: for an OSError about a file, its path and the reason."""
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return f"{error.filename}: {error.strerror}"
    return str(error)


def _escape(sign: str) -> str:
    return sign.encode("unicode_escape", "surrogatepass").decode("ascii")


def _json_escape(sign: str) -> str:
    if sign == "\x7f":
        return "\\u007f"  # DEL, the one control character that JSON does not escape
    return sign if sign.isprintable() else json.dumps(sign)[1:-1]
