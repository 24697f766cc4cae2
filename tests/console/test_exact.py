"""What is written is what was asked for: values in JSON, exports that are written back, ids of others."""

import time
from typing import Any

import pytest
from support.browsing import Browsing

from semel.client import Admin, Client, Consumer, NewTopic


@pytest.fixture
def topic(client: Client) -> str:
    name = f"t{time.monotonic_ns()}"
    Admin(client).topics.create(NewTopic(name, 1))
    return name


def written(client: Client, topic: str) -> list[tuple[bytes | None, bytes | None]]:
    with Consumer(client, topic) as consumer:
        return [(record.key, record.value) for record in consumer.read_to_end()]


def test_json_is_written_as_it_is(browsing: Browsing, client: Client, topic: str) -> None:
    for body, key, value in (
        ({"key": "k", "value": None}, b"k", None),
        ({"value": "a\r\nb"}, None, b"a\r\nb"),
        ({"key": "", "value": ""}, b"", b""),
        ({"key": None, "value": "t", "tombstone": "false"}, None, b"t"),
        ({"value": "t", "tombstone": False}, None, b"t"),
        ({"key": "k", "value": "t", "tombstone": True}, b"k", None),
        ({"key": "k", "tombstone": "true", "partition": 0}, b"k", None),
    ):
        reply = browsing.post_json(f"/topics/{topic}/produce.json", body)
        assert reply.status == 200, reply.text
        assert written(client, topic)[-1] == (key, value), body


@pytest.mark.parametrize(
    "body",
    [
        {"value": False},
        {"value": 0},
        {"value": {"a": 1}},
        {"key": 7, "value": "x"},
        {"key": "no value"},
        {"value": "x", "tombstone": "maybe"},
        {"value": "x", "tombstone": 2},
        {"kind": "lines", "lines": ["a", "b"]},
        {"kind": "several", "value": "x"},
        {"value": "x", "headers": {"a": "b"}},
        {"value": "x", "partition": "9" * 5000},
    ],
)
def test_json_that_is_no_text_is_refused(
    browsing: Browsing, client: Client, topic: str, body: dict[str, Any]
) -> None:
    assert browsing.post_json(f"/topics/{topic}/produce.json", body).status == 400
    assert written(client, topic) == []


@pytest.mark.parametrize("digits", ["9" * 25, "9" * 5000])
def test_numbers_that_are_too_long_are_refused(browsing: Browsing, topic: str, digits: str) -> None:
    base = f"/topics/{topic}/messages"
    for query in (
        f"from={digits}",
        f"to={digits}",
        f"limit={digits}",
        f"partition={digits}",
        f"partition=0-{digits}",
    ):
        assert browsing.get(f"{base}.json?{query}").status == 400, query[:20]
    reply = browsing.get(f"{base}/tail?at=0:{digits}")
    assert (reply.status, "at is a list" in reply.text) == (200, True)
    assert browsing.get(f"/why?partition={topic}/{digits}").status == 400
    assert browsing.get(f"{base}.json?left=0:0-{digits}").status == 400
    assert browsing.get(f"{base}/0/{'9' * 18}.json").status == 404
    assert browsing.get(f"{base}/0/{digits}.json").status == 404
    assert browsing.get(f"{base}/{digits}/0.json").status == 404
    assert browsing.get(f"/topics/{topic}/why/{digits}.json").status == 404
