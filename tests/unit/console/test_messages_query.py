"""The language of the search box, JSON paths, and what matches."""

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.client import Header
from semel.console.messages.filters import Filter
from semel.console.messages.json_path import JsonPath, PathError
from semel.console.messages.marks import Mark
from semel.console.messages.query import QueryError, parse
from semel.console.messages.reading import MarkedRecord, OpenRecord

ORDER = (
    b'{"order": {"id": 7, "total": 120.5, "paid": true, "items": [{"sku": "a-1"}, {"sku": "b 2"}]},'
    b' "note": null}'
)


def record(
    key: bytes | None = b"customer-7",
    value: bytes | None = ORDER,
    headers: tuple[tuple[str, bytes | None], ...] = (("trace", b"abc-123"),),
    mark: Mark = Mark.COMMITTED,
) -> MarkedRecord:
    opened = OpenRecord(5, 1000, key, value, tuple(Header(*each) for each in headers), len(headers), 100)
    return MarkedRecord("orders", 0, opened, mark, 42, 0, "none")


@pytest.mark.parametrize(
    "search",
    [
        "",
        "SKU",
        "customer",
        "abc-123",
        '"b 2"',
        "key:CUSTOMER-7",
        "value:total",
        "header:trace",
        "header:abc",
        "header.trace:123",
        "key:/^customer-[0-9]+$/",
        "value:/TOTAL/i",
        "/sku.*sku/",
        "$.order",
        "$.order.id=7",
        "$.order.id!=8",
        "$.order.total>100",
        "$.order.total<=120.5",
        "$.order.paid=true",
        "$.note=null",
        "$.order.items[0].sku=a-1",
        '$.order.items[1].sku="b 2"',
        "$.order.items[-1]['sku']~/^b/",
        "$..sku=a-1",
        "$.order.items[*].sku~b",
        "is:committed",
        "-is:aborted",
        "producer:42",
        "key:customer value:order -value:banana $.order.id=7",
    ],
)
def test_a_search_finds(search: str) -> None:
    assert Filter(search).matches(record())


@pytest.mark.parametrize(
    "search",
    [
        "banana",
        "key:order",
        "value:customer",
        "header.other:123",
        "value:/TOTAL/",
        "$.order.nothing",
        "$.order.id=8",
        "$.order.paid=1",
        "$.order.total>120.5",
        "$.order.id>a",
        "$.order.items[2]",
        "is:open",
        "is:tombstone",
        "-key:customer",
        "producer:41",
        "key:customer banana",
    ],
)
def test_a_search_does_not_find(search: str) -> None:
    assert not Filter(search).matches(record())


@pytest.mark.parametrize(
    ("search", "says"),
    [
        ("/(/", r"/\(/"),
        ("/abc/x", "/abc/x"),
        ("is:nothing", "is:open"),
        ("producer:me", "me"),
        ("$.a[", "JSON"),
        ("$order", "JSON"),
        ('"open', "closing"),
        ("x" * 3000, "characters"),
        ("a " * 21, "terms"),
    ],
)
def test_a_wrong_search_says_what_is_wrong(search: str, says: str) -> None:
    with pytest.raises(QueryError, match=says):
        Filter(search)


def test_null_keys_and_values_match_nothing_but_their_state() -> None:
    gone = record(key=None, value=None, headers=(("empty", None),))
    assert Filter("is:tombstone").matches(gone)
    assert Filter("header:empty").matches(gone)
    assert not Filter("key:a").matches(gone)
    assert not Filter("$.a").matches(gone)


def test_bytes_that_are_not_text_are_searched_too() -> None:
    assert Filter("needle").matches(record(value=b"\xff\xfe needle \x00"))
    assert Filter("value:ähre").matches(record(value="Ähre".encode()))


def test_an_address_in_a_search_is_text() -> None:
    assert [term.field for term in parse("http://example.com a:b")] == ["any", "any"]


def test_an_expression_that_explodes_elsewhere_is_quick() -> None:
    # An engine that tries all ways to match does not come to an end.
    assert not Filter("value:/(a+)+$/").matches(record(value=b"a" * 1_000_000 + b"!"))


def test_an_expression_that_is_slow_in_any_engine_is_refused_or_bounded() -> None:
    with pytest.raises(QueryError):
        Filter("value:/(x|xx|xxx|.){1,900}y/")
    assert not Filter("value:/(x?){150}x{150}y/").matches(record(value=b"x" * 30_000_000))


@pytest.mark.parametrize("depth", [10, 900, 100_000])
def test_a_deep_value_ends(depth: int) -> None:
    deep = b"[" * depth + b"]" * depth
    assert not Filter("$..x").matches(record(value=deep))


def test_a_path_selects_a_bounded_number() -> None:
    value: Any = {"a": [list(range(100)) for _ in range(1000)]}
    assert len(JsonPath("$..*").select(value)) == 1000


@pytest.mark.parametrize(
    "text", ["", "a", "$x", "$.", "$..", "$[", "$[a]", "$.a b", "$['a]", "$[1:2]", "$.[0]"]
)
def test_what_is_not_a_path(text: str) -> None:
    with pytest.raises(PathError):
        JsonPath(text)


@pytest.mark.parametrize("search", ["$", "$~o", "$=1", "$!=1", "$<1", "$.a"])
@pytest.mark.parametrize("value", [b"not JSON", None])
def test_no_path_selects_anything_in_a_value_that_is_not_json(search: str, value: bytes | None) -> None:
    assert not Filter(search).matches(record(value=value))
    assert Filter(f"-{search}").matches(record(value=value))


@given(
    st.text("abkey:value$.[]'\"/\\-=<>~!* 0123is:producer", max_size=40),
    st.binary(max_size=20) | st.just(ORDER),
)
def test_any_search_is_understood_or_refused(search: str, value: bytes) -> None:
    with suppress(QueryError):
        Filter(search).matches(record(value=value))
