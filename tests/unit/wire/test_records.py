"""Record batches: the bytes of the format, what a producer may send, and what damaged ones do to readers."""

import struct
from typing import Any

import pytest
from aiokafka.record.control_record import ABORT_MARKER, COMMIT_MARKER, ControlRecord
from aiokafka.record.default_records import DefaultRecordBatch
from crc32c import crc32c
from support.faults.hostile_words import BATCH_FIELDS

from semel.wire.batch import PREFIX_BYTES, has_valid_crc, produced_fault
from semel.wire.errors import ErrorCode, ProtocolError
from semel.wire.records import (
    HEADER_BYTES,
    Codec,
    Header,
    Marker,
    Record,
    check_produced,
    decode_batch,
    encode_batch,
    first_at_or_after,
    iter_batches,
    iter_records,
    marker,
    read_header,
    read_marker,
    stamp,
    with_log_append_time,
)

NOW = 1_700_000_000_000
RECORDS = [
    Record(0, NOW, b"key", b"value", (Header("h", b"1"), Header("h", None), Header("", b""))),
    Record(1, NOW - 5, None, b"", ()),
    Record(2, NOW + 70_000, b"", None, ()),
]


def changed(batch: bytes, /, *, keep_crc: bool = False, **fields: int) -> bytes:
    """Return the batch with other header fields, and a checksum that is right unless it was the point."""
    output = bytearray(batch)
    for name, value in fields.items():
        at, form = BATCH_FIELDS[name]
        struct.pack_into(form, output, at, value)
    if "crc" not in fields and not keep_crc:
        struct.pack_into(">I", output, 17, crc32c(bytes(output[21:])))
    return bytes(output)


def around(payload: bytes, record_count: int = 1, **fields: int) -> bytes:
    """Return a batch with a right header around any bytes."""
    batch = encode_batch([Record(0, NOW, None, None)])[:HEADER_BYTES] + payload
    length = len(batch) - PREFIX_BYTES
    base: dict[str, Any] = {"last_offset_delta": max(record_count - 1, 0), "length": length}
    return changed(batch, record_count=record_count, **(base | fields))


BATCH = encode_batch(RECORDS, producer_id=7, producer_epoch=3, base_sequence=11, transactional=True)


def test_the_bytes_of_a_batch() -> None:
    batch = encode_batch(
        [Record(0, 1000, b"k", b"vv", (Header("h", None),)), Record(0, 999, None, b"")],
        producer_id=5,
        producer_epoch=2,
        base_sequence=9,
        transactional=True,
        base_offset=100,
        leader_epoch=4,
    )
    first = bytes([0, 0, 0, 2]) + b"k" + bytes([4]) + b"vv" + bytes([2, 2]) + b"h" + bytes([1])
    second = bytes([0, 1, 2, 1, 0, 0])
    records = bytes([2 * len(first)]) + first + bytes([2 * len(second)]) + second
    covered = struct.pack(">hiqqqhii", 0x10, 1, 1000, 1000, 5, 2, 9, 2) + records
    expected = struct.pack(">qiibI", 100, 9 + len(covered), 4, 2, crc32c(covered)) + covered
    assert batch == expected


def test_a_header_says_what_is_in_the_batch() -> None:
    header = read_header(b"..." + BATCH, 3)
    assert header.length == len(BATCH)
    assert (header.base_offset, header.last_offset_delta, header.last_offset) == (0, 2, 2)
    assert (header.magic, header.leader_epoch, header.record_count) == (2, -1, 3)
    assert (header.base_timestamp, header.max_timestamp) == (NOW, NOW + 70_000)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (7, 3, 11)
    assert header.last_sequence == 13
    assert header.is_transactional
    assert not header.is_control
    assert not header.is_log_append_time
    assert header.codec is Codec.NONE
    assert has_valid_crc(BATCH, 0, header)


def test_sequences_wrap_and_may_be_absent() -> None:
    assert read_header(changed(BATCH, base_sequence=2**31 - 1)).last_sequence == 1
    assert read_header(changed(BATCH, base_sequence=2**31 - 3)).last_sequence == 2**31 - 1
    assert read_header(changed(BATCH, base_sequence=-1)).last_sequence == -1


