"""Encodes and decodes record batches, for code that needs their records: clients, the compactor, tools.

The broker stores and serves batches by their headers (see `batch`, whose names are exported here too) and
validates their records when they are produced (`validating`). Like every decoder of this layer, these raise
`ProtocolError` and nothing else, and use memory proportional to the input, or to the limit if the input is
compressed. They allocate nothing for a declared length or count before they have found the bytes.

A batch can still be damaged inside: other brokers do not validate records, and neither do topics with
`semel.validate.records=none`. So reading checks the number of records, their lengths and their offsets (see
`payload`).
"""

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from semel.wire.batch import (
    CONTROL,
    HEADER_BYTES,
    MAGIC,
    TRANSACTIONAL,
    BatchHeader,
    check_produced,
    has_valid_crc,
    iter_batches,
    read_header,
    seal,
    stamp,
    with_log_append_time,
)
from semel.wire.compression import Codec, compress, decompress
from semel.wire.errors import ProtocolError
from semel.wire.payload import Header, Record, RecordLike, pack, walk
from semel.wire.schema import Buffer

__all__ = [
    "DECOMPRESSED_LIMIT_BYTES",
    "HEADER_BYTES",
    "BatchHeader",
    "Codec",
    "Header",
    "Marker",
    "Record",
    "RecordLike",
    "check_produced",
    "decode_batch",
    "encode_batch",
    "first_at_or_after",
    "iter_batches",
    "iter_records",
    "marker",
    "read_header",
    "read_marker",
    "stamp",
    "with_log_append_time",
]

DECOMPRESSED_LIMIT_BYTES: Final = 128 * 1024 * 1024

_MARKER_KEY = struct.Struct(">hh")  # version, type
_MARKER_VALUE = struct.Struct(">hi")  # version, coordinator epoch
_MARKER_RECORD = struct.Struct(">BBBBBhhBhiB")
"""The record of a marker: length, attributes, timestamp and offset deltas, key, value, no headers.

Lengths and deltas are varints of one byte: 32 is a record of 16 bytes, 8 a key of 4, 12 a value of 6.
"""
_ABORT: Final = 0
_COMMIT: Final = 1


@dataclass(frozen=True, slots=True)
class Marker:
    """The end of a transaction in a partition."""

    commit: bool
    coordinator_epoch: int


def encode_batch(
    records: Sequence[RecordLike],
    *,
    codec: Codec = Codec.NONE,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    transactional: bool = False,
    base_offset: int = 0,
    leader_epoch: int = -1,
) -> bytes:
    """Encode one batch of these records, in their order. ValueError if a value is out of range."""
    if not records:
        raise ValueError("a batch has at least one record")
    payload = pack(records)
    header = BatchHeader(
        base_offset=base_offset,
        length=0,
        leader_epoch=leader_epoch,
        magic=MAGIC,
        crc=0,
        attributes=int(codec) | (TRANSACTIONAL if transactional else 0),
        last_offset_delta=len(records) - 1,
        base_timestamp=records[0].timestamp,
        max_timestamp=max(record.timestamp for record in records),
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        record_count=len(records),
    )
    return seal(header, compress(codec, payload) if codec else payload)


def decode_batch(
    data: Buffer, at: int = 0, *, check_crc: bool = True, limit_bytes: int = DECOMPRESSED_LIMIT_BYTES
) -> list[Record]:
    """Return all records of the batch at `at`, or raise `ProtocolError` if one of them is damaged."""
    return list(iter_records(data, at, check_crc=check_crc, limit_bytes=limit_bytes))


def iter_records(
    data: Buffer, at: int = 0, *, check_crc: bool = True, limit_bytes: int = DECOMPRESSED_LIMIT_BYTES
) -> Iterator[Record]:
    """Decompress the batch at `at` now, and decode its records one by one on demand.

    Use it to stop early, or to avoid holding all records at once: a `Record` takes many times the seven bytes
    of the smallest record on the wire.
    """
    header = read_header(data, at)
    if header.magic != MAGIC:
        raise ProtocolError(f"record format version {header.magic} is not supported, only {MAGIC}")
    if not HEADER_BYTES <= header.length <= len(data) - at:
        raise ProtocolError(f"a batch of {header.length} bytes where {len(data) - at} are left")
    if header.record_count < 0:
        raise ProtocolError(f"a batch of {header.record_count} records")
    if check_crc and not has_valid_crc(data, at, header):
        raise ProtocolError("the checksum of a batch is wrong")
    packed = memoryview(data)[at + HEADER_BYTES : at + header.length]
    return walk(decompress(header.codec, packed, limit_bytes), header)


def marker(
    producer_id: int,
    producer_epoch: int,
    commit: bool,
    coordinator_epoch: int,
    timestamp: int,
    base_offset: int = 0,
) -> bytes:
    """Return the control batch that ends a producer's transaction in a partition."""
    header = BatchHeader(
        base_offset,
        0,
        -1,
        MAGIC,
        0,
        TRANSACTIONAL | CONTROL,
        0,
        timestamp,
        timestamp,
        producer_id,
        producer_epoch,
        -1,
        1,
    )
    kind = _COMMIT if commit else _ABORT
    return seal(header, _MARKER_RECORD.pack(32, 0, 0, 0, 8, 0, kind, 12, 0, coordinator_epoch, 0))


def read_marker(data: Buffer, at: int = 0) -> Marker | None:
    """Return the outcome in the control batch at `at`, or None if the control record has another type.

    Versions above 0 may only append fields, so they are read like version 0.
    """
    if not read_header(data, at).is_control:
        raise ProtocolError("a batch of data where a control batch is expected")
    record = next(iter_records(data, at), None)
    if record is None or record.key is None or len(record.key) < _MARKER_KEY.size:
        raise ProtocolError("a control batch without a type")
    _, kind = _MARKER_KEY.unpack_from(record.key)
    if kind not in (_ABORT, _COMMIT):
        return None
    if record.value is None or len(record.value) < _MARKER_VALUE.size:
        raise ProtocolError("a transaction marker without a coordinator epoch")
    _, coordinator_epoch = _MARKER_VALUE.unpack_from(record.value)
    return Marker(kind == _COMMIT, coordinator_epoch)


def first_at_or_after(
    data: Buffer,
    timestamp: int,
    at: int = 0,
    *,
    from_offset: int | None = None,
    limit_bytes: int = DECOMPRESSED_LIMIT_BYTES,
) -> Record | None:
    """Return the first record of the batch with at least this timestamp and, if given, this offset.

    A batch whose max timestamp is too old is not decoded. Offsets are relative to the header's base offset,
    so those of a batch that is not stamped yet start at 0.
    """
    if read_header(data, at).max_timestamp < timestamp:
        return None
    for record in iter_records(data, at, limit_bytes=limit_bytes):
        if record.timestamp >= timestamp and (from_offset is None or record.offset >= from_offset):
            return record
    return None
