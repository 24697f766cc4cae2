"""Compresses and decompresses record batches, compatibly with other Kafka clients.

The broker stores compressed bytes unchanged; clients, the compactor, lookups by timestamp and the validation
of produced batches decompress them. Two codecs have a framing of Kafka's own choice:

- snappy: Java wraps raw snappy blocks in the frame of the xerial library, other clients send one raw block.
  Semel reads both, and writes the frame, because every client understands it.
- lz4: the standard frame, but Java refuses dependent blocks. So Semel writes independent blocks.

`decompress` raises `ProtocolError` and nothing else, and never produces more than `limit_bytes` of output,
however much a few hostile bytes would expand to. The limit is enforced where the bytes are produced, not by a
size that the input declares. No buffer is larger than what the blocks of the input can expand to.
"""

import struct
import zlib
from collections.abc import Callable
from enum import IntEnum

import cramjam

from semel.wire.errors import ProtocolError
from semel.wire.packed_frames import PackedFrames, walk_lz4, walk_zstd
from semel.wire.schema import Buffer

_GZIP_WINDOW = zlib.MAX_WBITS | 16  # deflate in a gzip envelope, not in zlib's own
_GZIP_LEVEL = 6
_LZ4_LEVEL = 1
_ZSTD_LEVEL = 3

_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER = _XERIAL_MAGIC + struct.pack(">ii", 1, 1)  # version, oldest version that can read it
_XERIAL_VERSIONS = (
    struct.pack(">ii", 1, 1),
    struct.pack("<ii", 1, 1),
)  # some writers use the wrong byte order
_XERIAL_BLOCK_BYTES = 32 * 1024
_INT32 = struct.Struct(">i")

_SNAPPY_RATIO_MAX = 32
"""Three bytes of a snappy block expand to 64 at most."""


