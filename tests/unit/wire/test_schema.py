"""Declarations and the functions that are compiled from them, beyond what equality with kio shows."""

import ast
import copy
import pickle
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from semel.wire import schema
from semel.wire.errors import EncodeError, ErrorCode, KafkaError, ProtocolError
from semel.wire.messages import (
    APIS,
    DescribeTopicPartitionsResponse,
    EndTxnRequest,
    FetchableTopicResponse,
    FetchResponse,
    ForgottenTopic,
    InitProducerIdRequest,
    LeaderIdAndEpoch,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    PartitionData,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    SaslAuthenticateRequest,
    TopicProduceData,
    TopicProduceResponse,
)
from semel.wire.primitives import COPY_LIMIT, read_uvarint, uvarint
from semel.wire.schema import Request, array, float64, int32, request, string, uint16, uint32
from semel.wire.schema import struct as struct_
from semel.wire.spec import Versions, least_size


@struct_
class Point:
    x: int = int32(versions="1+", default=7)
    label: str | None = string(nullable="2+", default=None)


@request(999, versions="0-3", flexible=2)
class PlotRequest(Request):
    scale: float = float64()
    flags: int = uint16(versions="1-2")
    color: int = uint32(tag=5, versions="2+", default=3)
    points: list[Point] = array(Point)


def produce(records: bytes, name: str = "t") -> ProduceRequest:
    partition = PartitionProduceData(index=1, records=records)
    return ProduceRequest(acks=-1, topic_data=[TopicProduceData(name=name, partition_data=[partition])])


class TestDeclaration:
    @pytest.mark.parametrize(
        ("text", "inside", "outside"),
        [("3-5", [3, 4, 5], [2, 6]), ("7+", [7, 99], [6]), ("5", [5], [4, 6])],
    )
    def test_version_ranges(self, text: str, inside: list[int], outside: list[int]) -> None:
        versions = Versions.parse(text)
        assert all(version in versions for version in inside)
        assert not any(version in versions for version in outside)

    def test_class_facts(self) -> None:
        assert (PlotRequest.api_key, PlotRequest.min_version, PlotRequest.max_version) == (999, 0, 3)
        assert PlotRequest.first_flexible == 2
        assert [PlotRequest.is_flexible(version) for version in range(4)] == [False, False, True, True]

    def test_defaults_are_not_shared(self) -> None:
        PlotRequest().points.append(Point())
        assert PlotRequest().points == []
        PartitionData().current_leader.leader_id = 4
        assert PartitionData().current_leader == LeaderIdAndEpoch(leader_id=-1)

    def test_defaults(self) -> None:
        assert PartitionData().records is None
        assert FetchableTopicResponse().topic_id == bytes(16)
        assert DescribeTopicPartitionsResponse().next_cursor is None

    def test_no_attribute_by_mistake(self) -> None:
        with pytest.raises(AttributeError):
            Point().y = 1  # type: ignore[attr-defined]

    def test_a_message_needs_a_last_version(self) -> None:
        with pytest.raises(ValueError, match=" end"):
            request(1, versions="3+", flexible=None)

    def test_secrets_are_not_shown(self) -> None:
        assert "hunter2" not in repr(SaslAuthenticateRequest(auth_bytes=b"\0user\0hunter2"))


class TestObjects:
    def test_an_unknown_or_unnamed_argument_is_refused(self) -> None:
        wrong: list[Callable[[], Point]] = [lambda: Point(y=1), lambda: Point(1)]  # type: ignore[call-arg]  # refused
        for make in wrong:
            for _ in range(2):  # the first time the constructor is written, then it is there
                with pytest.raises(TypeError):
                    make()
        assert Point(x=1).x == 1

    def test_equal_is_who_has_the_same_class_and_values(self) -> None:
        assert Point(x=1) == Point(x=1) != Point(x=2)
        assert Point() != PlotRequest()
        with pytest.raises(TypeError):
            hash(Point())

    def test_a_copy_is_equal_and_its_own(self) -> None:
        plot = PlotRequest(points=[Point(x=1)])
        for other in (copy.deepcopy(plot), pickle.loads(pickle.dumps(plot))):
            assert other == plot
            assert other.points is not plot.points


