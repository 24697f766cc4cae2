"""Real clients on partitions and coordinators of several brokers, when nothing goes wrong."""

import asyncio
from collections.abc import Iterator

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from confluent_kafka import Consumer as LibrdkafkaConsumer
from confluent_kafka import Producer as LibrdkafkaProducer
from confluent_kafka import TopicPartition
from kafka import KafkaConsumer, KafkaProducer
from support.brokers.cluster import Cluster
from support.clients.confluent import MANUAL
from support.waiting import until

from semel.client import (
    Admin,
    Client,
    Consumer,
    KafkaError,
    Producer,
    TransactionalProducer,
    complete_transaction,
)
from semel.client.admin.group_offsets import fetch_offsets
from semel.client.produce.commit_transactions import AttemptProducer, DriverEpoch, commit_transactions
from semel.client.produce.transaction_coordinator import Coordinator

from .conftest import Create

PARTITIONS = 6
VALUES = [b"%d" % number for number in range(30)]


@pytest.fixture
def client(cluster: Cluster) -> Iterator[Client]:
    with Client(cluster.bootstrap, timeout_s=20) as client:
        yield client


def read(client: Client, topic: str) -> list[bytes]:
    with Consumer(client, topic) as consumer:
        return sorted((record.value or b"" for record in consumer.read_to_end()), key=int)


def test_librdkafka(cluster: Cluster, spread: Create) -> None:
    topic = spread()
    producer = LibrdkafkaProducer({"bootstrap.servers": cluster.bootstrap, "enable.idempotence": True})
    for number, value in enumerate(VALUES):
        producer.produce(topic, value, partition=number % PARTITIONS)
    assert producer.flush(20) == 0
    consumer = LibrdkafkaConsumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": topic,
            "auto.offset.reset": "earliest",
            **MANUAL,
        }
    )
    consumer.subscribe([topic])
    found: list[bytes] = []
    while len(found) < len(VALUES):
        message = consumer.poll(20)
        assert message is not None
        assert message.error() is None
        found.append(message.value() or b"")
    consumer.commit(asynchronous=False)
    places = [TopicPartition(topic, partition) for partition in range(PARTITIONS)]
    assert [each.offset for each in consumer.committed(places, 20)] == [5] * PARTITIONS
    consumer.close()
    assert sorted(found, key=int) == VALUES


async def test_aiokafka(cluster: Cluster, spread: Create) -> None:
    topic = spread()
    async with AIOKafkaProducer(
        bootstrap_servers=cluster.bootstrap, transactional_id=f"id-{topic}"
    ) as producer:
        for begin in range(0, 30, 10):
            async with producer.transaction():
                for number in range(begin, begin + 10):
                    await producer.send_and_wait(topic, VALUES[number], partition=number % PARTITIONS)
    found: list[bytes] = []
    async with AIOKafkaConsumer(
        topic,
        bootstrap_servers=cluster.bootstrap,
        group_id=topic,
        auto_offset_reset="earliest",
        isolation_level="read_committed",
    ) as consumer:
        async with asyncio.timeout(30):
            while len(found) < len(VALUES):
                found.append((await consumer.getone()).value)
    assert sorted(found, key=int) == VALUES


def test_kafka_python(cluster: Cluster, spread: Create) -> None:
    topic = spread()
    producer = KafkaProducer(bootstrap_servers=cluster.bootstrap.split(","))
    for number, value in enumerate(VALUES):
        producer.send(topic, value, partition=number % PARTITIONS)
    producer.flush(20)
    producer.close()
    consumer = KafkaConsumer(
        topic, bootstrap_servers=cluster.bootstrap.split(","), group_id=topic, auto_offset_reset="earliest"
    )
    found: list[bytes] = []

    def read_some() -> bool:
        found.extend(each.value for some in consumer.poll(500).values() for each in some)
        return len(found) >= len(VALUES)

    until(read_some, what="all records")
    consumer.close()
    assert sorted(found, key=int) == VALUES


