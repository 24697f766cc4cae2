"""Remembers, in the driver, which versioned writes a run of a streaming query has made or skipped.

A run writes a version once. A second write with the same names is a mistake, and its rows would be lost. If
this run made the first one, the decision or the note of the table says so. If this run skipped it, because an
earlier run had made it, only this memory shows it. Like runs (`remembered_runs`), it is kept in files that
all Python processes of a driver see; what cannot be stored is forgotten.
"""

import hashlib
import json
from contextlib import suppress
from pathlib import Path

from semel.spark.errors import PipelineMismatch
from semel.spark.scratch import forget_oldest, scratch_directory
from semel.spark.sink.versions import Version, second_write_text

#: The limit: the oldest are forgotten first.
WRITES_MAX = 1000
DIRECTORY = "semel-writes"

_own: dict[str, None] = {}


def is_remembered(place: str, version: Version, stream_run: str) -> bool:
    """Whether this run has made or skipped the version. `place` distinguishes sinks."""
    name = _name(place, version, stream_run)
    directory = _directory()
    return name in _own if directory is None else (directory / name).exists()


def remember(place: str, version: Version, stream_run: str) -> None:
    """Record that this run has made or skipped the version."""
    name = _name(place, version, stream_run)
    directory = _directory()
    if directory is None:
        if len(_own) >= WRITES_MAX:
            _own.pop(next(iter(_own)))
        _own[name] = None
        return
    with suppress(OSError):
        directory.mkdir(mode=0o700, exist_ok=True)
        (directory / name).touch()
        forget_oldest(directory, WRITES_MAX)


def skip(place: str, version: Version | None, stream_run: str | None, *, has_rows: bool) -> None:
    """Record a skipped write. PipelineMismatch if it has rows, and is the second one of this run."""
    if version is None or stream_run is None:
        return
    if has_rows and is_remembered(place, version, stream_run):
        raise PipelineMismatch(second_write_text(version))
    remember(place, version, stream_run)


def _directory() -> Path | None:
    scratch = scratch_directory()
    return None if scratch is None else scratch / DIRECTORY


def _name(place: str, version: Version, stream_run: str) -> str:
    return hashlib.sha256(json.dumps([place, version.app, version.number, stream_run]).encode()).hexdigest()
