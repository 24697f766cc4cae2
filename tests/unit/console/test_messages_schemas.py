"""Avro, Protobuf and JSON Schema, found in a real HTTP registry by the id in front of a value."""

import json
import struct
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory

from semel.console.messages.avro import AvroError, AvroSchema
from semel.console.messages.decoding import Decoding, View
from semel.console.messages.proto_files import ProtoError, parse_proto
from semel.console.messages.protobuf import ProtobufSchema
from semel.console.messages.registry import Registry, SchemaProblem

ORDER_AVRO = json.dumps(
    {
        "type": "record",
        "name": "Order",
        "namespace": "shop",
        "fields": [
            {"name": "id", "type": "long"},
            {"name": "who", "type": ["null", "string"]},
            {"name": "tags", "type": {"type": "array", "items": "string"}},
            {"name": "counts", "type": {"type": "map", "values": "int"}},
            {"name": "state", "type": {"type": "enum", "name": "State", "symbols": ["NEW", "PAID"]}},
            {"name": "next", "type": ["null", "Order"]},
            {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "scale": 2}},
            {"name": "day", "type": {"type": "int", "logicalType": "date"}},
            {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
            {"name": "hash", "type": {"type": "fixed", "name": "Hash", "size": 2}},
            {"name": "ratio", "type": "double"},
            {"name": "ok", "type": "boolean"},
        ],
    }
)
PROTO = """
syntax = "proto3";
package shop;
// an order
message Order {
  int64 id = 1;
  optional string who = 2;
  repeated string tags = 3;
  map<string, int32> counts = 4;
  State state = 5;
  Item item = 6 [deprecated = true];
  repeated sint32 deltas = 7;
  oneof pay { double card = 8; bool cash = 9; }
  bytes blob = 10;
  fixed32 f = 11;
  reserved 12, 13;
  message Item { string sku = 1; float weight = 2; }
  enum State { NEW = 0; PAID = 1; }
}
message Other { uint64 n = 1; }
"""


def number(value: int) -> bytes:
    folded = (value << 1) ^ (value >> 63)
    out = bytearray()
    while folded > 0x7F:
        out.append(folded & 0x7F | 0x80)
        folded >>= 7
    out.append(folded)
    return bytes(out)


def text(value: str) -> bytes:
    return number(len(value.encode())) + value.encode()


def an_order(following: bytes = b"\x00") -> bytes:
    return b"".join(
        [
            number(7),
            number(1) + text("Zoë"),
            number(2) + text("a") + text("b") + number(0),
            number(-1) + number(4) + text("x") + number(-5) + number(0),
            number(1),
            following,
            number(2) + (12345).to_bytes(2, "big"),
            number(20_000),
            number(1_700_000_000_123),
            b"\xab\xcd",
            struct.pack("<d", 0.5),
            b"\x01",
        ]
    )


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


class RegistryServer(BaseHTTPRequestHandler):
    """A registry with three schemas, and ids that misbehave."""

    asked: list[str]

    def do_GET(self) -> None:
        asked: list[str] = self.server.asked  # type: ignore[attr-defined]
        asked.append(self.path)
        answers: dict[str, Any] = {
            "/schemas/ids/1": {"schema": ORDER_AVRO},
            "/schemas/ids/2": {"schema": PROTO, "schemaType": "PROTOBUF"},
            "/schemas/ids/3": {"schema": "{}", "schemaType": "JSON"},
            "/schemas/ids/4": {
                "schema": '{"type":"record","name":"A","fields":[{"name":"h","type":"shop.Hash"}]}',
                "references": [{"name": "shop.Order", "subject": "orders/x", "version": 2}],
            },
            "/subjects/orders%2Fx/versions/2": {"schema": ORDER_AVRO},
            "/schemas/ids/6": {"schema": "x" * (3 << 20)},
        }
        if self.path == "/schemas/ids/5":
            self.send_response(302)
            self.send_header("Location", "/schemas/ids/1")
            self.end_headers()
            return
        answer = answers.get(self.path)
        body = json.dumps(answer or {"error_code": 40403}).encode()
        self.send_response(200 if answer else 404)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[ThreadingHTTPServer]:
    made = ThreadingHTTPServer(("127.0.0.1", 0), RegistryServer)
    made.asked = []  # type: ignore[attr-defined]
    thread = threading.Thread(target=made.serve_forever)
    thread.start()
    yield made
    made.shutdown()
    thread.join()
    made.server_close()


def framed(schema_id: int, data: bytes) -> bytes:
    return b"\x00" + schema_id.to_bytes(4, "big") + data


def test_a_value_is_decoded_by_its_schema(server: ThreadingHTTPServer) -> None:
    registry = Registry(f"http://127.0.0.1:{server.server_port}/")
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
    assert server.asked.count("/schemas/ids/1") == 1  # type: ignore[attr-defined]
    assert server.asked.count("/schemas/ids/2") == 1  # type: ignore[attr-defined]


def test_what_the_registry_does_not_help_with_is_shown_as_bytes(server: ThreadingHTTPServer) -> None:
    registry = Registry(f"http://127.0.0.1:{server.server_port}")
    shown = Decoding(View.AUTO, registry).show(framed(99, b"x"), 100)
    assert (shown.kind, shown.note) == ("hex", "schema 99 is not in the registry")
    for schema_id, says in ((1, "does not fit"), (5, "302"), (6, "MiB")):
        with pytest.raises(SchemaProblem, match=says):
            registry.decode(framed(schema_id, b""))
    assert registry.decode(b"\x01text") is None
    assert registry.decode(b"") is None


def test_a_registry_that_is_gone_is_asked_once(server: ThreadingHTTPServer) -> None:
    registry = Registry("http://127.0.0.1:1")
    began = time.monotonic()
    for schema_id in range(100):
        with pytest.raises(SchemaProblem, match="does not answer"):
            registry.decode(framed(schema_id, b""))
    assert time.monotonic() - began < 5


def test_an_address_must_be_one_of_http() -> None:
    for wrong in ("ftp://x", "file:///etc/passwd", "x:1"):
        with pytest.raises(ValueError, match="schema registry"):
            Registry(wrong)
    assert Registry("https://me:secret@example.com/api/").url == "https://example.com/api"
