"""The slow paths of the codec: functions that generated encoders and decoders call for unusual values.

Generated code reads a length of one byte inline, because nearly every length is below 128. This module
handles longer varints, tagged fields that are present, and all errors.

Functions that are named after an error return the exception; the caller raises it, so that the generated code
shows where it can fail.
"""

from semel.wire.errors import EncodeError, ProtocolError
from semel.wire.spec import Buffer

#: The longest string that the protocol allows, in bytes, even where the length is a varint.
MAX_STRING = 32767

#: Records up to this size are copied into the buffer around them: cheaper than sending one more buffer.
COPY_LIMIT = 4096

#: The most tagged fields in a header. Kafka has defined one so far.
HEADER_TAGS_MAX = 64


def read_uvarint(data: Buffer, position: int) -> tuple[int, int]:
    """Read an unsigned integer of at most 32 bits in groups of seven; return it and the position after it."""
    value = 0
    for shift in (0, 7, 14, 21, 28):
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value > 0xFFFFFFFF:
                break
            return value, position
    raise ProtocolError("a variable-length integer has more than 32 bits")


def uvarint(value: int) -> bytes:
    """Encode an unsigned integer in groups of seven bits, the lowest first."""
    if value < 0x80:
        return bytes((value,))
    if value < 0x4000:
        return bytes((value & 0x7F | 0x80, value >> 7))
    groups = bytearray()
    while value >= 0x80:
        groups.append(value & 0x7F | 0x80)
        value >>= 7
    groups.append(value)
    return bytes(groups)


def string_uvarint(value: int) -> bytes:
    """Encode the length of a compact string that is too long for one byte."""
    if value > MAX_STRING + 1:
        raise EncodeError(f"a string of {value - 1} bytes is longer than {MAX_STRING}")
    return uvarint(value)


def tag_prefix(tag: int, size: int) -> bytes:
    """Encode the prefix of a tagged field."""
    return uvarint(tag) + uvarint(size)


def read_tag(data: Buffer, position: int, end: int, previous: int) -> tuple[int, int, int]:
    """Return the number of a tagged field, the position of its value and the position after it."""
    tag, position = read_uvarint(data, position)
    size, position = read_uvarint(data, position)
    if tag <= previous:
        raise ProtocolError(f"tagged field {tag} comes after tagged field {previous}")
    if size > end - position:
        raise ProtocolError(f"tagged field {tag} has {size} bytes, {end - position} are left")
    return tag, position, position + size


def skip_tagged_fields(data: Buffer, position: int, end: int, most: int | None = None) -> int:
    """Return the position after a section of unknown tagged fields; `most` limits their number."""
    count, position = read_uvarint(data, position)
    if most is not None and count > most:
        raise ProtocolError(f"{count} tagged fields; at most {most} are allowed here")
    tag = -1
    for _ in range(count):
        tag, _, position = read_tag(data, position, end, tag)
    return position


def too_many(most: int) -> ProtocolError:
    """The error for a message with more elements than allowed."""
    return ProtocolError(f"more than {most} elements (semel.request.elements.max)")


def bad_length(name: str, length: int, left: int) -> ProtocolError:
    """The error for a length that is negative where null is not allowed, or exceeds the remaining bytes."""
    if length < 0:
        return ProtocolError(f"{name} must not be null")
    return ProtocolError(f"{name} has length {length}, {left} bytes are left")


def bad_tag(name: str) -> ProtocolError:
    """The error for a tagged field whose value does not have the declared size."""
    return ProtocolError(f"tagged field {name} does not have the size that it declares")


def bad_uuid(name: str) -> EncodeError:
    """The error for a uuid that is not 16 bytes; struct would pad or cut it silently."""
    return EncodeError(f"{name} is not 16 bytes")
