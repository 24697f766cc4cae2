"""What the pipeline's sink asks a broker before it writes: earlier writers of the output, and the time."""

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.spark.checkpoints import Query

from peers.brokers import Broker
from semel.client import Admin, Client, NewTopic, Producer, TransactionalProducer
from semel.client.admin.transactions import describe_transactions
from semel.spark import PipelineMismatch
from semel.spark.checkpoint import Checkpoint
from semel.spark.partition_offsets import topic_ids
from semel.spark.sink import batch_commit, planning
from semel.spark.sink.writing import BrokerClock

#: The largest difference of two processes' clocks on one machine, including everything in between.
NEAR_MS = 60_000


@pytest.fixture
def client(broker: Broker) -> Iterator[Client]:
    with Client(broker.direct, timeout_s=30) as client:
        yield client


def test_another_id_does_not_write_the_same_again(client: Client, tmp_path: Path) -> None:
    mark = uuid.uuid4().hex[:8]
    output, other = f"out-{mark}", f"other-{mark}"
    # The checkpoints of these tests refer to a topic `in`.
    if not client.describe(["in"]).topics:
        Admin(client).topics.create(NewTopic("in", partitions=2))
    Admin(client).topics.create(NewTopic(output, partitions=1), NewTopic(other, partitions=1))

    def count(name: str, checkpoint: Checkpoint, topic: str) -> None:
        plan = planning.plan_stream(client, name, checkpoint, topic)
        batch_commit.decide(client, plan, [], topic_ids(client.describe([topic]).topics))

    count(f"old-{mark}", Query(tmp_path, "old").batch(0, 10, began=0), output)
    with pytest.raises(PipelineMismatch, match=rf"let it keep its id: pipeline\.id=old-{mark},"):
        count(f"new-{mark}", Query(tmp_path, "new").batch(0, 20, began=0), output)
    count(f"new-{mark}", Query(tmp_path, "later").batch(0, 20, began=10), output)
    with Producer(client) as producer:
        producer.send(other, b"of somebody")
    with pytest.raises(PipelineMismatch, match=f"reads all of its input, and topic {other} has records"):
        count(f"third-{mark}", Query(tmp_path, "third").batch(0, 20, began=0), other)


def test_the_start_of_a_transaction_tells_the_time_of_the_broker(client: Client) -> None:
    mark = uuid.uuid4().hex[:8]
    Admin(client).topics.create(NewTopic(f"out-{mark}", partitions=1))
    with TransactionalProducer(client, f"clock-{mark}") as producer:
        producer.begin()
        delivery = producer.send(f"out-{mark}", b"x", timestamp_ms=0)
        BrokerClock(client, producer).check(f"out-{mark}", NEAR_MS)
        known = describe_transactions(client, [producer.transactional_id])[producer.transactional_id]
        age_ms = known.open_for_ms()
        assert age_ms is not None
        assert 0 <= age_ms < NEAR_MS
        producer.commit()
        assert delivery.result().offset == 0
