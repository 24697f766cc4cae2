"""Hostile bytes into every decoder of every version: `ProtocolError` or a value, quickly, and nothing else.

The generator is seeded with the name of the case, so that a failure comes again. Mutations of valid
messages reach deeper than random bytes: flipped bytes, cut ends, lengths replaced by large and negative
ones, pieces repeated.
"""

import random
import tracemalloc
from contextlib import suppress

import pytest

from semel.wire.errors import ProtocolError
from semel.wire.frames import decode_request_header, decode_response_header
from semel.wire.messages import APIS
from semel.wire.schema import Message
from semel.wire.spec import Field, members

ROUNDS = 60

CASES = [
    pytest.param(message, version, id=f"{message.__name__}-v{version}")
    for api in APIS.values()
    for message in (api.request, api.response)
    for version in range(message.min_version, message.max_version + 1)
]

HOSTILE = [
    b"\xff\xff\xff\xff",
    b"\x7f\xff\xff\xff",
    b"\xff\xff\xff\xff\x0f",
    b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
    b"\x80\x00",
    b"\xff\xfe",
    b"\x7f\xff",
    b"\x00",
    b"\x01",
]


def filled(struct_class: type) -> object:
    """A value with something in every field, so that mutations have all of a message to bite into."""
    return struct_class(**{member.name: filled_field(member.field) for member in members(struct_class)})


def filled_field(field: Field) -> object:
    if field.kind == "array":
        return [filled(field.element) if isinstance(field.element, type) else plain(str(field.element))] * 2
    if field.kind == "nested":
        assert isinstance(field.element, type)
        return filled(field.element)
    return plain(field.kind)


def plain(kind: str) -> object:
    match kind:
        case "string":
            return "näme"
        case "bytes" | "records":
            return b"some bytes"
        case "uuid":
            return b"0123456789abcdef"
        case "boolean":
            return True
        case _:
            return 5


def mutated(body: bytes, chance: random.Random) -> bytes:
    changed = bytearray(body)
    for _ in range(chance.randint(1, 3)):
        place = chance.randrange(len(changed) + 1)
        match chance.randrange(5):
            case 0 if place < len(changed):
                changed[place] ^= 1 << chance.randrange(8)
            case 1:
                del changed[place:]
            case 2:
                hostile = chance.choice(HOSTILE)
                changed[place : place + len(hostile)] = hostile
            case 3:
                changed[place:place] = chance.choice(HOSTILE)
            case _:
                changed[place:place] = changed[place : place + 8]
    return bytes(changed)


@pytest.mark.parametrize(("message", "version"), CASES)
def test_decoders_raise_nothing_but_protocol_errors(message: type[Message], version: int) -> None:
    chance = random.Random(f"{message.__name__} {version}")
    value = filled(message)
    assert isinstance(value, Message)
    body = value.encode(version)
    inputs = [mutated(body, chance) for _ in range(ROUNDS)]
    inputs += [chance.randbytes(chance.randrange(40)) for _ in range(ROUNDS)]
    inputs += HOSTILE
    for data in inputs:
        try:
            decoded = message.decode(data, version)
        except ProtocolError:
            continue
        decoded.encode(version)  # whatever was accepted can be written


@pytest.mark.parametrize("key", [*APIS, -1, 32767])
def test_headers_raise_nothing_but_protocol_errors(key: int) -> None:
    chance = random.Random(key)
    for _ in range(200):
        version = chance.randint(-2, 20)
        start = key.to_bytes(2, "big", signed=True) + version.to_bytes(2, "big", signed=True)
        data = start + chance.randbytes(chance.randrange(24))
        for read in (decode_request_header, lambda data, v=version: decode_response_header(data, key, v)):
            try:
                _, offset = read(data)
            except ProtocolError:
                continue
            assert 0 <= offset <= len(data)


@pytest.mark.parametrize("length", [b"\xff\xff\xff\xff\x0f", b"\x80\x80\x80\x40", b"\xff\xff\xff\x07"])
def test_hostile_lengths_allocate_little(length: bytes) -> None:
    """A length may cost memory in proportion to the frame that carries it, not to what it claims."""
    tail = bytes(4000)
    for api in APIS.values():
        version = api.max_version
        api.request.decode(api.request().encode(version), version)  # compile before it is measured
        for position in range(24):
            body = bytes(position) + length + tail
            tracemalloc.start()
            with suppress(ProtocolError):
                api.request.decode(body, version)
            _, peak = tracemalloc.get_traced_memory()
            tracemalloc.stop()
            assert peak < 1 << 20
