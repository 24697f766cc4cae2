"""The header of a chunk: the store it belongs to, and how far the chunk is known to be flushed.

The header precedes the batches. It has two *slots*, written alternately and each in a sector of its own, so
a torn write leaves the other slot intact. A slot names the store, the chunk, the commit up to which the chunk
was flushed, and where its data ended then. It is written right before a flush of the chunk, so it costs no
flush of its own.

The header lets a start recognise a foreign chunk, an older copy of a chunk (the ledger knows a larger end)
and an older copy of the ledger (the chunk knows a later commit).
"""

import os
import struct
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from crc32c import crc32c

from semel.store.embedded.files import end_of_data, naming

HEADER_BYTES: Final = 4096
"""Batches begin after it, on a block of the file system, because space is released in whole blocks."""
_SLOTS: Final = 2
_SLOT_BYTES: Final = 512
_SLOT: Final = struct.Struct(">8s16sQQQ")
_CHECKSUM: Final = struct.Struct(">I")
_MAGIC: Final = b"SEMELCHK"
SUFFIX: Final = ".chunk"


class ChunkHeader(NamedTuple):
    """One slot."""

    store_id: bytes
    chunk_id: int
    number: int
    """The commit up to which everything in the chunk was flushed."""
    end: int
    """One past the last byte written."""


def pack_slot(header: ChunkHeader) -> bytes:
    """Encode a slot."""
    packed = _SLOT.pack(_MAGIC, *header)
    return packed + _CHECKSUM.pack(crc32c(packed))


def read_slots(descriptor: int) -> list[ChunkHeader | None]:
    """Return both slots of a chunk; None for a slot that is not intact. OSError."""
    data = os.pread(descriptor, _SLOTS * _SLOT_BYTES, 0)
    return [unpack_slot(data[at : at + _SLOT_BYTES]) for at in range(0, _SLOTS * _SLOT_BYTES, _SLOT_BYTES)]


def newest(slots: list[ChunkHeader | None]) -> ChunkHeader | None:
    """Return the slot that was written last; None if the chunk has no header."""
    return max((each for each in slots if each is not None), key=_age, default=None)


class Slot(NamedTuple):
    """The bytes of a slot, and their position."""

    data: bytes
    position: int


def next_slot(descriptor: int, header: ChunkHeader) -> Slot | None:
    """Return the slot to write for this header. It never overwrites the newest slot. OSError.

    None if the chunk has data and neither slot is intact.
    """
    slots = read_slots(descriptor)
    latest = newest(slots)
    if latest is None:
        return Slot(pack_slot(header), 0) if header.end == HEADER_BYTES else None
    reached = header._replace(number=max(header.number, latest.number), end=max(header.end, latest.end))
    return Slot(pack_slot(reached), _SLOT_BYTES if slots[0] is latest else 0)


def _age(header: ChunkHeader) -> tuple[int, int]:
    return header.number, header.end


def unpack_slot(data: bytes) -> ChunkHeader | None:
    """Decode a slot; None if it is not intact."""
    if len(data) < _SLOT.size + _CHECKSUM.size or not data.startswith(_MAGIC):
        return None
    (checksum,) = _CHECKSUM.unpack_from(data, _SLOT.size)
    if checksum != crc32c(data[: _SLOT.size]):
        return None
    _, *fields = _SLOT.unpack_from(data)
    return ChunkHeader(*fields)


class ChunkOnDisk(NamedTuple):
    """A chunk file."""

    chunk_id: int
    path: Path
    size: int
    header: ChunkHeader | None
    """None if neither slot is intact."""
    is_empty: bool
    """Whether the chunk was never written to."""


def look_at_chunk(path: Path, chunk_id: int | None = None) -> ChunkOnDisk:
    """Read a chunk file's header. The file name holds the chunk id, unless given. FileNotFoundError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        with naming(path):
            header = newest(read_slots(descriptor))
        is_empty = header is None and end_of_data(descriptor) == 0
        number = int(path.stem) if chunk_id is None else chunk_id
        return ChunkOnDisk(number, path, os.fstat(descriptor).st_size, header, is_empty)
    finally:
        os.close(descriptor)


def chunks_in(directory: Path) -> Iterator[ChunkOnDisk]:
    """Yield the chunk files of a directory, by id."""
    for path in sorted(directory.glob(f"*{SUFFIX}")):
        if path.stem.isdecimal():
            yield look_at_chunk(path)


def path_of(directory: Path, chunk_id: int) -> Path:
    """Return the path of a chunk."""
    return directory / f"{chunk_id:016d}{SUFFIX}"


def is_proven(chunk: ChunkOnDisk, store_id: bytes, unproven: Collection[int]) -> bool:
    """Whether a chunk certainly is this store's, or empty. Such a chunk may be deleted when unreferenced.

    ``unproven`` are chunks that the ledger did not know when it was repaired.
    """
    if chunk.chunk_id in unproven:
        return False
    return chunk.is_empty if chunk.header is None else chunk.header.store_id == store_id
