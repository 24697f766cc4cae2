"""Write the WAL: it has every commit in order, durable after one flush, until it is checkpointed.

A commit is one *frame*: the facts, the locations of their batches, and the batches themselves if they are
small. A written frame is in the operating system and survives the end of the process; a flush puts all frames
on disk. The WAL applier writes them to ledger and chunks later, without a flush of its own.

Two files of a fixed size are written alternately. They never grow, so a flush costs no more than the bytes,
and a full disk does not affect them. A file is reused, from its beginning, when ledger and chunks have
everything in it on disk (``EmbeddedStore.checkpoint``). Nothing is truncated or erased: a reader recognises
old frames by their numbers (``wal_reading``).
"""

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from semel.core.types import Buffer
from semel.store.embedded import wal_reading
from semel.store.embedded.files import FILE_MODE, Files, naming, write_all

FILE_BYTES: Final = 16 * 1024 * 1024
"""The size of each file. A commit takes some kilobytes, so checkpoints are rare; a start reads both files."""
FRAME_BYTES_MAX: Final = 4 * 1024 * 1024
"""Larger frames are refused: the facts of one commit are far smaller."""
ZEROED_BYTES: Final = 1024 * 1024
"""How far ahead the file is filled with zeros. Flushing overwritten zeros is cheaper than new blocks."""
QUICK_SECONDS: Final = 0.0005
"""A faster flush is cheaper than a round trip to a thread."""
RECENT: Final = 8
"""Flushes used to estimate the next one. A single slow flush is more often due to a busy processor."""


class _File:
    """One of the two files."""

    __slots__ = ("descriptor", "last_number", "path", "position", "zeroed_end")

    def __init__(self, path: Path) -> None:
        self.path = path
        self.descriptor = -1
        self.position = 0
        self.zeroed_end = 0
        self.last_number = 0
        """The newest commit in the file."""


class WriteAheadLog:
    """Two files in a directory. The event loop writes frames; it or one thread flushes them."""

    def __init__(self, directory: Path, files: Files, store_id: bytes) -> None:
        self._files = files
        self._owner = wal_reading.short_id(store_id)
        self._all = [_File(path) for path in paths_in(directory)]
        self._writing = self._all[0]
        self._usual_seconds = 1.0

    def start(self) -> None:
        """Start a new WAL. Everything in the old one must be in ledger and chunks. OSError.

        When this returns, both files are on disk at their full size, so a start after a crash can rely on
        finding them.
        """
        for file in self._all:
            file.descriptor = os.open(file.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
            if os.fstat(file.descriptor).st_size != FILE_BYTES:
                with naming(file.path):
                    self._files.allocate(file.descriptor, 0, FILE_BYTES)
                    self._files.resize(file.descriptor, FILE_BYTES)
                    self._files.flush(file.descriptor)
            file.last_number = 0
        self._use(self._all[0])

    @property
    def file_bytes(self) -> int:
        """The size of each file."""
        return FILE_BYTES

    def has_room(self, length: int) -> bool:
        """Whether a frame with this many bytes of facts and batches fits into the current file."""
        return self._writing.position + wal_reading.OVERHEAD + length <= FILE_BYTES

    def may_switch(self, synced_number: int) -> bool:
        """Whether the other file may be reused: ledger and chunks are flushed up to this commit."""
        return self._other.last_number <= synced_number

    def switch(self) -> None:
        """Continue in the other file. The current one must be flushed."""
        self._use(self._other)

    def append(
        self, number: int, packed: bytes, batches: Sequence[Buffer], *, has_batches: bool, flushed: int = 0
    ) -> None:
        """Write a frame. There must be room. Commits up to ``flushed`` are on disk. OSError."""
        kind = wal_reading.WITH_BATCHES if has_batches else wal_reading.WITHOUT_BATCHES
        self._append(number, wal_reading.pack_frame(self._owner, number, flushed, kind, packed, batches))

    def note_flushed(self, number: int) -> None:
        """Note that everything up to this commit is on disk, if there is room for the note. OSError."""
        if self.has_room(0):
            self._append(
                number, wal_reading.pack_frame(self._owner, number, number, wal_reading.NOTE, b"", ())
            )

    def _append(self, number: int, parts: Sequence[Buffer]) -> None:
        file = self._writing
        end = file.position + sum(map(len, parts))
        self._fill_ahead(file, end)
        write_all(self._files, file.descriptor, parts, file.position)
        file.position = end
        file.last_number = number

    @property
    def is_quick(self) -> bool:
        """Whether a flush is short enough to run on the event loop."""
        return self._usual_seconds < QUICK_SECONDS

    def flush(self) -> None:
        """Flush every frame that was written. OSError."""
        started = time.perf_counter()
        self._files.flush(self._writing.descriptor)
        self._usual_seconds += (time.perf_counter() - started - self._usual_seconds) / RECENT

    def close(self) -> None:
        """Close the files."""
        for file in self._all:
            if file.descriptor >= 0:
                os.close(file.descriptor)
                file.descriptor = -1

    @property
    def _other(self) -> _File:
        return self._all[1] if self._writing is self._all[0] else self._all[0]

    def _use(self, file: _File) -> None:
        self._writing = file
        file.position = 0

    def _fill_ahead(self, file: _File, end: int) -> None:
        if end <= file.zeroed_end:
            return
        start = max(file.zeroed_end, file.position)
        file.zeroed_end = min(end + ZEROED_BYTES, FILE_BYTES)
        self._files.write(file.descriptor, [bytes(file.zeroed_end - start)], start)


def paths_in(directory: Path) -> list[Path]:
    """Return the WAL files of a data directory."""
    return [directory / f"wal-{number}" for number in range(2)]
