"""`CommitOrderConsumer` on a real broker. What it does with every other log is in the unit tests."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from semel.client import (
    Admin,
    Client,
    CommitOrderConsumer,
    KafkaError,
    NewTopic,
    Producer,
    TransactionalProducer,
)

Fresh = Callable[[str], str]


@pytest.fixture
def topic(client: Client, fresh: Fresh) -> str:
    name = fresh("topic")
    Admin(client).topics.create(NewTopic(name, partitions=1, replication_factor=1))
    return name


@pytest.fixture
def producers(client: Client, fresh: Fresh) -> Iterator[list[TransactionalProducer]]:
    made = [TransactionalProducer(client, fresh("id")) for _ in range(3)]
    yield made
    for producer in made:
        producer.close()


def write(producer: TransactionalProducer, topic: str, *values: bytes) -> None:
    for value in values:
        producer.send(topic, value, partition=0)
        producer.flush()


def values(consumer: CommitOrderConsumer) -> list[bytes | None]:
    return [record.value for record in consumer.read_to_end()]


def test_an_open_transaction_holds_nobody_back(
    client: Client, topic: str, producers: list[TransactionalProducer], tmp_path: Path
) -> None:
    """Everything is spilled, so that what comes back has been on disk."""
    first, second, third = producers
    with CommitOrderConsumer(client, topic, memory_bytes=0, spill_directory=tmp_path) as consumer:
        for producer in producers:
            producer.begin()
        write(first, topic, b"a1", b"a2")
        write(second, topic, b"b1")
        write(third, topic, b"c1")
        with Producer(client) as plain:
            plain.send(topic, b"plain", partition=0)
        write(second, topic, b"b2")
        second.commit()
        assert values(consumer) == [b"plain", b"b1", b"b2"]
        assert [len(each) for each in consumer.open_transactions().values()] == [2]
        write(first, topic, b"a3")
        third.abort()
        first.commit()
        assert values(consumer) == [b"a1", b"a2", b"a3"]
        assert consumer.open_transactions() == {}
    assert list(tmp_path.iterdir()) == []


def test_it_resumes_behind_any_record(
    client: Client, topic: str, producers: list[TransactionalProducer]
) -> None:
    first, second, _ = producers
    first.begin()
    second.begin()
    write(first, topic, b"a1")
    write(second, topic, b"b1", b"b2", b"b3")
    write(first, topic, b"a2")
    second.commit()
    with Producer(client) as plain:
        plain.send(topic, b"plain", partition=0)
    first.commit()
    expected = [b"b1", b"b2", b"b3", b"plain", b"a1", b"a2"]
    seen: list[bytes | None] = []
    with CommitOrderConsumer(client, topic) as consumer:
        position = consumer.position()
    while len(seen) < len(expected):
        with CommitOrderConsumer(client) as consumer:
            consumer.resume(position)
            seen += [record.value for record in consumer.poll(10.0, max_records=1)]
            position = consumer.position()
    assert seen == expected
    with CommitOrderConsumer(client) as consumer:
        consumer.resume(position)
        assert values(consumer) == []


def test_from_now_on_means_what_is_committed_from_now_on(
    client: Client, topic: str, producers: list[TransactionalProducer]
) -> None:
    first, second, _ = producers
    first.begin()
    write(first, topic, b"a1")
    with second.transaction():
        write(second, topic, b"b1")
    with CommitOrderConsumer(client, topic, start="latest") as consumer:
        assert values(consumer) == []
        write(first, topic, b"a2")
        first.commit()
        assert values(consumer) == [b"a1", b"a2"]


def test_records_that_were_deleted_cannot_be_resumed_from(
    client: Client, topic: str, producers: list[TransactionalProducer]
) -> None:
    with CommitOrderConsumer(client, topic) as consumer:
        position = consumer.position()
    with producers[0].transaction():
        write(producers[0], topic, b"a", b"b")
    Admin(client).topics.delete_records({(topic, 0): 1})
    with CommitOrderConsumer(client) as consumer:
        consumer.resume(position)
        with pytest.raises(KafkaError, match="offset 0"):
            consumer.poll(10.0)


@pytest.mark.skipif("SEMEL_PEER" in os.environ, reason="Kafka has no journal topics")
def test_a_journal_topic_is_in_commit_order_already(
    client: Client, producers: list[TransactionalProducer], fresh: Fresh
) -> None:
    topic = fresh("journal")
    Admin(client).topics.create(NewTopic(topic, partitions=1, configs={"semel.visibility": "journal"}))
    first, second, _ = producers
    first.begin()
    write(first, topic, b"a1")
    with second.transaction():
        write(second, topic, b"b1", b"b2")
    with CommitOrderConsumer(client, topic) as consumer:
        assert values(consumer) == [b"b1", b"b2"]
        first.commit()
        assert values(consumer) == [b"a1"]
        assert consumer.open_transactions() == {}
