"""Damage valid bytes as flipped bits, interrupted senders and attackers would."""

import random
import struct
from collections.abc import Callable, Sequence
from typing import Final

INTERESTING: Final = (
    0,
    1,
    -1,
    -2,
    127,
    128,
    255,
    256,
    32_767,
    -32_768,
    65_535,
    2**31 - 1,
    -(2**31),
    2**63 - 1,
)
VARINTS: Final = (
    b"\xff\xff\xff\xff\x0f",
    b"\xff\xff\xff\xff\x07",
    b"\xff" * 9 + b"\x01",
    b"\x80" * 10,
    b"\x01",
)
SIZES: Final = ((1, "b"), (2, ">h"), (4, ">i"), (8, ">q"))

Damage = Callable[[bytearray, random.Random, Sequence[bytes]], None]


def damaged(data: bytes, chance: random.Random, others: Sequence[bytes]) -> bytes:
    """Apply one to four kinds of damage; ``others`` provides foreign pieces."""
    changed = bytearray(data)
    for _ in range(chance.choice((1, 1, 1, 2, 3, 4))):
        chance.choice(KINDS)(changed, chance, others)
    return bytes(changed)


def noise(chance: random.Random) -> bytes:
    """Return random bytes, usually few."""
    return chance.randbytes(chance.choice((0, 1, 3, 8, 20, 61, 100, 300)))


def _at(data: bytearray, chance: random.Random) -> int:
    return chance.randrange(len(data) + 1)


def _flip(data: bytearray, chance: random.Random, others: Sequence[bytes]) -> None:
    for _ in range(chance.choice((1, 1, 2, 8)) if data else 0):
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)


def _byte(data: bytearray, chance: random.Random, others: Sequence[bytes]) -> None:
    if data:
        data[chance.randrange(len(data))] = chance.choice((0, 1, 2, 0x7F, 0x80, 0xFE, 0xFF, 34, 44, 91, 123))


def _number(data: bytearray, chance: random.Random, others: Sequence[bytes]) -> None:
    """Change a length, a count or an offset."""
    size, code = chance.choice(SIZES)
    if len(data) < size:
        return
    at = chance.randrange(len(data) - size + 1)
    if chance.random() < 0.5:
        (value,) = struct.unpack_from(code, data, at)
        value += chance.choice((-1, 1, -8, 8, 256))
    else:
        value = chance.choice(INTERESTING)
    bound = 1 << (8 * size - 1)
    struct.pack_into(code, data, at, (value + bound) % (2 * bound) - bound)


def _varint(data: bytearray, chance: random.Random, others: Sequence[bytes]) -> None:
    at = _at(data, chance)
    data[at : at + chance.randint(0, 2)] = chance.choice(VARINTS)


def _cut(data: bytearray, chance: random.Random, others: Sequence[bytes]) -> None:
    del data[_at(data, chance) :]


def _leave_out(data: bytearray, chance: random.Random, others: Sequence[bytes]) -> None:
    at = _at(data, chance)
    del data[at : at + chance.choice((1, 2, 4, 16, 100))]


def _repeat(data: bytearray, chance: random.Random, others: Sequence[bytes]) -> None:
    at = _at(data, chance)
    piece = data[at : at + chance.choice((1, 4, 16, 64))]
    data[at:at] = piece * chance.choice((1, 2, 50))


def _splice(data: bytearray, chance: random.Random, others: Sequence[bytes]) -> None:
    other = chance.choice(others)
    start, at = chance.randrange(len(other) + 1), _at(data, chance)
    data[at : at + chance.choice((0, 4, 16))] = other[start : start + chance.choice((4, 16, 64, 400))]


def _nest(data: bytearray, chance: random.Random, others: Sequence[bytes]) -> None:
    """Nest deeper than a recursive reader can go."""
    at = _at(data, chance)
    data[at:at] = chance.choice((b"[", b'{"a":', b"(", b"a.")) * 3_000


def _insert(data: bytearray, chance: random.Random, others: Sequence[bytes]) -> None:
    at = _at(data, chance)
    data[at:at] = noise(chance)


KINDS: Final[tuple[Damage, ...]] = (
    _flip,
    _flip,
    _byte,
    _number,
    _number,
    _number,
    _varint,
    _cut,
    _leave_out,
    _repeat,
    _splice,
    _insert,
    _nest,
)
