"""The header of a chunk: which store it belongs to, and how far it was known to be on the disk.

It lies before the batches, in two *slots* that are written in turn, each in a sector of its own, so that a
torn write leaves the other. A slot names the store, the chunk, the commit up to which the chunk was flushed
and the end of its bytes then. It is written right before a flush of the chunk, so that it costs none.

With it a start tells a chunk of this store from a foreign one, a chunk as it was left from an older copy
(the ledger knows a larger end), and a ledger as it was left from an older copy (the chunk knows a later
commit). Chunks of versions before have none.
"""

import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from crc32c import crc32c

from semel.store.files import end_of_data, naming

HEADER_BYTES: Final = 4096
"""Batches begin behind it, at a block of the file system: space is given back in whole blocks."""
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
    """Behind the last byte that was written."""


def pack_slot(header: ChunkHeader) -> bytes:
    """A slot as bytes."""
    packed = _SLOT.pack(_MAGIC, *header)
    return packed + _CHECKSUM.pack(crc32c(packed))


def read_slots(descriptor: int) -> list[ChunkHeader | None]:
    """Both slots of a chunk; None for one that is not whole. OSError."""
    data = os.pread(descriptor, _SLOTS * _SLOT_BYTES, 0)
    return [unpack_slot(data[at : at + _SLOT_BYTES]) for at in range(0, _SLOTS * _SLOT_BYTES, _SLOT_BYTES)]


def newest(slots: list[ChunkHeader | None]) -> ChunkHeader | None:
    """The slot that was written last; None if the chunk has no header."""
    return max((each for each in slots if each is not None), key=_age, default=None)


class Slot(NamedTuple):
    """What is to be written, and where."""

    data: bytes
    position: int


def next_slot(descriptor: int, header: ChunkHeader) -> Slot | None:
    """The slot that brings a chunk's header up to this one; not over the newest. OSError.

    None for a chunk of a version before, which has no header and no room for one.
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
    """A slot from bytes; None if it is not whole."""
    if len(data) < _SLOT.size + _CHECKSUM.size or not data.startswith(_MAGIC):
        return None
    (checksum,) = _CHECKSUM.unpack_from(data, _SLOT.size)
    if checksum != crc32c(data[: _SLOT.size]):
        return None
    _, *fields = _SLOT.unpack_from(data)
    return ChunkHeader(*fields)


class OldChunks(NamedTuple):
    """What is known of chunks without a header."""

    below: int = 0
    """Chunks with smaller numbers are of versions that wrote no headers."""
    unproven: frozenset[int] = frozenset()
    """Chunks that the ledger did not know when it was brought up to this version, or repaired."""


class ChunkOnDisk(NamedTuple):
    """A chunk file."""

    chunk_id: int
    path: Path
    size: int
    header: ChunkHeader | None
    """None if it has none, as chunks of older versions."""
    is_empty: bool
    """Whether nothing was ever written to it."""


def look_at_chunk(path: Path, chunk_id: int | None = None) -> ChunkOnDisk:
    """What a chunk file says of itself. Its name has its number, unless it is given. FileNotFoundError."""
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
    """The chunk files in a directory, by number."""
    for path in sorted(directory.glob(f"*{SUFFIX}")):
        if path.stem.isdecimal():
            yield look_at_chunk(path)


def path_of(directory: Path, chunk_id: int) -> Path:
    """The file of a chunk."""
    return directory / f"{chunk_id:016d}{SUFFIX}"


def is_proven(chunk: ChunkOnDisk, store_id: bytes, old: OldChunks) -> bool:
    """Whether a chunk is this store's, or empty, so that it may be deleted when no row points at it."""
    if chunk.chunk_id in old.unproven:
        return False
    if chunk.header is None:
        return chunk.is_empty or chunk.chunk_id < old.below
    return chunk.header.store_id == store_id
