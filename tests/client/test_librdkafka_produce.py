"""What librdkafka's test of batches (0011) expects of a broker: every message gets a report of its own.

Messages of one call go to several partitions; some of them are refused, and those in other batches are not.
"""

from collections import Counter
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, Message, Producer
from confluent_kafka.admin import AdminClient
from support.clients.confluent import Fresh, create, reader
from support.clients.reading import WAIT_SECONDS

COUNT = 2_000
PARTITIONS = 4


@pytest.fixture(scope="module")
def admin(bootstrap: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": bootstrap})


class Batches:
    """A producer that notes how each message ended, by its number."""

    def __init__(self, bootstrap: str, **config: object) -> None:
        self.reports: list[Message] = []
        self.errors: list[KafkaError | None] = []
        self.order: list[int] = []
        self._producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 100, **config})

    def put(self, topic: str, number: int, value: bytes, key: bytes | None = None, **where: Any) -> None:
        def report(error: KafkaError | None, message: Message) -> None:
            self.reports.append(message)
            self.errors.append(error)
            self.order.append(number)

        self._producer.produce(topic, value, key, on_delivery=report, **where)

    def flush(self) -> None:
        assert self._producer.flush(WAIT_SECONDS) == 0

    def codes(self) -> dict[int, int | None]:
        """The error of each message, by its number."""
        pairs = zip(self.order, self.errors, strict=True)
        return {number: error.code() if error else None for number, error in pairs}


def test_messages_of_one_partition_are_reported_in_their_order(
    bootstrap: str, admin: AdminClient, fresh: Fresh
) -> None:
    topic = create(admin, fresh("batch"), PARTITIONS)
    batches = Batches(bootstrap)
    for number in range(COUNT):
        batches.put(topic, number, b"%d" % number, partition=0)
    batches.flush()
    assert set(batches.errors) == {None}
    assert batches.order == list(range(COUNT))
    assert [each.offset() for each in batches.reports] == list(range(COUNT))


def test_each_message_goes_to_the_partition_that_it_names(
    bootstrap: str, admin: AdminClient, fresh: Fresh
) -> None:
    topic = create(admin, fresh("batch"), PARTITIONS)
    batches = Batches(bootstrap)
    for number in range(COUNT):
        batches.put(topic, number, b"%d" % number, partition=number * 7 % PARTITIONS)
    batches.flush()
    assert set(batches.errors) == {None}
    assert Counter(each.partition() for each in batches.reports) == dict.fromkeys(
        range(PARTITIONS), COUNT // PARTITIONS
    )
    with reader(bootstrap, fresh("group"), topic) as each:
        each.read(COUNT)
        for message in each.messages:
            assert int(message.value() or b"") * 7 % PARTITIONS == message.partition()


def test_the_partitioner_uses_more_than_one_partition(
    bootstrap: str, admin: AdminClient, fresh: Fresh
) -> None:
    topic = create(admin, fresh("batch"), PARTITIONS)
    batches = Batches(bootstrap, **{"sticky.partitioning.linger.ms": 0, "partitioner": "random"})
    for number in range(COUNT):
        batches.put(topic, number, b"%d" % number)
    batches.flush()
    assert set(batches.errors) == {None}
    assert {each.partition() for each in batches.reports} == set(range(PARTITIONS))


def test_a_partition_that_is_not_there(bootstrap: str, admin: AdminClient, fresh: Fresh) -> None:
    """The others are delivered. That the partition is missing shows only when the metadata is there."""
    topic = create(admin, fresh("batch"), PARTITIONS)
    batches = Batches(bootstrap, **{"message.timeout.ms": 20_000})
    refused: dict[int, int | None] = {}
    for number in range(100):
        try:
            batches.put(topic, number, b"%d" % number, partition=PARTITIONS + 5 if number % 10 == 0 else 1)
        except KafkaException as error:
            refused[number] = error.args[0].code()
    batches.flush()
    found = batches.codes() | refused
    assert {found[number] for number in range(100) if number % 10} == {None}
    assert {found[number] for number in range(0, 100, 10)} == {KafkaError._UNKNOWN_PARTITION}


@pytest.mark.parametrize("idempotent", [False, True], ids=["plain", "idempotent"])
def test_batches_with_one_message_fail_by_themselves(
    bootstrap: str, admin: AdminClient, fresh: Fresh, idempotent: bool
) -> None:
    """A compacted topic takes no message without a key (KIP-467); each is in a batch of its own."""
    topic = create(admin, fresh("batch"), 1, **{"cleanup.policy": "compact"})
    batches = Batches(
        bootstrap, **{"batch.num.messages": 1, "linger.ms": 0, "enable.idempotence": idempotent}
    )
    for number in range(20):
        batches.put(topic, number, b"%d" % number, b"key" if number % 2 else None, partition=0)
        batches.flush()
    assert batches.codes() == {
        number: None if number % 2 else KafkaError.INVALID_RECORD for number in range(20)
    }


def test_a_batch_that_is_too_large_fails_as_a_whole_and_the_next_does_not(
    bootstrap: str, admin: AdminClient, fresh: Fresh
) -> None:
    topic = create(admin, fresh("batch"), 1, **{"max.message.bytes": "5000"})
    batches = Batches(bootstrap, **{"message.max.bytes": 10_000_000})
    for size, numbers in ((300, range(10)), (1_000, range(10, 20)), (300, range(20, 30))):
        for number in numbers:
            batches.put(topic, number, bytes(size), partition=0)
        batches.flush()
    expected: dict[int, int | None] = dict.fromkeys(range(30))
    expected |= dict.fromkeys(range(10, 20), KafkaError.MSG_SIZE_TOO_LARGE)
    assert batches.codes() == expected
    with reader(bootstrap, fresh("group"), topic) as each:
        assert each.read(20) == [bytes(300)] * 20


def test_a_message_that_the_client_itself_refuses(bootstrap: str, topic: str) -> None:
    batches = Batches(bootstrap, **{"message.max.bytes": 2_000})
    batches.put(topic, 0, bytes(1_000), partition=0)
    with pytest.raises(KafkaException) as error:
        batches.put(topic, 1, bytes(3_000), partition=0)
    assert error.value.args[0].code() == KafkaError.MSG_SIZE_TOO_LARGE
    batches.put(topic, 2, bytes(1_000), partition=0)
    batches.flush()
    assert batches.codes() == {0: None, 2: None}
