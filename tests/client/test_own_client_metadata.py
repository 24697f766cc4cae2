"""A client remembers topics for minutes. That is no reason to refuse something, or to leave it out."""

from collections.abc import Iterator

import pytest
from support.waiting import until

import semel
from semel.client import (
    Admin,
    Client,
    CommitOrderConsumer,
    Consumer,
    ErrorCode,
    KafkaError,
    NewTopic,
    Producer,
)


@pytest.fixture
def clients(semel_broker: semel.Embedded) -> Iterator[tuple[Client, Client]]:
    """One that remembers `t` with a partition, and one that has given it two more."""
    servers = semel_broker.bootstrap_servers
    with Client(servers, timeout_s=10) as old, Client(servers, timeout_s=10) as other:
        Admin(old).topics.create(NewTopic("t", partitions=1))
        with Producer(old) as producer:
            producer.send("t", b"0")
        Admin(other).topics.add_partitions("t", 3)
        yield old, other


def test_a_producer_writes_to_a_partition_that_is_new(clients: tuple[Client, Client]) -> None:
    old, _ = clients
    with Producer(old) as producer:
        assert producer.send("t", b"2", partition=2).result().partition == 2
        with pytest.raises(KafkaError, match=r"'t'.*\b3\b") as raised:
            producer.send("t", b"3", partition=3)
    assert raised.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize("kind", [Consumer, CommitOrderConsumer])
def test_a_consumer_that_begins_reads_all_partitions(
    clients: tuple[Client, Client], kind: type[Consumer] | type[CommitOrderConsumer]
) -> None:
    old, other = clients
    with Producer(other) as producer:
        producer.send("t", b"2", partition=2)
    found: set[bytes | None] = set()

    def has_read() -> bool:
        found.update(record.value for record in consumer.poll(0.2))
        return len(found) >= 2

    with kind(old, "t") as consumer:
        until(has_read, what="records of both partitions")
    assert found == {b"0", b"2"}


def test_offsets_of_a_partition_that_is_new_are_found(clients: tuple[Client, Client]) -> None:
    old, _ = clients
    assert Admin(old).topics.offsets({("t", 2): -1})["t", 2].offset == 0
    assert len(Admin(old).topics.partitions(["t"])) == 3
