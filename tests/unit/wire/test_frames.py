"""Frames and headers: cut anywhere, of any size, from honest and hostile peers."""

import struct
import tracemalloc
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from semel.wire.errors import ProtocolError
from semel.wire.frames import (
    FrameParser,
    RequestHeader,
    decode_request_header,
    decode_response_header,
    encode_request,
    encode_response,
)
from semel.wire.messages import (
    APIS,
    ApiVersionsRequest,
    ApiVersionsResponse,
    MetadataRequest,
    MetadataResponse,
    PartitionProduceData,
    ProduceRequest,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
    TopicProduceData,
)
from semel.wire.messages.semel import FIRST_OWN_KEY

LIMIT = 1 << 20


def frame(payload: bytes) -> bytes:
    return struct.pack(">i", len(payload)) + payload


def cut(data: bytes, places: list[int]) -> list[bytes]:
    edges = [0, *sorted({place % (len(data) + 1) for place in places}), len(data)]
    return [data[start:stop] for start, stop in pairwise(edges)]


class TestFrameParser:
    @settings(max_examples=150, deadline=None, derandomize=True)
    @given(st.lists(st.binary(max_size=20), max_size=6), st.lists(st.integers(0, 200), max_size=10))
    def test_payloads_do_not_depend_on_where_the_stream_is_cut(
        self, payloads: list[bytes], places: list[int]
    ) -> None:
        parser = FrameParser(LIMIT)
        stream = b"".join(map(frame, payloads))
        received = [payload for piece in cut(stream, places) for payload in parser.feed(piece)]
        assert received == payloads
        assert parser.buffered == 0

    def test_one_byte_at_a_time(self) -> None:
        parser = FrameParser(LIMIT)
        stream = frame(b"one") + frame(b"") + frame(b"three")
        received = [payload for byte in stream for payload in parser.feed(bytes((byte,)))]
        assert received == [b"one", b"", b"three"]

    def test_a_frame_in_one_piece_is_not_copied(self) -> None:
        piece = frame(b"x" * 1000)
        (payload,) = FrameParser(LIMIT).feed(piece)
        assert payload.obj is piece

    def test_a_buffer_that_the_caller_uses_again_is_copied(self) -> None:
        reused = bytearray(frame(b"first"))
        (payload,) = FrameParser(LIMIT).feed(memoryview(reused))
        reused[4:] = b"-----"
        assert bytes(payload) == b"first"

    def test_payloads_are_read_only(self) -> None:
        parser = FrameParser(LIMIT)
        stream = frame(b"abc") + frame(b"def")
        payloads = parser.feed(stream[:9]) + parser.feed(stream[9:])
        assert [payload.readonly for payload in payloads] == [True, True]

    def test_payloads_stay_when_more_arrives(self) -> None:
        parser = FrameParser(LIMIT)
        parser.feed(frame(b"abc")[:5])
        (payload,) = parser.feed(b"bc" + frame(b"def")[:6])
        assert parser.feed(b"f") == [b"def"]
        assert bytes(payload) == b"abc"

    @pytest.mark.parametrize(
        "start",
        [
            struct.pack(">i", -1),
            struct.pack(">i", 2**31 - 1),
            struct.pack(">i", LIMIT + 1),
            b"GET / HTTP/1.1\r\n",
            b"POST / HTTP/1.1\r\n",
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc",  # a TLS ClientHello
            b"SSH-2.0-OpenSSH",
        ],
    )
    def test_sizes_that_are_not_allowed(self, start: bytes) -> None:
        with pytest.raises(ProtocolError):
            FrameParser(LIMIT).feed(start)
        parser = FrameParser(LIMIT)
        parser.feed(frame(b"ok") + start[:2])
        with pytest.raises(ProtocolError):
            parser.feed(start[2:4])

    def test_the_largest_frame(self) -> None:
        payload = bytes(LIMIT)
        assert FrameParser(LIMIT).feed(frame(payload)) == [payload]

    def test_memory_grows_with_what_arrived(self) -> None:
        tracemalloc.start()
        parser = FrameParser(1 << 30)
        parser.feed(struct.pack(">i", 1 << 30) + bytes(1000))
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 20_000
        assert parser.buffered == 1004

    def test_a_large_frame_is_copied_once(self) -> None:
        stream = frame(bytes(8 << 20))
        tracemalloc.start()
        parser = FrameParser(16 << 20)
        received = [
            payload
            for start in range(0, len(stream), 65536)
            for payload in parser.feed(stream[start : start + 65536])
        ]
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert [len(payload) for payload in received] == [8 << 20]
        # the bytearray grows by an eighth at a time; while it moves there may be two of it
        assert peak < 2.5 * (8 << 20)


def parts_to_frame(parts: list[bytes | bytearray | memoryview]) -> memoryview:
    (payload,) = FrameParser(1 << 30).feed(b"".join(parts))
    return payload


