"""Counts lz4 and zstd frames, and bounds their decompressed size, without decompressing them.

Both formats divide the content into blocks of limited size, and write a length before each block. So a walk
over the block headers detects damage in the structure and gives an upper bound of the output. A buffer of
that size is enough, however small the input is and whatever size it declares.
"""

import struct
from collections.abc import Callable
from typing import Final, NamedTuple

from semel.wire.errors import ProtocolError
from semel.wire.schema import Buffer

LZ4_MAGIC: Final = 0x184D2204
ZSTD_MAGIC: Final = 0xFD2FB528
SKIPPABLE_MAGIC: Final = 0x184D2A50
"""The lowest of sixteen magic numbers of frames that readers skip, in both formats."""

BLOCKS_MAX: Final = 16_384
"""The most blocks in a batch. Encoders end a block at 64 KiB or more, or when their caller flushes."""

_LZ4_BLOCK_BYTES: Final = {4: 1 << 16, 5: 1 << 18, 6: 1 << 20, 7: 1 << 22}
_LZ4_RATIO_MAX: Final = 256
"""A byte of an lz4 block expands to at most 255 bytes; the first few bytes to a little more."""
_ZSTD_BLOCK_BYTES: Final = 1 << 17
_INT32: Final = struct.Struct("<I")


class PackedFrames(NamedTuple):
    """What a walk over frames found."""

    frames: int
    """The number of frames, including those that readers must skip."""
    bytes_max: int
    """The most bytes that the frames decompress to."""


class _Walk:
    """One pass over the frames of a batch."""

    __slots__ = ("at", "blocks", "data", "end")

    def __init__(self, data: Buffer) -> None:
        self.data = memoryview(data)
        self.end = len(self.data)
        self.at = 0
        self.blocks = 0

    def integer(self, size: int) -> int:
        at = self.at
        self.at += size
        if self.at > self.end:
            raise ProtocolError("a truncated frame")
        if size == 4:
            number: int = _INT32.unpack_from(self.data, at)[0]
            return number
        return self.data[at] if size == 1 else int.from_bytes(self.data[at : self.at], "little")

    def skip(self, size: int) -> None:
        self.at += size
        if self.at > self.end:
            raise ProtocolError("a truncated frame")

    def count_block(self) -> None:
        self.blocks += 1
        if self.blocks > BLOCKS_MAX:
            raise ProtocolError(f"a frame of more than {BLOCKS_MAX} blocks")

    def frame(self, magic: int) -> bool:
        """Read the start of a frame. Moves past a skippable frame and returns False for it."""
        found = self.integer(4)
        if found == magic:
            return True
        if found & ~0xF != SKIPPABLE_MAGIC:
            raise ProtocolError("not a frame of its codec")
        self.skip(self.integer(4))
        return False


def _walk(data: Buffer, magic: int, walk_frame: Callable[[_Walk], int]) -> PackedFrames:
    walk = _Walk(data)
    frames = bytes_max = 0
    while walk.at < walk.end:
        frames += 1
        if walk.frame(magic):
            bytes_max += walk_frame(walk)
    return PackedFrames(frames, bytes_max)


def walk_lz4(data: Buffer) -> PackedFrames:
    """Walk over the frames of lz4. `ProtocolError` if the structure is damaged."""
    return _walk(data, LZ4_MAGIC, _lz4_frame)


def _lz4_frame(walk: _Walk) -> int:
    flags, largest = walk.integer(1), _LZ4_BLOCK_BYTES.get(walk.integer(1) >> 4)
    if flags >> 6 != 1 or largest is None:
        raise ProtocolError("an lz4 frame of an unknown version")
    declared = walk.integer(8) if flags & 8 else None
    walk.skip(5 if flags & 1 else 1)
    after_block = 4 if flags & 16 else 0
    bytes_max = 0
    while length := walk.integer(4):
        walk.count_block()
        is_raw, length = length >> 31, length & 0x7FFF_FFFF
        if length > largest:
            raise ProtocolError(f"an lz4 block of {length} bytes where {largest} are allowed")
        walk.skip(length + after_block)
        bytes_max += length if is_raw else min(largest, _LZ4_RATIO_MAX * length)
    if flags & 4:
        walk.skip(4)
    return bytes_max if declared is None else min(bytes_max, declared)


def walk_zstd(data: Buffer) -> PackedFrames:
    """Walk over the frames of zstd. `ProtocolError` if the structure is damaged."""
    return _walk(data, ZSTD_MAGIC, _zstd_frame)


def _zstd_frame(walk: _Walk) -> int:
    flags = walk.integer(1)
    is_single = flags >> 5 & 1
    walk.skip((1 - is_single) + (0, 1, 2, 4)[flags & 3])
    declared_size = (is_single, 2, 4, 8)[flags >> 6]
    declared = walk.integer(declared_size) + (256 if declared_size == 2 else 0) if declared_size else None
    bytes_max = is_last = 0
    while not is_last:
        walk.count_block()
        header = walk.integer(3)
        is_last, kind, length = header & 1, header >> 1 & 3, header >> 3
        if kind == 3 or length > _ZSTD_BLOCK_BYTES:
            raise ProtocolError("a damaged zstd block")
        walk.skip(1 if kind == 1 else length)
        bytes_max += _ZSTD_BLOCK_BYTES if kind == 2 else length
    if flags & 4:
        walk.skip(4)
    return bytes_max if declared is None else min(bytes_max, declared)