class Codec(IntEnum):
    """How the records of a batch are compressed: the low three bits of its attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


def compress(codec: Codec, data: Buffer) -> bytes:
    """Compress `data`, in the framing that every Kafka client reads."""
    match codec:
        case Codec.NONE:
            return bytes(data)
        case Codec.GZIP:
            packer = zlib.compressobj(_GZIP_LEVEL, zlib.DEFLATED, _GZIP_WINDOW)
            return packer.compress(data) + packer.flush()
        case Codec.SNAPPY:
            return _compress_snappy(data)
        case Codec.LZ4:
            frame = cramjam.lz4.Compressor(level=_LZ4_LEVEL, content_checksum=False, block_linked=False)
            frame.compress(bytes(data))  # it accepts only `bytes`
            return bytes(frame.finish())
        case Codec.ZSTD:
            return bytes(cramjam.zstd.compress(data, level=_ZSTD_LEVEL))


def decompress(codec: Codec, data: Buffer, limit_bytes: int) -> bytes:
    """Decompress `data`; more than `limit_bytes` of output, or damaged input, is a `ProtocolError`."""
    unpacked = unpack(codec, data, limit_bytes)
    return unpacked if isinstance(unpacked, bytes) else bytes(unpacked)


def unpack(codec: Codec, data: Buffer, limit_bytes: int, *, is_produced: bool = False) -> Buffer:
    """Decompress `data` without the final copy to `bytes`, for a caller that reads the output only once.

    With `is_produced`, lz4 must be one frame, because other clients stop reading at the end of the first.
    """
    match codec:
        case Codec.NONE:
            if len(data) > limit_bytes:
                raise _too_large(limit_bytes)
            return data
        case Codec.GZIP:
            return _decompress_gzip(data, limit_bytes)
        case Codec.SNAPPY:
            return _decompress_snappy(data, limit_bytes)
        case Codec.LZ4:
            found = walk_lz4(data)
            if is_produced and found.frames != 1:
                raise ProtocolError(f"lz4 must be one frame, and {found.frames} were found")
            return _decompress_into(cramjam.lz4.decompress_into, data, found, limit_bytes)
        case Codec.ZSTD:
            return _decompress_into(cramjam.zstd.decompress_into, data, walk_zstd(data), limit_bytes)


def _too_large(limit_bytes: int) -> ProtocolError:
    return ProtocolError(f"a batch unpacks to more than {limit_bytes} bytes")


def _decompress_gzip(data: Buffer, limit_bytes: int) -> bytes:
    """Decompress the one gzip member that a batch holds.

    A second member is refused: no client writes one, and a long series of empty members would cost quadratic
    time.
    """
    unpacker = zlib.decompressobj(_GZIP_WINDOW)
    try:
        # One byte more than allowed, because a `max_length` of zero would mean no limit.
        output = unpacker.decompress(data, limit_bytes + 1)
    except zlib.error as error:
        raise ProtocolError(f"damaged gzip data: {error}") from None
    if len(output) > limit_bytes:
        raise _too_large(limit_bytes)
    if not unpacker.eof or unpacker.unused_data:
        raise ProtocolError("truncated gzip data, or bytes behind its end")
    return output


def _decompress_into(
    unpack_into: Callable[[Buffer, bytearray], int], data: Buffer, found: PackedFrames, limit_bytes: int
) -> Buffer:
    """Decompress into a buffer of the size that the blocks can expand to, or of the limit if that is less."""
    output = bytearray(min(found.bytes_max, limit_bytes))
    try:
        written = unpack_into(data, output)
    except cramjam.DecompressionError as error:
        # The codecs do not report reliably whether the data is damaged or the buffer is full.
        may_be_full = f", or more than {limit_bytes} bytes unpacked" if found.bytes_max > limit_bytes else ""
        raise ProtocolError(f"damaged data{may_be_full}: {error}") from None
    return memoryview(output)[:written]


def _compress_snappy(data: Buffer) -> bytes:
    view = memoryview(data)
    parts = [_XERIAL_HEADER]
    for start in range(0, len(view), _XERIAL_BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(view[start : start + _XERIAL_BLOCK_BYTES]))
        parts.append(_INT32.pack(len(block)))
        parts.append(block)
    return b"".join(parts)


def _decompress_snappy(data: Buffer, limit_bytes: int) -> Buffer:
    view = memoryview(data)
    if view[: len(_XERIAL_MAGIC)] != _XERIAL_MAGIC:
        return _snappy_block(view, limit_bytes, limit_bytes)
    if view[len(_XERIAL_MAGIC) : len(_XERIAL_HEADER)] not in _XERIAL_VERSIONS:
        raise ProtocolError("a snappy frame of an unknown version")
    at = len(_XERIAL_HEADER)
    room = limit_bytes
    blocks = []
    while at < len(view):
        if len(view) - at < _INT32.size:
            raise ProtocolError("truncated snappy block length")
        (length,) = _INT32.unpack_from(view, at)
        at += _INT32.size
        if not 0 < length <= len(view) - at:
            raise ProtocolError(f"a snappy block of {length} bytes where {len(view) - at} are left")
        block = _snappy_block(view[at : at + length], room, limit_bytes)
        room -= len(block)
        blocks.append(block)
        at += length
    return b"".join(blocks)


def _snappy_block(block: memoryview, room: int, limit_bytes: int) -> memoryview:
    """Decompress one raw block, whose declared size is checked before anything is allocated."""
    try:
        size = cramjam.snappy.decompress_raw_len(block)
        if size > room:
            raise _too_large(limit_bytes)
        if size > _SNAPPY_RATIO_MAX * len(block):
            raise ProtocolError(f"a snappy block of {len(block)} bytes that declares {size}")
        output = bytearray(size)
        written = cramjam.snappy.decompress_raw_into(block, output)
    except cramjam.DecompressionError as error:
        raise ProtocolError(f"damaged snappy data: {error}") from None
    return memoryview(output)[:written]
