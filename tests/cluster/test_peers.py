"""Brokers that reach PostgreSQL and not each other: notices go through the ledger."""

import time
from collections.abc import Iterator

import pytest
from support.brokers.cluster import Cluster
from support.clients.raw_log import Log
from support.clients.raw_transactions import RawProducer
from support.clients.routed import RoutedClient
from support.workloads.cluster_load import loaded

from semel.client import Admin, Client, NewTopic

from .conftest import Create

PARTITIONS = 6


@pytest.fixture(params=["cut", pytest.param("silence", marks=pytest.mark.long)])
def apart(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """No broker reaches another."""
    for each in cluster.brokers:
        getattr(each.from_brokers, request.param)()
    yield cluster
    for each in cluster.brokers:
        each.from_brokers.mend()


def test_a_commit_is_visible_when_it_is_acknowledged(
    apart: Cluster, raw: RoutedClient, spread: Create
) -> None:
    topic = spread()
    producer = RawProducer(raw, generation=2)
    for partition in range(PARTITIONS):
        producer.write(topic, b"v", partition=partition)
    producer.commit()
    with RoutedClient(apart.bootstrap) as reader:
        assert [Log(reader, topic, each).values() for each in range(PARTITIONS)] == [[b"v"]] * PARTITIONS


def test_a_new_topic_is_known_to_every_broker(apart: Cluster) -> None:
    with Client(apart.brokers[0].bootstrap) as client:
        name = f"topic-{time.monotonic_ns()}"
        Admin(client).topics.create(NewTopic(name, 3))
    for each in apart.brokers:
        with Client(each.bootstrap) as client:
            assert [topic.name for topic in client.describe([name]).topics] == [name]


@pytest.mark.long
def test_clients_work_while_brokers_are_apart(apart: Cluster) -> None:
    before = apart.owners()
    with loaded(apart, kinds=["own", "librdkafka"], copies=False) as load:
        load.go_on(3)
    assert apart.owners() == before
