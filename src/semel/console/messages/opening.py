"""Opens a batch: yields its records with bounded memory, whatever is in them.

`wire.payload.walk` decodes all headers of a record, and a record of 32 MiB can hold ten million, which is
gigabytes of Python objects. This module decodes the first few and skips the rest, because a record starts
with its length. Like `walk`, it refuses damaged records with `ProtocolError`.
"""

from collections.abc import Iterator
from typing import Final, NamedTuple

from semel.client import Header
from semel.console.messages.limits import BATCH_BYTES_MAX, HEADERS_READ_MAX
from semel.wire import varint
from semel.wire.batch import HEADER_BYTES, BatchHeader, has_valid_crc
from semel.wire.compression import decompress
from semel.wire.errors import ProtocolError
from semel.wire.schema import Buffer

_HEADER_BYTES_MIN: Final = 2  # an empty name and an empty value


class OpenRecord(NamedTuple):
    """One record of a batch, with the first of its headers and the number of all."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...]
    header_count: int
    size_bytes: int


def open_batch(data: Buffer, at: int, header: BatchHeader, headers_max: int = HEADERS_READ_MAX) -> "Opened":
    """Check and decompress the batch at `at`. ProtocolError if it is damaged or too large."""
    if header.record_count < 0:
        raise ProtocolError(f"a batch of {header.record_count} records")
    if not has_valid_crc(data, at, header):
        raise ProtocolError("the checksum of a batch is wrong")
    packed = memoryview(data)[at + HEADER_BYTES : at + header.length]
    return Opened(header, decompress(header.codec, packed, BATCH_BYTES_MAX), headers_max)


class Opened:
    """A decompressed batch; iterate over its records."""

    def __init__(self, header: BatchHeader, data: bytes, headers_max: int = HEADERS_READ_MAX) -> None:
        self._header = header
        self._data = data
        self._headers_max = headers_max

    @property
    def data(self) -> bytes:
        """The decompressed records, as they are on the wire."""
        return self._data

    def __iter__(self) -> Iterator[OpenRecord]:
        at, header = 0, self._header
        appended = header.max_timestamp if header.is_log_append_time else None
        previous = -1
        try:
            for _ in range(header.record_count):
                record, delta, at = self._read(at)
                if not previous < delta <= header.last_offset_delta:
                    raise ProtocolError("the offsets in a batch do not ascend within its range")
                previous = delta
                yield record if appended is None else record._replace(timestamp=appended)
        except IndexError:
            raise ProtocolError("a batch ends inside a record") from None
        if at != len(self._data):
            raise ProtocolError("a batch holds more than the records that it counts")

    def _read(self, at: int) -> tuple[OpenRecord, int, int]:
        """Read one record. This is the inner loop of a search, so one-byte varints are decoded inline."""
        data, read = self._data, varint.read
        begin = at
        length, at = (data[at] >> 1, at + 1) if data[at] < 0x80 and not data[at] & 1 else read(data, at)
        end = at + length
        if length < 0 or end > len(data):
            raise ProtocolError("a record is not as long as it says")
        at += 1  # the attributes, none of which is defined
        time_delta, at = (data[at] >> 1, at + 1) if data[at] < 0x80 and not data[at] & 1 else read(data, at)
        offset_delta, at = (data[at] >> 1, at + 1) if data[at] < 0x80 and not data[at] & 1 else read(data, at)
        key, at = _field(data, at, end)
        value, at = _field(data, at, end)
        headers: tuple[Header, ...] = ()
        count = 0
        if at < end and not data[at]:
            at += 1
        else:
            headers, count, at = self._read_headers(at, end)
        if count <= self._headers_max and at != end:
            raise ProtocolError("a record is not as long as it says")
        timestamp = self._header.base_timestamp + time_delta
        offset = self._header.base_offset + offset_delta
        fields = (offset, timestamp, key, value, headers, count, end - begin)
        return tuple.__new__(OpenRecord, fields), offset_delta, end

    def _read_headers(self, at: int, end: int) -> tuple[tuple[Header, ...], int, int]:
        data = self._data
        count, at = varint.read(data, at)
        if not 0 <= count * _HEADER_BYTES_MIN <= end - at:
            raise ProtocolError(f"a record with {count} headers where {end - at} bytes are left")
        headers = []
        for _ in range(min(count, self._headers_max)):
            name, at = _field(data, at, end)
            if name is None:
                raise ProtocolError("a header without a key")
            content, at = _field(data, at, end)
            headers.append(Header(name.decode(errors="replace"), content))
        return tuple(headers), count, at


def _field(data: bytes, at: int, end: int) -> tuple[bytes | None, int]:
    length = data[at]
    if length < 0x80 and not length & 1:
        length >>= 1
        at += 1
    else:
        length, at = varint.read(data, at)
        if length == -1:
            return None, at
    if not 0 <= length <= end - at:
        raise ProtocolError("a field that is longer than its record")
    return data[at : at + length], at + length
