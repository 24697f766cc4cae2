"""The columnar codec: both halves read and write what `records` does, and damaged bytes harm neither."""

import struct
import tracemalloc
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.examples import examples
from support.stores.columnar import (
    ALL_OFFSETS,
    bytes_of,
    column_of,
    halves,
    name_of,
    payload_of,
    read_with,
    rows_of,
)

from semel.wire.batch import BatchHeader
from semel.wire.column_buffers import Numbers
from semel.wire.columns import pack_headers, seal_packed
from semel.wire.errors import ErrorCode, ProtocolError
from semel.wire.partitioner import partition_for
from semel.wire.payload import walk
from semel.wire.records import (
    Codec,
    Header,
    Record,
    check_produced,
    decode_batch,
    encode_batch,
    read_header,
    with_log_append_time,
)

EXAMPLES = examples(40)
NOW = 1_700_000_000_000

content = st.one_of(st.none(), st.binary(max_size=80), st.integers(60, 9_000).map(lambda size: b"x" * size))
headers = st.lists(
    st.builds(Header, st.text(max_size=8), st.one_of(st.none(), st.binary(max_size=70))), max_size=3
)
any_timestamp = st.integers(-(2**62), 2**62 - 1)
record = st.builds(Record, st.just(0), any_timestamp, content, content, headers.map(tuple))
records = st.lists(record, min_size=1, max_size=60)
both = pytest.mark.parametrize("half", halves(), ids=name_of)


@both
@EXAMPLES
@given(
    batches=st.lists(records, min_size=1, max_size=4),
    codec=st.sampled_from(Codec),
    is_appended=st.booleans(),
    base=st.integers(0, 2**62),
)
def test_reading_equals_records(
    half: ModuleType, batches: list[list[Record]], codec: Codec, is_appended: bool, base: int
) -> None:
    encoded = [
        encode_batch(each, codec=codec, base_offset=base + 100 * at) for at, each in enumerate(batches)
    ]
    if is_appended:
        encoded = [with_log_append_time(each, 77) for each in encoded]
    assert read_with(half, *encoded) == [one for each in encoded for one in decode_batch(each)]


@both
@EXAMPLES
@given(batch=records, start=st.integers(0, 70), length=st.integers(0, 70))
def test_only_the_wanted_offsets_are_read(
    half: ModuleType, batch: list[Record], start: int, length: int
) -> None:
    encoded = encode_batch(batch, base_offset=5)
    expected = [each for each in decode_batch(encoded) if start <= each.offset < start + length]
    assert read_with(half, encoded, offsets=(start, start + length)) == expected


@both
@examples(100)
@given(batch=records, data=st.data())
def test_damaged_bytes_are_refused_as_records_refuses_them(
    half: ModuleType, batch: list[Record], data: st.DataObject
) -> None:
    """What one takes the other takes, with the same outcome, and a refused batch leaves no row behind."""
    payload = bytearray(payload_of(encode_batch(batch)))
    for _ in range(data.draw(st.integers(1, 4))):
        payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    damaged = bytes(payload[: data.draw(st.one_of(st.just(len(payload)), st.integers(0, len(payload))))])
    header = read_header(encode_batch(batch, base_offset=10))._replace(
        record_count=data.draw(st.one_of(st.just(len(batch)), st.integers(0, 2**31 - 1))),
        base_timestamp=data.draw(st.sampled_from([0, 2**63 - 1, -(2**63)])),
    )
    good = encode_batch(batch[:3])
    reader = half.Reader(True, True, True)
    reader.add(payload_of(good), read_header(good), *ALL_OFFSETS)
    try:
        expected = list(walk(damaged, header))
    except ProtocolError:
        expected = []
        with pytest.raises(ProtocolError):
            reader.add(damaged, header, *ALL_OFFSETS)
    else:
        reader.add(damaged, header, *ALL_OFFSETS)
    reader.add(payload_of(good), read_header(good), *ALL_OFFSETS)
    assert rows_of(reader.take()) == [*decode_batch(good), *expected, *decode_batch(good)]


def header_of(count: int) -> BatchHeader:
    return read_header(encode_batch([Record(0, 0, None, None)]))._replace(
        record_count=count, last_offset_delta=2**31 - 1
    )


def framed(body: bytes) -> bytes:
    return bytes([2 * len(body)]) + body


