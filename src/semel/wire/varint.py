"""Encodes and decodes the signed varints inside records: zigzag, then seven bits to a byte.

Zigzag folds the sign into the lowest bit (0, -1, 1, -2 become 0, 1, 2, 3), so that small numbers of either
sign are one byte. The reader of records handles that one byte inline, because a call is expensive there, and
calls this module for the rest; the writer looks up small numbers.
"""

from semel.wire.errors import ProtocolError
from semel.wire.schema import Buffer

_MAX_BYTES = 10  # of a 64 bit number
_TABLE_SIZE = 2048


def encode_zigzag(folded: int) -> bytes:
    """Encode a number that is already folded."""
    output = bytearray()
    while folded > 0x7F:
        output.append(folded & 0x7F | 0x80)
        folded >>= 7
    output.append(folded)
    return bytes(output)


_TABLE = tuple(encode_zigzag(folded) for folded in range(_TABLE_SIZE))
SMALL = _TABLE[::2]
"""The encodings of 0, 1, 2 and so on, precomputed for writers of many numbers."""


def encode(value: int) -> bytes:
    """Encode a signed number of up to 64 bits."""
    folded = (value << 1) ^ (value >> 63)
    return _TABLE[folded] if folded < _TABLE_SIZE else encode_zigzag(folded)


def decode_rest(data: Buffer, at: int, first: int) -> tuple[int, int]:
    """Read the rest of a number after its first byte; return it, folded, and the position after it.

    Truncated input is an `IndexError`, which the caller must handle anyway.
    """
    byte = data[at]
    if byte < 0x80:  # two bytes, the usual case
        return first & 0x7F | byte << 7, at + 1
    folded = first & 0x7F
    for shift in range(7, 7 * _MAX_BYTES, 7):
        byte = data[at]
        at += 1
        folded |= (byte & 0x7F) << shift
        if byte < 0x80:
            if folded >> 64:
                break
            return folded, at
    raise ProtocolError("a variable size number is longer than 64 bits")


def read(data: Buffer, at: int) -> tuple[int, int]:
    """Read a signed number; return it and the position after it."""
    first = data[at]
    folded, at = decode_rest(data, at + 1, first) if first > 0x7F else (first, at + 1)
    return (folded >> 1) ^ -(folded & 1), at
