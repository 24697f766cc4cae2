"""The metrics of a cluster, on the page of each broker."""

import re
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from support.brokers.cluster_members import Member, database, members
from support.brokers.process import free_port
from support.pages import blocks
from support.waiting import until

from semel.client import Admin, Client, NewTopic, TransactionalProducer
from semel.core.entities import SHARDS

PAGE = Path(__file__).parents[2] / "docs/cluster.md"


@pytest.fixture(scope="module")
def pages(postgres_dsn: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[tuple[Member, str]]]:
    chunks = tmp_path_factory.mktemp("cluster") / "chunks"
    chunks.mkdir()
    ports = [free_port(), free_port()]
    with (
        database(postgres_dsn) as ledger,
        members(ledger, chunks, 0, options=("--metrics", f"127.0.0.1:{ports[0]}")) as (first,),
        members(ledger, chunks, 1, options=("--metrics", f"127.0.0.1:{ports[1]}")) as (second,),
    ):
        yield [
            (each, f"http://127.0.0.1:{port}/metrics")
            for each, port in zip((first, second), ports, strict=True)
        ]


def metrics(url: str) -> dict[str, float]:
    with urllib.request.urlopen(url) as answer:
        lines = answer.read().decode().splitlines()
    return {
        name: float(value)
        for name, value in (line.split() for line in lines if re.match(r"semel_\w+ ", line))
    }


def balanced(urls: list[str]) -> list[dict[str, float]]:
    """The metrics of all brokers, when each owns about half, and no shard is on its way between two looks."""
    found = [metrics(url) for url in urls]
    owned = [each["semel_shards_owned"] for each in found]
    return found if min(owned) > 50 and sum(owned) == SHARDS else []


def test_what_brokers_own_and_tell_each_other(pages: list[tuple[Member, str]]) -> None:
    urls = [url for _, url in pages]
    before = until(lambda: balanced(urls), what="a balance")
    for each in before:
        assert each["semel_live_brokers"] == 2
        assert each["semel_shards_without_owner"] == 0
        assert 0 < each["semel_lease_seconds"] <= 3
    with Client(",".join(member.bootstrap for member, _ in pages)) as client:
        Admin(client).topics.create(NewTopic("orders", 12))
        with TransactionalProducer(client, "payments") as producer:
            for _ in range(5):
                with producer.transaction():
                    for index in range(12):
                        producer.send("orders", b"x", partition=index)
    after = [metrics(url) for url in urls]
    # One of them coordinates, and tells the other what has become of its partitions.
    told = [each["semel_notices_sent_total"] for each in after]
    heard = [each["semel_notices_received_total"] for each in after]
    assert max(told) >= 5
    assert max(heard) >= 5
    for each in after:
        assert each["semel_notices_left_total"] == 0
        assert each["semel_waiting_answers"] == 0
        assert each["semel_conflicts_total"] >= 0


def test_every_metric_of_the_pages_exists(pages: list[tuple[Member, str]]) -> None:
    named = set(re.findall(r"^\| `(semel_\w+)` \|", PAGE.read_text(), re.MULTILINE))
    assert len(named) >= 9
    (rules,) = blocks(PAGE.with_name("cluster-operations.md"), "yaml")
    alerts = [each for group in yaml.safe_load(rules)["groups"] for each in group["rules"]]
    assert len(alerts) >= 9
    watched = {name for alert in alerts for name in re.findall(r"semel_\w+", alert["expr"])}
    with urllib.request.urlopen(pages[0][1]) as answer:
        text = answer.read().decode()
    shown = set(re.findall(r"^(semel_\w+)[ {]", text, re.MULTILINE))
    assert named | watched <= shown
    # One series, whoever the holder is.
    assert len(re.findall(r'^semel_oldest_snapshot_seconds\{holder="[^"]*"\} ', text, re.MULTILINE)) == 1