class TestVersions:
    def test_absent_fields_are_left_out_and_come_back_as_defaults(self) -> None:
        value = PlotRequest(scale=1.5, flags=9, color=8, points=[Point(x=1, label="a")])
        assert value.encode(0) == struct.pack(">dih", 1.5, 1, 1) + b"a"
        assert PlotRequest.decode(value.encode(0), 0) == PlotRequest(scale=1.5, points=[Point(label="a")])
        flexible = (
            struct.pack(">dHB", 1.5, 9, 2) + struct.pack(">iB", 1, 2) + b"a\x00" + b"\x01\x05\x04\0\0\0\x08"
        )
        assert value.encode(2) == flexible
        assert PlotRequest.decode(flexible, 2) == value

    def test_a_tagged_field_with_its_default_is_not_written(self) -> None:
        assert PlotRequest(color=3).encode(3) == bytes(8) + b"\x01\x00"

    def test_unknown_versions(self) -> None:
        for version in (-1, 4):
            with pytest.raises(ProtocolError):
                PlotRequest.decode(b"", version)
            with pytest.raises(EncodeError):
                PlotRequest().encode(version)

    def test_advertised_versions(self) -> None:
        for key, api in APIS.items():
            assert key == api.key == api.request.api_key == api.response.api_key
            assert (api.min_version, api.max_version) == (api.response.min_version, api.response.max_version)
            assert api.request.first_flexible == api.response.first_flexible
            assert api.advertised_min <= api.min_version
            assert api.advertised_max <= api.max_version
        assert (APIS[0].name, APIS[0].advertised_min, APIS[0].min_version) == ("Produce", 0, 3)
        assert (APIS[22].advertised_max, APIS[22].max_version) == (5, 6)


class TestRecords:
    def test_decoded_records_are_a_view_into_the_frame(self) -> None:
        frame = bytearray(produce(b"0123456789").encode(9))
        decoded = ProduceRequest.decode(frame, 9).topic_data[0].partition_data[0].records
        assert isinstance(decoded, memoryview)
        frame[frame.index(b"0123456789")] = ord("x")
        assert bytes(decoded) == b"x123456789"

    def test_large_records_are_passed_by_reference(self) -> None:
        payload = bytes(COPY_LIMIT)
        partitions = [PartitionData(partition_index=index, records=payload) for index in range(2)]
        response = FetchResponse(responses=[FetchableTopicResponse(topic="t", partitions=partitions)])
        parts = response.encode_parts(12)
        assert [part is payload for part in parts] == [False, True, False, True, False]
        assert FetchResponse.decode(b"".join(parts), 12) == response

    def test_small_records_are_copied(self) -> None:
        assert len(produce(b"r" * 1000).encode_parts(9)) == 1


class TestLongThings:
    @pytest.mark.parametrize("count", [126, 127, 128, 20000])
    @pytest.mark.parametrize("version", [8, 9])
    def test_arrays(self, count: int, version: int) -> None:
        value = MetadataRequest(topics=[MetadataRequestTopic(name=f"t{index}") for index in range(count)])
        assert MetadataRequest.decode(value.encode(version), version) == value

    @pytest.mark.parametrize("version", [8, 9])
    def test_strings(self, version: int) -> None:
        value = produce(b"", "n" * 32767)
        decoded = ProduceRequest.decode(value.encode(version), version)
        assert decoded == value

    @pytest.mark.parametrize("value", [0, 1, 127, 128, 16383, 16384, 2**21, 2**28, 2**32 - 1])
    def test_varints(self, value: int) -> None:
        assert read_uvarint(b"." + uvarint(value) + b".", 1) == (value, 1 + len(uvarint(value)))


