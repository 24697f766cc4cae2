"""The layout of a frame of the WAL.

A header, a checksum over all but itself and the mark, the facts, the batches, and a mark. The header begins
with four bytes that say what it is, names the format of the facts and the store, and gives the number of the
commit, the number up to which all was flushed when the frame was written, and the lengths. The mark repeats
store and number: it is written last, so it tells that a frame was once whole.
"""

import struct
from collections.abc import Sequence
from typing import Final

from crc32c import crc32c

from semel.core.types import Buffer
from semel.store.fact_codec import FORMAT

MAGIC: Final = b"SMLF"
END_MAGIC: Final = b"SMLE"
HEADER: Final = struct.Struct(">4sI8sqqIIB")
"""What it is, format, store, number, flushed, length of the facts, length of the batches, kind."""
CHECKSUM: Final = struct.Struct(">I")
_END: Final = struct.Struct(">4s8sq")
END_BYTES: Final = _END.size + CHECKSUM.size
"""What it is, store, number, and a checksum of these."""
BODY_AT: Final = HEADER.size + CHECKSUM.size
OVERHEAD: Final = BODY_AT + END_BYTES

WITHOUT_BATCHES: Final = 0
"""The batches are too large for the WAL, and in their chunk alone."""
WITH_BATCHES: Final = 1
NOTE: Final = 2
"""No commit: it only says how far all is flushed. Its number is that of the last commit."""


def short_id(store_id: bytes) -> bytes:
    """The part of a store's id that frames carry."""
    return store_id[:8]


def pack_frame(
    store_id: bytes, number: int, flushed: int, kind: int, packed: bytes, batches: Sequence[Buffer]
) -> list[Buffer]:
    """A frame, in parts to be written one behind another."""
    owner = short_id(store_id)
    header = HEADER.pack(MAGIC, FORMAT, owner, number, flushed, len(packed), sum(map(len, batches)), kind)
    checksum = crc32c(packed, crc32c(header))
    for batch in batches:
        checksum = crc32c(batch, checksum)
    return [header, CHECKSUM.pack(checksum), packed, *batches, _pack_mark(owner, number)]


def _pack_mark(owner: bytes, number: int) -> bytes:
    packed = _END.pack(END_MAGIC, owner, number)
    return packed + CHECKSUM.pack(crc32c(packed))


def read_mark(data: bytes, position: int) -> int | None:
    """The number in the mark at a position; None if it is not whole."""
    packed = data[position : position + _END.size]
    if data[position + _END.size : position + END_BYTES] != CHECKSUM.pack(crc32c(packed)):
        return None
    return int(_END.unpack(packed)[2])
