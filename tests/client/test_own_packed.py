"""Batches that are handed over as such: in order, once, and in a transaction all or none."""

import struct
from collections.abc import Iterator

import pytest
from support.faults.proxy import Act, Proxy
from support.stores.columnar import column_of

import semel
from semel.client import (
    Admin,
    Client,
    Codec,
    Consumer,
    ErrorCode,
    KafkaError,
    MustAbort,
    NewTopic,
    Producer,
    TransactionalProducer,
)
from semel.wire.columns import Packed, Packer
from semel.wire.messages import ProduceRequest

PER_BATCH = 50


@pytest.fixture
def client(semel_broker: semel.Embedded) -> Iterator[Client]:
    with Client(semel_broker.bootstrap_servers, timeout_s=10) as client:
        Admin(client).topics.create(NewTopic("out", partitions=2))
        yield client


def packed(first: int, size_bytes: int = 20_000, count: int = PER_BATCH) -> Packed:
    """Records with the numbers from `first` on."""
    packer = Packer(1, 1 << 30)
    values: list[bytes | None] = [b"%d" % (first + at) for at in range(count)]
    keys: list[bytes | None] = [bytes(size_bytes)] * count
    packer.add(0, count, struct.pack(f"={count}i", *[0] * count), column_of(keys), column_of(values), None, 7)
    batch = packer.take(0)
    assert batch is not None
    return batch


def numbers(client: Client, topic: str = "out") -> dict[int, list[int]]:
    """What a reader sees in each partition."""
    found: dict[int, list[int]] = {0: [], 1: []}
    with Consumer(client, topic) as consumer:
        for record in consumer.read_to_end():
            found[record.partition].append(int(record.value or b"-1"))
    return found


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
def test_batches_arrive_in_order_beside_single_records(client: Client, codec: Codec) -> None:
    deliveries = []
    with Producer(client, codec=codec, linger_s=60) as producer:
        for number in range(10):
            producer.send("out", b"%d" % (number * 1000), partition=0)
            deliveries.append(producer.send_packed("out", 0, packed(number * 1000 + 1)))
            producer.send_packed("out", 1, packed(number * 1000))
    assert numbers(client) == {
        0: [1000 * number + at for number in range(10) for at in range(PER_BATCH + 1)],
        1: [1000 * number + at for number in range(10) for at in range(PER_BATCH)],
    }
    assert [each.result().offset for each in deliveries] == [
        number * (PER_BATCH + 1) + 1 for number in range(10)
    ]


def test_a_batch_whose_answer_was_lost_is_there_once(semel_broker: semel.Embedded, client: Client) -> None:
    with Proxy(semel_broker.bootstrap_servers) as proxy, Client(proxy.bootstrap, timeout_s=10) as through:
        rules = [
            proxy.on(ProduceRequest.api_key, Act.CUT_ANSWER, after=2),
            proxy.on(ProduceRequest.api_key, Act.CUT, after=5),
        ]
        with TransactionalProducer(through, "writer") as producer, producer.transaction():
            for number in range(12):
                producer.send_packed("out", number % 2, packed(number * 1000))
        assert all(rule.caught for rule in rules)
    assert numbers(client) == {
        half: [1000 * number + at for number in range(half, 12, 2) for at in range(PER_BATCH)]
        for half in (0, 1)
    }


def test_a_transaction_that_is_aborted_while_batches_are_under_way_leaves_nothing(client: Client) -> None:
    with TransactionalProducer(client, "writer") as producer:
        producer.begin()
        for number in range(6):
            producer.send_packed("out", number % 2, packed(number))
        producer.abort()
        with producer.transaction():
            producer.send_packed("out", 0, packed(100, count=2))
    assert numbers(client) == {0: [100, 101], 1: []}


def test_a_batch_that_is_refused_takes_the_transaction_with_it(client: Client) -> None:
    Admin(client).topics.create(NewTopic("small", partitions=2, configs={"max.message.bytes": "5000"}))
    with TransactionalProducer(client, "writer") as producer:
        producer.begin()
        producer.send_packed("small", 0, packed(0, size_bytes=1, count=2))
        producer.send_packed("small", 1, packed(0))
        with pytest.raises(MustAbort, match="MESSAGE_TOO_LARGE"):
            producer.prepare()
        with pytest.raises(MustAbort, match="MESSAGE_TOO_LARGE"):
            producer.send_packed("small", 0, packed(5, size_bytes=1, count=2))
        producer.abort()
    assert numbers(client, "small") == {0: [], 1: []}


def test_a_plain_producer_says_what_was_refused_and_goes_on(client: Client) -> None:
    Admin(client).topics.create(NewTopic("small", partitions=2, configs={"max.message.bytes": "5000"}))
    with Producer(client) as producer:
        refused = producer.send_packed("small", 0, packed(0))
        with pytest.raises(KafkaError) as caught:
            producer.flush()
        assert caught.value.code is ErrorCode.MESSAGE_TOO_LARGE
        assert refused.error is caught.value
        producer.send_packed("small", 0, packed(7, size_bytes=1, count=1))
    assert numbers(client, "small") == {0: [7], 1: []}
