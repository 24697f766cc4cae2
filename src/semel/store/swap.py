"""Replacing files of a data directory by others, as one step that may be interrupted.

The new files are complete and flushed under other names before anything is replaced. Then a marker that lists
all renames is written, flushed and renamed to its name. From that moment on ``finish`` brings the directory
to the new state, however often it is interrupted; before it, nothing has changed. A start refuses while the
marker exists.
"""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from semel.store.files import Files, write_all
from semel.store.interface import StoreBroken

MARKER: Final = "repair.pending"
_UNFINISHED: Final = f"{MARKER}.new"
ASIDE: Final = ".aside"
STAGED: Final = ".staged"
"""The end of the name of a file that is not in its place yet."""


def is_pending(directory: Path) -> bool:
    """Whether files are replaced in part."""
    return (directory / MARKER).exists()


def leftovers(directory: Path) -> list[Path]:
    """Files that were made for a replacement that never began."""
    if is_pending(directory):
        return []
    patterns = (f"*{STAGED}", f"*{STAGED}-wal", f"*{STAGED}-shm", f"chunks/*{STAGED}", _UNFINISHED)
    return sorted(path for pattern in patterns for path in directory.glob(pattern))


def staged(path: Path) -> Path:
    """Where a file is made before it is put in its place."""
    return path.with_name(f"{path.name}{STAGED}")


def begin(
    directory: Path, aside: Sequence[Path], new: Sequence[Path], notes: dict[str, Any], files: Files
) -> None:
    """Decide the replacement: from here on only ``finish`` is left to do. OSError.

    ``aside`` are renamed first. ``new`` are places for which a complete file exists under its staged name.
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
    """What was noted with a replacement that was decided. StoreBroken."""
    path = directory / MARKER
    try:
        read = json.loads(path.read_text(encoding="utf-8"))
        return {**read, "renames": [(str(source), str(target)) for source, target in read["renames"]]}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StoreBroken(f"{path} cannot be read: {error!r}") from error


def finish(directory: Path, files: Files) -> None:
    """Rename what is not renamed yet, durably. OSError, StoreBroken.

    A target that exists was renamed before: targets are new names, or were put aside earlier in the list.
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
    """Rename a file so that nobody takes it for what it was."""
    files.rename(path, _unused(path))


def _named(directory: Path, path: Path) -> str:
    return str(path.relative_to(directory))


def _unused(path: Path) -> Path:
    number = 1
    while (target := path.with_name(f"{path.name}{ASIDE}-{number}")).exists():
        number += 1
    return target
