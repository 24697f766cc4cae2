"""Encodes and decodes the records inside a batch, after decompression and before compression.

    length of the rest, attributes (one byte, none defined), timestamp delta, offset delta, key length, key,
    value length, value, count of headers, and for each its key length, key, value length, value

All numbers but the attributes are varints. A length of -1 is null, except for the key of a header.

`walk` raises `ProtocolError` and nothing else, allocates nothing for a length or a count before it has found
the bytes, and returns no damaged record. It does not rely on a broker that validates batches: every record
must be exactly as long as it says, and offsets must ascend within the range of the header. A reader that took
an offset twice, or one of another batch, would lose its position in the log.
"""

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple, Protocol

from semel.wire import varint
from semel.wire.batch import BatchHeader
from semel.wire.errors import ProtocolError

_MIN_INT64: Final = -(1 << 63)
_MAX_INT64: Final = (1 << 63) - 1
_FOLDED_NULL: Final = 1  # the length -1 of a null, in zigzag
_NULL: Final = b"\x01"


class Header(NamedTuple):
    """One header of a record. Keys may repeat; their order is kept."""

    key: str
    value: bytes | None


class Record(NamedTuple):
    """One record as a reader sees it. `encode_batch` accepts it too, but assigns the offsets itself."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...] = ()


class RecordLike(Protocol):
    """The part of a record that `encode_batch` needs."""

    @property
    def timestamp(self) -> int:
        """Milliseconds since the epoch."""

    @property
    def key(self) -> bytes | None:
        """Determines the partition, and is compared by compaction."""

    @property
    def value(self) -> bytes | None:
        """The payload; None deletes the key when the topic is compacted."""

    @property
    def headers(self) -> Sequence[tuple[str, bytes | None]]:
        """Pairs of key and value."""


def pack(records: Sequence[RecordLike]) -> bytes:
    """Encode these records, numbered from 0, with timestamps relative to the first."""
    base_timestamp = records[0].timestamp
    encode, small, count = varint.encode, varint.SMALL, len(varint.SMALL)
    parts: list[bytes] = []
    for offset_delta, record in enumerate(records):
        timestamp_delta = record.timestamp - base_timestamp
        if not _MIN_INT64 <= timestamp_delta <= _MAX_INT64:
            raise ValueError("the timestamps of a batch are too far apart")
        key, value, headers = record.key, record.value, record.headers
        # The first byte is the attributes, none of which is defined.
        whole = b"".join(
            (
                b"\x00",
                small[timestamp_delta] if 0 <= timestamp_delta < count else encode(timestamp_delta),
                small[offset_delta] if offset_delta < count else encode(offset_delta),
                _NULL if key is None else encode(len(key)),
                key or b"",
                _NULL if value is None else encode(len(value)),
                value or b"",
                _pack_headers(headers) if headers else b"\x00",
            )
        )
        size = len(whole)
        parts.append(small[size] if size < count else encode(size))
        parts.append(whole)
    return b"".join(parts)


def _pack_headers(headers: Sequence[tuple[str, bytes | None]]) -> bytes:
    encode = varint.encode
    parts = [encode(len(headers))]
    for name, content in headers:
        encoded = name.encode()
        parts += encode(len(encoded)), encoded
        parts += (_NULL,) if content is None else (encode(len(content)), content)
    return b"".join(parts)


def walk(data: bytes, header: BatchHeader) -> Iterator[Record]:
    """Read the decompressed records of a batch.

    This is the inner loop of every consumer, so numbers of one byte are read in place. A length past the end
    needs no check of its own: it moves `at` out of the data, or away from the declared end of the record.
    """
    at, size, previous = 0, len(data), -1
    base_offset, base_timestamp, last_delta = (
        header.base_offset,
        header.base_timestamp,
        header.last_offset_delta,
    )
    appended = header.max_timestamp if header.is_log_append_time else None
    rest, make = varint.decode_rest, tuple.__new__
    try:
        for _ in range(header.record_count):
            length = data[at]
            at += 1
            if length > 0x7F:
                length, at = rest(data, at, length)
            end = at + (length >> 1)
            time_delta = data[at + 1]  # after the attributes, none of which is defined
            at += 2
            if time_delta > 0x7F:
                time_delta, at = rest(data, at, time_delta)
            delta = data[at]
            at += 1
            if delta > 0x7F:
                delta, at = rest(data, at, delta)
            key_length = data[at]
            at += 1
            if key_length > 0x7F:
                key_length, at = rest(data, at, key_length)
            key = _null(key_length) if key_length & 1 else data[at : at + (key_length >> 1)]
            at += key_length >> 1
            value_length = data[at]
            at += 1
            if value_length > 0x7F:
                value_length, at = rest(data, at, value_length)
            value = _null(value_length) if value_length & 1 else data[at : at + (value_length >> 1)]
            at += value_length >> 1
            headers, at = _read_headers(data, at) if data[at] else ((), at + 1)
            timestamp = base_timestamp + ((time_delta >> 1) ^ -(time_delta & 1))
            if at != end or end > size or length & 1 or not _MIN_INT64 <= timestamp <= _MAX_INT64:
                raise ProtocolError("a record is not as long as it says, or its timestamp is out of range")
            if delta & 1 or not previous < (delta >> 1) <= last_delta:
                raise ProtocolError("the offsets in a batch do not ascend within its range")
            previous = delta >> 1
            if appended is not None:
                timestamp = appended
            yield make(Record, (base_offset + previous, timestamp, key, value, headers))
    except IndexError:
        raise ProtocolError("a batch ends inside a record") from None
    if at != size:
        raise ProtocolError("a batch holds more than the records that it counts")


def _null(folded: int) -> bytes | None:
    """Return None for the length -1. Any other negative length is a `ProtocolError`."""
    if folded != _FOLDED_NULL:
        raise ProtocolError("a negative length")
    return None


def _read_headers(data: bytes, at: int) -> tuple[tuple[Header, ...], int]:
    """Read the headers of a record. They are collected one by one; a count alone allocates nothing."""
    count, at = varint.read(data, at)
    if count < 0:
        raise ProtocolError("a negative count of headers")
    headers = []
    for _ in range(count):
        length, at = varint.read(data, at)
        if length < 0:
            raise ProtocolError("a header without a key")
        # Java's client shows bytes that are not UTF-8 as replacement characters; failing here would stop a
        # consumer for good at a record that other clients can read.
        key = data[at : at + length].decode(errors="replace")
        at += length
        length, at = varint.read(data, at)
        if length < -1:
            raise ProtocolError("a negative length")
        value = None if length < 0 else data[at : at + length]
        at += max(length, 0)
        headers.append(Header(key, value))
    return tuple(headers), at
