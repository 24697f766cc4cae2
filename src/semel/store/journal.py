"""The journal: every commit in its order, on disk with one flush, until ledger and chunks have it too.

A commit is one *frame*: the facts, where their batches lie in the chunks, and the batches themselves if they
are small. Writing a frame hands it to the operating system, so that it survives the end of the process; a
flush puts all frames on the disk. The ledger and the chunks follow behind, without a flush of their own.

There are two files of a fixed size, which are written in turn and never grow, so that a flush costs no more
than the bytes and a full disk does not reach them. A file is used again, from its beginning, when the ledger
and the chunks have everything in it on disk (``EmbeddedStore.synchronise``). Nothing is cut off or erased: a
frame counts only if it carries the same random *row* as the first of its file, the next number, and the right
checksum. So what a shorter row leaves behind it, and what a crash tore, is not read.
"""

import errno
import os
import secrets
import struct
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from crc32c import crc32c

from semel.core.types import Buffer, Fact
from semel.store.fact_codec import FORMAT, pack_facts, unpack_facts
from semel.store.files import IOV_MAX, Files
from semel.store.interface import Place, StoreBroken

FILE_BYTES: Final = 16 * 1024 * 1024
"""Of each file. A commit takes some kilobytes, so that synchronising is rare; a start reads at most both."""
FRAME_BYTES_MAX: Final = 4 * 1024 * 1024
"""A larger one is refused: the facts of one commit are far smaller."""
ZEROED_BYTES: Final = 1024 * 1024
"""How far ahead the file is filled with zeros. Overwriting zeros costs a flush less than new blocks do."""
QUICK_SECONDS: Final = 0.0005
"""A flush below this is cheaper than the way to a thread and back."""
RECENT: Final = 8
"""Flushes that say how long the next will take, about: a single slow one is more often a busy processor."""

_HEADER: Final = struct.Struct(">IQqIIB")
"""Format, row, number, length of the facts, length of the batches, whether the batches are here."""
_CHECKSUM: Final = struct.Struct(">I")
_OVERHEAD: Final = _HEADER.size + _CHECKSUM.size


class Frame(NamedTuple):
    """One commit as it was read back."""

    number: int
    facts: list[Fact]
    places: list[Place]
    batches: list[Buffer] | None
    """None if they were too large for the journal, and are in the chunks alone."""


class _File:
    """One of the two."""

    __slots__ = ("descriptor", "last_number", "path", "position", "row", "zeroed_end")

    def __init__(self, path: Path) -> None:
        self.path = path
        self.descriptor = -1
        self.position = 0
        self.row = 0
        self.zeroed_end = 0
        self.last_number = 0
        """Of the newest commit in it."""


