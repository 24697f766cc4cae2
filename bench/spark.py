"""The pipeline on Spark: the codec alone, the source, source with sink, and a batch without rows.

Broker, Java and Python share the machine's cores, as on a laptop.
"""

import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from bench.noop_source import PARTITIONS, NoopSource, ReadySource
from bench.rows import Row, spread
from bench.subjects import semel
from semel.client import Admin, Client, NewTopic, Producer, TransactionalProducer
from semel.spark import session
from semel.wire.column_buffers import Binary
from semel.wire.columns import ColumnReader, Packed, Packer, seal_packed
from semel.wire.records import iter_batches

ROOT = Path(__file__).parents[1]
VALUE_BYTES, KEY_BYTES = 100, 12
BATCH_RECORDS = 4_000
FETCH_BATCHES = 8  # about as many as one fetch returns


def decode_rate(rounds: int, records: int = 4_000_000) -> Row:
    """Records per second of processor time, with the checksum, into the buffers of all columns."""
    data = seal_packed(packed()) * FETCH_BATCHES
    rates: list[float] = []
    for _ in range(rounds):
        reader, read = ColumnReader(), 0
        started = time.process_time()
        while read < records:
            for at, header in iter_batches(data):
                reader.add(data, at, header)
            read += reader.take().rows
        rates.append(read / (time.process_time() - started) / 1e6)
    return Row(
        "Spark: record batches to Arrow columns, 100 B values: million records per second and core",
        spread(rates),
        statistics.median(rates),
        10,
    )


def packed() -> Packed:
    """One batch of records with a key of 12 and a value of 100 bytes."""
    packer = Packer(1, 1 << 20)
    keys = Binary(_offsets(KEY_BYTES), b"".join(b"key %08d" % at for at in range(BATCH_RECORDS)))
    values = Binary(_offsets(VALUE_BYTES), bytes(range(100)) * BATCH_RECORDS)
    packer.add(0, BATCH_RECORDS, bytes(4 * BATCH_RECORDS), keys, values, None, int(time.time() * 1000))
    batch = packer.take(0)
    assert batch is not None
    return batch


def _offsets(size: int) -> bytes:
    return b"".join((at * size).to_bytes(4, "little") for at in range(BATCH_RECORDS + 1))


class Bench:
    """A Spark session, a broker, and topics."""

    def __init__(self, spark: SparkSession, bootstrap: str, directory: Path) -> None:
        self.spark = spark
        self.bootstrap = bootstrap
        self.directory = directory
        self._checkpoints = 0

    def create(self, topic: str, partitions: int = PARTITIONS) -> None:
        with Client(self.bootstrap) as client:
            Admin(client).topics.create(NewTopic(topic, partitions=partitions))

    def fill(self, topic: str, rows: int) -> int:
        """Write about this many records, spread over all partitions; return how many there are."""
        batch, written = packed(), 0
        with Client(self.bootstrap) as client, Producer(client) as producer:
            while written < rows:
                for partition in range(PARTITIONS):
                    producer.send_packed(topic, partition, batch)
                    written += BATCH_RECORDS
        return written

    def fill_with_aborted(self, topic: str, offsets: int) -> None:
        """Give every partition this many offsets of aborted records."""
        with Client(self.bootstrap) as client, TransactionalProducer(client, "aborted") as producer:
            producer.begin()
            for partition in range(PARTITIONS):
                for _ in range(offsets):
                    producer.send(topic, b"never", partition=partition)
            producer.flush()
            producer.abort()

    def options(self, **more: str) -> dict[str, str]:
        return {"kafka.bootstrap.servers": self.bootstrap, **more}

    def stream(self, **options: str) -> DataFrame:
        return self.spark.readStream.format("semel").options(**self.options(**options)).load()

    def start(self, rows: DataFrame, kind: str, trigger: dict[str, Any], **options: str) -> StreamingQuery:
        self._checkpoints += 1
        writer = rows.writeStream.format(kind).options(**options).trigger(**trigger)
        path = self.directory / f"checkpoint-{self._checkpoints}"
        return writer.option("checkpointLocation", str(path)).start()


def start_spark(**settings: str) -> SparkSession:
    """Start Spark with two cores; names of settings have underscores."""
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    builder = session("bench", master="local[2]").config("spark.log.level", "OFF")
    builder = builder.config("spark.driver.memory", "4g")
    for name, value in settings.items():
        builder = builder.config(name.replace("_", "."), value)
    return builder.getOrCreate()


