"""The pages of the console against Semel, a cluster of it, and Apache Kafka: the same everywhere."""

import time
from collections.abc import Iterator

import pytest
from support.browser.console import Browsing, console
from support.waiting import until

from peers.brokers import Broker
from semel.client import Admin, Client, Consumer, GroupMetadata, NewTopic, Producer, TransactionalProducer
from semel.spark.partition_offsets import Span
from semel.spark.sink import decision as decisions
from semel.spark.sink.decision import BatchDecision

PAGES = ("/", "/topics", "/groups", "/transactions", "/pipelines", "/cluster", "/security", "/checks")


@pytest.fixture(scope="module")
def browsing(broker: Broker) -> Iterator[Browsing]:
    with console(broker.bootstrap, sample_seconds=0.5) as made:
        yield made


@pytest.fixture
def client(broker: Broker) -> Iterator[Client]:
    with Client(broker.bootstrap) as made:
        yield made


@pytest.fixture
def topic(client: Client) -> str:
    name = f"console{time.monotonic_ns()}"
    Admin(client).topics.create(NewTopic(name, 2))
    with Producer(client) as producer:
        for number in range(20):
            producer.send(name, b"%d" % number, partition=number % 2)
    return name


@pytest.mark.parametrize("path", PAGES)
def test_every_page_is_served(browsing: Browsing, topic: str, path: str) -> None:
    assert browsing.get(path).status == 200
    assert browsing.get(f"{path if path != '/' else '/overview'}.json").json


def test_a_topic_its_settings_and_its_producers(browsing: Browsing, client: Client, topic: str) -> None:
    found = browsing.get(f"/topics/{topic}.json").json
    assert [(each["start"], each["high_watermark"]) for each in found["partitions"]] == [(0, 10), (0, 10)]
    assert found["bytes"] > 0
    rows = browsing.get(f"/topics/{topic}/configs.json?q=retention.ms").json["configs"]
    assert any(row["help"] for row in rows)
    changed = {"name": "retention.ms", "value": "7200000"}
    assert browsing.post(f"/topics/{topic}/configs", changed).status == 303

    def value() -> dict[str, str]:
        rows = browsing.get(f"/topics/{topic}/configs.json").json["configs"]
        return {row["name"]: row["value"] for row in rows}

    until(lambda: value()["retention.ms"] == "7200000")
    assert browsing.get(f"/topics/{topic}/producers.json").json["producers"]
    until(lambda: topic in [row["topic"] for row in browsing.get(f"/topics.json?q={topic}").json["topics"]])


def test_a_group_its_lag_and_its_reset(browsing: Browsing, client: Client, topic: str) -> None:
    group = f"{topic}-readers"
    with Consumer(client, topic, group_id=group) as consumer:
        seen: list[bytes] = []

        def all_seen() -> bool:
            seen.extend(each.value or b"" for each in consumer.poll(1.0) or ())
            return len(seen) == 20

        until(all_seen)
        consumer.commit()
        page = until(lambda: (found := browsing.get(f"/groups/{group}.json").json).get("members") and found)
        assert page["lag"] == 0
    until(lambda: not browsing.get(f"/groups/{group}.json").json.get("members"))
    preview = browsing.get(f"/groups/{group}/reset.json?to=offset&value=4").json
    assert [row["after"] for row in preview["preview"]] == [4, 4]
    until(lambda: browsing.post(f"/groups/{group}/reset", {"offsets": preview["offsets"]}).status == 303)
    page = browsing.get(f"/groups/{group}.json").json
    assert page["lag"] == 12
    assert 0 < page["age_ms"] < 300_000
    until(
        lambda: [row["lag"] for row in browsing.get(f"/groups.json?q={group}").json["groups"]] == [12],
        seconds=60,
    )


def test_a_transaction_is_shown_explained_and_aborted(browsing: Browsing, client: Client, topic: str) -> None:
    name, group = f"{topic}/task", f"{topic}-group"
    Admin(client).groups.set_offsets(group, {(topic, 0): 1})
    writer = TransactionalProducer(client, name, transaction_timeout_ms=600_000)
    writer.begin()
    writer.send(topic, b"open", partition=0)
    writer.flush()
    writer.send_offsets({(topic, 0): 2}, GroupMetadata(group))
    address = f"/transactions/{name.replace('/', '%2F')}"
    until(lambda: "offsets_partition" in browsing.get(f"/transactions.json?q={topic}").text, seconds=60)
    until(lambda: browsing.get(f"/groups.json?q={group}").json["groups"], seconds=60)
    (row,) = browsing.get(f"/transactions.json?q={topic}").json["transactions"]
    assert {"topic": topic, "partition": 0} in row["partitions"]
    assert group in row["groups"][0]["groups"]
    why = browsing.get(f"/topics/{topic}/why/0.json").json
    assert (why["waiting"], why["blocked_by"]["transactional_id"]) == (1, name)
    found = browsing.get(f"{address}.json").json
    assert found["places"][0]["is_first"]
    shown = {each: found[each] for each in ("producer_id", "epoch", "since_ms")}
    assert browsing.post(f"{address}/abort", shown).status == 303
    until(lambda: browsing.get(f"/topics/{topic}/why/0.json").json["waiting"] == 0)
    ended = until(
        lambda: browsing.get(f"/transactions.json?view=finished&q={topic}").json["finished"], seconds=60
    )
    assert ended[0]["outcome"] == "aborted"


def test_a_pipeline_by_its_decision(browsing: Browsing, client: Client, topic: str) -> None:
    name = f"{topic}-pipeline"
    run = decisions.take_over(client, name)
    spans = {(topic, 0): Span(0, 4), (topic, 1): Span(0, 6)}
    decisions.make(client, name, BatchDecision(3, run, "query", 2, (), spans))
    (row,) = until(lambda: browsing.get(f"/pipelines.json?q={name}").json["pipelines"], seconds=60)
    assert (row["batch"], row["rows"], row["lag"]) == (2, 10, 10)


def test_checks_find_nothing_wrong(browsing: Browsing, topic: str) -> None:
    assert '"good":true' in browsing.post("/checks/records", {"topic": topic}).text
    assert '"good":true' in browsing.post("/checks/hanging", {"topic": topic}).text
