"""Logs: one line per event, a sentence and fields.

Loggers are named `semel.*`. `event` passes fields as `extra={"fields": {...}}`; they are written as
`key=value` after the sentence or as members of a JSON object. A formatter of the standard library writes the
sentence alone, so a program with its own logging can use Semel without this module.

An error may repeat without end, so `FewOfEach` passes a few lines of each sentence per minute. Events with
fields are limited where they are logged, if a client can cause them.
"""

import json
import logging
import sys
import time
from typing import Any, Final, Literal, TextIO

from semel.printable import printable, printable_lines
from semel.rate_limit import RateLimit

Format = Literal["text", "json"]

_FIELDS: Final = "fields"
SENTENCE_LINES: Final = 20
"""Lines of one sentence per period. Lists that the code truncates have no more lines."""
SENTENCE_SECONDS: Final = 60.0


def event(logger: logging.Logger, level: int, sentence: str, **fields: Any) -> None:
    """Log one event. The sentence is constant, so that it can be searched for; fields hold what varies."""
    if logger.isEnabledFor(level):
        logger.log(level, sentence, extra={_FIELDS: fields})


def configure(level: str = "info", fmt: Format = "text", stream: TextIO | None = None) -> None:
    """Send the lines of all `semel.*` loggers to standard error only, or to ``stream``."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter() if fmt == "json" else TextFormatter())
    handler.addFilter(FewOfEach())
    root = logging.getLogger("semel")
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    root.propagate = False
    # Its pool logs a traceback for each attempt to reach a server that is down, which the store reports.
    logging.getLogger("asyncpg").setLevel(logging.CRITICAL)


class FewOfEach(logging.Filter):
    """Passes a few lines of each sentence per period; the next line has the number of suppressed lines."""

    def __init__(self, limit: RateLimit | None = None) -> None:
        super().__init__()
        self._limit = limit or RateLimit(SENTENCE_LINES, SENTENCE_SECONDS)

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the line is written."""
        if hasattr(record, _FIELDS) or record.levelno >= logging.CRITICAL:
            return True
        # The sentence before its arguments are filled in.
        suppressed = self._limit.suppressed(f"{record.name} {record.levelname} {record.msg}")
        if suppressed:
            setattr(record, _FIELDS, {"suppressed": suppressed})
        return suppressed is not None


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
    """Format a value as one word. Text from clients is quoted, so that it cannot forge another line."""
    text = str(value)
    plain = text.isascii() and text.isprintable() and not any(sign in text for sign in ' "=')
    return text if text and plain else _json(text)


def _json(value: Any) -> str:
    """Encode JSON in ASCII. DEL is escaped too, the one control character that JSON does not escape."""
    return json.dumps(value, default=str).replace("\x7f", "\\u007f")
