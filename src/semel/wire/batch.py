"""Reads, checks and writes the header of a record batch, all that the broker needs to store and serve it.

A batch of format version 2 is 61 bytes of header followed by records, perhaps compressed. The broker stores
and serves the bytes of a batch unchanged. It reads the header, verifies the checksum, and stamps the two
fields that it owns, the base offset and the leader epoch; the checksum covers neither. So nothing here
decodes records, and of an existing batch only `with_log_append_time` makes a copy.

     0  base offset          int64      \\
     8  length of the rest   int32       | not covered
    12  leader epoch         int32       | by the checksum
    16  magic                int8        |
    17  checksum             uint32     /
    21  attributes           int16      \\
    23  last offset delta    int32       |
    27  base timestamp       int64       |
    35  max timestamp        int64       | covered
    43  producer id          int64       |
    51  producer epoch       int16       |
    53  base sequence        int32       |
    57  record count         int32       |
    61  records                         /
"""

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

from crc32c import crc32c

from semel.wire.compression import Codec
from semel.wire.errors import ErrorCode, ProtocolError
from semel.wire.schema import Buffer


class ProducerIdAndEpoch(NamedTuple):
    """Identifies one incarnation of a producer. A broker fences every epoch but the newest."""

    producer_id: int = -1
    epoch: int = -1


MAGIC: Final = 2
PREFIX_BYTES: Final = 12  # base offset and length: not counted by the length field
HEADER_BYTES: Final = 61

CODEC_MASK: Final = 0x07
LOG_APPEND_TIME: Final = 0x08
TRANSACTIONAL: Final = 0x10
CONTROL: Final = 0x20
DELETE_HORIZON: Final = 0x40

_HEADER = struct.Struct(">qiibIhiqqqhii")
_BEFORE_CRC = struct.Struct(">qiib")
_CRC = struct.Struct(">I")
_COVERED = struct.Struct(">hiqqqhii")
_COVERED_AT = 21
_LENGTH = struct.Struct(">i")
_LENGTH_AT = 8
_MAGIC_AT = 16
_BASE_OFFSET = struct.Struct(">q")
_LEADER_EPOCH = struct.Struct(">i")
_LEADER_EPOCH_AT = 12

_CODECS: Final = tuple(Codec)
_ZSTD: Final = int(Codec.ZSTD)
_FIRST_PRODUCE_WITH_ZSTD: Final = 7
_SEQUENCES: Final = 1 << 31


class BatchHeader(NamedTuple):
    """The fields of a batch header, in wire order, except that `length` is the size of the whole batch."""

    base_offset: int
    length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def is_transactional(self) -> bool:
        """Whether the batch is part of a transaction, as data or as its marker."""
        return self.attributes & TRANSACTIONAL != 0

    @property
    def is_control(self) -> bool:
        """Whether the batch holds a control record instead of data."""
        return self.attributes & CONTROL != 0

    @property
    def is_log_append_time(self) -> bool:
        """Whether all records have the broker's timestamp, which is `max_timestamp`."""
        return self.attributes & LOG_APPEND_TIME != 0

    @property
    def delete_horizon(self) -> int | None:
        """When compaction may remove tombstones and markers from the batch; None before it was compacted.

        The horizon is stored in place of the base timestamp, and the timestamps of records are relative to it
        (KIP-534).
        """
        return self.base_timestamp if self.attributes & DELETE_HORIZON else None

    @property
    def codec(self) -> Codec:
        """The compression codec; an unknown number is a `ProtocolError`."""
        number = self.attributes & CODEC_MASK
        if number >= len(_CODECS):
            raise ProtocolError(f"compression type {number} is unknown")
        return _CODECS[number]

    @property
    def last_offset(self) -> int:
        """The offset of the last record."""
        return self.base_offset + self.last_offset_delta

    @property
    def last_sequence(self) -> int:
        """The sequence number of the last record, or -1 if there is none; 0 follows 2**31 - 1."""
        if self.base_sequence < 0:
            return -1
        return (self.base_sequence + self.last_offset_delta) % _SEQUENCES


