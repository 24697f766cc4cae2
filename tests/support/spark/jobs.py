"""Spark for tests: pipelines from topic to topic, and their output as other clients read it."""

import json
import os
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, TopicPartition
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from semel.client import Admin, Client, NewTopic, Producer
from support.faults.spark_faults import FaultySource
from tools.spark_classes import java_options

READ_SECONDS = 120.0
BATCH = 400
MASTER = "local[2,2]"
ROOT = Path(__file__).parents[3]
#: Processes that Spark starts run this Python, with the path of these tests. Threads for linear algebra,
#: which the tests do not use, are a tenth of the cost of starting such a process.
ENVIRONMENT = {
    "PYSPARK_PYTHON": sys.executable,
    "OPENBLAS_NUM_THREADS": "1",
    "PYTHONPATH": os.pathsep.join(str(ROOT / each) for each in ("tests/support/startup", "src", "tests", "")),
}

#: For programs that start their own Spark, as users do: short runs with little data.
OF_PROGRAMS = {
    **ENVIRONMENT,
    "JDK_JAVA_OPTIONS": java_options(),
    "PYSPARK_SUBMIT_ARGS": (
        "--conf spark.sql.shuffle.partitions=2 --conf spark.sql.codegen.wholeStage=false pyspark-shell"
    ),
}


def start_spark(
    master: str = MASTER, settings: Mapping[str, str] | None = None, *, is_remote: bool = False
) -> SparkSession:
    """Start Spark with two cores and two attempts per task; by Spark Connect if it is remote."""
    os.environ.update(ENVIRONMENT)
    builder = SparkSession.builder.remote(master) if is_remote else SparkSession.builder.master(master)
    builder = (
        builder.config("spark.ui.enabled", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "OFF")
        .config("spark.driver.extraJavaOptions", java_options())
        .config("spark.sql.codegen.wholeStage", "false")
        .config("spark.python.unix.domain.socket.enabled", "true")
    )
    for name, value in (settings or {}).items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.dataSource.register(FaultySource)
    return session


def create(bootstrap: str, *topics: tuple[str, int], **configs: str) -> None:
    with Client(bootstrap) as client:
        for name, partitions in topics:
            Admin(client).topics.create(NewTopic(name, partitions=partitions, configs=configs))


def fill(bootstrap: str, topic: str, numbers: Iterable[int]) -> None:
    with Client(bootstrap) as client, Producer(client) as producer:
        for number in numbers:
            producer.send(topic, b"value %d" % number, key=b"key %d" % number)


def committed(bootstrap: str, topic: str) -> Counter[bytes]:
    """Count the values of a topic, as confluent-kafka reads them with read_committed."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "check",
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 10,  # the end of a partition is reported by an empty response
        }
    )
    partitions = consumer.list_topics(topic, READ_SECONDS).topics[topic].partitions
    consumer.assign([TopicPartition(topic, number, 0) for number in partitions])
    found: Counter[bytes] = Counter()
    ended: set[int | None] = set()
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


def open_transactions(bootstrap: str, pipeline_id: str = "copy") -> list[str]:
    """Return a pipeline's open transactions."""
    with Client(bootstrap) as client:
        found = [each.transactional_id for each in Admin(client).transactions.all(states=["Ongoing"])]
    return [each for each in found if each.startswith(f"{pipeline_id}/")]


def copied(source: DataFrame) -> DataFrame:
    return source.select("key", "value")


class Pipeline:
    """A query from the topic `in` to the topic `out`, or between other topics.

    Without a Spark session it is only a declaration, which a `DriverProcess` runs.
    """

    def __init__(
        self,
        spark: SparkSession | None,
        bootstrap: str,
        directory: Path,
        name: str = "copy",
        topics: tuple[str, str] = ("in", "out"),
    ) -> None:
        self.spark = spark
        self.bootstrap = bootstrap
        self.name = name
        directory.mkdir(exist_ok=True)
        self.checkpoint = directory / "checkpoint"
        self.fault = directory / "fault"
        self.source_options: dict[str, Any] = {"subscribe": topics[0], "pipeline.id": name}
        self.sink_options: dict[str, Any] = {"topic": topics[1], "pipeline.id": name}
        self.change = copied
        """The transformation of the source; a module's function, so that another process can import it."""

    def copy(self, directory: Path) -> "Pipeline":
        """Return a second copy of the job, with its own checkpoint."""
        other = Pipeline(self.spark, self.bootstrap, directory, self.name)
        other.source_options, other.sink_options = dict(self.source_options), dict(self.sink_options)
        other.change = self.change
        return other

    def query_id(self) -> str:
        """Return the id of the query, as its checkpoint has it."""
        found: str = json.loads((self.checkpoint / "metadata").read_text())["id"]
        return found

    def source(self) -> DataFrame:
        assert self.spark is not None
        reader = self.spark.readStream.format("semel").option("kafka.bootstrap.servers", self.bootstrap)
        return reader.options(**self.source_options).load()

    def start(self, frame: DataFrame | None = None, **trigger: Any) -> StreamingQuery:
        rows = self.change(self.source()) if frame is None else frame
        writer = rows.writeStream.format("semel-faulty").option("fault.file", str(self.fault))
        writer = writer.option("kafka.bootstrap.servers", self.bootstrap).options(**self.sink_options)
        writer = writer.option("checkpointLocation", str(self.checkpoint))
        return writer.trigger(**(trigger or {"availableNow": True})).start()

    def run(self, frame: DataFrame | None = None) -> StreamingQuery:
        """Write the available input, and stop."""
        query = self.start(frame)
        query.awaitTermination()
        return query

    def succeed(self) -> None:
        """Run like `run`, after another driver with the same checkpoint.

        A Spark that ran the query a moment ago is refused once, because it cannot tell whether the other
        driver has died since or still runs.
        """
        try:
            self.run()
        except PySparkException as error:
            if "has taken over" not in str(error):
                raise
            self.run()


class Numbers:
    """The input of a pipeline, and the check that its output is equal.

    One batch has been written, and two are pending.
    """

    def __init__(self, pipeline: Pipeline) -> None:
        self.pipeline = pipeline
        self.topic: str = pipeline.source_options["subscribe"]
        self.output: str = pipeline.sink_options["topic"]
        self.count = 0
        pipeline.source_options["maxOffsetsPerTrigger"] = BATCH
        self.add()
        pipeline.run()
        self.add()
        self.add()

    def add(self) -> None:
        """Add input for one more batch."""
        fill(self.pipeline.bootstrap, self.topic, range(self.count, self.count + BATCH))
        self.count += BATCH

    def check_outputs(self) -> None:
        assert committed(self.pipeline.bootstrap, self.output) == values(range(self.count))

    def check(self) -> None:
        self.check_outputs()
        assert open_transactions(self.pipeline.bootstrap, self.pipeline.name) == []

    def run(self) -> None:
        self.pipeline.run()
        self.check()

    def succeed(self) -> None:
        self.pipeline.succeed()
        self.check()

    def go_on(self) -> None:
        """Check that late requests did no harm, neither now nor to the next batch."""
        self.check_outputs()
        self.add()
        self.succeed()