def test_own_client_consumes_transforms_and_produces(client: Client, spread: Create) -> None:
    source, target = spread(), spread()
    with Producer(client) as producer:
        for number, value in enumerate(VALUES):
            producer.send(source, value, partition=number % PARTITIONS)
    group = f"group-{source}"
    copied = 0
    with (
        TransactionalProducer(client, f"id-{source}") as producer,
        Consumer(client, source, group_id=group, auto_commit=False) as consumer,
    ):
        while copied < len(VALUES):
            records = consumer.poll(1.0, max_records=7)
            producer.begin()
            for each in records:
                producer.send(target, each.value, partition=each.partition)
            positions = {(each.topic, each.partition): each.offset + 1 for each in records}
            producer.send_offsets(positions, consumer.group_metadata())
            producer.commit()
            copied += len(records)
    assert read(client, target) == VALUES
    found = fetch_offsets(client, group, [(source, partition) for partition in range(PARTITIONS)])
    assert [each.offset for each in found.values()] == [5] * PARTITIONS


def test_a_prepared_transaction_survives_its_coordinator(
    cluster: Cluster, client: Client, spread: Create
) -> None:
    """Two-phase commit: the id is coordinated by a broker that stops, and another one ends it."""
    topic = spread()
    coordinator = cluster.brokers[0]
    (name,) = cluster.names_at(coordinator)
    with TransactionalProducer(client, name, two_phase=True) as producer:
        producer.begin()
        for partition in range(PARTITIONS):
            producer.send(topic, b"%d" % partition, partition=partition)
        prepared = producer.prepare()
    assert prepared is not None
    coordinator.stop()
    try:
        assert complete_transaction(client, prepared, commit=True)
        assert read(client, topic) == VALUES[:PARTITIONS]
    finally:
        coordinator.start()
        cluster.settle()


@pytest.mark.parametrize("visibility", ["marker", "journal"])
def test_transactions_of_several_coordinators_commit_together(
    cluster: Cluster, client: Client, spread: Create, visibility: str
) -> None:
    topic = spread(semel_visibility=visibility)
    (driver,) = cluster.names_at(cluster.brokers[0], word="driver")
    run = DriverEpoch(driver, Coordinator(client, driver, 20.0).init(60_000).identity)
    prepared = []
    for number, member in enumerate(cluster.brokers):
        (name,) = cluster.names_at(member, word="task")
        producer = AttemptProducer(client, name, run)
        producer.begin()
        for partition in (2 * number, 2 * number + 1):
            producer.send(topic, b"%d" % partition, partition=partition)
        ended = producer.prepare()
        producer.close()
        assert ended is not None
        prepared.append(ended)
    assert read(client, topic) == []
    commit_transactions(client, run, prepared)
    assert read(client, topic) == VALUES[:PARTITIONS]


def test_a_compacted_topic_keeps_the_newest_of_each_key(client: Client, spread: Create) -> None:
    topic = spread(cleanup_policy="compact", min_cleanable_dirty_ratio="0", delete_retention_ms="0")
    with Producer(client) as producer:
        for number in range(40):
            for partition in range(PARTITIONS):
                producer.send(topic, b"%d" % number, key=b"%d" % (number % 3), partition=partition)
            producer.flush()

    def count() -> int:
        with Consumer(client, topic) as consumer:
            records = list(consumer.read_to_end())
        newest = {(each.partition, each.key): each.value for each in records}
        assert set(newest.values()) == {b"37", b"38", b"39"}
        return len(records)

    until(lambda: count() <= 4 * PARTITIONS, what="compaction at every leader")


def test_a_deleted_topic_is_gone_at_every_broker(cluster: Cluster, client: Client, spread: Create) -> None:
    topic = spread()
    with Producer(client) as producer:
        for partition in range(PARTITIONS):
            producer.send(topic, b"v", partition=partition)
    Admin(client).topics.delete(topic)
    for member in cluster.brokers:
        with Client(member.bootstrap, timeout_s=20) as one:
            assert one.describe([topic]).topics == ()
            with pytest.raises(KafkaError):
                one.topic(topic)