@contextmanager
def bench() -> Iterator[Bench]:
    spark = start_spark()
    spark.dataSource.register(NoopSource)
    spark.dataSource.register(ReadySource)
    with semel() as subject, tempfile.TemporaryDirectory(prefix="semel-bench-", dir=ROOT) as directory:
        try:
            yield Bench(spark, subject.bootstrap, Path(directory))
        finally:
            spark.stop()


def source_to_noop(on: Bench, rounds: int, rows: int) -> Row:
    """Return the rows per second of a batch job that reads all columns of a topic and discards them."""
    on.create("full")
    written = on.fill("full", rows)
    ready: list[float] = []
    rates: list[float] = []
    for _ in range(rounds + 1):
        floor = on.spark.read.format("bench-ready").option("rows", str(written)).load()
        ready.append(_thrown_away(floor, written))
        ours = on.spark.read.format("semel").options(**on.options(subscribe="full")).load()
        rates.append(_thrown_away(ours, written))
    del rates[0], ready[0]  # Java compiles, and Python starts
    return Row(
        "Spark: source into the noop sink, all columns, 100 B values: million rows per second "
        f"of a job with {rows // 10**5 / 10:g} million",
        f"{spread(rates)}; a Python source of ready-made Arrow batches: {spread(ready)}",
        statistics.median(rates),
        3,
    )


def _thrown_away(frame: DataFrame, rows: int) -> float:
    started = time.perf_counter()
    frame.write.format("noop").mode("overwrite").save()
    return rows / (time.perf_counter() - started) / 1e6


def end_to_end(on: Bench, batches: int, batch_rows: int) -> Row:
    """Return the rows per second of an exactly-once query from topic to topic, by its micro-batches."""
    on.create("from")
    on.create("to")
    on.fill("from", (batches + 1) * batch_rows)
    rows = on.stream(
        **{"subscribe": "from", "pipeline.id": "copy", "maxOffsetsPerTrigger": str(batch_rows)}
    ).select("key", "value")
    options = on.options(**{"pipeline.id": "copy", "topic": "to"})
    query = on.start(rows, "semel", {"availableNow": True}, **options)
    query.awaitTermination()
    rates = [
        each["numInputRows"] / each["durationMs"]["triggerExecution"] / 1e3
        for each in query.recentProgress[1:]
        if each["numInputRows"] >= batch_rows // 2
    ]
    return Row(
        f"Spark: exactly-once from topic to topic, batches of {batch_rows:,} rows: million rows per second",
        spread(rates),
        statistics.median(rates),
        0.5,
    )


def empty_batch(on: Bench, rounds: int, batches: int) -> Row:
    """Return the time of a batch without rows, over that of a Python source and sink that do nothing."""
    on.create("nothing")
    on.create("out")
    ratios: list[float] = []
    ours: list[float] = []
    for number in range(rounds + 1):
        floor = _median_ms(on, on.spark.readStream.format("bench-noop").load(), "bench-noop", batches)
        on.fill_with_aborted("nothing", 2 * batches)
        name = {"pipeline.id": f"empty-{number}"}
        rows = on.stream(**name, **{"subscribe": "nothing", "maxOffsetsPerTrigger": str(PARTITIONS)}).select(
            "key", "value"
        )
        time_ms = _median_ms(on, rows, "semel", batches, **on.options(**name, topic="out"))
        ratios.append(time_ms / floor)
        ours.append(time_ms)
    del ratios[0], ours[0]  # Java compiles, and Python starts
    return Row(
        "Spark: an exactly-once batch without rows, over one of a Python source and sink that do nothing",
        f"ratio {spread(ratios)}; {statistics.median(ours):,.0f} ms",
        statistics.median(ratios),
        1.3,
        False,
    )


def _median_ms(on: Bench, rows: DataFrame, kind: str, batches: int, **options: str) -> float:
    query = on.start(rows, kind, {"processingTime": "0 seconds"}, **options)
    while len(query.recentProgress) < batches:
        assert query.isActive, query.exception()
        time.sleep(0.1)
    query.stop()
    times: list[float] = [each["durationMs"]["triggerExecution"] for each in query.recentProgress]
    return statistics.median(times[batches // 4 :])


def rows_on_spark(rounds: int, rows: int, batch_rows: int, batches: int = 24) -> list[Row]:
    """Measure everything that needs Spark, and the codec."""
    with bench() as on:
        return [
            decode_rate(rounds),
            source_to_noop(on, rounds, rows),
            end_to_end(on, rounds, batch_rows),
            empty_batch(on, rounds, batches),
        ]
