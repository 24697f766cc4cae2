"""Disk space that chunks use, while a broker works on them."""

from contextlib import suppress
from pathlib import Path


def allocated(directory: Path) -> int:
    """Return the bytes allocated for a directory's chunks; the broker may delete a chunk at any time."""
    total = 0
    for path in (directory / "chunks").iterdir():
        with suppress(FileNotFoundError):
            total += path.stat().st_blocks * 512
    return total
