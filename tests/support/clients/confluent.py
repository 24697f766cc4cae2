"""confluent-kafka for tests: create topics, send and wait, read, and fail on every error."""

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from support.clients.reading import WAIT_SECONDS, PollingReader, subscribed

Fresh = Callable[[str], str]
# Rebalances reach members soon; sessions outlast a pause of the machine.
FAST_CLASSIC = {"session.timeout.ms": 30_000, "heartbeat.interval.ms": 200}

# Only the test commits: librdkafka refuses to commit what its auto-commit, every five seconds, has committed.
MANUAL = {"enable.auto.commit": False}


def create(admin: AdminClient, name: str, partitions: int = 1, **configs: str) -> str:
    done(admin.create_topics([NewTopic(name, partitions, 1, config=configs)]))
    return name


def done(futures: Mapping[Any, Any]) -> dict[Any, Any]:
    """Return the results, or raise the first exception."""
    return {key: future.result(WAIT_SECONDS) for key, future in futures.items()}


def code(error: pytest.ExceptionInfo[KafkaException]) -> int:
    return int(error.value.args[0].code())


def produce(bootstrap: str, topic: str, values: Iterable[bytes], **config: Any) -> list[Message]:
    """Send, wait for all deliveries, and return the messages in the order of their delivery reports."""
    partition = config.pop("partition", 0)
    reports: list[Message] = []

    def report(error: KafkaError | None, message: Message) -> None:
        assert error is None, error
        reports.append(message)

    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5, **config})
    for value in values:
        producer.produce(topic, value, partition=partition, on_delivery=report)
    assert producer.flush(WAIT_SECONDS) == 0
    return reports


class Reader(PollingReader):
    """A consumer that keeps what it has read and fails on every error."""

    def __init__(self, bootstrap: str, group: str, **config: Any) -> None:
        self.errors: list[KafkaError] = []
        self.messages: list[Message] = []
        self.consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "error_cb": self.errors.append,
                **({} if config.get("group.protocol") == "consumer" else FAST_CLASSIC),
                **config,
            }
        )

    def poll(self, seconds: float = 0.05) -> list[Message]:
        for message in self.consumer.consume(100, seconds):
            assert message.error() is None, message.error()
            self.messages.append(message)
        return self.messages

    @property
    def values(self) -> list[bytes]:
        return [bytes(message.value() or b"") for message in self.messages]

    @property
    def partitions(self) -> set[int]:
        self.poll(0.02)
        return {each.partition for each in self.consumer.assignment()}


def reader(
    bootstrap: str, group: str, topic: str | None = None, **config: Any
) -> AbstractContextManager[Reader]:
    return subscribed(Reader(bootstrap, group, **config), topic)


def shared(first: Reader, second: Reader, count: int) -> bool:
    """Whether both have partitions, and together they have each partition once."""
    one, two = first.partitions, second.partitions
    return bool(one) and bool(two) and not one & two and one | two == set(range(count))
