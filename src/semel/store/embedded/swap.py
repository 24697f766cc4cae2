"""Replace files of a data directory in one step that may be interrupted.

The new files are completed and flushed under other names before any file is replaced. Then a marker that
lists all renames is written, flushed and renamed to its name. From then on ``finish`` brings the directory to
the new state, no matter how often it is interrupted; before that, nothing has changed. A start refuses while
the marker exists.
"""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from semel.store.contract import StoreBroken
from semel.store.embedded.files import Files, write_all

MARKER: Final = "repair.pending"
_UNFINISHED: Final = f"{MARKER}.new"
ASIDE: Final = ".aside"
STAGED: Final = ".staged"
"""Suffix of a file that is not in its place yet."""


def is_pending(directory: Path) -> bool:
    """Whether a replacement is in progress."""
    return (directory / MARKER).exists()


def leftovers(directory: Path) -> list[Path]:
    """Return files of a replacement that never began."""
    if is_pending(directory):
        return []
    patterns = (f"*{STAGED}", f"*{STAGED}-wal", f"*{STAGED}-shm", f"chunks/*{STAGED}", _UNFINISHED)
    return sorted(path for pattern in patterns for path in directory.glob(pattern))


def staged(path: Path) -> Path:
    """Return the name under which a file is created before it is put in its place."""
    return path.with_name(f"{path.name}{STAGED}")


def begin(
    directory: Path, aside: Sequence[Path], new: Sequence[Path], notes: dict[str, Any], files: Files
) -> None:
    """Commit to the replacement: from here on only ``finish`` is left to do. OSError.

    ``aside`` are renamed first. For each of ``new`` a complete file exists under its staged name.
    """
    renames = [(path, _unused(path)) for path in aside]
    renames += [(staged(path), path) for path in new]
    for path in {directory, *(path.parent for path in new)}:
        files.flush_directory(path)
    text = json.dumps({"renames": [[_named(directory, each) for each in pair] for pair in renames], **notes})
    unfinished = directory / _UNFINISHED
    files.remove(unfinished)
    descriptor = files.create(unfinished)
    try:
        write_all(files, descriptor, [text.encode("utf-8")], 0)
        files.flush(descriptor)
    finally:
        os.close(descriptor)
    files.rename(unfinished, directory / MARKER)
    files.flush_directory(directory)


def notes(directory: Path) -> dict[str, Any]:
    """Return the notes of a replacement in progress. StoreBroken."""
    path = directory / MARKER
    try:
        read = json.loads(path.read_text(encoding="utf-8"))
        return {**read, "renames": [(str(source), str(target)) for source, target in read["renames"]]}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StoreBroken(f"{path} cannot be read: {error!r}") from error


def finish(directory: Path, files: Files) -> None:
    """Do the remaining renames, durably. OSError, StoreBroken.

    An existing target was renamed before: targets are new names, or were set aside earlier in the list.
    """
    renames = notes(directory)["renames"]
    parents = {directory}
    for source, target in renames:
        if (directory / source).exists() and not (directory / target).exists():
            files.rename(directory / source, directory / target)
        parents |= {(directory / source).parent, (directory / target).parent}
    for path in sorted(parents):
        files.flush_directory(path)
    files.remove(directory / MARKER)
    files.flush_directory(directory)


def put_aside(path: Path, files: Files) -> None:
    """Rename a file so that it is not used any more."""
    files.rename(path, _unused(path))


def _named(directory: Path, path: Path) -> str:
    return str(path.relative_to(directory))


def _unused(path: Path) -> Path:
    number = 1
    while (target := path.with_name(f"{path.name}{ASIDE}-{number}")).exists():
        number += 1
    return target