@both
@pytest.mark.parametrize(
    ("payload", "count"),
    [
        pytest.param(b"", 1, id="no record"),
        pytest.param(framed(bytes(6)) * 2, -1, id="a negative count"),
        pytest.param(framed(bytes(6)) * 2, 2**31 - 1, id="more records than bytes"),
        pytest.param(framed(bytes(6)) * 2, 1, id="fewer records than bytes"),
        pytest.param(framed(bytes(6)) * 2, 2, id="an offset twice"),
        pytest.param(b"\x01" + bytes(6), 1, id="a negative length"),
        pytest.param(b"\xfe\xff\xff\xff\x0f" + bytes(6), 1, id="a length beyond the batch"),
        pytest.param(b"\x80" * 11 + bytes(6), 1, id="a number without an end"),
        pytest.param(b"\xff" * 9 + b"\x02" + bytes(6), 1, id="a number of more than 64 bits"),
        pytest.param(b"\x80" * 7, 1, id="a number that is cut"),
        pytest.param(framed(b"\0\0\0" + b"\xfe" + b"\xff" * 8 + b"\x01" + b"\0\0"), 1, id="a huge key"),
        pytest.param(framed(b"\0\0\0\x01" + b"\xfe\xff\xff\xff\x0f" + b"\0"), 1, id="a huge value"),
        pytest.param(framed(b"\0\0\0\x03\x01\0"), 1, id="a key of length -2"),
        pytest.param(framed(b"\0\0\0\x01\x01\x01"), 1, id="a negative count of headers"),
        pytest.param(framed(b"\0\0\0\x01\x01" + b"\xfe\xff\xff\xff\x0f"), 1, id="more headers than bytes"),
        pytest.param(framed(b"\0\0\0\x01\x01\x02\x01\x01"), 1, id="a header without a key"),
        pytest.param(framed(b"\0\0\0\x01\x01\x02\0\x7e"), 1, id="a header longer than its record"),
        pytest.param(framed(b"\0\0\0\x01\x01\0\0"), 1, id="bytes behind the headers"),
        pytest.param(b"\x0a\0\0\0\x01\x01\0", 1, id="a record that ends behind its length"),
    ],
)
def test_hostile_bytes_are_refused_and_take_no_memory(half: ModuleType, payload: bytes, count: int) -> None:
    reader = half.Reader(True, True, True)
    tracemalloc.start()
    try:
        with pytest.raises(ProtocolError):
            reader.add(payload, header_of(count), *ALL_OFFSETS)
        assert tracemalloc.get_traced_memory()[1] < 64 << 10
    finally:
        tracemalloc.stop()
    assert reader.rows == 0


@both
def test_columns_that_are_not_wanted_are_not_made(half: ModuleType) -> None:
    batch = encode_batch([Record(0, NOW, b"key", b"value", (Header("h", b"1"),))])
    reader = half.Reader(False, True, False)
    reader.add(payload_of(batch), read_header(batch), *ALL_OFFSETS)
    assert (reader.rows, reader.size_bytes) == (1, 5)
    taken = reader.take()
    assert (taken.keys, taken.headers) == (None, None)
    assert bytes_of(taken.values, 1) == [b"value"]
    assert (reader.rows, reader.size_bytes, reader.take().rows) == (0, 0, 0)


@both
def test_what_was_taken_stays_while_the_reader_goes_on(half: ModuleType) -> None:
    first = encode_batch([Record(0, NOW, b"key %d" % at, None) for at in range(1000)])
    reader = half.Reader(True, True, True)
    reader.add(payload_of(first), read_header(first), *ALL_OFFSETS)
    taken = reader.take()
    reader.add(payload_of(encode_batch([Record(0, 1, b"other", b"x")])), header_of(1), *ALL_OFFSETS)
    assert rows_of(taken) == decode_batch(first)


# ---- writing


@both
@EXAMPLES
@given(
    rows=st.lists(st.tuples(content, content, headers, st.integers(0, 3)), min_size=1, max_size=60),
    before=st.lists(content, max_size=9),
    batch_bytes=st.integers(1, 20_000),
    codec=st.sampled_from(Codec),
)
def test_what_is_packed_is_read_back(
    half: ModuleType,
    rows: list[tuple[bytes | None, bytes | None, list[Header], int]],
    before: list[bytes | None],
    batch_bytes: int,
    codec: Codec,
) -> None:
    keys, values, all_headers, chosen = (list(column) for column in zip(*rows, strict=True))
    packer = half.Packer(4, batch_bytes)
    batches: dict[int, list[bytes]] = {partition: [] for partition in range(4)}
    packed_headers = [pack_headers(each) if each else None for each in all_headers]
    columns = (column_of(keys, before), column_of(values, before), packed_headers, NOW)
    numbers, at = struct.pack(f"={len(rows)}i", *chosen), 0
    while at < len(rows):
        at = packer.add(at, len(rows), numbers, *columns)
        if at < len(rows):
            batches[packer.full].append(seal_packed(packer.take(packer.full), codec=codec))
    for partition in range(4):
        if (rest := packer.take(partition)) is not None:
            batches[partition].append(seal_packed(rest, codec=codec))
    for partition, sealed in batches.items():
        found = [each for batch in sealed for each in decode_batch(batch)]
        expected = [row for row in rows if row[3] == partition]
        assert [(each.key, each.value, list(each.headers)) for each in found] == [row[:3] for row in expected]
        assert all(check_produced(batch, 13)[1] is ErrorCode.NONE for batch in sealed)
        if codec is Codec.NONE:
            counts = [read_header(batch).record_count for batch in sealed]
            sizes = [len(payload_of(batch)) for batch in sealed]
            assert all(size <= batch_bytes or count == 1 for size, count in zip(sizes, counts, strict=True))