class TestEncodeErrors:
    @pytest.mark.parametrize("version", [3, 13])
    @pytest.mark.parametrize(
        ("message", "fault"),
        [
            (ProduceRequest(acks=40000), "acks: 40000 .*int16"),
            (ProduceRequest(acks="all"), "acks: str "),  # type: ignore[arg-type]
            (ProduceRequest(topic_data=None), "topic_data: .*None"),  # type: ignore[arg-type]
            (ProduceRequest(topic_data=3), "topic_data: int "),  # type: ignore[arg-type]
            (ProduceRequest(topic_data=[1]), r"topic_data\[0\]: int .*TopicProduceData"),  # type: ignore[list-item]
            (ProduceRequest(transactional_id="x" * 32768), "transactional_id: 32768 bytes"),
            (ProduceRequest(transactional_id="\ud800"), "transactional_id: "),
            (ProduceRequest(transactional_id=b"x"), "transactional_id: bytes "),  # type: ignore[arg-type]
            (
                ProduceRequest(
                    topic_data=[TopicProduceData(partition_data=[PartitionProduceData(index=2**31)])]
                ),
                r"topic_data\[0\]\.partition_data\[0\]\.index: 2147483648 .*int32",
            ),
        ],
    )
    def test_the_field_is_named(self, message: ProduceRequest, version: int, fault: str) -> None:
        with pytest.raises(EncodeError, match=f"ProduceRequest v{version}: {fault}"):
            message.encode(version)

    def test_uuids_have_16_bytes(self) -> None:
        with pytest.raises(EncodeError, match=r"topic_id: .*16"):
            ProduceRequest(topic_data=[TopicProduceData(topic_id=b"short")]).encode(13)

    def test_null_where_the_version_has_none(self) -> None:
        assert MetadataRequest(topics=None).encode(1) == b"\xff\xff\xff\xff"
        with pytest.raises(EncodeError, match=r"topics: .*None"):
            MetadataRequest(topics=None).encode(0)

    def test_arrays_of_numbers(self) -> None:
        with pytest.raises(EncodeError, match="uint32"):
            PlotRequest(color=-1).encode(2)

    def test_tagged_structs(self) -> None:
        leader = LeaderIdAndEpoch(leader_id=2**40)
        partition = PartitionProduceResponse(current_leader=leader)
        message = ProduceResponse(responses=[TopicProduceResponse(partition_responses=[partition])])
        assert message.encode(9)
        with pytest.raises(EncodeError, match=r"current_leader\.leader_id: 1099511627776 .*int32"):
            message.encode(10)


