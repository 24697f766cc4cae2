"""Validation at produce: what clients write passes; what passes, every reader can read."""

import importlib
import struct
import tracemalloc
import warnings
from types import ModuleType
from typing import Any

import pytest
from aiokafka.record.default_records import DefaultRecordBatch as AiokafkaBatch
from aiokafka.record.default_records import DefaultRecordBatchBuilder as AiokafkaBuilder
from hypothesis import given
from hypothesis import strategies as st
from support.examples import examples
from support.stores.columnar import column_of, name_of, payload_of

from semel.wire import _checking_py, varint
from semel.wire.batch import HEADER_BYTES, seal
from semel.wire.columns import Packer, pack_headers, seal_packed
from semel.wire.compression import compress
from semel.wire.errors import ErrorCode, InvalidRecords
from semel.wire.invalid_records import NAMED_MAX
from semel.wire.records import Codec, Header, Record, check_produced, decode_batch, encode_batch, read_header
from semel.wire.validating import MAX_TIMESTAMP, MIN_TIMESTAMP, validate, with_max_timestamp

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # raised by the import itself
    from kafka.record.default_records import DefaultRecordBatchBuilder as KafkaPythonBuilder

EXAMPLES = examples(60)
LIMIT_BYTES = 8 << 20
NOW = 1_700_000_000_000
EVER = (MIN_TIMESTAMP, MAX_TIMESTAMP)

content = st.one_of(st.none(), st.binary(max_size=80), st.integers(60, 9_000).map(lambda size: b"x" * size))
headers = st.lists(
    st.builds(Header, st.text(max_size=8), st.one_of(st.none(), st.binary(max_size=70))), max_size=3
)
record = st.builds(Record, st.just(0), st.integers(0, 2**41), content, content, headers.map(tuple))
records = st.lists(record, min_size=1, max_size=80)


def halves() -> list[ModuleType]:
    """The pure half, and the compiled one where it was built and is wanted."""
    try:
        return [_checking_py, importlib.import_module("semel.wire._checking")]
    except ImportError:
        return [_checking_py]


both = pytest.mark.parametrize("half", halves(), ids=name_of)


def verdict(half: Any, batch: bytes, *, needs_keys: bool = False) -> tuple[int, Any]:
    """The error code and the indexes of the records, or NONE and the largest timestamp."""
    try:
        largest = half.check(payload_of(batch), read_header(batch), *EVER, needs_keys)
    except InvalidRecords as error:
        return error.code, [index for index, _ in error.records]
    return ErrorCode.NONE, largest


def by_ours(records: list[Record], codec: Codec) -> bytes:
    return encode_batch(records, codec=codec, producer_id=9, producer_epoch=1, base_sequence=5)


def by_aiokafka(records: list[Record], codec: Codec) -> bytes:
    return built(AiokafkaBuilder, records, codec)


def by_kafka_python(records: list[Record], codec: Codec) -> bytes:
    # The other codecs need libraries that this client does not bring.
    return built(KafkaPythonBuilder, records, codec if codec <= Codec.GZIP else Codec.NONE)


def by_columns(records: list[Record], codec: Codec) -> bytes:
    rows = len(records)
    packer = Packer(1, 1 << 30)
    named: list[bytes | None] = [pack_headers(record.headers) for record in records]
    keys, values = column_of([each.key for each in records]), column_of([each.value for each in records])
    assert packer.add(0, rows, struct.pack(f"={rows}i", *[0] * rows), keys, values, named, NOW) == rows
    packed = packer.take(0)
    assert packed is not None
    return seal_packed(packed, codec=codec)


def built(builder: Any, records: list[Record], codec: Codec) -> bytes:
    theirs = builder(2, int(codec), False, 9, 1, 5, 2**30)
    for offset, record in enumerate(records):
        pairs = [tuple(header) for header in record.headers]
        assert theirs.append(offset, record.timestamp, record.key, record.value, pairs)
    return bytes(theirs.build())


@both
@EXAMPLES
@given(
    records=records,
    codec=st.sampled_from(Codec),
    write=st.sampled_from([by_ours, by_aiokafka, by_kafka_python, by_columns]),
)
def test_what_clients_write_passes(half: ModuleType, records: list[Record], codec: Codec, write: Any) -> None:
    batch = write(records, codec)
    header, code = check_produced(batch, 9)
    assert header is not None, code
    assert validate(batch, header, limit_bytes=LIMIT_BYTES) == header.max_timestamp
    assert verdict(half, batch) == (ErrorCode.NONE, header.max_timestamp)
    keyless = [at for at, record in enumerate(records) if record.key is None]
    if keyless:
        assert verdict(half, batch, needs_keys=True) == (ErrorCode.INVALID_RECORD, keyless)