@pytest.mark.parametrize("size", [0, 1, 12, 60])
def test_a_short_header(size: int) -> None:
    with pytest.raises(ProtocolError):
        read_header(BATCH[:size])
    with pytest.raises(ProtocolError):
        decode_batch(BATCH[:size])


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
@pytest.mark.parametrize("codec", Codec)
def test_round_trip(codec: Codec, kind: Any) -> None:
    batch = kind(b"xx" + encode_batch(RECORDS, codec=codec, base_offset=500) + b"yy")
    assert decode_batch(batch, 2) == [record._replace(offset=500 + record.offset) for record in RECORDS]
    assert read_header(batch, 2).codec is codec


def test_the_writer_refuses_what_does_not_fit() -> None:
    with pytest.raises(ValueError, match="record"):
        encode_batch([])
    with pytest.raises(ValueError, match="out of range"):
        encode_batch(RECORDS, producer_id=2**63)
    with pytest.raises(ValueError, match="too far apart"):
        encode_batch([Record(0, -(2**63), None, None), Record(0, 2**63 - 1, None, None)])


def test_stamping_leaves_the_checksum_right() -> None:
    buffer = bytearray(b"xx" + BATCH)
    stamp(buffer, 2, 12_345_678_901, 42)
    header = read_header(buffer, 2)
    assert (header.base_offset, header.leader_epoch) == (12_345_678_901, 42)
    assert has_valid_crc(buffer, 2, header)
    assert bytes(buffer[22:]) == BATCH[20:]
    stamp(memoryview(buffer), 2, 0, -1)
    assert bytes(buffer[2:]) == BATCH


@pytest.mark.parametrize("codec", Codec)
def test_log_append_time_counts_for_every_record(codec: Codec) -> None:
    batch = encode_batch(RECORDS, codec=codec, producer_id=1, producer_epoch=0, base_sequence=0)
    appended = with_log_append_time(memoryview(batch), NOW + 99)
    header = read_header(appended)
    assert header.is_log_append_time
    assert header.codec is codec
    assert header.max_timestamp == NOW + 99
    assert len(appended) == len(batch)
    assert decode_batch(appended) == [record._replace(timestamp=NOW + 99) for record in RECORDS]


# What a producer may send


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_a_right_batch_is_accepted(kind: Any) -> None:
    header, code = check_produced(kind(BATCH), 3)
    assert code is ErrorCode.NONE
    assert header == read_header(BATCH)


INVALID, CORRUPT = ErrorCode.INVALID_RECORD, ErrorCode.CORRUPT_MESSAGE

REFUSED: dict[str, tuple[bytes | None, ErrorCode]] = {
    "no records": (None, INVALID),
    "no bytes": (b"", INVALID),
    "a few bytes": (BATCH[:11], INVALID),
    "cut in the header": (BATCH[:40], INVALID),
    "cut in the records": (BATCH[:-1], INVALID),
    "two batches": (BATCH + BATCH, INVALID),
    "bytes behind the batch": (BATCH + b"\0", INVALID),
    "length -1": (changed(BATCH, length=-1), CORRUPT),
    "length below a header": (changed(BATCH, length=48), CORRUPT),
    "length of all that came, below a header": (changed(BATCH, length=28, keep_crc=True)[:40], CORRUPT),
    "length past the end": (changed(BATCH, length=2**31 - 1), INVALID),
    "magic 0": (changed(BATCH, magic=0), INVALID),
    "magic 1": (changed(BATCH, magic=1), INVALID),
    "magic 3": (changed(BATCH, magic=3), INVALID),
    "magic 255": (changed(BATCH, magic=255), INVALID),
    "wrong checksum": (changed(BATCH, crc=1), CORRUPT),
    "damaged record": (BATCH[:-1] + b"\x07", CORRUPT),
    "codec 5": (changed(BATCH, attributes=5), INVALID),
    "codec 6": (changed(BATCH, attributes=6), INVALID),
    "codec 7": (changed(BATCH, attributes=7), INVALID),
    "base offset": (changed(BATCH, base_offset=1), INVALID),
    "base offset before the checksum": (changed(BATCH, base_offset=-1, crc=1), INVALID),
    "count -1": (changed(BATCH, record_count=-1), INVALID),
    "count 0": (changed(BATCH, record_count=0), INVALID),
    "count 0, as the offsets say": (changed(BATCH, record_count=0, last_offset_delta=-1), INVALID),
    "count 2^31 - 1": (changed(BATCH, record_count=2**31 - 1), INVALID),
    "fewer offsets than records": (changed(BATCH, last_offset_delta=1), INVALID),
    "more offsets than records": (changed(BATCH, last_offset_delta=3), INVALID),
    "a control batch": (marker(7, 3, True, 0, NOW), INVALID),
    "a producer without sequence": (changed(BATCH, base_sequence=-1), INVALID),
    "sequence -2": (changed(BATCH, base_sequence=-2), INVALID),
    "the broker's time": (changed(BATCH, attributes=0x18), ErrorCode.INVALID_TIMESTAMP),
}