class TestDecodeErrors:
    def test_every_prefix_of_a_message_is_too_short(self) -> None:
        for version in (3, 9, 13):
            body = produce(b"records").encode(version)
            for length in range(len(body)):
                with pytest.raises(ProtocolError):
                    ProduceRequest.decode(body[:length], version)

    def test_bytes_behind_the_end_are_ignored(self) -> None:
        value = EndTxnRequest(transactional_id="t", committed=True)
        assert EndTxnRequest.decode(value.encode(3) + b"more", 3) == value

    @pytest.mark.parametrize(
        ("body", "version", "fault"),
        [
            (b"\xff\xff\xff\xff", 0, "topics "),
            (b"\x7f\xff\xff\xff", 1, "2147483647"),
            (b"\x00\x00\x00\x01\xff\xff", 1, "name "),
            (b"\x00\x00\x00\x01\x00\x05abc", 1, " 5, 3 "),
            (b"\x00\x00\x00\x01\x00\x02\xff\xfe", 1, "UTF-8"),
            (b"\xff\xff\xff\xff\x0f", 9, "4294967294"),
            (b"\xff\xff\xff\xff\x1f", 9, "32 bits"),
            (b"\x80\x80\x80\x80\x80\x80\x00", 9, "32 bits"),
            (b"\x02\x00", 9, " 1, 1 "),
            (b"\x02\x00\x00\x00\x00", 9, "name "),
            (b"\x02\x81\x80\x02" + b"x" * 32768 + b"\x00\x01\x00\x00\x00", 9, "32768"),
            (b"\x01\x01\x00\x00\x02\x05\x00\x05\x00", 9, "field 5 .*field 5"),
            (b"\x01\x01\x00\x00\x01\x05\x09", 9, "field 5 .*9 .*0 "),
            (b"\x01\x01\x00\x00\xff\xff\xff\xff\x0f", 9, "ends"),
        ],
    )
    def test_malformed(self, body: bytes, version: int, fault: str) -> None:
        with pytest.raises(ProtocolError, match=f"MetadataRequest v{version}: .*{fault}"):
            MetadataRequest.decode(body, version)

    def test_a_tagged_field_must_have_its_size(self) -> None:
        with pytest.raises(ProtocolError, match=r"PlotRequest\.color"):
            PlotRequest.decode(bytes(8) + b"\x01\x01\x05\x05\0\0\0\x08\0", 3)

    def test_unknown_tagged_fields_are_skipped(self) -> None:
        body = bytes(8) + b"\x01" + b"\x03\x04\x02??\x05\x04\0\0\0\x08\x06\x01!"
        assert PlotRequest.decode(body, 3) == PlotRequest(color=8)

    def test_a_struct_may_be_null_where_it_is_declared_so(self) -> None:
        assert DescribeTopicPartitionsResponse.decode(b"\0\0\0\0\x01\xff\0", 0).next_cursor is None


class TestBounds:
    def test_least_sizes(self) -> None:
        assert least_size("string", 0, False) == 2
        assert least_size("string", 9, True) == 1
        assert least_size(ForgottenTopic, 7, False) == 6
        assert least_size(ForgottenTopic, 13, True) == 18
        assert least_size(Point, 0, False) == 2

    def test_a_declared_length_allocates_nothing(self) -> None:
        import tracemalloc

        body = uvarint(2**32 - 1) + bytes(100)
        MetadataResponse.decode(MetadataResponse().encode(9), 9)
        tracemalloc.start()
        with pytest.raises(ProtocolError):
            MetadataResponse.decode(bytes(4) + body, 9)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 65536


def test_error_codes_are_those_of_kio() -> None:
    from kio.schema.errors import ErrorCode as KioErrorCode

    assert {code.name: (int(code), code.retriable) for code in ErrorCode} == {
        code.name.upper(): (int(code), code.retriable) for code in KioErrorCode
    }


def test_kafka_errors() -> None:
    error = KafkaError(ErrorCode.CONCURRENT_TRANSACTIONS, "wait")
    assert (error.code, error.retriable, str(error)) == (51, True, "CONCURRENT_TRANSACTIONS: wait")
    unknown = KafkaError(9999)
    assert unknown.code is ErrorCode.UNKNOWN_SERVER_ERROR
    assert "9999" in str(unknown)
    assert InitProducerIdRequest().transactional_id == ""


def test_the_wire_imports_no_input_or_output() -> None:
    package = Path(schema.__file__).parent
    names = (
        "schema",
        "spec",
        "source",
        "encoding",
        "decoding",
        "primitives",
        "errors",
        "frames",
    )
    allowed = {
        "struct",
        "dataclasses",
        "typing",
        "enum",
        "functools",
        "types",
        "collections",
        "contextlib",
        "semel",
    }
    for name in names:
        for node in ast.walk(ast.parse((package / f"{name}.py").read_text())):
            if isinstance(node, ast.Import):
                assert {alias.name.partition(".")[0] for alias in node.names} <= allowed
            elif isinstance(node, ast.ImportFrom):
                assert str(node.module).partition(".")[0] in allowed