class Journal:
    """Two files in a directory. Frames are written by the event loop, flushed by it or by one thread."""

    def __init__(self, directory: Path, files: Files) -> None:
        self._files = files
        self._all = [_File(directory / f"journal-{number}") for number in range(2)]
        self._writing = self._all[0]
        self._usual_seconds = 1.0

    def read(self, after: int) -> list[Frame]:
        """The commits behind this one, oldest first, without a gap. StoreBroken if they cannot be read."""
        rows = sorted((list(_frames(file.path, after)) for file in self._all), key=_first_number)
        older, newer = rows
        if older and newer and newer[0].number != older[-1].number + 1:
            # One of them is history: it was left before the other was used for the second time.
            return newer
        return older + newer

    def start(self) -> None:
        """Begin anew: everything that was here is in the ledger and the chunks."""
        for file in self._all:
            file.descriptor = os.open(file.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            self._files.allocate(file.descriptor, 0, FILE_BYTES)
            file.last_number = 0
        self._use(self._all[0])

    def pack(self, facts: Sequence[Fact], places: Sequence[Place]) -> bytes:
        """What ``append`` wants: packed before, so that its length is known."""
        return pack_facts(facts, places)

    def has_room(self, length: int) -> bool:
        """Whether a frame with so many bytes of facts and batches fits into the file that is written."""
        return self._writing.position + _OVERHEAD + length <= FILE_BYTES

    def may_switch(self, synced_number: int) -> bool:
        """Whether the other file may be used: ledger and chunks have all up to this commit on disk."""
        return self._other.last_number <= synced_number

    def switch(self) -> None:
        """Go on in the other file. What is in this one must be flushed."""
        self._use(self._other)

    def append(self, number: int, packed: bytes, batches: Sequence[Buffer], *, has_batches: bool) -> None:
        """Write a frame. There must be room. OSError."""
        file = self._writing
        batch_bytes = sum(map(len, batches))
        header = _HEADER.pack(FORMAT, file.row, number, len(packed), batch_bytes, has_batches)
        checksum = crc32c(packed, crc32c(header))
        for batch in batches:
            checksum = crc32c(batch, checksum)
        end = file.position + _OVERHEAD + len(packed) + batch_bytes
        self._fill_ahead(file, end)
        self._write(file, [header, _CHECKSUM.pack(checksum), packed, *batches], end)
        file.position = end
        file.last_number = number

    @property
    def is_quick(self) -> bool:
        """Whether a flush is short enough to be waited for where it is asked for."""
        return self._usual_seconds < QUICK_SECONDS

    def flush(self) -> None:
        """Every frame that was written is on the disk when this returns. OSError."""
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
        file.row = secrets.randbits(64)

    def _fill_ahead(self, file: _File, end: int) -> None:
        if end <= file.zeroed_end:
            return
        start = max(file.zeroed_end, file.position)
        file.zeroed_end = min(end + ZEROED_BYTES, FILE_BYTES)
        self._files.write(file.descriptor, [bytes(file.zeroed_end - start)], start)

    def _write(self, file: _File, parts: Sequence[Buffer], end: int) -> None:
        if len(parts) > IOV_MAX:
            parts = [b"".join(parts)]
        written = self._files.write(file.descriptor, parts, file.position)
        while file.position + written < end:
            rest = memoryview(b"".join(parts))[written:]
            more = self._files.write(file.descriptor, [rest], file.position + written)
            if more <= 0:
                raise OSError(errno.EIO, "the disk took no bytes")
            written += more


def _first_number(frames: list[Frame]) -> int:
    return frames[0].number if frames else -1


def _frames(path: Path, after: int) -> Iterator[Frame]:
    """The frames of a file that count, behind this commit. Those before may be of any version of Semel."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return
    position, row, expected = 0, -1, -1
    while position + _OVERHEAD <= len(data):
        header = data[position : position + _HEADER.size]
        form, its_row, number, facts_length, batch_bytes, has_batches = _HEADER.unpack(header)
        begin = position + _OVERHEAD
        end = begin + facts_length + batch_bytes
        if row >= 0 and (its_row != row or number != expected):
            return
        (checksum,) = _CHECKSUM.unpack_from(data, position + _HEADER.size)
        if end > len(data) or checksum != crc32c(memoryview(data)[begin:end], crc32c(header)):
            return
        if number > after:
            if form != FORMAT:
                raise StoreBroken(
                    f"{path} is of another version of Semel, which did not stop cleanly: start that once"
                )
            try:
                facts, places = unpack_facts(data[begin : begin + facts_length])
            except ValueError as error:
                raise StoreBroken(f"commit {number} in {path} cannot be read: {error}") from error
            batches = _cut(memoryview(data)[begin + facts_length : end], places) if has_batches else None
            yield Frame(number, facts, places, batches)
        position, row, expected = end, its_row, number + 1


def _cut(data: memoryview, places: Sequence[Place]) -> list[Buffer]:
    batches: list[Buffer] = []
    at = 0
    for place in places:
        batches.append(data[at : at + place.length])
        at += place.length
    return batches
