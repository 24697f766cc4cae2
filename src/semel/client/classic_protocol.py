"""The embedded protocol of classic groups: encoding of subscriptions and assignments.

The broker passes these bytes on unread. Version 0 of both is written, because every client understands it.
From later versions only the fields of version 0 are read; they come first in all of them.
"""

import struct
from collections.abc import Iterable, Mapping

from semel.wire.errors import ProtocolError

_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")


def encode_subscription(topics: Iterable[str]) -> bytes:
    """Encode the topics that a member subscribes to."""
    names = sorted(topics)
    return b"".join((_INT16.pack(0), _INT32.pack(len(names)), *map(_string, names), _INT32.pack(-1)))


def decode_subscription(data: bytes) -> list[str]:
    """Decode the topics that a member subscribes to."""
    reader = _Reader(data)
    reader.int16()
    return [reader.string() for _ in range(reader.count())]


def encode_assignment(partitions: Mapping[str, Iterable[int]]) -> bytes:
    """Encode the partitions of a member."""
    parts = [_INT16.pack(0), _INT32.pack(len(partitions))]
    for topic, numbers in sorted(partitions.items()):
        listed = sorted(numbers)
        parts += [_string(topic), _INT32.pack(len(listed)), *map(_INT32.pack, listed)]
    parts.append(_INT32.pack(-1))
    return b"".join(parts)


def decode_assignment(data: bytes) -> dict[str, list[int]]:
    """Decode the partitions of a member; empty if there is no assignment yet."""
    if not data:
        return {}
    reader = _Reader(data)
    reader.int16()
    return {reader.string(): [reader.int32() for _ in range(reader.count())] for _ in range(reader.count())}


def assign_range(
    members: Mapping[str, Iterable[str]], partitions: Mapping[str, int]
) -> dict[str, dict[str, list[int]]]:
    """Kafka's range assignor: split each topic into ranges of equal length, for its subscribers in order."""
    shares: dict[str, dict[str, list[int]]] = {member: {} for member in members}
    for topic, count in sorted(partitions.items()):
        subscribers = sorted(member for member, topics in members.items() if topic in topics)
        if not subscribers:
            continue
        size, larger = divmod(count, len(subscribers))
        first = 0
        for place, member in enumerate(subscribers):
            length = size + (place < larger)
            if length:
                shares[member][topic] = list(range(first, first + length))
            first += length
    return shares


def _string(text: str) -> bytes:
    data = text.encode()
    return _INT16.pack(len(data)) + data


class _Reader:
    """Reads the few types that occur, and trusts no length."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def int16(self) -> int:
        return int(_INT16.unpack(self._take(2))[0])

    def int32(self) -> int:
        return int(_INT32.unpack(self._take(4))[0])

    def count(self) -> int:
        count = self.int32()
        if not 0 <= count <= len(self._data) - self._at:
            raise ProtocolError(f"a list of {count} in group metadata of {len(self._data)} bytes")
        return count

    def string(self) -> str:
        try:
            return self._take(max(0, self.int16())).decode()
        except UnicodeDecodeError:
            raise ProtocolError("a topic name in group metadata is not UTF-8") from None

    def _take(self, length: int) -> bytes:
        taken = self._data[self._at : self._at + length]
        if len(taken) != length:
            raise ProtocolError("group metadata is truncated")
        self._at += length
        return taken