@pytest.mark.parametrize(("records", "code"), REFUSED.values(), ids=REFUSED.keys())
def test_a_producer_may_not_send(records: bytes | None, code: ErrorCode) -> None:
    for version in (3, 13):
        assert check_produced(records, version) == (None, code)
    if records is not None:
        assert check_produced(memoryview(records), 9) == (None, code)
    assert produced_fault(records, code)


def test_a_refusal_says_what_is_wrong() -> None:
    said = {name: produced_fault(records, code) for name, (records, code) in REFUSED.items()}
    assert said["magic 1"] == "format version 1 is not supported, only 2"
    assert said["bytes behind the batch"].endswith(f"has {len(BATCH)} bytes, and there are {len(BATCH) + 1}")
    assert said["more offsets than records"] == "3 records and a last offset delta of 3"
    assert said["a control batch"] == "a producer cannot write control batches"
    assert said["wrong checksum"] == said["damaged record"] == "the checksum does not match"
    assert said["a producer without sequence"].endswith("without a sequence number")


def test_zstd_needs_a_newer_request() -> None:
    batch = encode_batch(RECORDS, codec=Codec.ZSTD)
    assert check_produced(batch, 6) == (None, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE)
    assert check_produced(batch, 7)[1] is ErrorCode.NONE


def test_a_batch_without_producer_needs_no_sequence() -> None:
    assert check_produced(encode_batch(RECORDS), 9)[1] is ErrorCode.NONE


def test_extreme_timestamps_are_the_producers_business() -> None:
    for timestamp in (2**63 - 1, -1, -(2**63)):
        batch = encode_batch([Record(0, timestamp, None, b"v")])
        assert check_produced(batch, 9)[1] is ErrorCode.NONE
        assert decode_batch(batch)[0].timestamp == timestamp


# Reading a response


def test_batches_of_a_response() -> None:
    second = marker(7, 3, False, 1, NOW, base_offset=3)
    data = BATCH + second
    assert [(at, header.base_offset) for at, header in iter_batches(data)] == [(0, 0), (len(BATCH), 3)]
    assert list(iter_batches(memoryview(data))) == list(iter_batches(data))
    assert list(iter_batches(b"")) == []


@pytest.mark.parametrize("left", [1, 12, 16, 17, 60, 61, 80])
def test_a_batch_cut_off_at_the_end_is_left_out(left: int) -> None:
    assert [at for at, _ in iter_batches(BATCH + BATCH[:left])] == [0]


@pytest.mark.parametrize("magic", [0, 1, 3, 255])
def test_other_formats_are_named(magic: int) -> None:
    data = BATCH + changed(BATCH, magic=magic)[:30]
    with pytest.raises(ProtocolError, match=f"version {magic}"):
        list(iter_batches(data))
    with pytest.raises(ProtocolError):
        decode_batch(changed(BATCH, magic=magic))


