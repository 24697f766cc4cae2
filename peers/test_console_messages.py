"""The messages of the console against Semel, a cluster of it, and Apache Kafka: the same marks everywhere."""

import io
import json
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlencode

import pyarrow.parquet as pq
import pytest
from support.browser.console import Browsing, console
from support.waiting import until

from peers.brokers import Broker
from semel.client import Admin, Client, Codec, NewTopic, Producer, TransactionalProducer


@pytest.fixture
def browsing(broker: Broker) -> Iterator[Browsing]:
    with console(broker.bootstrap) as made:
        yield made


@pytest.fixture
def client(broker: Broker) -> Iterator[Client]:
    with Client(broker.bootstrap) as made:
        yield made


@pytest.fixture
def topic(client: Client) -> str:
    name = f"console{time.monotonic_ns()}"
    Admin(client).topics.create(NewTopic(name, 2))
    return name


def read(browsing: Browsing, topic: str, **query: str) -> Any:
    reply = browsing.get(f"/topics/{topic}/messages.json?{urlencode(query)}")
    assert reply.status == 200, reply.text
    return reply.json


def begun(client: Client, topic: str, name: str) -> TransactionalProducer:
    writer = TransactionalProducer(client, f"{topic}-{name}")
    writer.init()
    writer.begin()
    writer.send(topic, name.encode(), partition=0)
    writer.flush()
    return writer


def test_records_are_marked_by_what_became_of_their_transaction(
    browsing: Browsing, client: Client, topic: str
) -> None:
    """The last three records follow an open transaction, where brokers list no aborted ones."""
    begun(client, topic, "a").commit()
    begun(client, topic, "b").abort()
    until(lambda: read(browsing, topic)["scan"]["hidden"] == 1)
    writer = begun(client, topic, "open")
    begun(client, topic, "c").commit()
    begun(client, topic, "d").abort()
    with Producer(client) as producer:
        producer.send(topic, b"plain", partition=0)

    def marks(**query: str) -> list[tuple[str, str]]:
        found = read(browsing, topic, order="oldest", **query)["messages"]
        return [(each["value"]["text"], each["mark"]) for each in found]

    wanted = [
        ("a", "committed"),
        ("b", "aborted"),
        ("open", "open"),
        ("c", "committed"),
        ("d", "aborted"),
        ("plain", "plain"),
    ]
    # Apache Kafka writes markers after it has answered EndTxn.
    until(lambda: marks(isolation="uncommitted") == wanted)
    assert marks() == wanted[:1]
    for row in read(browsing, topic, isolation="uncommitted")["messages"]:
        found = browsing.get(row["address"] + ".json").json["record"]
        assert (found["mark"], found["value"]["text"]) == (row["mark"], row["value"]["text"])
    writer.abort()
    until(lambda: len(marks()) == 3)
    assert marks() == [wanted[0], wanted[3], wanted[5]]


@pytest.mark.parametrize("codec", list(Codec))
def test_searches_exports_and_replays(browsing: Browsing, client: Client, topic: str, codec: Codec) -> None:
    with Producer(client, codec=codec) as producer:
        for number in range(1000):
            producer.send(
                topic, json.dumps({"n": number}).encode(), key=b"k%d" % number, partition=number % 2
            )
    assert read(browsing, topic, q="$.n>=990")["scan"]["matched"] == 10
    assert read(browsing, topic, q="key:/^k7$/")["messages"][0]["offset"] == 3
    assert read(browsing, topic, **{"from": "-1h", "limit": "5"})["messages"][0]["offset"] == 0
    lines = browsing.get(f"/topics/{topic}/messages/export?q=$.n<10").text.splitlines()
    assert len(lines) == 10
    table = pq.read_table(io.BytesIO(browsing.get(f"/topics/{topic}/messages/export?format=parquet").body))
    assert table.num_rows == 1000
    fields = {"records": "0:1,1:2", "outcome": "commit"}
    assert browsing.post(f"/topics/{topic}/replay.json", fields).json["records"] == 2
    until(lambda: read(browsing, topic, q="is:committed")["scan"]["matched"] == 2)


def test_writing(browsing: Browsing, topic: str) -> None:
    lines = {"kind": "lines", "lines": "a\nb\nc", "outcome": "commit"}
    assert browsing.post(f"/topics/{topic}/produce.json", lines).json["records"] == 3
    until(lambda: len(read(browsing, topic)["messages"]) == 3)
    assert browsing.post(f"/topics/{topic}/produce.json", {"value": "x", "outcome": "abort"}).status == 200
    until(lambda: read(browsing, topic, isolation="uncommitted", q="is:aborted")["scan"]["matched"] == 1)
    assert browsing.post(f"/topics/{topic}/produce.json", {"value": "x", "partition": "9"}).status == 404
