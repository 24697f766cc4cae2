"""A spool: batches that wait, in memory up to a limit and beyond it on disk.

The limit is for all that is held together. When it is passed, the largest that is still in memory goes to a
file of its own, and what is added to it later follows. So the memory is bounded whatever is held, and small
things that come and go do not touch the disk. The files are temporary: they go with what they hold, the rest
when the spool is closed.
"""

import struct
import tempfile
from collections.abc import Iterator
from pathlib import Path

from semel.wire.batch import PREFIX_BYTES

_LENGTH = struct.Struct(">i")
_LENGTH_AT = PREFIX_BYTES - _LENGTH.size


class Held:
    """Batches that are held together, in the order in which they were added."""

    def __init__(self, spool: "Spool", number: int) -> None:
        self._spool = spool
        self._number = number
        self._memory: list[bytes] = []
        self._path: Path | None = None
        self.memory_bytes = 0

    @property
    def is_on_disk(self) -> bool:
        """Whether it was too large for memory."""
        return self._path is not None

    def add(self, batch: bytes) -> None:
        """Hold one more batch."""
        self._memory.append(batch)
        self.memory_bytes += len(batch)
        self._spool._grew(self, len(batch))

    def batches(self) -> Iterator[bytes]:
        """The batches. Those on disk are read one by one."""
        if self._path is not None:
            with self._path.open("rb") as file:
                while prefix := file.read(PREFIX_BYTES):
                    yield prefix + file.read(_LENGTH.unpack_from(prefix, _LENGTH_AT)[0])
        yield from self._memory

    def drop(self) -> None:
        """Hold nothing any more."""
        self._spool._dropped(self)
        self._memory.clear()
        self.memory_bytes = 0
        if self._path is not None:
            self._path.unlink(missing_ok=True)
            self._path = None

    def _spill(self, directory: Path) -> None:
        self._path = self._path or directory / str(self._number)
        with self._path.open("ab") as file:
            file.writelines(self._memory)
        self._memory.clear()
        self.memory_bytes = 0


class Spool:
    """Everything that is held, within one limit."""

    def __init__(self, memory_bytes_max: int, directory: Path | str | None = None) -> None:
        self.memory_bytes = 0
        self._memory_bytes_max = memory_bytes_max
        self._parent = directory
        self._directory: tempfile.TemporaryDirectory[str] | None = None
        self._held: dict[int, Held] = {}
        self._next = 0

    def hold(self) -> Held:
        """Something new to hold."""
        self._next += 1
        held = self._held[self._next] = Held(self, self._next)
        return held

    def close(self) -> None:
        """Delete the files. May be called again."""
        for held in list(self._held.values()):
            held.drop()
        if self._directory is not None:
            self._directory.cleanup()
            self._directory = None

    def _grew(self, held: Held, size_bytes: int) -> None:
        self.memory_bytes += size_bytes
        while self.memory_bytes > self._memory_bytes_max:
            largest = (
                held if held.is_on_disk else max(self._held.values(), key=lambda each: each.memory_bytes)
            )
            self.memory_bytes -= largest.memory_bytes
            if self._directory is None:
                self._directory = tempfile.TemporaryDirectory(prefix="semel-", dir=self._parent)
            largest._spill(Path(self._directory.name))

    def _dropped(self, held: Held) -> None:
        self.memory_bytes -= held.memory_bytes
        self._held.pop(held._number, None)
