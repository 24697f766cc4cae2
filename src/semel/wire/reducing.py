"""Removes records from a batch, for compaction.

Records that are kept are not encoded again. Their bytes are copied as the producer wrote them, so that
nothing in them can change, whatever a client put into headers. The batch keeps its base offset, last offset,
producer, sequence and codec; the number of records, the largest timestamp and the checksum are new.

A *delete horizon* is the time from which tombstones may be removed. It is stored as in Kafka (KIP-534): a bit
of the attributes, and the time itself in place of the base timestamp. Then the timestamp delta of every
record is rewritten, relative to the horizon. Readers need no change: base and delta still add up to the
record's timestamp.

As everywhere in this layer, damaged input is a `ProtocolError` and nothing else, and memory is proportional
to the input, or to the limit if the input is compressed.
"""

from collections.abc import Iterator
from typing import Final, NamedTuple

from semel.wire import batch, varint
from semel.wire.compression import compress, decompress
from semel.wire.errors import ProtocolError
from semel.wire.records import DECOMPRESSED_LIMIT_BYTES
from semel.wire.schema import Buffer

_MAX_INT64: Final = (1 << 63) - 1
_FOLDED_NULL: Final = 1
NO_HORIZON: Final = -1


class Entry(NamedTuple):
    """One record and its bytes: from ``start`` to ``end``; ``rest`` is the position after its timestamp."""

    offset_delta: int
    time_delta: int
    key: bytes | None
    is_tombstone: bool
    start: int
    rest: int
    end: int


class Opened(NamedTuple):
    """A batch whose records are decompressed."""

    header: batch.BatchHeader
    payload: bytes

    def entries(self) -> Iterator[Entry]:
        """Iterate over the records. ProtocolError if one is damaged."""
        return _walk(self.payload, self.header)


def open_batch(data: Buffer, *, limit_bytes: int = DECOMPRESSED_LIMIT_BYTES) -> Opened:
    """Decompress a batch. ProtocolError if it is damaged."""
    header = batch.read_header(data)
    if header.magic != batch.MAGIC or header.length != len(data) or header.record_count < 0:
        raise ProtocolError("these bytes are not one batch")
    if not batch.has_valid_crc(data, 0, header):
        raise ProtocolError("the checksum of a batch is wrong")
    return Opened(header, decompress(header.codec, memoryview(data)[batch.HEADER_BYTES :], limit_bytes))


def reduced(opened: Opened, stays: bytes | bytearray, delete_horizon: int | None) -> bytes:
    """Return the batch without the records whose byte in ``stays`` is 0; it has a byte for each, in order.

    ``delete_horizon`` sets the horizon; NO_HORIZON removes it, None keeps it. ValueError if the timestamp of
    a record cannot be expressed relative to it.
    """
    header, payload = opened
    base_timestamp, attributes = header.base_timestamp, header.attributes
    if delete_horizon == NO_HORIZON:
        attributes &= ~batch.DELETE_HORIZON
    elif delete_horizon is not None:
        base_timestamp, attributes = min(delete_horizon, _MAX_INT64), attributes | batch.DELETE_HORIZON
    shift = header.base_timestamp - base_timestamp
    latest = -1
    output = bytearray()
    for entry, is_kept in zip(opened.entries(), stays, strict=True):
        if not is_kept:
            continue
        latest = max(latest, header.base_timestamp + entry.time_delta)
        if not shift:
            output += payload[entry.start : entry.end]
            continue
        time_delta = entry.time_delta + shift
        if not -_MAX_INT64 - 1 <= time_delta <= _MAX_INT64:
            raise ValueError("a record is too far away in time from the horizon of its batch")
        # The byte before the timestamp is the attributes, none of which is defined.
        body = b"\x00" + varint.encode(time_delta) + payload[entry.rest : entry.end]
        output += varint.encode(len(body))
        output += body
    if header.is_log_append_time or latest > header.max_timestamp:
        # Keep the broker's timestamp, or the producer's max timestamp: the ledger has the batch under it.
        latest = header.max_timestamp
    header = header._replace(
        attributes=attributes,
        base_timestamp=base_timestamp,
        max_timestamp=header.max_timestamp
        if header.is_log_append_time
        else min(latest, header.max_timestamp),
        record_count=len(stays) - stays.count(0),
    )
    return batch.seal(header, compress(header.codec, output))


def _walk(data: bytes, header: batch.BatchHeader) -> Iterator[Entry]:
    """Read the records as `payload.walk` does, but skip headers."""
    at, size, previous = 0, len(data), -1
    last_delta = header.last_offset_delta
    read, rest_of = varint.read, varint.decode_rest
    try:
        for _ in range(header.record_count):
            start = at
            length, at = read(data, at)
            end = at + length
            time_delta, rest = read(data, at + 1)
            delta, at = read(data, rest)
            key_length = data[at]
            at += 1
            if key_length > 0x7F:
                key_length, at = rest_of(data, at, key_length)
            key: bytes | None = None
            if key_length != _FOLDED_NULL:
                key = data[at : at + (key_length >> 1)]
                at += key_length >> 1
            value_length = data[at]
            at += 1
            if value_length > 0x7F:
                value_length, at = rest_of(data, at, value_length)
            is_tombstone = value_length == _FOLDED_NULL
            has_negative = (key is not None and key_length & 1) or (not is_tombstone and value_length & 1)
            value_end = at if is_tombstone else at + (value_length >> 1)
            at = value_end + 1 if not data[value_end] else _skip_headers(data, value_end)
            if length < 0 or has_negative or at != end or end > size:
                raise ProtocolError("a record is not as long as it says")
            if not previous < delta <= last_delta:
                raise ProtocolError("the offsets in a batch do not ascend within its range")
            previous, at = delta, end
            yield Entry(delta, time_delta, key, is_tombstone, start, rest, end)
    except IndexError:
        raise ProtocolError("a batch ends inside a record") from None
    if at != size:
        raise ProtocolError("a batch holds more than the records that it counts")


def _skip_headers(data: bytes, at: int) -> int:
    """Return the position after the headers. Headers that a reader would refuse are refused here too."""
    count, at = varint.read(data, at)
    if count < 0:
        raise ProtocolError("a negative count of headers")
    for _ in range(count):
        for least in (0, -1):
            length, at = varint.read(data, at)
            if length < least:
                raise ProtocolError("a negative length")
            at += max(length, 0)
    return at