change = st.tuples(st.integers(0, 1 << 20), st.sampled_from([0, 1, 2, 3, 0x7E, 0x7F, 0x80, 0x81, 0xFE, 0xFF]))


@EXAMPLES
@given(
    records=st.lists(record, min_size=1, max_size=6),
    codec=st.sampled_from(Codec),
    changes=st.lists(change, max_size=3),
    cut=st.integers(0, 3),
    more=st.sampled_from([0, 0, 0, 1, -1, 97]),
    is_inside=st.booleans(),
)
def test_what_passes_is_read_by_every_reader(
    records: list[Record],
    codec: Codec,
    changes: list[tuple[int, int]],
    cut: int,
    more: int,
    is_inside: bool,
) -> None:
    """Bytes are changed in the packed records or in the unpacked ones, and the checksum is made right."""
    batch = encode_batch(records, codec=codec)
    header = read_header(batch)
    changed = bytearray(payload_of(batch) if is_inside else batch[HEADER_BYTES:])
    for at, value in changes:
        changed[at % len(changed)] = value
    if cut:
        del changed[-cut:]
    payload = compress(codec, bytes(changed)) if is_inside else bytes(changed)
    count = header.record_count + more
    batch = seal(header._replace(record_count=count, last_offset_delta=count - 1), payload)
    accepted, _ = check_produced(batch, 9)
    if accepted is None:
        return
    if codec is Codec.NONE or is_inside:
        first, *others = [verdict(half, batch) for half in halves()]
        assert all(other == first for other in others)
    try:
        largest = validate(batch, accepted, limit_bytes=LIMIT_BYTES)
    except InvalidRecords:
        return
    ours = decode_batch(batch, limit_bytes=LIMIT_BYTES)
    assert [each.offset for each in ours] == list(range(count))
    assert max(each.timestamp for each in ours) == largest
    if codec is Codec.SNAPPY and payload[8:16] == struct.pack("<ii", 1, 1):
        return  # aiokafka takes a frame with this byte order for a raw block
    theirs = AiokafkaBatch(with_max_timestamp(batch, accepted._replace(max_timestamp=largest)))
    assert theirs.validate_crc()
    try:
        read = [(each.offset, each.timestamp, each.key, each.value) for each in theirs]
    except UnicodeDecodeError:
        return  # of a header's name; other clients replace what is not UTF-8
    assert read == [(each.offset, each.timestamp, each.key, each.value) for each in ours]


def number(value: int, size: int) -> bytes:
    """A varint of so many bytes, however few it needs."""
    folded = varint.encode(value)
    return folded[:-1] + bytes([folded[-1] | 0x80]) + b"\x80" * (size - len(folded) - 1) + b"\0"


@both
@pytest.mark.parametrize("size", [2, 5, 6, 9])
def test_numbers_that_java_cannot_read_are_refused(half: ModuleType, size: int) -> None:
    """Lengths are 32 bits in at most five bytes; only times may be longer."""
    body = b"\0" + number(0, size) + b"\0" + b"\1" + number(1, 2) + b"v" + b"\0"
    header = read_header(encode_batch([Record(0, NOW, None, b"v")]))
    assert verdict(half, seal(header, varint.encode(len(body)) + body)) == (ErrorCode.NONE, NOW)
    body = b"\0\0\0\1" + number(1, size) + b"v" + b"\0"
    expected = (ErrorCode.NONE, NOW) if size <= 5 else (ErrorCode.INVALID_RECORD, [0])
    assert verdict(half, seal(header, varint.encode(len(body)) + body)) == expected


