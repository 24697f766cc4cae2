"""Compacted topics as clients meet them: confluent-kafka, kafka-python, aiokafka and our own."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka import TopicPartition as AioPartition
from confluent_kafka import Consumer as ConfluentConsumer
from confluent_kafka import KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource
from kafka import KafkaConsumer
from kafka import TopicPartition as KafkaPartition
from support.clients.confluent import Fresh, create, done
from support.clients.reading import WAIT_SECONDS
from support.waiting import until

import semel
from semel.client import Client, Consumer

EAGER: dict[str, Any] = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}
Found = list[tuple[int, bytes | None, bytes | None]]
"""Offset, key and value."""


@pytest.fixture(scope="module")
def bootstrap() -> Iterator[str]:
    """A broker that looks for something to compact all the time."""
    settings = {"log.cleaner.backoff.ms": 20, "log.retention.check.interval.ms": 50}
    with semel.embedded(settings=settings) as broker:
        yield broker.bootstrap_servers


@pytest.fixture(scope="module")
def admin(bootstrap: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": bootstrap})


class Writer:
    """Sends, and notes where each record came to lie."""

    def __init__(self, bootstrap: str, topic: str, **config: Any) -> None:
        self.topic = topic
        self.producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 1, **config})
        self.sent: Found = []
        self.errors: list[KafkaError] = []

    def put(self, *pairs: tuple[str | None, str | None], headers: Any = None) -> None:
        for key, value in pairs:
            self.producer.produce(self.topic, value, key, headers=headers, on_delivery=self._report)
        assert self.producer.flush(WAIT_SECONDS) == 0

    def _report(self, error: KafkaError | None, message: Any) -> None:
        if error is not None:
            self.errors.append(error)
        else:
            self.sent.append((message.offset(), message.key(), message.value()))

    @property
    def newest(self) -> Found:
        """The last record of each key."""
        last = {key: (offset, key, value) for offset, key, value in self.sent}
        return sorted(last.values())


def read(bootstrap: str, topic: str, offset: int = 0, isolation: str = "read_committed") -> Found:
    """Everything from an offset to the end of the log, by confluent-kafka."""
    consumer = ConfluentConsumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "none",
            "enable.partition.eof": True,
            "enable.auto.commit": False,
            "isolation.level": isolation,
            "auto.offset.reset": "error",
            "fetch.wait.max.ms": 10,
        }
    )
    found: Found = []
    try:
        consumer.assign([TopicPartition(topic, 0, offset)])
        while True:
            message = consumer.poll(WAIT_SECONDS)
            assert message is not None, "the end of the log was not reached"
            error = message.error()
            if error is None:
                at = message.offset()
                assert at is not None
                found.append((at, message.key(), message.value()))
                continue
            assert error.code() == KafkaError._PARTITION_EOF, error
            return found
    finally:
        consumer.close()


def compacted(bootstrap: str, topic: str, expected: Found) -> None:
    until(lambda: read(bootstrap, topic) == expected, WAIT_SECONDS, f"compaction of {topic}")


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_the_newest_of_each_key_is_read_at_its_old_offset(
    bootstrap: str, admin: AdminClient, fresh: Fresh, codec: str
) -> None:
    topic = create(admin, fresh("table"), **EAGER)
    writer = Writer(bootstrap, topic, **{"compression.type": codec})
    for turn in range(5):
        writer.put(*((f"key {n % 7}", f"{turn} {n} " + "x" * 100) for n in range(40)), headers=[("h", b"1")])
    writer.put(("key 3", "last"))
    compacted(bootstrap, topic, writer.newest)
    first, *_, last = writer.newest
    assert read(bootstrap, topic, first[0] - 5) == writer.newest, "an offset that is gone"
    assert read(bootstrap, topic, last[0]) == [last]


def test_a_tombstone_is_read_for_its_time_and_then_gone(
    bootstrap: str, admin: AdminClient, fresh: Fresh
) -> None:
    topic = create(admin, fresh("table"), **EAGER | {"delete.retention.ms": "100"})
    writer = Writer(bootstrap, topic)
    writer.put(("a", "1"), ("b", "1"), ("a", None))
    assert (2, b"a", None) in read(bootstrap, topic)

    def is_gone() -> bool:
        # A pass comes when there is something new.
        writer.put(("c", "again"))
        found = {key for _, key, _ in read(bootstrap, topic)}
        assert found >= {b"b", b"c"}
        return b"a" not in found

    until(is_gone, WAIT_SECONDS, "the tombstone to go")


def test_a_record_without_a_key_is_refused(bootstrap: str, admin: AdminClient, fresh: Fresh) -> None:
    topic = create(admin, fresh("table"), **EAGER)
    writer = Writer(bootstrap, topic, **{"linger.ms": 0})
    writer.put((None, "no key"))
    assert [error.code() for error in writer.errors] == [KafkaError.INVALID_RECORD]
    writer.put(("key", "1"))
    assert read(bootstrap, topic) == writer.sent == [(0, b"key", b"1")]


def test_the_neighbours_of_a_refused_record_learn_that_it_was_another(
    bootstrap: str, admin: AdminClient, fresh: Fresh
) -> None:
    """KIP-467: librdkafka tells by record_errors which records of a batch were invalid and which were not."""
    topic = create(admin, fresh("table"), **EAGER)
    writer = Writer(bootstrap, topic, **{"linger.ms": 500})
    writer.put(("a", "1"), (None, "2"), ("b", "3"), (None, "4"))
    invalid, other = KafkaError.INVALID_RECORD, KafkaError._INVALID_DIFFERENT_RECORD
    assert [error.code() for error in writer.errors] == [other, invalid, other, invalid]
    assert read(bootstrap, topic) == []


@pytest.mark.parametrize("visibility", ["marker", "journal"])
def test_what_was_aborted_is_nobodys_newest(
    bootstrap: str, admin: AdminClient, fresh: Fresh, visibility: str
) -> None:
    topic = create(
        admin, fresh("table"), **EAGER | {"semel.visibility": visibility, "delete.retention.ms": "50"}
    )
    writer = Writer(bootstrap, topic, **{"transactional.id": fresh("id")})
    producer = writer.producer
    producer.init_transactions(WAIT_SECONDS)
    expected: dict[bytes, bytes] = {}
    for turn in range(12):
        producer.begin_transaction()
        pairs = [(f"key {n}", f"{turn} {n}") for n in range(turn % 3, 6)]
        writer.put(*pairs)
        if turn % 2:
            producer.abort_transaction(WAIT_SECONDS)
        else:
            producer.commit_transaction(WAIT_SECONDS)
            expected |= {key.encode(): value.encode() for key, value in pairs}
        seen = {key: value for _, key, value in read(bootstrap, topic)}
        assert seen == expected

    def is_compacted() -> bool:
        found = read(bootstrap, topic)
        assert {key: value for _, key, value in found} == expected
        # Nobody who does not ask for committed records only finds the aborted ones either.
        return len(found) == 6 and read(bootstrap, topic, isolation="read_uncommitted") == found

    until(is_compacted, WAIT_SECONDS, "compaction")


def read_kafka_python(bootstrap: str, topic: str) -> Found:
    partition = KafkaPartition(topic, 0)
    consumer = KafkaConsumer(bootstrap_servers=bootstrap, enable_auto_commit=False, auto_offset_reset="none")
    try:
        consumer.assign([partition])
        consumer.seek(partition, 0)
        end = consumer.end_offsets([partition])[partition]
        found: Found = []
        while consumer.position(partition) < end:
            for messages in consumer.poll(timeout_ms=500).values():
                found += [(each.offset, each.key, each.value) for each in messages]
        return found
    finally:
        consumer.close()


def read_own(bootstrap: str, topic: str) -> Found:
    with Client(bootstrap) as client, Consumer(client) as consumer:
        consumer.assign([(topic, 0)])
        return [(each.offset, each.key, each.value) for each in consumer.read_to_end()]


@pytest.mark.parametrize("read_all", [read_kafka_python, read_own])
def test_other_clients_step_over_the_gaps(
    bootstrap: str, admin: AdminClient, fresh: Fresh, read_all: Callable[[str, str], Found]
) -> None:
    topic = create(admin, fresh("table"), **EAGER)
    writer = Writer(bootstrap, topic)
    writer.put(*((f"key {n % 10}", str(n)) for n in range(100)))
    writer.put(*((f"key {n % 3}", str(n)) for n in range(100)))
    compacted(bootstrap, topic, writer.newest)
    assert read_all(bootstrap, topic) == writer.newest


async def test_aiokafka_steps_over_the_gaps(bootstrap: str, admin: AdminClient, fresh: Fresh) -> None:
    topic = create(admin, fresh("table"), **EAGER)
    writer = Writer(bootstrap, topic)
    writer.put(*((f"key {n % 10}", str(n)) for n in range(100)))
    compacted(bootstrap, topic, writer.newest)
    partition = AioPartition(topic, 0)
    async with AIOKafkaConsumer(bootstrap_servers=bootstrap, enable_auto_commit=False) as consumer:
        consumer.assign([partition])
        consumer.seek(partition, 0)
        found = [await consumer.getone() for _ in writer.newest]
    assert [(each.offset, each.key, each.value) for each in found] == writer.newest


def test_configs_are_shown_and_a_wrong_one_is_refused_by_name(
    bootstrap: str, admin: AdminClient, fresh: Fresh
) -> None:
    configs: dict[str, Any] = {
        "cleanup.policy": "compact,delete",
        "min.cleanable.dirty.ratio": "0.1",
        "min.compaction.lag.ms": "5",
        "max.compaction.lag.ms": "600000",
        "delete.retention.ms": "1000",
    }
    topic = create(admin, fresh("table"), **configs)
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
    (shown,) = done(admin.describe_configs([resource])).values()
    assert {name: shown[name].value for name in configs} == configs
    for name, value in (
        ("cleanup.policy", "shrink"),
        ("min.cleanable.dirty.ratio", "1.1"),
        ("max.compaction.lag.ms", "0"),
        ("delete.retention.ms", "-1"),
    ):
        wrong: dict[str, Any] = {name: value}
        with pytest.raises(Exception, match=name):
            create(admin, fresh("wrong"), **wrong)
