"""Bytes that members of classic groups exchange, and the range assignor."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.client.classic_protocol import (
    assign_range,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from semel.wire.errors import ProtocolError


def test_subscription_bytes() -> None:
    assert encode_subscription(["b", "a"]) == bytes.fromhex("0000 00000002 000161 000162 ffffffff")
    assert decode_subscription(encode_subscription(["b", "a"])) == ["a", "b"]


def test_assignment_bytes() -> None:
    data = encode_assignment({"t": [1, 0]})
    assert data == bytes.fromhex("0000 00000001 000174 00000002 00000000 00000001 ffffffff")
    assert decode_assignment(data) == {"t": [0, 1]}
    assert decode_assignment(b"") == {}


def test_later_versions_are_read_as_far_as_they_are_known() -> None:
    """Version 1 adds the owned partitions behind what version 0 has."""
    data = b"\x00\x01" + encode_subscription(["t"])[2:] + bytes(4)
    assert decode_subscription(data) == ["t"]


@given(st.binary(max_size=40))
def test_garbage_is_a_protocol_error_and_nothing_else(data: bytes) -> None:
    for decode in (decode_subscription, decode_assignment):
        try:
            decode(data)
        except ProtocolError:
            continue


def test_range_gives_each_topic_in_runs() -> None:
    shares = assign_range({"b": ["t", "u"], "a": ["t"]}, {"t": 5, "u": 1})
    assert shares == {"a": {"t": [0, 1, 2]}, "b": {"t": [3, 4], "u": [0]}}


@pytest.mark.parametrize("count", [0, 1, 2, 3, 7])
def test_range_gives_every_partition_exactly_once(count: int) -> None:
    shares = assign_range({name: ["t"] for name in "abc"}, {"t": count})
    given_out = sorted(number for share in shares.values() for number in share.get("t", []))
    assert given_out == list(range(count))


def test_a_topic_that_nobody_wants_is_given_to_nobody() -> None:
    assert assign_range({"a": ["t"]}, {"u": 3}) == {"a": {}}
