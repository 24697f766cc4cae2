"""Batches with fewer records: what stays is byte for byte what it was."""

import pytest

from semel.wire.batch import HEADER_BYTES, LOG_APPEND_TIME, seal
from semel.wire.errors import ProtocolError
from semel.wire.records import (
    Codec,
    Header,
    Record,
    decode_batch,
    encode_batch,
    read_header,
    with_log_append_time,
)
from semel.wire.reducing import open_batch, reduced

RECORDS = [
    Record(0, 5_000, b"a", b"1", (Header("h", b"x"), Header("", None))),
    Record(1, 9_000, b"", None),
    Record(2, 4_000, None, b""),
    Record(3, 7_000, b"k" * 300, b"v" * 9_000),
]


@pytest.mark.parametrize("codec", list(Codec))
def test_what_stays_is_what_it_was(codec: Codec) -> None:
    data = encode_batch(
        RECORDS, codec=codec, producer_id=7, producer_epoch=3, base_sequence=11, transactional=True
    )
    before = read_header(data)
    after = reduced(open_batch(data), b"\x01\x00\x00\x01", None)
    header = read_header(after)
    assert decode_batch(after) == [RECORDS[0], RECORDS[3]]
    assert (header.record_count, header.max_timestamp, header.length) == (2, 7_000, len(after))
    same = ("base_offset", "attributes", "last_offset_delta", "base_timestamp", "base_sequence")
    assert [getattr(header, name) for name in same] == [getattr(before, name) for name in same]
    assert (header.producer_id, header.producer_epoch, header.delete_horizon) == (7, 3, None)


@pytest.mark.parametrize("horizon", [10_000, 5_000, 0, 2**63 + 5])
def test_a_horizon_changes_no_time(horizon: int) -> None:
    after = reduced(open_batch(encode_batch(RECORDS, codec=Codec.LZ4)), b"\x01\x01\x00\x01", horizon)
    assert decode_batch(after) == [RECORDS[0], RECORDS[1], RECORDS[3]]
    assert read_header(after).delete_horizon == min(horizon, 2**63 - 1)
    again = reduced(open_batch(after), b"\x00\x01\x01", None)
    assert decode_batch(again) == [RECORDS[1], RECORDS[3]]
    assert read_header(again).delete_horizon == read_header(after).delete_horizon


def test_the_time_of_the_broker_stays() -> None:
    data = with_log_append_time(encode_batch(RECORDS), 123)
    after = reduced(open_batch(data), b"\x01\x00\x00\x00", 1_000_000)
    assert decode_batch(after) == [RECORDS[0]._replace(timestamp=123)]
    assert read_header(after).attributes & LOG_APPEND_TIME


def test_headers_that_are_not_text_are_copied() -> None:
    data = encode_batch([Record(0, 1, b"a", b"", (Header("name", b"v"),)), Record(1, 1, b"b", b"")])
    odd = data[HEADER_BYTES:].replace(b"name", b"\xff\xfe\x00\x80")
    after = reduced(open_batch(seal(read_header(data), odd)), b"\x01\x00", 99)
    assert b"\xff\xfe\x00\x80" in after


def test_a_time_that_a_horizon_cannot_reach_is_refused() -> None:
    with pytest.raises(ValueError, match="time"):
        reduced(open_batch(encode_batch([Record(0, -(2**63), b"a", None)])), b"\x01", 1)


def test_damage_is_a_protocol_error_and_nothing_else() -> None:
    data = encode_batch(RECORDS)
    payload = data[HEADER_BYTES:]
    header = read_header(data)
    damaged = [data[:-1], data[: HEADER_BYTES - 1], bytes(len(data)), data[:-1] + b"\xff"]
    damaged += [seal(header._replace(record_count=count), payload) for count in (-1, 3, 5, 2**31 - 1)]
    damaged += [seal(header, payload[:at]) for at in range(len(payload) - 1)]
    damaged += [seal(header._replace(last_offset_delta=2), payload)]
    for at in range(0, 40):
        for value in (0x01, 0x7F, 0x80, 0xFF):
            damaged.append(seal(header, payload[:at] + bytes([value]) + payload[at + 1 :]))
    opened = 0
    for each in damaged:
        try:
            opened += len(list(open_batch(each).entries()))
        except ProtocolError:
            continue
    # Some bytes say nothing that is looked at: times, keys, values, headers.
    assert 0 < opened < 4 * 160


@pytest.mark.parametrize("count", [b"\x0a", b"\x01", b"\x02", b"\x02\x00", b"\x02\x01\x00", b"\x02\x00\x03"])
def test_headers_that_no_reader_can_read_are_damage_here_too(count: bytes) -> None:
    plain = encode_batch([Record(0, 1_000, b"a", b"x")])
    payload = plain[HEADER_BYTES:]
    # The length of the record, its bytes but for the count of headers, and another count.
    record = payload[1:-1] + count
    damaged = seal(read_header(plain), bytes([2 * len(record)]) + record)
    with pytest.raises(ProtocolError):
        decode_batch(damaged)
    with pytest.raises(ProtocolError):
        list(open_batch(damaged).entries())
