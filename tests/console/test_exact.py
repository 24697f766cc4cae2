"""What is written is what was asked for: values in JSON, exports that are written back, ids of others."""

import io
import json
import time
from typing import Any

import pyarrow.parquet as pq
import pytest
from support.browser.console import Browsing

from semel.client import Admin, Client, Codec, Consumer, KafkaError, NewTopic, Producer, TransactionalProducer
from semel.console.pages import records


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


def test_an_export_has_no_markers_that_could_be_written_back(
    browsing: Browsing, client: Client, topic: str
) -> None:
    writer = TransactionalProducer(client, f"{topic}-writer")
    for end in (writer.commit, writer.abort):
        writer.begin()
        writer.send(topic, b"x")
        writer.flush()
        end()
    query = "isolation=uncommitted&control=1"
    lines = browsing.get(f"/topics/{topic}/messages/export?{query}").text.splitlines()
    assert [json.loads(line)["value"] for line in lines] == ["x", "x"]
    file = pq.read_table(
        io.BytesIO(browsing.get(f"/topics/{topic}/messages/export?{query}&format=parquet").body)
    )
    assert file["mark"].to_pylist() == ["committed", "control", "aborted", "control"]


@pytest.mark.parametrize("search", ["", "q=needle", "q=-absent"])
def test_an_export_says_what_is_missing(
    browsing: Browsing, client: Client, topic: str, search: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "HEADERS_COPIED_MAX", 2)
    Admin(client).configs.alter_topic(topic, values={"semel.validate.records": "none"})
    with Producer(client) as producer:
        producer.send(topic, b"needle one")
    path = f"/topics/{topic}/messages/export?{search}"
    assert len(browsing.get(path).text.splitlines()) == 1
    with Producer(client, codec=Codec.GZIP, batch_bytes=100 << 20, buffer_bytes=200 << 20) as producer:
        producer.send(topic, bytes(33 << 20))
    with Producer(client) as producer:
        producer.send(topic, b"needle two", headers=[("h", b"1"), ("h", b"2"), ("h", b"3")])
    *lines, last = [json.loads(line) for line in browsing.get(path).text.splitlines()]
    assert [line["offset"] for line in lines] == [0, 2]
    stopped = last["stopped"]
    assert (stopped["reason"], stopped["next"], stopped["unreadable_batches"]) == ("end", None, 1)
    assert [(each["first"], each["last"]) for each in stopped["unreadable"]] == [(1, 1)]
    assert "1 batches could not be opened" in stopped["says"]
    assert "1 records have more than" in stopped["says"]
    file = pq.ParquetFile(io.BytesIO(browsing.get(f"{path}&format=parquet").body))
    assert json.loads(file.metadata.metadata[b"semel.stopped"]) == stopped


def test_the_id_of_an_application_is_fenced_only_if_that_is_confirmed(
    browsing: Browsing, client: Client, topic: str
) -> None:
    name, path = f"{topic}-app", f"/topics/{topic}/produce.json"
    application = TransactionalProducer(client, name)
    for is_open, says in ((True, "open transaction"), (False, "another producer")):
        application.begin()
        application.send(topic, b"its own")
        application.flush()
        if not is_open:
            application.commit()
        for outcome in ("commit", "abort"):
            fields = {"value": "x", "outcome": outcome, "transactional_id": name}
            reply = browsing.post_json(path, fields)
            assert (reply.status, says in reply.json["message"]) == (409, True)
            assert browsing.post_json(path, {**fields, "fence": "false"}).status == 409
        if is_open:
            application.commit()
    assert [value for _, value in written(client, topic)] == [b"its own", b"its own"]
    fields = {"value": "x", "outcome": "commit", "transactional_id": name}
    assert browsing.post_json(path, {**fields, "outcome": "plain"}).status == 200
    assert browsing.post_json(path, {**fields, "fence": True}).status == 200
    for _ in range(2):  # A form that is sent again has the same id.
        assert browsing.post(path, {**fields, "transactional_id": f"semel-console-{topic}"}).status == 200
    application.begin()
    application.send(topic, b"fenced")
    with pytest.raises(KafkaError):
        application.commit()
