"""Acknowledgements of share groups in transactions, over partitions and coordinators of several brokers."""

from collections.abc import Iterator

import pytest
from support.brokers.cluster import Cluster, Member
from support.clients.share_jobs import PARTITIONS, WAIT_SECONDS, new_group, put, results, taken
from support.waiting import until

from semel.client import (
    Client,
    MustAbort,
    ProducerFenced,
    ShareConsumer,
    TransactionAborted,
    TransactionalProducer,
)

from .conftest import Create, make_spread


@pytest.fixture
def client(cluster: Cluster) -> Iterator[Client]:
    with Client(cluster.bootstrap, patience_s=WAIT_SECONDS) as client:
        yield client


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
        assert consumer.poll(0.5) == []
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


@pytest.mark.slow
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


def test_records_stay_pending_when_their_leader_dies(cluster: Cluster) -> None:
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
            until(lambda: victim.node_id not in cluster.owners(), what="others to own its shards")
            assert consumer.poll(0.5) == []
            producer.commit()
            assert consumer.poll(0.5) == []
        assert sorted(results(client, done), key=str) == sorted(values, key=str)
        victim.start()
        cluster.settle()
