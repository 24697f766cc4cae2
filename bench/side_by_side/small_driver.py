"""The driver of one query at ten records a second, for `small`: prints its times as JSON.

    python -m bench.side_by_side.small_driver KIND BOOTSTRAP SOURCE TARGET SECONDS [JARS]

The driver is new, so its first row includes all that Spark loads and starts for the query, and not the start
of the session.
"""

import json
import os
import statistics
import sys
import tempfile
import threading
import time

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import semel.spark
from semel.client import Client, Consumer, Producer
from semel.pipeline import Topic, pipeline

CONNECTOR, FORMAT, DECLARED = "Spark's connector", "format semel", "declared pipeline"
PAUSE_SECONDS = 0.1
BEFORE_SECONDS = 1.0
"""How long records are written before the query starts."""
WARM_SECONDS = 5.0
"""How long the query runs after its first row before its batches are measured."""


class Traffic:
    """Writes a record every tenth of a second to the input, and notes when it is in the output."""

    def __init__(self, bootstrap: str, source: str, target: str) -> None:
        self._bootstrap, self._source, self._target = bootstrap, source, target
        self._is_over = threading.Event()
        self.sent: dict[int, float] = {}
        self.seen: dict[int, float] = {}
        for work in (self._write, self._read):
            threading.Thread(target=work, daemon=True).start()

    def _write(self) -> None:
        with Client(self._bootstrap) as client, Producer(client) as producer:
            while not self._is_over.wait(PAUSE_SECONDS):
                number = len(self.sent)
                self.sent[number] = time.monotonic()
                producer.send(self._source, b"%d" % number)
                producer.flush()

    def _read(self) -> None:
        with Client(self._bootstrap) as client, Consumer(client, self._target) as consumer:
            while not self._is_over.is_set():
                for record in consumer.poll(PAUSE_SECONDS):
                    self.seen.setdefault(int(record.value or b""), time.monotonic())


def start(kind: str, spark: SparkSession, bootstrap: str, source: str, target: str) -> StreamingQuery:
    """Start a query that copies the topic, as soon as a batch has ended the next one."""
    checkpoint = tempfile.mkdtemp(prefix="semel-bench-")
    if kind == DECLARED:
        options = {"startingOffsets": "earliest"}

        @pipeline(target, source=Topic(source, options), sink=Topic(target))
        def copy(records: DataFrame) -> DataFrame:
            return records.select("key", "value")

        return semel.spark.start(
            spark, copy, bootstrap_servers=bootstrap, checkpoint=checkpoint, trigger="0 seconds"
        )
    name = "kafka" if kind == CONNECTOR else "semel"
    shared = {"kafka.bootstrap.servers": bootstrap} | ({} if kind == CONNECTOR else {"pipeline.id": target})
    reading = {
        "subscribe": source,
        "startingOffsets": "earliest",
        "kafka.isolation.level": "read_committed",
    }
    rows = spark.readStream.format(name).options(**shared, **reading).load().select("key", "value")
    writer = rows.writeStream.format(name).options(**shared, topic=target)
    return writer.option("checkpointLocation", checkpoint).start()


def run(kind: str, bootstrap: str, source: str, target: str, seconds: float, jars: str) -> dict[str, float]:
    """Return the seconds to the first row, and the milliseconds of a batch and from end to end."""
    builder = semel.spark.session("small", master="local[2]").config("spark.log.level", "OFF")
    spark = (builder.config("spark.jars", jars) if jars else builder).getOrCreate()
    traffic = Traffic(bootstrap, source, target)
    time.sleep(BEFORE_SECONDS)
    began = time.monotonic()
    query = start(kind, spark, bootstrap, source, target)
    while not traffic.seen:
        assert query.isActive, query.exception()
        time.sleep(0.005)
    first = min(traffic.seen.values())
    time.sleep(WARM_SECONDS)
    measured_from = time.monotonic()
    last_warm = query.lastProgress.batchId if query.lastProgress is not None else -1
    time.sleep(seconds)
    reports = [json.loads(each.json) for each in query.recentProgress]
    batches = [each for each in reports if each["numInputRows"] and each["batchId"] > last_warm]
    waited = [
        traffic.seen[number] - sent
        for number, sent in traffic.sent.items()
        if sent >= measured_from and number in traffic.seen
    ]
    return {
        "first row": first - began,
        "batch": statistics.median(each["durationMs"]["triggerExecution"] for each in batches),
        "end to end": 1000 * statistics.median(waited),
    }


if __name__ == "__main__":
    kind, bootstrap, source, target, seconds, jars = sys.argv[1:]
    print(json.dumps(run(kind, bootstrap, source, target, float(seconds), jars)), flush=True)
    os._exit(0)  # A clean stop of Spark is not measured.
