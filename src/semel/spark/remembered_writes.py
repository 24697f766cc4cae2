"""The versioned writes that the runs of streaming queries have made or skipped, as far as a driver remembers.

A run writes a version once. A second write with the same names is a mistake whose rows would be lost. If the
first one was made in this run, the decision or the note of the table says so. If it was skipped, because an
earlier run has made it, only this memory does. Like that of runs (`remembered_runs`) it is in files that all
Python processes of a driver see; what cannot be kept is forgotten.
"""

import hashlib
import json
from contextlib import suppress
from pathlib import Path

from semel.spark.errors import PipelineMismatch
from semel.spark.scratch import forget_oldest, scratch_directory
from semel.spark.versions import Version, second_write_text

#: More are not remembered: the oldest go first.
WRITES_MAX = 1000
DIRECTORY = "semel-writes"

_own: dict[str, None] = {}


def is_remembered(place: str, version: Version, stream_run: str) -> bool:
    """Whether this run has made or skipped the version. The place tells sinks apart."""
    name = _name(place, version, stream_run)
    directory = _directory()
    return name in _own if directory is None else (directory / name).exists()


def remember(place: str, version: Version, stream_run: str) -> None:
    """Note that this run has made or skipped the version."""
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
    """Note a write that was skipped. PipelineMismatch if it has rows, and is the second one of this run."""
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
