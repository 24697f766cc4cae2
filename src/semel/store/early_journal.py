"""The early journal: facts that are acknowledged and not yet in the ledger, kept by the operating system.

It is a file beside the ledger, written and never flushed, so it survives the end of the process and not that
of the operating system. In the second case the term is over (see ``LedgerWriter``), and what is in here
counts for nothing.

The file is a row of *frames*, one for each early commit. When an ordinary commit has put them into the
ledger, the next frame is written at the beginning again, over the old ones. Nothing is ever cut off: a frame
counts only if it names the term and the number of the last ledger commit, belongs to the same row as the
first (by a random number), has the next sequence number, and its checksum is right. So what a shorter row
leaves behind it, and what a kill tore, is not read.

A file that is missing says that early work was lost though the operating system lives: it was given up
because the disk was full, or a flush failed, so that its bytes may be gone. The next start then begins a new
term, as it does when it finds a file that another version of Semel wrote.
"""

import contextlib
import os
import secrets
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from crc32c import crc32c

from semel.core.types import Fact
from semel.store.fact_codec import FORMAT, pack_facts, unpack_facts
from semel.store.files import Files
from semel.store.interface import Place

BYTES_MAX: Final = 16 * 1024 * 1024
"""A frame that would end behind this is not taken; its commit becomes an ordinary one."""

_HEADER: Final = struct.Struct(">IqqQII")
"""Format, term, last commit, row, sequence, length of the payload."""
_CHECKSUM: Final = struct.Struct(">I")
_OVERHEAD: Final = _HEADER.size + _CHECKSUM.size


class EarlyJournal:
    """One file. Used on the writer's thread."""

    def __init__(self, path: Path, files: Files) -> None:
        self._path = path
        self._files = files
        self._descriptor = -1
        self._term = 0
        self._row = 0
        self._position = 0
        self._sequence = 0

    def is_intact(self) -> bool:
        """Whether the file is there and can be read. Asked before the ledger decides on the term."""
        try:
            with self._path.open("rb") as file:
                data = file.read(_HEADER.size)
        except FileNotFoundError:
            return False
        return len(data) < _HEADER.size or _HEADER.unpack(data)[0] == FORMAT

    def read(self, term: int, commit_number: int) -> tuple[list[Fact], list[Place]]:
        """The facts that were acknowledged after this commit, in this term, and where their batches lie."""
        facts: list[Fact] = []
        places: list[Place] = []
        with contextlib.suppress(FileNotFoundError):
            for payload in _frames(self._path.read_bytes(), term, commit_number):
                more_facts, more_places = unpack_facts(payload)
                facts += more_facts
                places += more_places
        return facts, places

    def start(self, term: int) -> None:
        """Begin anew with an empty file."""
        self._term = term
        self.rewind()

    def append(self, commit_number: int, facts: Sequence[Fact], places: Sequence[Place]) -> int:
        """Write a frame; how many bytes it took. 0 says that there is no room, and nothing happened."""
        payload = pack_facts(facts, places)
        length = _OVERHEAD + len(payload)
        if self._descriptor < 0 or self._position + length > BYTES_MAX:
            return 0
        header = _HEADER.pack(FORMAT, self._term, commit_number, self._row, self._sequence, len(payload))
        frame = memoryview(b"".join((header, _CHECKSUM.pack(crc32c(payload, crc32c(header))), payload)))
        written = 0
        try:
            while written < length:
                written += self._files.write(self._descriptor, [frame[written:]], self._position + written)
        except OSError:
            # The rest of a frame is no frame. The commit goes its ordinary way, which says what is wrong.
            return 0
        self._position += length
        self._sequence += 1
        return length

    def rewind(self) -> None:
        """What was written is in the ledger."""
        if self._descriptor < 0:
            # Without a file every commit is an ordinary one, and the next start begins a new term if it must.
            with contextlib.suppress(OSError):
                self._descriptor = self._files.create_anew(self._path)
        self._row = secrets.randbits(64)
        self._position = self._sequence = 0

    def give_up(self) -> None:
        """What was written is lost. Until the next ``rewind`` the end of the process is that of the term."""
        self._path.unlink(missing_ok=True)
        self.close()

    def close(self) -> None:
        """Close the file."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def _frames(data: bytes, term: int, commit_number: int) -> list[bytes]:
    """The payloads of the frames that count."""
    payloads: list[bytes] = []
    position = first_row = 0
    while position + _OVERHEAD <= len(data):
        header = data[position : position + _HEADER.size]
        *origin, row, sequence, length = _HEADER.unpack(header)
        begin = position + _OVERHEAD
        payload = data[begin : begin + length]
        first_row = first_row if payloads else row
        if origin != [FORMAT, term, commit_number] or row != first_row or sequence != len(payloads):
            break
        (checksum,) = _CHECKSUM.unpack_from(data, position + _HEADER.size)
        if len(payload) < length or checksum != crc32c(payload, crc32c(header)):
            break
        payloads.append(payload)
        position = begin + length
    return payloads
