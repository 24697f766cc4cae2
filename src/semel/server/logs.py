"""Logs: one line per event, a sentence and fields.

Loggers are named `semel.*`. `event` passes fields as `extra={"fields": {...}}`; they are written as
`key=value` after the sentence or as members of a JSON object. A formatter of the standard library writes the
sentence alone, so a program with its own logging can use Semel without this module.

Lines that a client can cause are limited: `RateLimit` passes a few lines of each kind and counts the rest.
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
    """Log one event. The sentence is constant, so that it can be searched for; fields hold what varies."""
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
    # Its pool prints a traceback for each try to reach a server that is away, which the store reports itself.
    logging.getLogger("asyncpg").setLevel(logging.CRITICAL)


class TextFormatter(logging.Formatter):
    """For people: time, level, logger, sentence, fields."""

    def format(self, record: logging.LogRecord) -> str:
        """One line, followed by the traceback if there is one."""
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
    """A value as one word. Text from clients is quoted, so that it cannot forge another line."""
    text = str(value)
    plain = text.isascii() and text.isprintable() and not any(sign in text for sign in ' "=')
    return text if text and plain else _json(text)


def _json(value: Any) -> str:
    """In ASCII, and with DEL escaped, the one control character that JSON does not escape."""
    return json.dumps(value, default=str).replace("\x7f", "\\u007f")


class RateLimit:
    """Passes a few lines of each kind per period; the next line that passes carries the count of the rest."""

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
        """None if this line must not be written, else the number of lines suppressed since the last one."""
        now = self._clock()
        since, count = self._kinds.get(kind, (now, 0))
        if now - since >= self._seconds:
            self._kinds[kind] = (now, 1)
            return max(0, count - self._lines)
        if kind not in self._kinds and len(self._kinds) >= self.KINDS_MAX:
            self._kinds.clear()
        self._kinds[kind] = (since, count + 1)
        return 0 if count < self._lines else None
