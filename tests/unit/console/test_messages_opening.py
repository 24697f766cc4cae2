"""Batches are opened with bounded memory, and damaged ones are refused."""

import tracemalloc
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.client import Codec, Header
from semel.client.errors import ProtocolError
from semel.console.messages.filters import Filter
from semel.console.messages.marks import Mark
from semel.console.messages.reading import MarkedRecord, Opened, open_batch
from semel.wire.records import Record, decode_batch, encode_batch, read_header

BYTES = st.none() | st.binary(max_size=20)


@given(
    st.lists(
        st.tuples(
            st.integers(0, 10**12), BYTES, BYTES, st.lists(st.tuples(st.text(max_size=5), BYTES), max_size=4)
        ),
        min_size=1,
        max_size=5,
    ),
    st.sampled_from(list(Codec)),
)
def test_records_are_those_of_the_codec(
    rows: list[tuple[int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]], codec: Codec
) -> None:
    data = encode_batch(
        [
            Record(0, at, key, value, tuple(Header(*each) for each in headers))
            for at, key, value, headers in rows
        ],
        codec=codec,
        base_offset=100,
    )
    opened = list(open_batch(data, 0, read_header(data)))
    assert [(r.offset, r.timestamp, r.key, r.value, r.headers) for r in opened] == [
        tuple(each) for each in decode_batch(data)
    ]
    assert [r.header_count for r in opened] == [len(row[3]) for row in rows]


def test_very_many_headers_are_counted_and_not_decoded() -> None:
    headers = tuple(Header("h", b"") for _ in range(100_000))
    data = encode_batch([Record(0, 1, b"k", b"v", headers), Record(0, 2, None, b"next")])
    del headers
    tracemalloc.start()
    first, second = open_batch(data, 0, read_header(data))
    assert tracemalloc.get_traced_memory()[1] < 2 * len(data)
    tracemalloc.stop()
    assert (first.header_count, len(first.headers), second.value) == (100_000, 200, b"next")


def test_a_bomb_is_refused() -> None:
    data = encode_batch([Record(0, 1, None, bytes(64 << 20))], codec=Codec.GZIP)
    assert len(data) < 100_000
    with pytest.raises(ProtocolError):
        open_batch(data, 0, read_header(data))


@given(st.binary(max_size=30), st.integers(0, 60))
def test_damaged_records_are_refused_or_read(noise: bytes, at: int) -> None:
    data = bytearray(encode_batch([Record(0, 1, b"key", b"value", (Header("a", b"b"),))] * 3))
    data[61 + at : 61 + at + len(noise)] = noise[: max(0, len(data) - 61 - at)]
    header = read_header(data)
    with suppress(ProtocolError):
        assert len(list(Opened(header, bytes(data[61:])))) == 3


WORDS = [
    "a",
    "B",
    "key:a",
    "value:b",
    "header:a",
    "header.a:b",
    "-a",
    "/a.b/",
    "/^a/",
    "/b$/",
    "/[^a]b/",
    "é",
    "key:/\\bb/",
]


@given(
    st.lists(
        st.tuples(st.text("abéB \n", max_size=6), st.binary(max_size=6), st.text("ab", max_size=3)),
        min_size=1,
        max_size=6,
    ),
    st.lists(st.sampled_from(WORDS), min_size=1, max_size=3),
)
def test_no_batch_is_skipped_that_holds_a_match(rows: list[tuple[str, bytes, str]], words: list[str]) -> None:
    data = encode_batch(
        [
            Record(
                0,
                1,
                key.encode(),
                value,
                (Header(name, key.encode()),),
            )
            for key, value, name in rows
        ]
    )
    opened = open_batch(data, 0, read_header(data))
    wanted = Filter(" ".join(words))
    found = [
        record
        for record in opened
        if wanted.matches(MarkedRecord("t", 0, record, Mark.PLAIN, -1, -1, "none"))
    ]
    assert wanted.may_match(opened.data) or not found
