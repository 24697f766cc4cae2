"""Avro, Protobuf and JSON Schema, found in a real HTTP registry by the id in front of a value."""

import json
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory
from hypothesis import given
from hypothesis import strategies as st
from support.servers.schema_registry import (
    ORDER_AVRO,
    PROTO,
    RegistryServer,
    an_order,
    framed,
    number,
    registry_server,
)

from semel.console.messages import registry as registries
from semel.console.messages.avro import AvroError, AvroSchema
from semel.console.messages.decoding import Decoding, View
from semel.console.messages.proto_files import ProtoError, parse_proto
from semel.console.messages.protobuf import ProtobufSchema, message_indexes
from semel.console.messages.registry import Registry, SchemaProblem


def test_avro_values() -> None:
    found = AvroSchema(ORDER_AVRO).decode(an_order(number(1) + an_order()))
    assert found == {
        "id": 7,
        "who": "Zoë",
        "tags": ["a", "b"],
        "counts": {"x": -5},
        "state": "PAID",
        "next": {**found, "next": None},
        "price": "123.45",
        "day": "2024-10-04",
        "at": "2023-11-14T22:13:20.123000+00:00",
        "hash": b"\xab\xcd",
        "ratio": 0.5,
        "ok": True,
    }


@pytest.mark.parametrize(
    ("schema", "data", "says"),
    [
        ('{"type": "array", "items": "null"}', number(10**9), "block"),
        ('"string"', number(1 << 40), "bytes where"),
        ('"long"', b"\xff" * 20, "64 bits"),
        ('["null", "int"]', number(5), "branch"),
        ('"int"', b"", "fit"),
        ('"int"', b"\x02\x02", "left"),
        ('{"type": "record", "name": "R", "fields": [{"name": "r", "type": "R"}]}', b"", "deeply"),
        ('{"type": "record", "name": "R", "fields": [{"name": "r", "type": "Q"}]}', b"", "define"),
    ],
)
def test_hostile_avro_ends(schema: str, data: bytes, says: str) -> None:
    with pytest.raises(AvroError, match=says):
        AvroSchema(schema).decode(data)