@pytest.mark.parametrize("length", [-(2**31), -13, -12, -1, 0, 48])
def test_a_length_below_a_header_ends_no_loop_but_raises(length: int) -> None:
    data = changed(BATCH, length=length)
    with pytest.raises(ProtocolError):
        list(iter_batches(data))
    with pytest.raises(ProtocolError):
        decode_batch(data)


DAMAGED = {
    "length past the end": changed(BATCH, length=len(BATCH)),
    "wrong checksum": changed(BATCH, crc=1),
    "unknown codec": changed(BATCH, attributes=7),
    "not compressed at all": changed(BATCH, attributes=4),
    "count -1": changed(BATCH, record_count=-1),
    "count -1 and no bytes": around(b"", -1),
    "one record more": changed(BATCH, record_count=4),
    "one record less": changed(BATCH, record_count=2),
    "count 2^31 - 1": changed(BATCH, record_count=2**31 - 1),
    "offset past the last": changed(BATCH, last_offset_delta=1),
    "timestamp past 64 bits": changed(BATCH, base_timestamp=2**63 - 1),
    "record length -1": around(bytes([1])),
    "record length 0": around(bytes([0])),
    "record length too small": around(bytes([10, 0, 0, 0, 1, 1, 0])),
    "record length too large": around(bytes([14, 0, 0, 0, 1, 1, 0])),
    "record length past the end": around(bytes([126, 0, 0, 0, 1, 1, 0])),
    "record length negative by its size": around(bytes([13, 0, 0, 0, 1, 1, 0])),
    "record ends where it says, past the data": around(bytes([18, 0, 0, 0, 1, 8, 0])),
    "key length -2": around(bytes([12, 0, 0, 0, 3, 1, 0])),
    "value length -2": around(bytes([12, 0, 0, 0, 1, 3, 0])),
    "offset -1": around(bytes([12, 0, 0, 1, 1, 1, 0])),
    "header count -1": around(bytes([12, 0, 0, 0, 1, 1, 1])),
    "header count 2^31 - 1": around(bytes([20, 0, 0, 0, 1, 1, 0xFE, 0xFF, 0xFF, 0xFF, 0x0F])),
    "header without key": around(bytes([16, 0, 0, 0, 1, 1, 2, 1, 1])),
    "header value length -2": around(bytes([16, 0, 0, 0, 1, 1, 2, 0, 3])),
    "header key past the end": around(bytes([16, 0, 0, 0, 1, 1, 2, 100, 1])),
    "a number without end": around(bytes([12, 0]) + b"\xff" * 11),
    "a number of 65 bits": around(bytes([30, 0]) + b"\xff" * 9 + bytes([0x02, 0, 1, 1, 0])),
    "the same offset twice": around(bytes([12, 0, 0, 0, 1, 1, 0]) * 2, 2),
    "a byte behind the records": around(bytes([12, 0, 0, 0, 1, 1, 0, 0])),
}


