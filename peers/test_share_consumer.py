"""`ShareConsumer` of semel.client: against Semel, alone and as a cluster, and Apache Kafka."""

import time
import uuid
from collections.abc import Iterator

import pytest

from peers.brokers import Broker
from semel.client import AcknowledgeType, Admin, Client, NewTopic, Producer, ShareConsumer, ShareRecord
from semel.client import TransactionalProducer as Transactional

WAIT_SECONDS = 30.0


@pytest.fixture
def client(broker: Broker) -> Iterator[Client]:
    with Client(broker.bootstrap) as client:
        yield client


@pytest.fixture
def topic(client: Client) -> str:
    name = f"jobs-{uuid.uuid4().hex[:8]}"
    Admin(client).topics.create(NewTopic(name, partitions=2))
    configs = {"share.auto.offset.reset": "earliest"}
    Admin(client).configs.alter_group(f"of-{name}", values=configs)
    return name


def taken(consumer: ShareConsumer, count: int) -> list[ShareRecord]:
    records: list[ShareRecord] = []
    deadline = time.monotonic() + WAIT_SECONDS
    while len(records) < count and time.monotonic() < deadline:
        records += consumer.poll(0.5)
    assert len(records) == count
    return records


def test_records_are_accepted_released_and_rejected(client: Client, topic: str) -> None:
    with Producer(client) as producer:
        for number in range(20):
            producer.send(topic, b"%d" % number, partition=number % 2)
    with ShareConsumer(client, f"of-{topic}", topic) as consumer:
        for record in taken(consumer, 20):
            number = int(record.value or b"")
            kinds = (AcknowledgeType.ACCEPT, AcknowledgeType.RELEASE, AcknowledgeType.REJECT)
            consumer.acknowledge(record, kinds[number % 3])
        again = taken(consumer, 7)
        assert {int(each.value or b"") % 3 for each in again} == {1}
        assert {each.deliveries for each in again} == {2}
        for record in again:
            consumer.acknowledge(record)
        consumer.commit()
    with ShareConsumer(client, f"of-{topic}", topic) as consumer:
        assert consumer.poll(2.0) == []


def test_what_is_held_is_released_by_closing(client: Client, topic: str) -> None:
    with Producer(client) as producer:
        producer.send(topic, b"job")
    with ShareConsumer(client, f"of-{topic}", topic) as consumer:
        (record,) = taken(consumer, 1)
        consumer.renew(record)
    with ShareConsumer(client, f"of-{topic}", topic) as consumer:
        (again,) = taken(consumer, 1)
        assert (again.value, again.deliveries) == (b"job", 2)
        consumer.acknowledge(again)


def test_markers_between_the_records_do_not_stay_behind(client: Client, topic: str) -> None:
    with Transactional(client, f"producer-of-{topic}") as producer:
        for number in range(5):
            with producer.transaction():
                producer.send(topic, b"%d" % number, partition=0)
    with ShareConsumer(client, f"of-{topic}", topic) as consumer:
        for record in taken(consumer, 5):
            consumer.acknowledge(record)
        consumer.commit()
    with Producer(client) as plain:
        plain.send(topic, b"last", partition=0)
    with ShareConsumer(client, f"of-{topic}", topic) as consumer:
        (record,) = taken(consumer, 1)
        assert (record.value, record.offset, record.deliveries) == (b"last", 10, 1)
        consumer.acknowledge(record)
