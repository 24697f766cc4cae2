"""Bytes that members of classic groups exchange."""

from hypothesis import given
from hypothesis import strategies as st

from semel.wire.consumer_protocol import (
    Subscription,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from semel.wire.errors import ProtocolError


def test_subscription_bytes() -> None:
    assert encode_subscription(["b", "a"]) == bytes.fromhex("0000 00000002 000161 000162 ffffffff")
    assert decode_subscription(encode_subscription(["b", "a"])) == Subscription(["a", "b"], {})


def test_assignment_bytes() -> None:
    data = encode_assignment({"t": [1, 0]})
    assert data == bytes.fromhex("0000 00000001 000174 00000002 00000000 00000001 ffffffff")
    assert decode_assignment(data) == {"t": [0, 1]}
    assert decode_assignment(b"") == {}


def test_later_versions_add_owned_partitions_a_generation_and_a_rack() -> None:
    topics = encode_subscription(["t"])[2:]
    owned = bytes.fromhex("00000001 000174 00000002 00000001 00000003")
    assert decode_subscription(b"\x00\x01" + topics + owned) == Subscription(["t"], {"t": [1, 3]}, None, 1)
    rack = bytes.fromhex("00000007 000172")
    assert decode_subscription(b"\x00\x03" + topics + owned + rack) == Subscription(
        ["t"], {"t": [1, 3]}, "r", 3
    )
    future = b"\x00\x09" + topics + owned + rack + b"more"
    assert decode_subscription(future).owned == {"t": [1, 3]}


def test_a_subscription_may_end_where_version_0_ends() -> None:
    """Sarama once said version 1 without the field that version 1 adds."""
    data = b"\x00\x01" + encode_subscription(["t"])[2:]
    assert decode_subscription(data) == Subscription(["t"], {}, None, 1)


@given(st.binary(max_size=40))
def test_garbage_is_a_protocol_error_and_nothing_else(data: bytes) -> None:
    for decode in (decode_subscription, decode_assignment):
        try:
            decode(data)
        except ProtocolError:
            continue