@pytest.mark.parametrize("batch", DAMAGED.values(), ids=DAMAGED.keys())
def test_damage_is_a_protocol_error(batch: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode_batch(batch)


def test_damage_gives_no_record_even_one_by_one() -> None:
    with pytest.raises(ProtocolError):
        next(iter_records(DAMAGED["record ends where it says, past the data"]))


def test_the_checksum_can_be_left_to_the_caller() -> None:
    assert decode_batch(changed(BATCH, crc=1), check_crc=False) == RECORDS


def test_an_empty_batch_is_what_compaction_leaves() -> None:
    assert decode_batch(around(b"", 0, last_offset_delta=9)) == []


def test_offsets_may_have_gaps() -> None:
    batch = around(
        bytes([12, 0, 0, 2, 1, 1, 0, 12, 0, 0, 12, 1, 1, 0]), 2, last_offset_delta=9, base_offset=100
    )
    assert [record.offset for record in decode_batch(batch)] == [101, 106]


def test_a_header_key_that_is_not_text_does_not_stop_a_reader() -> None:
    batch = around(bytes([20, 0, 0, 0, 1, 1, 2, 4, 0xFF, 0x41, 0]))
    assert decode_batch(batch)[0].headers == (Header("\ufffdA", b""),)


def test_a_bomb_is_refused_by_the_limit() -> None:
    for codec in Codec:
        batch = encode_batch([Record(0, NOW, None, bytes(500_000))], codec=codec)
        assert len(decode_batch(batch, limit_bytes=600_000)) == 1
        with pytest.raises(ProtocolError):
            decode_batch(batch, limit_bytes=400_000)


# Markers


@pytest.mark.parametrize(("commit", "expected"), [(True, COMMIT_MARKER), (False, ABORT_MARKER)])
def test_a_marker_as_kafka_writes_it(commit: bool, expected: ControlRecord) -> None:
    batch = marker(4000, 12, commit, 77, NOW, base_offset=31)
    header = read_header(batch)
    assert header.attributes == 0x30
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (4000, 12, -1)
    assert (header.base_offset, header.last_offset, header.record_count) == (31, 31, 1)
    assert (header.base_timestamp, header.max_timestamp) == (NOW, NOW)
    assert len(batch) == 78
    (record,) = decode_batch(batch)
    assert record.key == struct.pack(">hh", 0, int(commit))
    assert record.value == struct.pack(">hi", 0, 77)
    assert read_marker(b"x" + batch, 1) == Marker(commit=commit, coordinator_epoch=77)

    theirs = DefaultRecordBatch(batch)
    assert theirs.validate_crc()
    assert theirs.is_control_batch
    assert ControlRecord.parse(next(theirs).key) == expected


def control(key: bytes | None, value: bytes | None) -> bytes:
    return changed(encode_batch([Record(0, NOW, key, value)]), attributes=0x20)


def test_a_control_batch_of_another_type_is_no_marker() -> None:
    assert read_marker(control(struct.pack(">hh", 0, 2), b"leader change")) is None


def test_a_marker_of_a_later_version_is_read() -> None:
    batch = control(struct.pack(">hhq", 1, 1, 0), struct.pack(">hiq", 1, 5, 0))
    assert read_marker(batch) == Marker(commit=True, coordinator_epoch=5)


@pytest.mark.parametrize(
    "batch",
    [
        BATCH,
        control(None, b""),
        control(b"\0\0\0", b""),
        control(struct.pack(">hh", 0, 1), None),
        control(struct.pack(">hh", 0, 1), b"\0\0\0"),
        changed(around(b"", 0), attributes=0x20),
    ],
)
def test_what_is_no_marker_at_all(batch: bytes) -> None:
    with pytest.raises(ProtocolError):
        read_marker(batch)


# Looking up a timestamp


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
def test_the_first_record_at_or_after_a_timestamp(codec: Codec) -> None:
    batch = b"x" + encode_batch(RECORDS, codec=codec, base_offset=10)
    offsets = [
        getattr(first_at_or_after(batch, timestamp, 1), "offset", None)
        for timestamp in (0, NOW - 5, NOW, NOW + 1, NOW + 70_000, NOW + 70_001)
    ]
    assert offsets == [10, 10, 10, 12, 12, None]


def test_records_before_an_offset_do_not_count() -> None:
    batch = encode_batch(RECORDS, base_offset=10)
    found = first_at_or_after(batch, 0, from_offset=11)
    assert found is not None
    assert found.offset == 11
    assert first_at_or_after(batch, 0, from_offset=13) is None


def test_with_the_brokers_time_all_records_have_the_same() -> None:
    batch = with_log_append_time(encode_batch(RECORDS), NOW + 100_000)
    found = first_at_or_after(batch, NOW + 100_000)
    assert found is not None
    assert (found.offset, found.timestamp) == (0, NOW + 100_000)
    assert first_at_or_after(batch, NOW + 100_001) is None


def test_an_older_batch_is_not_opened() -> None:
    damaged = changed(BATCH, crc=1)
    assert first_at_or_after(damaged, NOW + 70_001) is None
    with pytest.raises(ProtocolError):
        first_at_or_after(damaged, NOW)
