"""Producing and replaying in a real browser."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.browser.chromium import chromium, page_of, searched
from support.browser.console import Browsing

from semel.client import Admin, Client, Consumer, NewTopic, Producer

ROWS = "table.messages tbody tr"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as made:
        yield made


@pytest.fixture
def page(browser: Any, browsing: Browsing) -> Iterator[Any]:
    with page_of(browser, browsing.address) as made:
        yield made


@pytest.fixture
def topic(client: Client) -> str:
    name = f"t{time.monotonic_ns()}"
    Admin(client).topics.create(NewTopic(name, 2))
    return name


def read(client: Client, topic: str) -> list[Any]:
    with Consumer(client, topic) as consumer:
        return list(consumer.read_to_end())


def test_one_message(page: Any, client: Client, topic: str) -> None:
    page.goto(f"/topics/{topic}/messages")
    page.click("nav >> text=Produce")
    page.wait_for_url("**/produce")  # with its script, which sends the form by a key
    page.fill("#one input[name=key]", "customer-7")
    page.fill("#one textarea[name=value]", '{"a": 1,\n "b": 2}')
    page.fill("#one textarea[name=headers]", "trace: abc")
    page.fill("#one input[name=partition]", "1")
    page.press("#one textarea[name=value]", "Control+Enter")
    page.wait_for_url("**/messages?done=**")
    assert "Wrote 1 record" in page.inner_text(".notice.good")
    (record,) = read(client, topic)
    assert (record.partition, record.key, record.value) == (1, b"customer-7", b'{"a": 1,\n "b": 2}')
    assert record.headers == (("trace", b"abc"),)


def test_several_as_one_transaction(page: Any, client: Client, topic: str) -> None:
    page.goto(f"/topics/{topic}/produce")
    page.fill("#many textarea[name=lines]", "a:1\nb:2\nc:3")
    page.fill("#many input[name=separator]", ":")
    page.check("#many input[value=commit]")
    page.fill("#many input[name=transactional_id]", "by-hand")
    page.click("#many button.primary")
    page.wait_for_url("**/messages?done=**")
    assert "in one transaction of by-hand, which is committed" in page.inner_text(".notice.good")
    searched(page)
    assert page.locator(f"{ROWS} .tag.good").count() == 3
    assert {record.key: record.value for record in read(client, topic)} == {
        b"a": b"1",
        b"b": b"2",
        b"c": b"3",
    }


def test_a_transaction_that_is_aborted_on_purpose(page: Any, client: Client, topic: str) -> None:
    page.goto(f"/topics/{topic}/produce")
    page.fill("#one textarea[name=value]", "never")
    page.check("#one input[value=abort]")
    page.click("#one button.primary")
    page.wait_for_url("**isolation=uncommitted**")
    searched(page)
    assert page.inner_text(f"{ROWS} td.state").strip() == "aborted"
    assert read(client, topic) == []


def test_a_file(page: Any, client: Client, topic: str, tmp_path: Path) -> None:
    file = tmp_path / "records.ndjson"
    file.write_text('{"key": "a", "value": {"n": 1}}\n{"value": {"base64": "/wA="}, "partition": 1}\n')
    page.goto(f"/topics/{topic}/produce")
    page.set_input_files("#file", file)
    assert page.input_value("#many select[name=format]") == "json"
    page.click("#many button.primary")
    page.wait_for_selector("#result:visible")
    assert "Wrote 2 records" in page.inner_text("#result")
    assert sorted(record.value for record in read(client, topic)) == [b'{"n":1}', b"\xff\x00"]
    file.write_text("{}\n")
    page.set_input_files("#file", file)
    page.click("#many button.primary")
    page.wait_for_selector("#result.bad")
    assert "Line 1 is not a record" in page.inner_text("#result")


def test_replay_of_selected_messages(page: Any, client: Client, topic: str) -> None:
    with Producer(client) as producer:
        for number in range(10):
            producer.send(topic, b"%d" % number, key=b"k", headers=[("h", b"x")], partition=0)
    Admin(client).topics.create(NewTopic(f"{topic}-again", 1))
    page.goto(f"/topics/{topic}/messages")
    searched(page)
    page.keyboard.press("ArrowDown")
    page.keyboard.press("x")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("x")
    assert page.inner_text("#selected") == "2 selected"
    page.click("#replay")
    page.wait_for_url("**/replay?records=**")
    assert "Replay 2 messages" in page.inner_text("h1")
    page.fill("input[name=target]", f"{topic}-again")
    page.click("button.primary")
    page.wait_for_url(f"**/topics/{topic}-again/messages?done=**")
    searched(page)
    assert page.locator(f"{ROWS} .tag.good").count() == 2
    records = read(client, f"{topic}-again")
    assert [(record.key, record.value, record.headers) for record in records] == [
        (b"k", b"8", (("h", b"x"),)),
        (b"k", b"9", (("h", b"x"),)),
    ]
