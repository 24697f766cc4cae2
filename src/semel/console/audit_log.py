"""Reads the audit trail: the newest lines of the logger `semel.audit` in the log of a broker on this machine.

The log may be text or JSON (`--log-format`). Only the end of the file is read.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

LOGGER = "semel.audit"
READ_BYTES = 2 << 20
_TEXT = re.compile(r"(\S+) (\w+) semel\.audit (.*)")
_FIELD = re.compile(r'(\w+)=("(?:[^"\\]|\\.)*"|\S+)')


def newest(file: Path, wanted: str, most: int) -> list[dict[str, Any]]:
    """Return the newest lines that contain a text, newest first. OSError if the file cannot be read."""
    found = []
    for line in reversed(list(_lines(file))):
        if wanted and wanted.lower() not in line.lower():
            continue
        entry = _parsed(line)
        if entry is not None:
            found.append(entry)
            if len(found) >= most:
                break
    return found


def _lines(file: Path) -> Iterator[str]:
    with file.open("rb") as stream:
        size = stream.seek(0, 2)
        stream.seek(max(0, size - READ_BYTES))
        text = stream.read(READ_BYTES).decode("utf-8", "replace")
    lines = text.splitlines()
    yield from lines[1:] if size > READ_BYTES else lines


def _parsed(line: str) -> dict[str, Any] | None:
    if LOGGER not in line:
        return None
    if line.startswith("{"):
        try:
            found = json.loads(line)
        except ValueError:
            return None
        if not isinstance(found, dict) or found.get("logger") != LOGGER:
            return None
        fields = {
            name: str(value)
            for name, value in found.items()
            if name not in ("time", "level", "logger", "event")
        }
        return _entry(str(found.get("time")), str(found.get("event")), fields)
    parts = _TEXT.match(line)
    if parts is None:
        return None
    fields = {name: _unquoted(value) for name, value in _FIELD.findall(parts[3])}
    sentence = _FIELD.split(parts[3], maxsplit=1)[0].strip()
    return _entry(parts[1], sentence, fields)


def _entry(time: str, event: str, fields: dict[str, str]) -> dict[str, Any]:
    return {
        "time": time,
        "event": event,
        "principal": fields.pop("principal", None),
        "client": fields.pop("client", None),
        "fields": fields,
    }


def _unquoted(value: str) -> str:
    if not value.startswith('"'):
        return value
    try:
        return str(json.loads(value))
    except ValueError:
        return value
