"""Workers of Spark live longer than a batch, and remember topics that have changed since.

A process that remembers a topic is here a client that has used it. Another client changes the topic, so that
the first one is not told.
"""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from support.spark.jobs import create, fill

import semel
from semel.client import Admin, Client, Consumer, NewTopic, Producer
from semel.spark.errors import DataLoss
from semel.spark.options import SourceOptions
from semel.spark.partition_offsets import topic_ids
from semel.spark.sink.writing import RowWriter
from semel.spark.source.reading import OffsetRange, read_range


@pytest.fixture
def old(semel_broker: semel.Embedded) -> Iterator[Client]:
    """A client that remembers `t` with one partition."""
    create(semel_broker.bootstrap_servers, ("t", 1))
    with Client(semel_broker.bootstrap_servers, timeout_s=10) as client:
        with Producer(client) as producer:
            producer.send("t", b"old")
        assert [each.value for each in Consumer(client, "t").read_to_end()] == [b"old"]
        yield client


@pytest.fixture
def other(semel_broker: semel.Embedded) -> Iterator[Client]:
    with Client(semel_broker.bootstrap_servers, timeout_s=10) as client:
        yield client


def create_again(client: Client, partitions: int = 1) -> None:
    Admin(client).topics.delete("t")
    Admin(client).topics.create(NewTopic("t", partitions=partitions))


def send(client: Client, *values: bytes, partition: int = 0) -> None:
    with Producer(client) as producer:
        for value in values:
            producer.send("t", value, partition=partition)


def read(client: Client, servers: str, wanted: OffsetRange, **options: str) -> list[Any]:
    given = {"kafka.bootstrap.servers": servers, "subscribe": "t", **options}
    source = SourceOptions.of(given, is_stream=False)
    return [
        value
        for each in read_range(client, wanted, source, ("value",))
        for value in each["value"].to_pylist()
    ]


@pytest.mark.parametrize("strict", ["true", "false"])
def test_a_task_reads_a_topic_that_was_created_again(
    semel_broker: semel.Embedded, old: Client, other: Client, strict: str
) -> None:
    """The plan knows the new topic; a worker that remembers the old one asks before it calls that a loss."""
    create_again(other)
    send(other, b"1", b"2")
    wanted = OffsetRange("t", 0, 0, 2, topic_ids(other.describe(["t"]).topics)["t"])
    servers = semel_broker.bootstrap_servers
    assert read(old, servers, wanted, failOnDataLoss=strict) == [b"1", b"2"]


def test_a_task_does_not_read_another_topic_than_the_planned_one(
    semel_broker: semel.Embedded, old: Client, other: Client
) -> None:
    wanted = OffsetRange("t", 0, 0, 1, topic_ids(other.describe(["t"]).topics)["t"])
    create_again(other)
    send(other, b"1")
    with pytest.raises(DataLoss, match="was deleted and created again"):
        read(old, semel_broker.bootstrap_servers, wanted)
    assert read(old, semel_broker.bootstrap_servers, wanted, failOnDataLoss="false") == []


def test_a_task_reads_a_partition_that_is_new(
    semel_broker: semel.Embedded, old: Client, other: Client
) -> None:
    Admin(other).topics.add_partitions("t", 3)
    send(other, b"new", partition=2)
    wanted = OffsetRange("t", 2, 0, 1, topic_ids(other.describe(["t"]).topics)["t"])
    assert read(old, semel_broker.bootstrap_servers, wanted) == [b"new"]


@pytest.mark.parametrize("again", [False, True], ids=["more partitions", "created again"])
def test_a_task_writes_to_the_topic_as_it_is(old: Client, other: Client, again: bool) -> None:
    if again:
        create_again(other, 3)
    else:
        Admin(other).topics.add_partitions("t", 3)
    rows = pa.record_batch([pa.array([b"v"]), pa.array([2], pa.int32())], names=["value", "partition"])
    with Producer(old) as producer:
        writer = RowWriter(old, producer, "t")
        writer.write(rows)
        writer.finish()
    assert writer.outputs == topic_ids(other.describe(["t"]).topics), "a decision compares them"
    assert [each.value for each in Consumer(other, "t").read_to_end() if each.partition == 2] == [b"v"]


@pytest.mark.spark
@pytest.mark.timeout(120)
def test_batch_reads_of_one_session_see_the_topic_as_it_is(
    spark: SparkSession, semel_broker: semel.Embedded, other: Client
) -> None:
    servers = semel_broker.bootstrap_servers
    create(servers, ("t", 2))

    def count(**options: str) -> int:
        reader = spark.read.format("semel").option("kafka.bootstrap.servers", servers)
        return reader.option("subscribe", "t").options(**options).load().count()

    fill(servers, "t", range(20))
    assert count() == 20
    Admin(other).topics.add_partitions("t", 4)
    send(other, b"new", partition=3)
    assert count() == 21
    for _ in range(2):
        create_again(other, 2)
        fill(servers, "t", range(30))
        assert count(failOnDataLoss="false") == 30
