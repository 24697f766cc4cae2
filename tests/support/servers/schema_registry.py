"""A schema registry over HTTP, with a few schemas, values that match them, and ids with faulty answers."""

import json
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

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


class _Answers(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.server.asked.append(self.path)  # type: ignore[attr-defined]
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


class RegistryServer(ThreadingHTTPServer):
    """The registry; `asked` holds the paths of all requests."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answers)
        self.asked: list[str] = []

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


@contextmanager
def registry_server() -> Iterator[RegistryServer]:
    """Run a registry on a free port."""
    made = RegistryServer()
    thread = threading.Thread(target=made.serve_forever)
    thread.start()
    try:
        yield made
    finally:
        made.shutdown()
        thread.join()
        made.server_close()


def framed(schema_id: int, data: bytes) -> bytes:
    return b"\x00" + schema_id.to_bytes(4, "big") + data
