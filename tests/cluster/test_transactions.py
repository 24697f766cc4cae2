"""Transactions over partitions of several leaders, request by request."""

import time
from collections.abc import Iterator

import pytest
from support.brokers.cluster import Cluster, Member
from support.clients.raw import RawClient
from support.clients.raw_log import Log
from support.clients.raw_transactions import RawProducer, committed
from support.clients.routed import RoutedClient
from support.waiting import until
from support.workloads.cluster_load import loaded

from semel.client import Admin, Client, NewTopic
from semel.wire.errors import ErrorCode

from .conftest import Create

PARTITIONS = 6
GENERATIONS = pytest.mark.parametrize("generation", [1, 2])


def other_than(cluster: Cluster, topic: str) -> Member:
    """A broker that does not lead the first partition of a topic."""
    return next(each for each in cluster.brokers if each is not cluster.leader(topic, 0))


@GENERATIONS
@pytest.mark.parametrize("visibility", ["marker", "journal"])
def test_a_commit_is_visible_at_every_leader_when_it_is_acknowledged(
    cluster: Cluster, raw: RoutedClient, spread: Create, generation: int, visibility: str
) -> None:
    topic = spread(semel_visibility=visibility)
    producer = RawProducer(raw, generation=generation)
    for number in range(5):
        for partition in range(PARTITIONS):
            producer.write(topic, b"%d" % number, partition=partition)
        (producer.abort if number == 3 else producer.commit)()
        told = [b"%d" % each for each in range(number + 1) if each != 3]
        with RoutedClient(cluster.bootstrap) as reader:
            assert [Log(reader, topic, each).values() for each in range(PARTITIONS)] == [told] * PARTITIONS


@GENERATIONS
def test_positions_of_a_group_are_a_part_of_the_transaction(
    cluster: Cluster, raw: RoutedClient, spread: Create, generation: int
) -> None:
    topic = spread()
    for member in cluster.brokers:
        (group,) = cluster.names_at(member)
        producer = RawProducer(raw, generation=generation)
        producer.write(topic, b"v")
        producer.write_offset(group, topic, 7)
        assert committed(raw, group, topic) == (ErrorCode.NONE, -1)
        producer.commit()
        assert committed(raw, group, topic, stable=True) == (ErrorCode.NONE, 7)


@GENERATIONS
def test_a_zombie_is_fenced_at_every_leader(
    cluster: Cluster, raw: RoutedClient, spread: Create, generation: int
) -> None:
    topic = spread()
    (name,) = cluster.names_at(cluster.brokers[1])
    zombie = RawProducer(raw, name, generation=generation)
    for partition in range(PARTITIONS):
        zombie.write(topic, b"zombie", partition=partition)
    heir = RawProducer(raw, name, generation=generation)
    fenced = {ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH}
    for partition in range(PARTITIONS):
        assert zombie.send(topic, b"late", partition=partition).error_code in fenced
    assert zombie.end(commit=True).error_code in fenced
    for partition in range(PARTITIONS):
        heir.write(topic, b"heir", partition=partition)
    heir.commit()
    assert [Log(raw, topic, each).values() for each in range(PARTITIONS)] == [[b"heir"]] * PARTITIONS


def test_a_partition_joins_although_the_coordinator_does_not_hear_of_it(
    cluster: Cluster, raw: RoutedClient, spread: Create
) -> None:
    """A leader writes the partition into the transaction, and its notice is lost. The end finds it."""
    topic = spread()
    coordinator = other_than(cluster, topic)
    (name,) = cluster.names_at(coordinator)
    producer = RawProducer(raw, name, generation=2)
    coordinator.from_brokers.silence()
    try:
        for number in range(3):
            producer.write(topic, b"%d" % number)
            producer.commit()
    finally:
        coordinator.from_brokers.mend()
    assert Log(raw, topic).values() == [b"0", b"1", b"2"]


def test_an_aborted_transaction_leaves_nothing_open(
    cluster: Cluster, raw: RoutedClient, spread: Create
) -> None:
    """The coordinator aborts what runs out of time, also in partitions that others lead."""
    topic = spread()
    names = cluster.names_at(other_than(cluster, topic), 2)
    for generation, name in enumerate(names, 1):
        producer = RawProducer(raw, name, generation=generation, timeout_ms=3_000)
        producer.write(topic, b"late")
    until(lambda: Log(raw, topic).is_settled, what="the abort")
    assert Log(raw, topic).values() == []


def test_the_wrong_broker_says_so(cluster: Cluster, raw: RoutedClient, spread: Create) -> None:
    topic = spread()
    leader = cluster.leader(topic, 0)
    for member in cluster.brokers:
        with RawClient(member.bootstrap) as client:
            answer = client.fetch(topic)
            expected = ErrorCode.NONE if member is leader else ErrorCode.NOT_LEADER_OR_FOLLOWER
            assert answer.error_code == expected


# -- brokers that do not reach each other: notices go through the ledger ----------------------------------


@pytest.fixture(params=["cut", pytest.param("silence", marks=pytest.mark.long)])
def apart(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """No broker reaches another."""
    for each in cluster.brokers:
        getattr(each.from_brokers, request.param)()
    yield cluster
    for each in cluster.brokers:
        each.from_brokers.mend()


def test_a_commit_is_visible_when_it_is_acknowledged_although_brokers_are_apart(
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
