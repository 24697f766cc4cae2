"""Transactions over partitions of several leaders, request by request."""

import pytest
from support.brokers.cluster import Cluster, Member
from support.clients.raw import RawClient
from support.clients.raw_log import Log
from support.clients.raw_transactions import RawProducer, committed
from support.clients.routed import RoutedClient
from support.waiting import until

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
