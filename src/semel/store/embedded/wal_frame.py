"""The layout of a frame of the WAL.

A header, a checksum of everything but itself and the mark, the facts, the batches, and a mark. The header
begins with four magic bytes, names the format of the facts and the store, and gives the commit number, the
number up to which everything was flushed when the frame was written, and the lengths. The mark repeats store
and number. It is written last, so it proves that the frame was once complete.
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
"""Magic bytes, format, store, number, flushed, length of the facts, length of the batches, kind."""
CHECKSUM: Final = struct.Struct(">I")
_END: Final = struct.Struct(">4s8sq")
END_BYTES: Final = _END.size + CHECKSUM.size
"""Magic bytes, store, number, and a checksum of these."""
BODY_AT: Final = HEADER.size + CHECKSUM.size
OVERHEAD: Final = BODY_AT + END_BYTES

WITHOUT_BATCHES: Final = 0
"""The batches are too large for the WAL, and only in their chunk."""
WITH_BATCHES: Final = 1
NOTE: Final = 2
"""Not a commit: only notes how far everything is flushed. Its number is that of the last commit."""


def short_id(store_id: bytes) -> bytes:
    """Return the part of a store's id that frames carry."""
    return store_id[:8]


def pack_frame(
    owner: bytes, number: int, flushed: int, kind: int, packed: bytes, batches: Sequence[Buffer]
) -> list[Buffer]:
    """Encode a frame of the store with this short id, as parts to be written one after another."""
    header = HEADER.pack(MAGIC, FORMAT, owner, number, flushed, len(packed), sum(map(len, batches)), kind)
    checksum = crc32c(packed, crc32c(header))
    for batch in batches:
        checksum = crc32c(batch, checksum)
    mark = _END.pack(END_MAGIC, owner, number)
    return [header, CHECKSUM.pack(checksum), packed, *batches, mark, CHECKSUM.pack(crc32c(mark))]


def read_mark(data: bytes, position: int) -> int | None:
    """Return the number in the mark at a position; None if the mark is not intact."""
    packed = data[position : position + _END.size]
    if data[position + _END.size : position + END_BYTES] != CHECKSUM.pack(crc32c(packed)):
        return None
    return int(_END.unpack(packed)[2])
