"""Acknowledgements of share groups in transactions, over partitions and coordinators of several brokers."""

import time
import uuid
from collections.abc import Iterator

import pytest
from support.brokers.cluster import Cluster, Member
from support.waiting import until

from semel.client import (
    Admin,
    Client,
    Consumer,
    MustAbort,
    Producer,
    ProducerFenced,
    ShareConsumer,
    ShareRecord,
    TransactionAborted,
    TransactionalProducer,
)

from .conftest import Create, make_spread

PARTITIONS = 6
WAIT_SECONDS = 30.0


@pytest.fixture
def client(cluster: Cluster) -> Iterator[Client]:
    with Client(cluster.bootstrap, patience_s=WAIT_SECONDS) as client:
        yield client


def new_group(client: Client) -> str:
    name = f"workers-{uuid.uuid4().hex[:8]}"
    # Aborts count as deliveries.
    configs = {"share.auto.offset.reset": "earliest", "share.delivery.count.limit": "10"}
    Admin(client).configs.alter_group(name, values=configs)
    return name


def put(client: Client, topic: str, count: int = PARTITIONS) -> set[bytes]:
    values = [b"%s %d" % (topic.encode(), number) for number in range(count)]
    with Producer(client) as producer:
        for number, value in enumerate(values):
            producer.send(topic, value, partition=number % PARTITIONS)
    return set(values)


def taken(consumer: ShareConsumer, count: int) -> list[ShareRecord]:
    records: list[ShareRecord] = []
    deadline = time.monotonic() + WAIT_SECONDS
    while len(records) < count and time.monotonic() < deadline:
        records += consumer.poll(0.5)
    assert len(records) == count
    return records


def results(client: Client, topic: str) -> list[bytes | None]:
    with Consumer(client, topic) as consumer:
        return [record.value for record in consumer.read_to_end()]


def other_than(cluster: Cluster, topic: str) -> Member:
    """A broker that does not lead the first partition of a topic."""
    return next(each for each in cluster.brokers if each is not cluster.leader(topic, 0))


def test_ends_settle_what_other_brokers_lead(cluster: Cluster, client: Client, spread: Create) -> None:
    """Whoever coordinates the transaction: after its answer, the leaders know."""
    jobs, done = spread(), spread()
    group = new_group(client)
    values = put(client, jobs)
    with ShareConsumer(client, group, jobs) as consumer:
        for number, member in enumerate(cluster.brokers):
            (name,) = cluster.names_at(member)
            with TransactionalProducer(client, name) as producer:
                held = taken(consumer, PARTITIONS)
                assert {each.deliveries for each in held} == {number + 1}
                producer.begin()
                for each in held:
                    producer.send(done, each.value)
                producer.acknowledge(consumer, *held)
                (producer.commit if member is cluster.brokers[-1] else producer.abort)()
        assert consumer.poll(1.0) == []
    found = results(client, done)
    assert (len(found), set(found)) == (PARTITIONS, values)


def test_the_end_finds_share_partitions_of_which_the_coordinator_has_not_heard(
    cluster: Cluster, client: Client, spread: Create
) -> None:
    """A leader writes the share-partition into the transaction, and its notice is lost."""
    jobs = spread()
    group = new_group(client)
    put(client, jobs, 1)
    coordinator = other_than(cluster, jobs)
    (name,) = cluster.names_at(coordinator)
    with ShareConsumer(client, group, jobs) as consumer, TransactionalProducer(client, name) as producer:
        (job,) = taken(consumer, 1)
        coordinator.from_brokers.silence()
        try:
            producer.begin()
            producer.acknowledge(consumer, job)
            producer.abort()
        finally:
            coordinator.from_brokers.mend()
        (again,) = taken(consumer, 1)
        assert again.deliveries == 2


def test_the_coordinator_frees_records_of_a_transaction_that_runs_out_of_time(
    cluster: Cluster, client: Client, spread: Create
) -> None:
    jobs = spread()
    group = new_group(client)
    put(client, jobs)
    (name,) = cluster.names_at(other_than(cluster, jobs))
    producer = TransactionalProducer(client, name, transaction_timeout_ms=4_000)
    with ShareConsumer(client, group, jobs) as consumer:
        held = taken(consumer, PARTITIONS)
        producer.begin()
        producer.acknowledge(consumer, *held)
        again = taken(consumer, PARTITIONS)
        assert {each.deliveries for each in again} == {2}
        with pytest.raises((TransactionAborted, ProducerFenced, MustAbort)):
            producer.commit()


def test_records_stay_pending_when_their_leader_dies(
    own_postgres: Cluster,
) -> None:
    cluster = own_postgres
    jobs, done = make_spread(cluster), make_spread(cluster)
    victim = cluster.leader(jobs, 0)
    with Client(cluster.bootstrap, patience_s=WAIT_SECONDS) as client:
        group = new_group(client)
        values = put(client, jobs)
        (name,) = cluster.names_at(other_than(cluster, jobs))
        with TransactionalProducer(client, name) as producer:
            consumer = ShareConsumer(client, group, jobs)
            held = taken(consumer, PARTITIONS)
            producer.begin()
            for each in held:
                producer.send(done, each.value)
            producer.flush()
            producer.acknowledge(consumer, *held)
            victim.kill()
            until(
                lambda: cluster.owners().get(victim.node_id, 0) == 0, WAIT_SECONDS, "others to own its shards"
            )
            assert consumer.poll(2.0) == []
            producer.commit()
            assert consumer.poll(1.0) == []
        assert sorted(results(client, done), key=str) == sorted(values, key=str)
        victim.restart()


def test_a_crash_of_postgres_frees_what_was_not_committed(own_postgres: Cluster) -> None:
    """Unflushed acknowledgements may be lost, so a term begins and aborts all open transactions."""
    cluster = own_postgres
    jobs, done = make_spread(cluster), make_spread(cluster)
    with Client(cluster.bootstrap, patience_s=WAIT_SECONDS) as client:
        group = new_group(client)
        values = put(client, jobs)
        consumer = ShareConsumer(client, group, jobs)
        zombie = TransactionalProducer(client, "worker")
        zombie.begin()
        held = taken(consumer, PARTITIONS)
        zombie.acknowledge(consumer, *held)
        cluster.crash_postgres()
        with pytest.raises((TransactionAborted, ProducerFenced, MustAbort)):
            zombie.commit()
        with TransactionalProducer(client, "worker") as producer:
            again = taken(consumer, PARTITIONS)
            with producer.transaction():
                for each in again:
                    producer.send(done, each.value)
                producer.acknowledge(consumer, *again)
        found = results(client, done)
        assert (len(found), set(found)) == (PARTITIONS, values)