@both
@EXAMPLES
@given(times=st.lists(st.integers(-(2**61), 2**61), min_size=1, max_size=6))
def test_a_batch_knows_its_times(half: ModuleType, times: list[int]) -> None:
    packer = half.Packer(1, 1 << 20)
    for at in times:
        assert packer.add(0, 1, bytes(4), None, column_of([b"v"]), None, at) == 1
    packed = packer.take(0)
    assert (packer.size_bytes, packer.take(0)) == (0, None)
    batch = seal_packed(packed, producer_id=4, producer_epoch=2, base_sequence=7, transactional=True)
    header = read_header(batch)
    assert [each.timestamp for each in decode_batch(batch)] == times
    assert (header.base_timestamp, header.max_timestamp) == (times[0], max(times))
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (4, 2, 7)
    assert header.is_transactional


@both
def test_times_that_are_too_far_apart_are_refused(half: ModuleType) -> None:
    packer = half.Packer(1, 1 << 20)
    packer.add(0, 1, bytes(4), None, column_of([b"v"]), None, -(2**63))
    with pytest.raises(ValueError, match="too far apart"):
        packer.add(0, 1, bytes(4), None, column_of([b"v"]), None, 2**63 - 1)


@both
@EXAMPLES
@given(
    rows=st.lists(st.tuples(content, st.one_of(st.none(), st.integers(0, 6))), min_size=1, max_size=60),
    before=st.lists(content, max_size=9),
)
def test_rows_go_where_other_clients_put_them(
    half: ModuleType, rows: list[tuple[bytes | None, int | None]], before: list[bytes | None]
) -> None:
    keys, given_numbers = (list(column) for column in zip(*rows, strict=True))
    bits = bytearray((len(rows) + 10) // 8)
    for at, number in enumerate(given_numbers):
        bits[(at + 3) >> 3] |= (number is not None) << ((at + 3) & 7)
    data = struct.pack(f"={len(rows) + 3}i", 99, 99, 99, *(number or 0 for number in given_numbers))
    chosen = half.choose(len(rows), 7, column_of(keys, before), Numbers(data, bytes(bits), 3), 5)
    by_key = [partition_for(key, 7) for key in keys]
    assert list(struct.unpack(f"={len(rows)}i", chosen)) == [
        number if number is not None else (5 if hashed is None else hashed)
        for number, hashed in zip(given_numbers, by_key, strict=True)
    ]


@both
def test_columns_that_do_not_fit_are_refused(half: ModuleType) -> None:
    good = column_of([b"a", None])
    for bad in (
        good._replace(offsets=good.offsets[:8]),
        good._replace(first=1),
        good._replace(first=-1),
        good._replace(validity=b""),
        good._replace(data=b""),
        good._replace(offsets=struct.pack("=3i", 1, 0, 0)),
        good._replace(offsets=struct.pack("=3i", -5, 0, 0)),
    ):
        with pytest.raises(ValueError, match=r"a column has fewer|a row lies outside"):
            half.Packer(1, 1000).add(0, 2, bytes(8), bad, None, None, 0)
        with pytest.raises(ValueError, match=r"a column has fewer|a row lies outside"):
            half.choose(2, 3, bad, None, 0)
    with pytest.raises(ValueError, match="fewer rows"):
        half.Packer(1, 1000).add(0, 2, bytes(4), good, None, None, 0)
    with pytest.raises(ValueError, match="no partition 9"):
        half.Packer(1, 1000).add(0, 1, struct.pack("=i", 9), good, None, None, 0)
    with pytest.raises(ValueError, match="there is no partition 3, only 0 to 2"):
        half.choose(1, 3, good, Numbers(struct.pack("=i", 3)), 0)
    with pytest.raises(ValueError, match="at least one partition"):
        half.choose(1, 0, good, None, 0)
    with pytest.raises(ValueError, match="no partition 1"):
        half.Packer(1, 1000).take(1)
