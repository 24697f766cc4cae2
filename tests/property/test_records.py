"""Record batches of any kind: round trips, agreement with two other clients, only `ProtocolError`s."""

import contextlib
import struct
import tracemalloc
import warnings
from collections.abc import Iterable
from typing import Any

import pytest
from aiokafka.record.default_records import DefaultRecordBatch as AiokafkaBatch
from aiokafka.record.default_records import DefaultRecordBatchBuilder as AiokafkaBuilder
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st
from support.examples import examples

from semel.wire import varint
from semel.wire.compression import compress, decompress
from semel.wire.errors import ErrorCode, ProtocolError
from semel.wire.records import (
    HEADER_BYTES,
    Codec,
    Header,
    Record,
    check_produced,
    decode_batch,
    encode_batch,
    first_at_or_after,
    iter_batches,
    read_header,
    read_marker,
    with_log_append_time,
)

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # raised by the import itself
    from kafka.record.default_records import DefaultRecordBatch as KafkaPythonBatch
    from kafka.record.default_records import DefaultRecordBatchBuilder as KafkaPythonBuilder

EXAMPLES = examples(60)

content = st.one_of(
    st.none(), st.binary(max_size=80), st.integers(60, 20_000).map(lambda size: b"semel" * (size // 5))
)
headers = st.lists(
    st.builds(Header, st.text(max_size=8), st.one_of(st.none(), st.binary(max_size=70))), max_size=3
)
any_timestamp = st.integers(-(2**62), 2**62 - 1)  # two of them are never 2**63 apart
# Other clients take only the times that exist; deltas are of either sign all the same.
timestamp = st.integers(0, 2**41)


def record_lists(timestamps: st.SearchStrategy[int]) -> st.SearchStrategy[list[Record]]:
    record = st.builds(Record, st.just(0), timestamps, content, content, headers.map(tuple))
    return st.lists(record, min_size=1, max_size=80).map(
        lambda records: [record._replace(offset=offset) for offset, record in enumerate(records)]
    )


def as_records(theirs: Iterable[Any]) -> list[Record]:
    return [
        Record(
            record.offset,
            record.timestamp,
            record.key,
            record.value,
            tuple(Header(key, value) for key, value in record.headers),
        )
        for record in theirs
    ]


@EXAMPLES
@given(record_lists(any_timestamp), st.sampled_from(Codec), st.integers(0, 2**62), st.integers(0, 2**31 - 1))
def test_round_trip(records: list[Record], codec: Codec, base_offset: int, sequence: int) -> None:
    batch = encode_batch(
        records, codec=codec, base_offset=base_offset, producer_id=1, producer_epoch=0, base_sequence=sequence
    )
    expected = [record._replace(offset=base_offset + record.offset) for record in records]
    assert decode_batch(batch) == expected
    assert decode_batch(memoryview(b"-" + batch + b"-"), 1) == expected
    header = read_header(batch)
    assert header.last_sequence == (sequence + len(records) - 1) % 2**31
    assert header.max_timestamp == max(record.timestamp for record in records)
    assert list(iter_batches(batch * 2 + batch[:-1])) == [(0, header), (len(batch), header)]


@EXAMPLES
@given(record_lists(timestamp), st.sampled_from(Codec))
def test_what_we_write_is_accepted_and_others_read_it(records: list[Record], codec: Codec) -> None:
    batch = encode_batch(records, codec=codec, producer_id=9, producer_epoch=1, base_sequence=5)
    assert check_produced(batch, 9) == (read_header(batch), ErrorCode.NONE)
    theirs = AiokafkaBatch(batch)
    assert theirs.validate_crc()
    assert as_records(theirs) == records
    if codec in (Codec.NONE, Codec.GZIP):  # the others need libraries that this client does not bring
        theirs = KafkaPythonBatch(batch)
        assert theirs.validate_crc()
        assert as_records(theirs) == records


@EXAMPLES
@given(
    record_lists(timestamp), st.sampled_from(Codec), st.sampled_from([AiokafkaBuilder, KafkaPythonBuilder])
)
def test_what_others_write_is_accepted_and_we_read_it(
    records: list[Record], codec: Codec, builder: Any
) -> None:
    if builder is KafkaPythonBuilder and codec not in (Codec.NONE, Codec.GZIP):
        builder = AiokafkaBuilder
    theirs = builder(2, int(codec), True, 9, 1, 5, 2**30)
    for record in records:
        pairs = [tuple(header) for header in record.headers]
        assert theirs.append(record.offset, record.timestamp, record.key, record.value, pairs)
    batch = bytes(theirs.build())
    header, code = check_produced(batch, 9)
    assert code is ErrorCode.NONE
    assert header is not None
    assert header.is_transactional
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (9, 1, 5)
    assert decode_batch(batch) == records
    if codec is Codec.NONE:
        numbers: dict[str, Any] = {"producer_id": 9, "producer_epoch": 1, "base_sequence": 5}
        ours = encode_batch(records, transactional=True, leader_epoch=header.leader_epoch, **numbers)
        assert ours == batch


@EXAMPLES
@given(record_lists(any_timestamp), any_timestamp, st.booleans())
def test_lookup_by_timestamp_is_a_search(records: list[Record], wanted: int, appended: bool) -> None:
    batch = encode_batch(records)
    if appended:
        batch = with_log_append_time(batch, records[0].timestamp)
    for target in (wanted, records[-1].timestamp):
        found = next((record for record in decode_batch(batch) if record.timestamp >= target), None)
        assert first_at_or_after(batch, target) == found


@given(st.integers(-(2**63), 2**63 - 1), st.binary(max_size=3))
def test_numbers(value: int, behind: bytes) -> None:
    encoded = varint.encode(value)
    assert varint.read(encoded + behind, 0) == (value, len(encoded))


def open_everything(data: bytes, limit_bytes: int) -> None:
    """Use every reader on the bytes; only `ProtocolError` may come out."""
    header, code = check_produced(data, 9)
    assert (header is None) == (code is not ErrorCode.NONE)
    for read in (
        lambda: list(iter_batches(data)),
        lambda: decode_batch(data, check_crc=False, limit_bytes=limit_bytes),
        lambda: decode_batch(data, limit_bytes=limit_bytes),
        lambda: first_at_or_after(data, 0, limit_bytes=limit_bytes),
        lambda: read_marker(data),
    ):
        with contextlib.suppress(ProtocolError):
            read()


SEEDS = [
    encode_batch(
        [
            Record(0, 1000 + at, b"k%d" % at, b"value" * at, (Header("h", b"1"),) * (at % 3))
            for at in range(30)
        ],
        codec=codec,
    )
    for codec in Codec
]
places = st.integers(0, 2**16)
mutations = st.lists(
    st.tuples(st.sampled_from(["set", "delete", "insert", "cut"]), places, st.integers(0, 255)),
    min_size=1,
    max_size=6,
)


@examples(150)
@given(st.sampled_from(SEEDS), mutations, st.booleans())
def test_mutated_batches(batch: bytes, steps: list[tuple[str, int, int]], fix: bool) -> None:
    data = bytearray(batch)
    for kind, place, byte in steps:
        at = place % (len(data) or 1)
        if kind == "set" and data:
            data[at] = byte
        elif kind == "delete":
            del data[at : at + 1 + byte % 8]
        elif kind == "insert":
            data[at:at] = bytes([byte]) * (1 + byte % 4)
        else:
            del data[at:]
    if fix and len(data) > HEADER_BYTES:  # so that the damage is found behind the outer checks too
        struct.pack_into(">i", data, 8, len(data) - 12)
        data[16] = 2
        struct.pack_into(">I", data, 17, crc32c(bytes(data[21:])))
    open_everything(bytes(data), 1 << 20)


@examples(120)
@given(st.binary(max_size=200), st.sampled_from(Codec), st.integers(-1, 2**31 - 1))
def test_any_bytes_as_records(payload: bytes, codec: Codec, count: int) -> None:
    header = struct.pack(">hiqqqhii", codec, 2**31 - 1, 0, 2**62, -1, -1, -1, count)
    batch = struct.pack(">qiibI", 0, 49 + len(payload), 0, 2, crc32c(header + payload)) + header + payload
    open_everything(batch, 1 << 16)
    open_everything(payload, 1 << 16)


@examples(120)
@given(st.binary(max_size=300), st.sampled_from(Codec), st.sampled_from([0, 1, 100, 1 << 16]))
def test_any_bytes_as_compressed(data: bytes, codec: Codec, limit_bytes: int) -> None:
    prefix = {Codec.GZIP: b"\x1f\x8b\x08\0", Codec.LZ4: b"\x04\x22\x4d\x18", Codec.ZSTD: b"\x28\xb5\x2f\xfd"}
    for candidate in (data, prefix.get(codec, b"\x82SNAPPY\0" + bytes(8)) + data):
        with contextlib.suppress(ProtocolError):
            assert len(decompress(codec, candidate, limit_bytes)) <= limit_bytes


@pytest.mark.parametrize("codec", Codec)
def test_hostile_counts_cost_no_memory(codec: Codec) -> None:
    """A small batch that declares 2^31 - 1 records, and one record that declares as many headers."""
    many_headers = bytes([20, 0, 0, 0, 1, 1, 0xFE, 0xFF, 0xFF, 0xFF, 0x0F])
    for payload, count in ((bytes([12, 0, 0, 0, 1, 1, 0]), 2**31 - 1), (many_headers, 1)):
        packed = compress(codec, payload)
        header = struct.pack(">hiqqqhii", codec, count - 1, 0, 0, -1, -1, -1, count)
        batch = struct.pack(">qiibI", 0, 49 + len(packed), 0, 2, crc32c(header + packed)) + header + packed
        tracemalloc.start()
        try:
            with pytest.raises(ProtocolError):
                decode_batch(batch, limit_bytes=1 << 20)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert peak < 3 << 20
