"""Read chunk files: on a thread, or on the event loop if the bytes are in the page cache."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from semel.core.types import Buffer
from semel.store.contract import BatchLocation
from semel.store.embedded.chunk_ranges import rest_of, runs
from semel.store.embedded.files import OpenFiles

_NOWAIT: Final = getattr(os, "RWF_NOWAIT", 0)


class ChunkReading:
    """Reads batch locations, from any thread. Recently used files stay open."""

    def __init__(self, path_of: Callable[[int], Path]) -> None:
        self._path_of = path_of
        self._open_files = OpenFiles()

    def read(self, locations: Sequence[BatchLocation], buffers: Sequence[Buffer]) -> None:
        """Fill the buffers with the bytes at these locations. LookupError if some are gone, OSError."""
        for chunk_id, position, run in runs(locations, buffers):
            try:
                file = self._open_files.take(self._path_of(chunk_id))
            except FileNotFoundError:
                raise LookupError(f"chunk {chunk_id} is gone") from None
            assert file is not None
            try:
                _read_run(file.descriptor, chunk_id, position, run)
            finally:
                self._open_files.give_back(file)

    def read_cached(self, locations: Sequence[BatchLocation], buffers: Sequence[Buffer]) -> bool:
        """Read without waiting for the disk. Return False unless all bytes were in memory."""
        if not _NOWAIT:
            return False
        for chunk_id, position, run in runs(locations, buffers):
            file = self._open_files.take(self._path_of(chunk_id), if_open=True)
            if file is None:
                return False
            try:
                if os.preadv(file.descriptor, run, position, _NOWAIT) != sum(map(len, run)):
                    return False
            except OSError:
                # Not in memory, or the file system cannot tell: the caller reads on a thread.
                return False
            finally:
                self._open_files.give_back(file)
        return True

    def forget(self, path: Path) -> None:
        """Close a file that was removed."""
        self._open_files.forget(path)

    def close(self) -> None:
        """Close every file."""
        self._open_files.close()


def _read_run(descriptor: int, chunk_id: int, position: int, run: Sequence[Buffer]) -> None:
    wanted = sum(map(len, run))
    views = run
    while wanted:
        taken = os.preadv(descriptor, views, position)
        if taken == 0:
            raise LookupError(f"chunk {chunk_id} ends at {position}, {wanted} bytes too early")
        wanted -= taken
        position += taken
        if wanted:
            views = rest_of(views, taken)
