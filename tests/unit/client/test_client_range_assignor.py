"""The range assignor of classic groups."""

import pytest

from semel.client.consume.membership import assign_range


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
