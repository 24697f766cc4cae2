"""Bytes that members of classic groups exchange."""

import struct

import pytest
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


def test_entries_are_bounded() -> None:
    """A member may send 1 MiB, which would be half a million empty names."""
    names = 250_000 * b"\x00\x00"
    most = b"\x00\x00" + struct.pack(">i", 250_000) + names
    assert decode_subscription(most).entries == 250_000
    for data in (
        b"\x00\x00" + struct.pack(">i", 250_001) + names + b"\x00\x00",
        b"\x00\x01" + most[2:] + bytes.fromhex("ffffffff 00000001 000174 00000000"),
    ):
        with pytest.raises(ProtocolError, match="250000"):
            decode_subscription(data)


@given(st.binary(max_size=40))
def test_garbage_is_a_protocol_error_and_nothing_else(data: bytes) -> None:
    for decode in (decode_subscription, decode_assignment):
        try:
            decode(data)
        except ProtocolError:
            continue
