"""Logs: one line per event, a sentence and fields.

Loggers are named `semel.*`. Fields are given as `extra={"fields": {...}}` through `event`, and come out
as `key=value` behind the sentence or as members of a JSON object. A logger of the standard library that
knows nothing of this, prints the sentence alone; nothing here is needed to use Semel in a program that
has its own logging.

What a client can cause is limited: `RateLimit` lets a few lines of each kind through and counts the rest.
"""

import json
import logging
import sys
import time
from collections.abc import Callable
from typing import Any, Final, Literal, TextIO

from semel.printable import printable, printable_lines

Format = Literal["text", "json"]

_FIELDS: Final = "fields"


def event(logger: logging.Logger, level: int, sentence: str, **fields: Any) -> None:
    """Log one event. The sentence is constant, so that it can be searched for; what varies is a field."""
    if logger.isEnabledFor(level):
        logger.log(level, sentence, extra={_FIELDS: fields})


def configure(level: str = "info", fmt: Format = "text", stream: TextIO | None = None) -> None:
    """Send the lines of all `semel.*` loggers to standard error, and nowhere else."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter() if fmt == "json" else TextFormatter())
    root = logging.getLogger("semel")
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    root.propagate = False


class TextFormatter(logging.Formatter):
    """For people: time, level, logger, sentence, fields."""

    def format(self, record: logging.LogRecord) -> str:
        """One line, and a traceback below it if there is one."""
        sentence = printable(record.getMessage())
        parts = [_time_of(record), record.levelname.lower(), record.name, sentence]
        parts += [f"{key}={_text(value)}" for key, value in getattr(record, _FIELDS, {}).items()]
        line = " ".join(parts)
        if record.exc_info:
            line += "\n" + printable_lines(self.formatException(record.exc_info))
        return line


class JsonFormatter(logging.Formatter):
    """For machines: one object per line."""

    def format(self, record: logging.LogRecord) -> str:
        """One line; a traceback is a member."""
        line: dict[str, Any] = {
            "time": _time_of(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
            **getattr(record, _FIELDS, {}),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return _json(line)


def _time_of(record: logging.LogRecord) -> str:
    seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
    return f"{seconds}.{int(record.msecs):03d}Z"


def _text(value: Any) -> str:
    """A value as one word. What a client sent is quoted, so that it cannot pretend to be another line."""
    text = str(value)
    plain = text.isascii() and text.isprintable() and not any(sign in text for sign in ' "=')
    return text if text and plain else _json(text)


def _json(value: Any) -> str:
    """In ASCII, and without the one control character that JSON leaves as it is."""
    return json.dumps(value, default=str).replace("\x7f", "\\u007f")


class RateLimit:
    """A few lines of each kind in a while; the rest is counted and told with the next line that passes."""

    __slots__ = ("_clock", "_kinds", "_lines", "_seconds")

    KINDS_MAX: Final = 256

    def __init__(
        self, lines: int = 5, seconds: float = 10.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._lines = lines
        self._seconds = seconds
        self._clock = clock
        self._kinds: dict[str, tuple[float, int]] = {}

    def suppressed(self, kind: str) -> int | None:
        """None if this line must not be written, otherwise how many were not written since the last."""
        now = self._clock()
        since, count = self._kinds.get(kind, (now, 0))
        if now - since >= self._seconds:
            self._kinds[kind] = (now, 1)
            return max(0, count - self._lines)
        if kind not in self._kinds and len(self._kinds) >= self.KINDS_MAX:
            self._kinds.clear()
        self._kinds[kind] = (since, count + 1)
        return 0 if count < self._lines else None
