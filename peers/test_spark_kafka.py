"""Spark's own Kafka connector beside Semel's, on the same topics: each reads what the other has written.

Spark's connector uses the Java client; Semel's is in Python. They run against Semel, and against Apache Kafka
to show differences. Both respect transactions: neither reads aborted or open ones.
"""

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from support.spark.jobs import committed, create, fill, start_spark, values

from peers.brokers import Broker
from peers.programs import CannotBuild, fetch_spark_connector
from semel.client import Client, TransactionalProducer

#: Semel's connector, and Spark's.
FORMATS = ("semel", "kafka")
PAIRS = [pair for pair in itertools.product(FORMATS, FORMATS) if pair != ("semel", "semel")]

_numbers = itertools.count()


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    try:
        jars = fetch_spark_connector()
    except CannotBuild as error:
        pytest.skip(f"Spark's Kafka connector: {error}")
    session = start_spark(settings={"spark.jars": ",".join(map(str, jars))})
    yield session
    session.stop()


class Copy:
    """A copy from one topic to another, each side by one of the connectors."""

    def __init__(self, spark: SparkSession, broker: Broker, pair: tuple[str, str], directory: Path) -> None:
        number = next(_numbers)
        self.spark = spark
        self.bootstrap = broker.bootstrap
        self.reads, self.writes = pair
        self.directory = directory
        self.source, self.target = f"spark-in-{number}", f"spark-out-{number}"
        self.pipeline = {"pipeline.id": f"copy-{number}"}
        create(self.bootstrap, (self.source, 2), (self.target, 3))

    def read_options(self) -> dict[str, Any]:
        options = {"kafka.bootstrap.servers": self.bootstrap, "subscribe": self.source}
        if self.reads == "kafka":
            options |= {"kafka.isolation.level": "read_committed"}
        return options | {"startingOffsets": "earliest"}

    def write_options(self) -> dict[str, Any]:
        options = {"kafka.bootstrap.servers": self.bootstrap, "topic": self.target}
        return options | (self.pipeline if self.writes == "semel" else {})

    def batch(self) -> None:
        rows = self.spark.read.format(self.reads).options(**self.read_options()).load()
        writer = rows.select("key", "value").write.format(self.writes).options(**self.write_options())
        writer.mode("append").save()

    def stream(self) -> None:
        rows: DataFrame = self.spark.readStream.format(self.reads).options(**self.read_options()).load()
        writer = rows.select("key", "value").writeStream.format(self.writes).options(**self.write_options())
        if self.writes == "semel" and self.reads == "kafka":
            # The starting offset is only in Spark's checkpoint, which may be lost.
            writer = writer.option("delivery.guarantee", "at-least-once")
        query = writer.option("checkpointLocation", str(self.directory)).trigger(availableNow=True).start()
        query.awaitTermination()

    def write_transactions(self) -> None:
        """Write committed transactions, and an aborted one between them."""
        with Client(self.bootstrap) as client, TransactionalProducer(client, self.source) as producer:
            for begin, commit in ((0, True), (1_000, False), (100, True)):
                producer.begin()
                for number in range(begin, begin + 100):
                    producer.send(self.source, b"value %d" % number, key=b"key %d" % number)
                if commit:
                    producer.commit()
                else:
                    producer.abort()


@pytest.fixture(params=PAIRS, ids=lambda pair: f"{pair[0]} to {pair[1]}")
def copy(request: pytest.FixtureRequest, spark: SparkSession, broker: Broker, tmp_path: Path) -> Copy:
    return Copy(spark, broker, request.param, tmp_path)


def test_a_batch(copy: Copy) -> None:
    copy.write_transactions()
    copy.batch()
    assert committed(copy.bootstrap, copy.target) == values(range(200))


def test_a_stream_that_is_started_again(copy: Copy) -> None:
    copy.write_transactions()
    copy.stream()
    fill(copy.bootstrap, copy.source, range(200, 300))
    copy.stream()
    assert committed(copy.bootstrap, copy.target) == values(range(300))


def test_what_our_sink_has_written_spark_reads(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    """Semel's sink writes in transactions; Spark's source reads what is committed."""
    copy = Copy(spark, broker, ("semel", "semel"), tmp_path)
    fill(copy.bootstrap, copy.source, range(200))
    rows = spark.readStream.format("semel").options(**copy.read_options(), **copy.pipeline).load()
    writer = rows.select("key", "value").writeStream.format("semel").options(**copy.write_options())
    writer.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start().awaitTermination()
    reader = spark.read.format("kafka").option("kafka.bootstrap.servers", broker.bootstrap)
    found = reader.option("subscribe", copy.target).option("kafka.isolation.level", "read_committed").load()
    assert sorted(row.value for row in found.select("value").collect()) == sorted(values(range(200)))