class TestRequests:
    @pytest.mark.parametrize("client_id", [None, "", "rdkafka", "é" * 200])
    @pytest.mark.parametrize("version", [8, 9])
    def test_round_trip(self, client_id: str | None, version: int) -> None:
        payload = parts_to_frame(encode_request(MetadataRequest(), version, 77, client_id))
        header, offset = decode_request_header(payload)
        assert header == RequestHeader(3, version, 77, client_id, version)
        assert MetadataRequest.decode(payload, version, offset) == MetadataRequest()
        assert offset == 10 + len((client_id or "").encode()) + (version == 9)

    def test_large_records_are_not_copied(self) -> None:
        payload = bytes(100_000)
        partition = PartitionProduceData(records=payload)
        request = ProduceRequest(topic_data=[TopicProduceData(name="t", partition_data=[partition])])
        parts = encode_request(request, 9, 1, "me")
        assert parts[1] is payload
        header, offset = decode_request_header(parts_to_frame(parts))
        assert ProduceRequest.decode(parts_to_frame(parts), header.api_version, offset) == request

    def test_tagged_fields_in_the_header_are_skipped(self) -> None:
        start = struct.pack(">hhih", 3, 9, 1, 2) + b"me"
        assert decode_request_header(start + b"\x02\x00\x01a\x03\x02bc" + b"body")[1] == len(start) + 8

    @pytest.mark.parametrize(
        "key_and_version", [(18, 5), (18, 127), (18, -1), (32767, 0), (-1, 0), (0, 2), (0, 99)]
    )
    def test_unknown_apis_and_versions_are_read_up_to_the_client_id(
        self, key_and_version: tuple[int, int]
    ) -> None:
        key, version = key_and_version
        start = struct.pack(">hhih", key, version, 5, 2) + b"me"
        assert decode_request_header(start) == (RequestHeader(key, version, 5, "me", version), len(start))

    @pytest.mark.parametrize(
        "payload",
        [
            b"",
            b"\0",
            bytes(9),
            struct.pack(">hhih", 3, 9, 1, 32767),
            struct.pack(">hhih", 3, 9, 1, -1),
            struct.pack(">hhih", 3, 9, 1, -1) + b"\xff\xff\xff\xff\x07",
            struct.pack(">hhih", 3, 9, 1, -1) + b"\x01\x00\x7f",
            struct.pack(">hhih", 3, 9, 1, -1) + b"\x02\x01\x00\x01\x00",
        ],
    )
    def test_malformed_headers(self, payload: bytes) -> None:
        with pytest.raises(ProtocolError):
            decode_request_header(payload)

    def test_a_client_id_below_zero_is_null(self) -> None:
        assert decode_request_header(struct.pack(">hhih", 3, 8, 1, -2))[0].client_id is None


class TestResponses:
    @pytest.mark.parametrize("version", [8, 9])
    def test_round_trip(self, version: int) -> None:
        response = MetadataResponse(cluster_id="c")
        payload = parts_to_frame(encode_response(response, version, -5))
        correlation_id, offset = decode_response_header(payload, 3, version)
        assert (correlation_id, offset) == (-5, 5 if version == 9 else 4)
        assert MetadataResponse.decode(payload, version, offset) == response

    def test_api_versions_never_has_a_flexible_header(self) -> None:
        for version in range(5):
            payload = parts_to_frame(encode_response(ApiVersionsResponse(), version, 3))
            assert bytes(payload) == b"\0\0\0\x03" + ApiVersionsResponse().encode(version)
            assert decode_response_header(payload, 18, version) == (3, 4)
        request = parts_to_frame(encode_request(ApiVersionsRequest(), 3, 3, None))
        assert decode_request_header(request)[1] == 11

    def test_apis_that_are_never_flexible(self) -> None:
        payload = parts_to_frame(encode_response(SaslHandshakeResponse(), 1, 3))
        assert decode_response_header(payload, 17, 1) == (3, 4)
        request = parts_to_frame(encode_request(SaslHandshakeRequest(mechanism="PLAIN"), 1, 3, None))
        assert decode_request_header(request)[1] == 10

    @pytest.mark.parametrize("payload", [b"", b"\0\0\0", b"\0\0\0\x01", b"\0\0\0\x01\x01"])
    def test_malformed_headers(self, payload: bytes) -> None:
        with pytest.raises(ProtocolError):
            decode_response_header(payload, 3, 9)


def test_headers_are_those_of_kio() -> None:
    import io

    from kio.index import load_request_schema, load_response_schema
    from kio.serial import entity_writer

    def kio_bytes(header: Any) -> bytes:
        buffer = io.BytesIO()
        entity_writer(type(header))(buffer, header)
        return buffer.getvalue()

    for api in (each for each in APIS.values() if each.key < FIRST_OWN_KEY):
        for version in range(api.min_version, api.max_version + 1):
            request_header: Any = load_request_schema(api.key, version).__header_schema__
            header = request_header(
                request_api_key=api.key, request_api_version=version, correlation_id=9, client_id="me"
            )
            ours = b"".join(encode_request(api.request(), version, 9, "me"))
            assert ours[4:] == kio_bytes(header) + api.request().encode(version)

            response_header: Any = load_response_schema(api.key, version).__header_schema__
            ours = b"".join(encode_response(api.response(), version, 9))
            assert ours[4:] == kio_bytes(response_header(correlation_id=9)) + api.response().encode(version)


def test_a_client_id_that_is_not_text_is_read_all_the_same() -> None:
    """As Kafka does: it is a name for the logs, and nothing depends on it."""
    frame = struct.pack(">hhih", 3, 4, 7, 2) + b"\xff\xfe" + b"\0\0\0\0\0"
    header, position = decode_request_header(frame)
    assert (header.client_id, position) == ("\ufffd\ufffd", 12)
