"""Space on disk that chunks take, while a broker works on them."""

from contextlib import suppress
from pathlib import Path


def allocated(directory: Path) -> int:
    """Bytes of a data directory's chunks, of which the broker may delete one at any time."""
    total = 0
    for path in (directory / "chunks").iterdir():
        with suppress(FileNotFoundError):
            total += path.stat().st_blocks * 512
    return total