def read_header(data: Buffer, at: int = 0) -> BatchHeader:
    """Read the header of the batch at `at`, without checking it."""
    try:
        fields = _HEADER.unpack_from(data, at)
    except struct.error:
        raise ProtocolError("a record batch is shorter than its header") from None
    return _as_header(fields)


def _as_header(fields: tuple[int, ...]) -> BatchHeader:
    # Building the tuple directly takes half the time of the named tuple's constructor.
    return tuple.__new__(BatchHeader, (fields[0], fields[1] + PREFIX_BYTES, *fields[2:]))


def iter_batches(data: Buffer) -> Iterator[tuple[int, BatchHeader]]:
    """Yield position and header of every whole batch in the records of a Fetch response.

    A broker truncates the records at a size, so an incomplete batch at the end is normal and ends the
    iteration. An impossible batch is a `ProtocolError`, even if it is the last.
    """
    at, size = 0, len(data)
    while size - at > _MAGIC_AT:
        magic = data[at + _MAGIC_AT]
        if magic != MAGIC:
            raise ProtocolError(f"record format version {magic} is not supported, only {MAGIC}")
        length = _LENGTH.unpack_from(data, at + _LENGTH_AT)[0] + PREFIX_BYTES
        if length < HEADER_BYTES:
            raise ProtocolError(f"a record batch of {length} bytes is shorter than its header")
        if length > size - at:
            return
        yield at, read_header(data, at)
        at += length


def is_transactional(records: Buffer) -> bool:
    """Whether these bytes begin with a transactional batch, whatever else is wrong with it."""
    if len(records) < HEADER_BYTES:
        return False
    header = read_header(records)
    return header.magic == MAGIC and header.is_transactional


def has_valid_crc(data: Buffer, at: int, header: BatchHeader) -> bool:
    """Whether the checksum in the header matches the bytes after it."""
    return crc32c(memoryview(data)[at + _COVERED_AT : at + header.length]) == header.crc


def check_produced(records: Buffer | None, api_version: int) -> tuple[BatchHeader | None, ErrorCode]:
    """Check the records of one partition in a Produce request, in the order of Kafka's own checks.

    Returns the header and `ErrorCode.NONE`, or None and the error for the response. The records are not
    decoded here; `validating` does that.

    - INVALID_RECORD: not exactly one whole batch (none, truncated, or followed by more bytes), a format
      version other than 2, an unknown codec, a base offset other than 0, a record count that is not positive
      or not the number of offsets, a control batch, a producer id without a sequence number.
    - UNSUPPORTED_COMPRESSION_TYPE: zstd in a version of the request that does not allow it.
    - CORRUPT_MESSAGE: a length too small for a header, or a wrong checksum. Clients retry.
    - INVALID_TIMESTAMP: the producer set the bit for LogAppendTime. Kafka clears the bit or refuses the
      batch; if the bit were stored, it would change the timestamps that readers see.
    """
    if records is None:
        return None, ErrorCode.INVALID_RECORD
    size = len(records)
    if size < HEADER_BYTES:
        return None, _shape_error(records)
    fields = _HEADER.unpack_from(records)
    base_offset, length, _, magic, crc, attributes, last_delta, _, _, producer_id, _, sequence, count = fields
    if length + PREFIX_BYTES != size or magic != MAGIC:
        return None, _shape_error(records)
    codec = attributes & CODEC_MASK
    if codec >= _ZSTD and (codec > _ZSTD or api_version < _FIRST_PRODUCE_WITH_ZSTD):
        return None, ErrorCode.INVALID_RECORD if codec > _ZSTD else ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    if base_offset:
        return None, ErrorCode.INVALID_RECORD
    if crc32c(memoryview(records)[_COVERED_AT:]) != crc:
        return None, ErrorCode.CORRUPT_MESSAGE
    if count <= 0 or last_delta != count - 1 or attributes & CONTROL or (sequence < 0 <= producer_id):
        return None, ErrorCode.INVALID_RECORD
    if attributes & LOG_APPEND_TIME:
        return None, ErrorCode.INVALID_TIMESTAMP
    return _as_header(fields), ErrorCode.NONE