def oracle() -> Any:
    """The same message, by Google's own library."""
    file = descriptor_pb2.FileDescriptorProto(name="o.proto", package="shop", syntax="proto3")
    order = file.message_type.add(name="Order")
    kinds = descriptor_pb2.FieldDescriptorProto
    item = order.nested_type.add(name="Item")
    item.field.add(name="sku", number=1, type=kinds.TYPE_STRING, label=1)
    item.field.add(name="weight", number=2, type=kinds.TYPE_FLOAT, label=1)
    state = order.enum_type.add(name="State")
    state.value.add(name="NEW", number=0)
    state.value.add(name="PAID", number=1)
    entry = order.nested_type.add(name="CountsEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=kinds.TYPE_STRING, label=1)
    entry.field.add(name="value", number=2, type=kinds.TYPE_INT32, label=1)
    rows = [
        ("id", 1, kinds.TYPE_INT64, 1, None),
        ("who", 2, kinds.TYPE_STRING, 1, None),
        ("tags", 3, kinds.TYPE_STRING, 3, None),
        ("counts", 4, kinds.TYPE_MESSAGE, 3, ".shop.Order.CountsEntry"),
        ("state", 5, kinds.TYPE_ENUM, 1, ".shop.Order.State"),
        ("item", 6, kinds.TYPE_MESSAGE, 1, ".shop.Order.Item"),
        ("deltas", 7, kinds.TYPE_SINT32, 3, None),
        ("card", 8, kinds.TYPE_DOUBLE, 1, None),
        ("blob", 10, kinds.TYPE_BYTES, 1, None),
        ("f", 11, kinds.TYPE_FIXED32, 1, None),
    ]
    for name, at, kind, label, type_name in rows:
        order.field.add(name=name, number=at, type=kind, label=label, type_name=type_name)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    made = message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Order"))
    return json_format.ParseDict(
        {
            "id": -7,
            "who": "Zoë",
            "tags": ["a", "b"],
            "counts": {"x": -5},
            "state": "PAID",
            "item": {"sku": "a-1", "weight": 0.5},
            "deltas": [-1, 2, -300],
            "card": 1.5,
            "blob": "AAE=",
            "f": 9,
        },
        made(),
    )


def test_protobuf_values_of_googles_library() -> None:
    schema = ProtobufSchema(PROTO)
    assert schema.decode(oracle().SerializeToString(), schema.message([0])) == {
        "id": -7,
        "who": "Zoë",
        "tags": ["a", "b"],
        "counts": {"x": -5},
        "state": "PAID",
        "item": {"sku": "a-1", "weight": 0.5},
        "deltas": [-1, 2, -300],
        "card": 1.5,
        "blob": b"\x00\x01",
        "f": 9,
    }


def test_messages_of_a_file() -> None:
    file = parse_proto(PROTO)
    assert [each.name for each in file.top] == ["shop.Order", "shop.Other"]
    assert file.enums == {"shop.Order.State": {0: "NEW", 1: "PAID"}}
    schema = ProtobufSchema(PROTO)
    assert schema.message([0, 0]).name == "shop.Order.Item"
    assert schema.message([1]).name == "shop.Other"
    with pytest.raises(ProtoError):
        schema.message([2])
    with pytest.raises(ProtoError):
        parse_proto("message A { int32 x = 1;")


@pytest.mark.parametrize(
    "data", [b"\x0a\xff\xff\xff\xff\x0f", b"\x08" + b"\xff" * 11, b"\x0b", b"\x32\x02\x08"]
)
def test_hostile_protobuf_ends(data: bytes) -> None:
    schema = ProtobufSchema(PROTO)
    with pytest.raises(ProtoError):
        schema.decode(data, schema.message([0]))


JSON = st.recursive(
    st.none()
    | st.integers(-5, 5)
    | st.sampled_from(["record", "enum", "array", "map", "fixed", "int", "R", "x"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["type", "name", "fields", "items", "values", "symbols", "size", "logicalType", "scale"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(JSON, st.binary(max_size=40))
def test_any_avro_schema_and_data_end_in_a_value_or_an_error(schema: Any, data: bytes) -> None:
    with suppress(AvroError):
        AvroSchema(json.dumps(schema)).decode(data)


@given(st.binary(max_size=60))
def test_any_data_ends_in_a_value_or_an_error(data: bytes) -> None:
    with suppress(AvroError):
        AvroSchema(ORDER_AVRO).decode(data)
    schema = ProtobufSchema(PROTO)
    with suppress(ProtoError):
        schema.decode(data, schema.message([0]))
    with suppress(ProtoError):
        message_indexes(data)


@given(st.text('message enum{}=;1<>,map repeated oneof x"/*\n', max_size=60))
def test_any_file_is_read_or_refused(text: str) -> None:
    with suppress(ProtoError):
        parse_proto(text)


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A registry on a machine that stalls for some seconds is not away."""
    for name in ("SOCKET_SECONDS", "ANSWER_SECONDS", "UNKNOWN_SECONDS"):
        monkeypatch.setattr(registries, name, 600.0)


@pytest.fixture
def server() -> Iterator[RegistryServer]:
    with registry_server() as made:
        yield made


def test_a_value_is_decoded_by_its_schema(server: RegistryServer) -> None:
    registry = Registry(server.address + "/")
    decoding = Decoding(View.AUTO, registry)
    shown = decoding.show(framed(1, an_order()), 10_000, pretty=True)
    assert (shown.kind, shown.schema) == ("avro", "Order (schema 1)")
    assert json.loads(shown.text)["who"] == "Zoë"
    shown = decoding.show(framed(2, b"\x00" + oracle().SerializeToString()), 10_000)
    assert (shown.kind, shown.schema) == ("protobuf", "shop.Order (schema 2)")
    shown = decoding.show(framed(2, number(1) + number(1) + b"\x08\x05"), 10_000)
    assert (shown.text, shown.schema) == ('{"n":5}', "shop.Other (schema 2)")
    shown = decoding.show(framed(3, b'{"a": 1}'), 10_000)
    assert (shown.kind, shown.text) == ("json-schema", '{"a":1}')
    assert decoding.show(framed(4, b"\xab\xcd"), 10_000).kind == "avro"
    assert server.asked.count("/schemas/ids/1") == 1
    assert server.asked.count("/schemas/ids/2") == 1


def test_what_the_registry_does_not_help_with_is_shown_as_bytes(server: RegistryServer) -> None:
    registry = Registry(server.address)
    shown = Decoding(View.AUTO, registry).show(framed(99, b"x"), 100)
    assert (shown.kind, shown.note) == ("hex", "schema 99 is not in the registry")
    for schema_id, says in ((1, "schema 1 "), (5, "302"), (6, "MiB")):
        with pytest.raises(SchemaProblem, match=says):
            registry.decode(framed(schema_id, b""))
    assert registry.decode(b"\x01text") is None
    assert registry.decode(b"") is None


def test_a_registry_that_is_gone_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = 0

    class Counted(Registry):
        def _get(self, path: str, what: str) -> dict[str, Any]:
            nonlocal asked
            asked += 1
            return super()._get(path, what)

    monkeypatch.setattr(registries, "DOWN_SECONDS", 600.0)
    registry = Counted("http://127.0.0.1:1")
    for schema_id in range(100):
        with pytest.raises(SchemaProblem):
            registry.decode(framed(schema_id, b""))
    assert asked == 1


def test_an_address_must_be_one_of_http() -> None:
    for wrong in ("ftp://x", "file:///etc/passwd", "x:1"):
        with pytest.raises(ValueError, match="schema registry"):
            Registry(wrong)
    assert Registry("https://me:secret@example.com/api/").url == "https://example.com/api"
