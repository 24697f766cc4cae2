"""Codecs: what others write we read, what we write others read, and no input unpacks past its limit."""

import gzip
import struct
import subprocess
import sys

import cramjam
import pytest
from aiokafka import codec as other

from semel.wire.compression import Codec, compress, decompress
from semel.wire.errors import ProtocolError

COMPRESSED = [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD]
XERIAL = b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)
MEBIBYTE = 1024 * 1024
# Larger than one block of snappy (32 KiB) and of lz4 (64 KiB); every fifth part does not shrink.
MIXED = b"".join(
    cramjam.zstd.compress(bytes([part]) * part).read() + b"semel " * 800 for part in range(1, 60)
)

PAYLOADS = {"empty": b"", "one byte": b"x", "text": b"once, a single time. " * 40, "mixed": MIXED}

OTHERS_ENCODE = {
    Codec.GZIP: other.gzip_encode,
    Codec.SNAPPY: other.snappy_encode,
    Codec.LZ4: other.lz4_encode,
    Codec.ZSTD: other.zstd_encode,
}
OTHERS_DECODE = {
    Codec.GZIP: other.gzip_decode,
    Codec.SNAPPY: other.snappy_decode,
    Codec.LZ4: other.lz4_decode,
    Codec.ZSTD: other.zstd_decode,
}


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
@pytest.mark.parametrize("codec", Codec)
def test_round_trip_of_every_kind_of_buffer(codec: Codec, kind: type) -> None:
    packed = compress(codec, kind(MIXED))
    assert decompress(codec, kind(packed), len(MIXED)) == MIXED


@pytest.mark.parametrize("name", [name for name in PAYLOADS if name != "empty"])  # which a batch never is
@pytest.mark.parametrize("codec", COMPRESSED)
def test_another_client_reads_ours(codec: Codec, name: str) -> None:
    payload = PAYLOADS[name]
    assert OTHERS_DECODE[codec](compress(codec, payload)) == payload


@pytest.mark.parametrize("payload", PAYLOADS.values(), ids=PAYLOADS.keys())
@pytest.mark.parametrize("codec", COMPRESSED)
def test_we_read_another_client(codec: Codec, payload: bytes) -> None:
    assert decompress(codec, OTHERS_ENCODE[codec](payload), MEBIBYTE) == payload


def test_snappy_is_written_in_the_frame_and_read_without_it() -> None:
    assert compress(Codec.SNAPPY, MIXED).startswith(XERIAL)
    assert decompress(Codec.SNAPPY, other.snappy_encode(MIXED, xerial_compatible=False), MEBIBYTE) == MIXED


def test_snappy_with_version_numbers_in_the_wrong_byte_order() -> None:
    packed = bytearray(compress(Codec.SNAPPY, b"payload"))
    packed[8:16] = struct.pack("<ii", 1, 1)
    assert decompress(Codec.SNAPPY, packed, 100) == b"payload"


def test_lz4_blocks_are_independent_because_java_refuses_others() -> None:
    magic, flags = struct.unpack_from("<IB", compress(Codec.LZ4, MIXED))
    assert magic == 0x184D2204
    assert flags >> 6 == 1, "the version of the frame"
    assert flags & 0x20, "independent blocks"
    assert not flags & 0x03, "reserved, and no dictionary"


def test_lz4_with_linked_blocks_and_all_checksums_is_read() -> None:
    assert decompress(Codec.LZ4, cramjam.lz4.compress(MIXED).read(), MEBIBYTE) == MIXED


def test_lz4_with_a_wrong_header_checksum() -> None:
    packed = bytearray(compress(Codec.LZ4, b"payload"))
    packed[6] ^= 1
    with pytest.raises(ProtocolError):
        decompress(Codec.LZ4, packed, MEBIBYTE)


def test_bytes_are_the_same_every_time() -> None:
    for codec in Codec:
        assert compress(codec, MIXED) == compress(codec, MIXED)


