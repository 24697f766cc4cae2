"""`semel.client` against another broker: the mock cluster inside librdkafka, with two nodes."""

from collections.abc import Iterator

import confluent_kafka
import pytest

from semel.client import EARLIEST, LATEST, Admin, Client, Codec, Consumer, Producer


@pytest.fixture
def client() -> Iterator[Client]:
    # The cluster lives as long as the producer that made it.
    settings = {"bootstrap.servers": "unused:1", "test.mock.num.brokers": 2, "log_level": 0}
    mock = confluent_kafka.Producer(settings)
    brokers = mock.list_topics(timeout=10).brokers.values()
    with Client([f"{each.host}:{each.port}" for each in brokers], timeout_s=10) as client:
        yield client
    del mock


def test_both_brokers_are_found(client: Client) -> None:
    assert len(client.describe().nodes) == 2


@pytest.mark.parametrize("codec", list(Codec))
def test_records_go_to_their_leaders_and_come_back(client: Client, codec: Codec) -> None:
    topics = [f"t{number}" for number in range(8)]  # so many that both brokers lead some of the partitions
    with Producer(client, codec=codec) as producer:
        deliveries = [producer.send(topics[n % 8], b"%d" % n, key=b"%d" % n) for n in range(400)]
    assert len({client.leader(each.topic, each.partition) for each in deliveries}) == 2
    with Consumer(client, topics) as consumer:
        records = list(consumer.read_to_end())
    assert sorted(int(record.value or b"") for record in records) == list(range(400))
    assert {(record.topic, record.partition, record.offset) for record in records} == {
        delivery.result()[:3] for delivery in deliveries
    }


def test_group(client: Client) -> None:
    with Producer(client) as producer:
        for number in range(8):
            producer.send("t", b"x", partition=number % 4)
    for expected in (8, 0):
        with Consumer(client, "t", group_id="g") as consumer:
            assert len(list(consumer.read_to_end())) == expected
            assert len(consumer.assignment) == 4


def test_offsets(client: Client) -> None:
    with Producer(client) as producer:
        for partition in range(4):
            producer.send("t", b"x", partition=partition)
    topics = Admin(client).topics
    keys = topics.partitions(["t"])
    assert {at.offset for at in topics.offsets(dict.fromkeys(keys, EARLIEST)).values()} == {0}
    assert {at.offset for at in topics.offsets(dict.fromkeys(keys, LATEST)).values()} == {1}