@both
def test_the_record_that_is_wrong_is_named(half: Any) -> None:
    batch = encode_batch([Record(0, NOW + at, b"k", b"v") for at in range(10)])
    header, payload = read_header(batch), payload_of(batch)
    size = len(payload) // 10

    def named(
        payload: bytes, count: int = 10, earliest: int = MIN_TIMESTAMP, latest: int = MAX_TIMESTAMP
    ) -> Any:
        with pytest.raises(InvalidRecords) as refused:
            half.check(payload, header._replace(record_count=count), earliest, latest, False)
        return refused.value.code, [index for index, _ in refused.value.records]

    invalid, too_old_or_young = ErrorCode.INVALID_RECORD, ErrorCode.INVALID_TIMESTAMP
    assert named(bytes(payload), count=100) == (invalid, [10])
    assert named(bytes(payload[: 3 * size]), count=100) == (invalid, [3])
    assert named(bytes(payload), count=3) == (invalid, [])
    assert named(bytes(payload[:size]) + bytes(payload[:size])) == (invalid, [1]), "the same offset twice"
    assert named(bytes(payload[size:])) == (invalid, [0]), "offsets from 1 on"
    marked = bytearray(payload)
    marked[2 * size + 1] = 0x80
    assert named(bytes(marked)) == (invalid, [2]), "an attribute that aiokafka takes for a longer number"
    assert named(bytes(marked), earliest=NOW + 4) == (invalid, [2]), "damage counts before what is refused"
    assert named(bytes(payload), earliest=NOW + 4) == (too_old_or_young, [0, 1, 2, 3])
    assert named(bytes(payload), latest=NOW + 4) == (too_old_or_young, [5, 6, 7, 8, 9])


@EXAMPLES
@given(
    made=st.lists(st.tuples(st.integers(NOW - 3, NOW + 3), st.booleans()), min_size=1, max_size=12),
    window=st.tuples(st.integers(NOW - 3, NOW), st.integers(NOW, NOW + 3)),
    needs_keys=st.booleans(),
)
def test_every_refused_record_is_named_with_its_reason(
    made: list[tuple[int, bool]], window: tuple[int, int], needs_keys: bool
) -> None:
    """KIP-467; one bad timestamp decides the code for the batch, as in Kafka's LogValidator."""
    batch = encode_batch([Record(0, time, b"k" if has_key else None, b"v") for time, has_key in made])
    expected: dict[int, str] = {}
    for at, (time, has_key) in enumerate(made):
        if needs_keys and not has_key:
            expected[at] = "without a key"
        elif not window[0] <= time <= window[1]:
            expected[at] = f"{time} is too old" if time < window[0] else f"{time} is too far in the future"
    for half in halves():
        if not expected:
            assert half.check(payload_of(batch), read_header(batch), *window, needs_keys)
            continue
        with pytest.raises(InvalidRecords) as refused:
            half.check(payload_of(batch), read_header(batch), *window, needs_keys)
        error = refused.value
        assert [index for index, _ in error.records] == list(expected)
        assert all(expected[index] in reason for index, reason in error.records)
        has_bad_time = any("too" in reason for reason in expected.values())
        assert error.code == (ErrorCode.INVALID_TIMESTAMP if has_bad_time else ErrorCode.INVALID_RECORD)
        assert error.message.startswith(f"{len(expected)} of {len(made)} records")


@both
def test_the_names_are_bounded_and_the_code_is_that_of_all(half: Any) -> None:
    """The only bad timestamp comes after as many records as are named."""
    count = NAMED_MAX + 5
    made = [Record(0, NOW + (at == count - 1), None if at < count - 1 else b"k", b"v") for at in range(count)]
    batch = encode_batch(made)
    with pytest.raises(InvalidRecords) as refused:
        half.check(payload_of(batch), read_header(batch), NOW, NOW, True)
    assert [index for index, _ in refused.value.records] == list(range(NAMED_MAX))
    assert refused.value.code == ErrorCode.INVALID_TIMESTAMP
    assert f"{count} of {count} records" in refused.value.message


@both
def test_a_record_without_a_time_is_never_too_old(half: Any) -> None:
    batch = encode_batch([Record(0, -1, b"k", b"v")])
    assert half.check(payload_of(batch), read_header(batch), NOW, NOW, False) == -1


@pytest.mark.parametrize("codec", [codec for codec in Codec if codec])
def test_a_bomb_takes_no_more_memory_than_the_limit(codec: Codec) -> None:
    header = read_header(encode_batch([Record(0, NOW, None, b"v")], codec=codec))
    bomb = seal(header, compress(codec, bytes(64 << 20)))
    tracemalloc.start()
    try:
        with pytest.raises(InvalidRecords) as refused:
            validate(bomb, header._replace(length=len(bomb)), limit_bytes=1 << 20)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert refused.value.code is ErrorCode.INVALID_RECORD
    assert peak < 4 << 20
