"""Spark as the tests use it: pipelines from topic to topic, and what came out as other clients read it."""

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, TopicPartition
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from semel.client import Admin, Client, NewTopic, Producer

READ_SECONDS = 30.0


def create(bootstrap: str, *topics: tuple[str, int]) -> None:
    with Client(bootstrap) as client:
        for name, partitions in topics:
            Admin(client).topics.create(NewTopic(name, partitions=partitions))


def fill(bootstrap: str, topic: str, numbers: Iterable[int]) -> None:
    with Client(bootstrap) as client, Producer(client) as producer:
        for number in numbers:
            producer.send(topic, b"value %d" % number, key=b"key %d" % number)


def committed(bootstrap: str, topic: str) -> Counter[bytes]:
    """The values of a topic and how often each is there, as confluent-kafka reads with read_committed."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "check",
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    partitions = consumer.list_topics(topic, READ_SECONDS).topics[topic].partitions
    consumer.assign([TopicPartition(topic, number, 0) for number in partitions])
    found: Counter[bytes] = Counter()
    ended: set[int] = set()
    while len(ended) < len(partitions):
        message = consumer.poll(READ_SECONDS)
        assert message is not None, f"{topic} did not end within {READ_SECONDS} seconds"
        if message.error() is None:
            found[bytes(message.value() or b"")] += 1
        else:
            ended.add(message.partition())
    consumer.close()
    return found


def values(numbers: Iterable[int]) -> Counter[bytes]:
    return Counter(b"value %d" % number for number in numbers)


class Pipeline:
    """A query from the topic `in` to the topic `out`."""

    def __init__(self, spark: SparkSession, bootstrap: str, directory: Path, name: str = "copy") -> None:
        self.spark = spark
        self.bootstrap = bootstrap
        self.name = name
        directory.mkdir(exist_ok=True)
        self.checkpoint = directory / "checkpoint"
        self.fault = directory / "fault"
        self.source_options: dict[str, Any] = {"subscribe": "in", "pipeline.id": name}
        self.sink_options: dict[str, Any] = {"topic": "out", "pipeline.id": name}

    def source(self) -> DataFrame:
        reader = self.spark.readStream.format("semel").option("kafka.bootstrap.servers", self.bootstrap)
        return reader.options(**self.source_options).load()

    def start(self, frame: DataFrame | None = None, **trigger: Any) -> StreamingQuery:
        rows = self.source().select("key", "value") if frame is None else frame
        writer = rows.writeStream.format("semel-faulty").option("fault.file", str(self.fault))
        writer = writer.option("kafka.bootstrap.servers", self.bootstrap).options(**self.sink_options)
        writer = writer.option("checkpointLocation", str(self.checkpoint))
        return writer.trigger(**(trigger or {"availableNow": True})).start()

    def run(self, frame: DataFrame | None = None) -> StreamingQuery:
        """Write what is there, and stop."""
        query = self.start(frame)
        query.awaitTermination()
        return query
