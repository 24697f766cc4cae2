"""Encode clients' text for PostgreSQL, which cannot store U+0000.

U+0000 becomes U+0001 U+0001, and U+0001 becomes U+0001 U+0002; all other text stays as it is. The order of
two texts stays the same, so a page of a listing continues where the last one ended.
"""

from typing import Final

_MARK: Final = "\x01"
_STORED: Final = {0: _MARK + "\x01", 1: _MARK + "\x02"}


def stored(text: str) -> str:
    """Return the text as it is stored."""
    # Fast, because almost no text has such a character.
    return text if text.isprintable() else text.translate(_STORED)


def original(text: str) -> str:
    """Return the text that was stored."""
    if _MARK not in text:
        return text
    return text.replace(_MARK + "\x01", "\x00").replace(_MARK + "\x02", _MARK)
