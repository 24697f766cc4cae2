"""A spool: keeps held batches in memory up to a limit, and beyond it on disk.

The limit applies to all held batches together. When it is exceeded, the largest holding in memory moves to a
file of its own, and later additions to it follow. So memory is bounded, and small short-lived holdings do not
touch the disk. The files are anonymous: each is deleted with its holding, and all of them with the process,
however it ends. Beyond `FILES_MAX`, holdings share files, since each file needs an open descriptor.
"""

import os
import struct
import tempfile
from collections.abc import Iterator
from pathlib import Path

from semel.wire.batch import PREFIX_BYTES

FILES_MAX = 64

_LENGTH = struct.Struct(">i")
_LENGTH_AT = PREFIX_BYTES - _LENGTH.size


class _File:
    """A temporary file, and how many holdings have data in it."""

    def __init__(self, directory: Path | str | None) -> None:
        self.file = tempfile.TemporaryFile(dir=directory)  # noqa: SIM115 - open for as long as it is used
        self.users = 0

    def append(self, batches: list[bytes]) -> tuple[int, int]:
        """Append batches; return their start and end."""
        start = self.file.seek(0, os.SEEK_END)
        self.file.writelines(batches)
        self.file.flush()
        return start, self.file.tell()

    def read(self, start: int, end: int) -> Iterator[bytes]:
        """Read the batches between two positions, one by one. Others may be appended meanwhile."""
        number = self.file.fileno()
        while start < end:
            prefix = os.pread(number, PREFIX_BYTES, start)
            size_bytes = PREFIX_BYTES + _LENGTH.unpack_from(prefix, _LENGTH_AT)[0]
            yield os.pread(number, size_bytes, start)
            start += size_bytes


class Held:
    """Batches that are held together, in the order in which they were added."""

    def __init__(self, spool: "Spool", number: int) -> None:
        self._spool = spool
        self._number = number
        self._memory: list[bytes] = []
        self._file: _File | None = None
        self._pieces: list[tuple[int, int]] = []
        self.memory_bytes = 0

    @property
    def is_on_disk(self) -> bool:
        """Whether batches of it have moved to disk."""
        return self._file is not None

    def add(self, batch: bytes) -> None:
        """Add a batch."""
        self._memory.append(batch)
        self.memory_bytes += len(batch)
        self._spool._grew(self, len(batch))

    def batches(self) -> Iterator[bytes]:
        """Iterate over the batches. Those on disk are read one by one."""
        if self._file is not None:
            for start, end in self._pieces:
                yield from self._file.read(start, end)
        yield from self._memory

    def drop(self) -> None:
        """Drop all batches."""
        self._spool._dropped(self)
        self._memory.clear()
        self.memory_bytes = 0
        self._pieces.clear()
        self._file = None

    def _spill(self) -> None:
        if self._file is None:
            self._file = self._spool._file_for_one_more()
        start, end = self._file.append(self._memory)
        if self._pieces and self._pieces[-1][1] == start:
            start, _ = self._pieces.pop()
        self._pieces.append((start, end))
        self._memory.clear()
        self.memory_bytes = 0


class Spool:
    """All holdings, within one limit."""

    def __init__(self, memory_bytes_max: int, directory: Path | str | None = None) -> None:
        self.memory_bytes = 0
        self._memory_bytes_max = memory_bytes_max
        self._directory = directory
        self._files: list[_File] = []
        self._held: dict[int, Held] = {}
        self._next = 0

    def hold(self) -> Held:
        """Start a new holding."""
        self._next += 1
        held = self._held[self._next] = Held(self, self._next)
        return held

    def close(self) -> None:
        """Delete the files. May be called again."""
        for held in list(self._held.values()):
            held.drop()

    def _grew(self, held: Held, size_bytes: int) -> None:
        self.memory_bytes += size_bytes
        while self.memory_bytes > self._memory_bytes_max:
            largest = held
            if not held.is_on_disk:
                largest = max(self._held.values(), key=lambda holding: holding.memory_bytes)
            self.memory_bytes -= largest.memory_bytes
            largest._spill()

    def _file_for_one_more(self) -> _File:
        if len(self._files) < FILES_MAX:
            self._files.append(_File(self._directory))
        file = min(self._files, key=lambda file: file.users)
        file.users += 1
        return file

    def _dropped(self, held: Held) -> None:
        self.memory_bytes -= held.memory_bytes
        self._held.pop(held._number, None)
        file = held._file
        if file is not None:
            file.users -= 1
            if not file.users:
                self._files.remove(file)
                file.file.close()
