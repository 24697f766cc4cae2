"""The walk over lz4 and zstd frames: its bound holds, and damage is found without a large buffer."""

import os
import struct
import tracemalloc
from collections.abc import Callable

import cramjam
import lz4.frame
import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.wire.compression import Codec, compress, decompress, unpack
from semel.wire.errors import ProtocolError
from semel.wire.packed_frames import BLOCKS_MAX, PackedFrames, walk_lz4, walk_zstd

LIMIT_BYTES = 32 << 20
SKIPPABLE = struct.pack("<II", 0x184D2A53, 4) + b"skip"
WALKS: dict[Codec, Callable[[bytes], PackedFrames]] = {Codec.LZ4: walk_lz4, Codec.ZSTD: walk_zstd}

content = st.one_of(
    st.binary(max_size=2_000),
    st.tuples(st.binary(min_size=1, max_size=3), st.integers(1, 200_000)).map(lambda of: of[0] * of[1]),
)


@given(content, st.sampled_from([0, 4, 5, 6, 7]), st.booleans(), st.booleans(), st.booleans())
def test_lz4_unpacks_to_no_more_than_the_walk_says(
    data: bytes, block_size: int, is_linked: bool, has_size: bool, has_checksums: bool
) -> None:
    packed = lz4.frame.compress(
        data,
        block_size=block_size,
        block_linked=is_linked,
        store_size=has_size,
        content_checksum=has_checksums,
        block_checksum=has_checksums,
    )
    found = walk_lz4(packed)
    assert found.frames == 1
    assert len(data) <= found.bytes_max <= (len(data) if has_size else 256 * len(packed))
    assert decompress(Codec.LZ4, packed, LIMIT_BYTES) == data


@given(content, st.integers(1, 19), st.booleans())
def test_zstd_unpacks_to_no_more_than_the_walk_says(data: bytes, level: int, is_streamed: bool) -> None:
    if is_streamed:
        stream = cramjam.zstd.Compressor(level=level)
        stream.compress(data)
        packed = bytes(stream.finish())
    else:
        packed = bytes(cramjam.zstd.compress(data, level=level))
    found = walk_zstd(packed)
    assert found.frames == 1
    assert len(data) <= found.bytes_max <= len(data) + (1 << 17)
    assert decompress(Codec.ZSTD, packed, LIMIT_BYTES) == data


@pytest.mark.parametrize("codec", WALKS)
def test_several_frames_are_read_and_lz4_is_not_produced_so(codec: Codec) -> None:
    """Other clients read several frames of zstd, and the first one of lz4."""
    packed = compress(codec, b"one")
    for several in (packed + compress(codec, b"two"), SKIPPABLE + packed, packed + SKIPPABLE):
        assert WALKS[codec](several).frames == 2
        assert decompress(codec, several, LIMIT_BYTES).startswith(b"one")
        if codec is Codec.LZ4:
            with pytest.raises(ProtocolError):
                unpack(codec, several, LIMIT_BYTES, is_produced=True)
        else:
            assert bytes(unpack(codec, several, LIMIT_BYTES, is_produced=True)).startswith(b"one")


def damaged() -> dict[str, tuple[Codec, bytes]]:
    lz4_frame, zstd_frame = compress(Codec.LZ4, b"x" * 100), compress(Codec.ZSTD, b"x" * 100)
    noise = os.urandom(100)
    return {
        "noise that calls itself lz4": (Codec.LZ4, b"\0" + noise),
        "noise that calls itself zstd": (Codec.ZSTD, b"\0" + noise),
        "snappy that declares 32 MiB": (Codec.SNAPPY, b"\xff\xff\xff\x0f" + noise),
        "lz4 without an end": (Codec.LZ4, lz4_frame[:-4]),
        "lz4 of another version": (Codec.LZ4, lz4_frame[:4] + b"\0" + lz4_frame[5:]),
        "an lz4 block that is too large": (Codec.LZ4, lz4_frame[:7] + b"\xff\xff\xff\x7f" + noise),
        "lz4 with noise in its block": (Codec.LZ4, lz4_frame[:-8] + b"\xff" * 4 + lz4_frame[-4:]),
        "half of zstd": (Codec.ZSTD, zstd_frame[: len(zstd_frame) // 2]),
        "a zstd block of no kind": (Codec.ZSTD, struct.pack("<IB", 0xFD2FB528, 0x20) + b"\1\7\0\0" + noise),
        "very many lz4 blocks": (Codec.LZ4, lz4_frame[:7] + b"\1\0\0\x80x" * (BLOCKS_MAX + 1) + bytes(4)),
    }


@pytest.mark.parametrize("name", damaged())
def test_damage_costs_what_its_size_suggests(name: str) -> None:
    """However much might be unpacked: a large buffer takes as long to fill with zeros as a large batch."""
    codec, data = damaged()[name]
    tracemalloc.start()
    try:
        with pytest.raises(ProtocolError):
            unpack(codec, data, LIMIT_BYTES)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