def produced_fault(records: Buffer | None, error: ErrorCode) -> str:
    """Describe why `check_produced` refused a batch. Call it only for a refused batch."""
    size = 0 if records is None else len(records)
    if records is None or not size:
        return "there is no batch"
    if size <= _MAGIC_AT or size < HEADER_BYTES:
        return f"a batch of {size} bytes is shorter than its header"
    fields = _HEADER.unpack_from(records)
    base_offset, length, _, magic, _, attributes, last_delta, _, _, producer_id, _, sequence, count = fields
    codec = attributes & CODEC_MASK
    faults = {
        f"format version {magic} is not supported, only {MAGIC}": magic != MAGIC,
        f"the batch says that it has {length + PREFIX_BYTES} bytes, and there are {size}": (
            length + PREFIX_BYTES != size
        ),
        f"codec {codec} is not known": codec > _ZSTD,
        "zstd needs version 7 of the request": error is ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
        f"base offset {base_offset} is not 0": base_offset != 0,
        "the checksum does not match": error is ErrorCode.CORRUPT_MESSAGE,
        f"{count} records and a last offset delta of {last_delta}": count <= 0 or last_delta != count - 1,
        "a producer cannot write control batches": attributes & CONTROL,
        f"producer id {producer_id} without a sequence number": sequence < 0 <= producer_id,
        "a producer cannot set the broker's time": attributes & LOG_APPEND_TIME,
    }
    return next(words for words, is_found in faults.items() if is_found)


def _shape_error(records: Buffer) -> ErrorCode:
    """Return the error for bytes that are not exactly one batch."""
    size = len(records)
    if size <= _MAGIC_AT or records[_MAGIC_AT] != MAGIC:
        return ErrorCode.INVALID_RECORD
    length = _LENGTH.unpack_from(records, _LENGTH_AT)[0] + PREFIX_BYTES
    return ErrorCode.CORRUPT_MESSAGE if length < HEADER_BYTES else ErrorCode.INVALID_RECORD


def stamp(buffer: bytearray | memoryview, at: int, base_offset: int, leader_epoch: int) -> None:
    """Write the broker's two fields into the batch at `at`; the checksum does not cover them."""
    _BASE_OFFSET.pack_into(buffer, at, base_offset)
    _LEADER_EPOCH.pack_into(buffer, at + _LEADER_EPOCH_AT, leader_epoch)


def seal(header: BatchHeader, records: Buffer) -> bytes:
    """Build a batch from header fields and (compressed) records; `length` and `crc` are computed."""
    try:
        covered = _COVERED.pack(*header[5:])
        length = HEADER_BYTES - PREFIX_BYTES + len(records)
        before = _BEFORE_CRC.pack(header.base_offset, length, header.leader_epoch, header.magic)
    except struct.error as error:
        raise ValueError(f"a header field is out of range: {error}") from None
    crc = crc32c(records, crc32c(covered))
    return b"".join((before, _CRC.pack(crc), covered, records))


def with_log_append_time(records: Buffer, now_ms: int) -> bytes:
    """Return a copy of the batch in which every record has the broker's timestamp `now_ms`.

    One bit and the max timestamp apply to all records, so the records are not decoded; only the checksum
    changes.
    """
    header = read_header(records)
    header = header._replace(attributes=header.attributes | LOG_APPEND_TIME, max_timestamp=now_ms)
    return seal(header, memoryview(records)[HEADER_BYTES : header.length])