@pytest.mark.parametrize("codec", Codec)
def test_the_limit_is_exact(codec: Codec) -> None:
    zeros = bytes(3 * MEBIBYTE)
    packed = compress(codec, zeros)
    assert decompress(codec, packed, len(zeros)) == zeros
    for limit in (len(zeros) - 1, 1000, 1, 0):
        with pytest.raises(ProtocolError):
            decompress(codec, packed, limit)


@pytest.mark.parametrize("codec", COMPRESSED)
def test_truncated_and_damaged_streams(codec: Codec) -> None:
    packed = compress(codec, MIXED)
    for cut in (1, 5, 17, len(packed) // 2, len(packed) - 1):
        with pytest.raises(ProtocolError):
            decompress(codec, packed[:cut], MEBIBYTE)
    with pytest.raises(ProtocolError):
        decompress(codec, b"\xff" * 40, MEBIBYTE)


def test_a_second_gzip_member_is_refused() -> None:
    with pytest.raises(ProtocolError):
        decompress(Codec.GZIP, gzip.compress(b"one") + gzip.compress(b"two"), MEBIBYTE)


@pytest.mark.parametrize("length", [-1, -(2**31), 0, 6, 2**31 - 1])
def test_snappy_block_of_an_impossible_length(length: int) -> None:
    block = cramjam.snappy.compress_raw(b"abc").read()
    with pytest.raises(ProtocolError, match="snappy"):
        decompress(Codec.SNAPPY, XERIAL + struct.pack(">i", length) + block, MEBIBYTE)


def test_snappy_block_that_declares_four_gigabytes() -> None:
    with pytest.raises(ProtocolError, match="1000"):
        decompress(Codec.SNAPPY, b"\xff\xff\xff\xff\x0f\x00", 1000)


def test_snappy_limit_holds_for_the_sum_of_the_blocks() -> None:
    block = cramjam.snappy.compress_raw(bytes(600)).read()
    framed = XERIAL + 2 * (struct.pack(">i", len(block)) + block)
    assert decompress(Codec.SNAPPY, framed, 1200) == bytes(1200)
    with pytest.raises(ProtocolError, match="1199"):
        decompress(Codec.SNAPPY, framed, 1199)


BOMBS = """
import resource, struct, zlib, cramjam
from semel.wire.compression import Codec, decompress
from semel.wire.errors import ProtocolError

zeros, count = bytes(1024 * 1024), 100
packer = zlib.compressobj(9, zlib.DEFLATED, 31)
bombs = {Codec.GZIP: b"".join(packer.compress(zeros) for _ in range(count)) + packer.flush()}
for codec, library in ((Codec.LZ4, cramjam.lz4), (Codec.ZSTD, cramjam.zstd)):
    stream = library.Compressor()
    for _ in range(count):
        stream.compress(zeros)
    bombs[codec] = bytes(stream.finish())
block = bytes(cramjam.snappy.compress_raw(zeros))
bombs[Codec.SNAPPY] = b"\\x82SNAPPY\\0" + bytes(8) + count * (struct.pack(">i", len(block)) + block)

def pages():
    with open("/proc/self/statm") as status:
        return int(status.read().split()[0])

room = pages() * resource.getpagesize() + 24 * 1024 * 1024
resource.setrlimit(resource.RLIMIT_AS, (room, room))
for codec, bomb in bombs.items():
    try:
        decompress(codec, bomb, 4 * 1024 * 1024)
    except ProtocolError:
        continue
    raise SystemExit(f"{codec.name} was unpacked")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the limit on address space is Linux's")
def test_a_bomb_is_refused_without_the_memory_for_it() -> None:
    """100 MiB of zeros, in a process that could not hold a quarter of them."""
    finished = subprocess.run([sys.executable, "-c", BOMBS], capture_output=True, text=True, timeout=60)
    assert finished.returncode == 0, finished.stderr
