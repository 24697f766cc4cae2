"""Encodes and decodes the embedded protocol of consumers in classic groups: subscriptions and assignments.

The members of a classic group exchange these bytes. The broker reads them to learn what a group subscribes
to, and when a group migrates between the classic protocol and that of KIP-848.

A subscription has topics; version 1 adds the partitions that the member owns, version 2 a generation, version
3 a rack. Fields of newer versions come last and are ignored. Assignments have the same layout in all
versions. Every length is compared with the remaining bytes, and the number of entries is bounded, because
reading them takes time.
"""

import struct
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from semel.wire.errors import ProtocolError

_INT16: Final = struct.Struct(">h")
_INT32: Final = struct.Struct(">i")
VERSION_MAX: Final = 3
ENTRIES_MAX: Final = 250_000
"""The most topics and partitions in a subscription or assignment; reading them takes a tenth of a second."""


class Subscription(NamedTuple):
    """What a member subscribes to."""

    topics: list[str]
    owned: dict[str, list[int]]
    """The partitions that the member owns; empty before version 1."""
    rack_id: str | None = None
    version: int = 0

    @property
    def entries(self) -> int:
        """The number of topics and partitions in the subscription."""
        return len(self.topics) + entries_in(self.owned)


def encode_subscription(topics: Iterable[str]) -> bytes:
    """Encode the topics that a member subscribes to, in version 0, which every client understands."""
    names = sorted(topics)
    return b"".join((_INT16.pack(0), _INT32.pack(len(names)), *map(_string, names), _INT32.pack(-1)))


def decode_subscription(data: bytes) -> Subscription:
    """Decode what a member subscribes to."""
    reader = _Reader(data)
    version = reader.int16()
    topics = [reader.string() for _ in range(reader.count())]
    owned: dict[str, list[int]] = {}
    rack_id = None
    # Some clients declare version 1 or later, but send only the fields of version 0.
    if version >= 1 and reader.left:
        reader.skip_bytes()
        owned = reader.partitions() if reader.left else {}
    if version >= 3 and reader.left:
        reader.int32()
        rack_id = reader.nullable_string()
    return Subscription(topics, owned, rack_id, version)


def subscription_version(data: bytes) -> int:
    """Return the version of a subscription, at most `VERSION_MAX`; 0 if it has none."""
    return max(0, min(_INT16.unpack(data[:2])[0], VERSION_MAX)) if len(data) >= 2 else 0


def encode_assignment(partitions: Mapping[str, Iterable[int]], version: int = 0) -> bytes:
    """Encode the partitions of a member."""
    parts = [_INT16.pack(version), _INT32.pack(len(partitions))]
    for topic, numbers in sorted(partitions.items()):
        listed = sorted(numbers)
        parts += [_string(topic), struct.pack(f">i{len(listed)}i", len(listed), *listed)]
    parts.append(_INT32.pack(-1))
    return b"".join(parts)


def decode_assignment(data: bytes) -> dict[str, list[int]]:
    """Decode the partitions of a member; empty if there is no assignment yet."""
    if not data:
        return {}
    reader = _Reader(data)
    reader.int16()
    return reader.partitions()


def entries_in(partitions: Mapping[str, list[int]]) -> int:
    """Return the number of topics and partitions."""
    return len(partitions) + sum(map(len, partitions.values()))


def _string(text: str) -> bytes:
    data = text.encode()
    return _INT16.pack(len(data)) + data


class _Reader:
    """Reads the few types of this protocol, and checks every length."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0
        self._entries = 0

    @property
    def left(self) -> int:
        return len(self._data) - self._at

    def int16(self) -> int:
        return int(_INT16.unpack(self._take(2))[0])

    def int32(self) -> int:
        return int(_INT32.unpack(self._take(4))[0])

    def count(self) -> int:
        count = self.int32()
        if not 0 <= count <= self.left:
            raise ProtocolError(f"a list of {count} in group metadata of {len(self._data)} bytes")
        self._entries += count
        if self._entries > ENTRIES_MAX:
            raise ProtocolError(f"more than {ENTRIES_MAX} topics and partitions in group metadata")
        return count

    def string(self) -> str:
        return self._text(max(0, self.int16()))

    def nullable_string(self) -> str | None:
        length = self.int16()
        return None if length < 0 else self._text(length)

    def skip_bytes(self) -> None:
        self._take(max(0, self.int32()))

    def partitions(self) -> dict[str, list[int]]:
        """Read topics with partition numbers. The partitions of a repeated topic are merged."""
        found: dict[str, list[int]] = {}
        for _ in range(self.count()):
            numbers = found.setdefault(self.string(), [])
            count = self.count()
            numbers += struct.unpack(f">{count}i", self._take(4 * count))
        return found

    def _text(self, length: int) -> str:
        try:
            return self._take(length).decode()
        except UnicodeDecodeError:
            raise ProtocolError("a name in group metadata is not UTF-8") from None

    def _take(self, length: int) -> bytes:
        taken = self._data[self._at : self._at + length]
        if len(taken) != length:
            raise ProtocolError("group metadata is truncated")
        self._at += length
        return taken
