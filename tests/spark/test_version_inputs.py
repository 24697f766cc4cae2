"""Versions in `foreachBatch`: one is skipped only if it is the same batch again."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from support.spark.jobs import ENVIRONMENT, committed, create, fill, values
from support.spark.lake import content

from semel.client import ProducerIdAndEpoch
from semel.embedded import Embedded
from semel.spark.errors import PipelineError
from semel.spark.sink.decision import BatchDecision, Committed, check_untouched
from semel.spark.sink.foreach_batch import is_repeated
from semel.spark.sink.versions import BatchRead, Version, WriteName

pytestmark = pytest.mark.spark

WriteBatch = Callable[[DataFrame, int], None]


class Copying:
    """A query that copies `in` with foreachBatch to the topic `out` and to a table."""

    def __init__(self, spark: SparkSession, servers: str, directory: Path) -> None:
        self.spark, self.servers, self.directory = spark, servers, directory
        self.table = directory / "table"
        self.checkpoint = directory / "checkpoint"
        self.app = "app"
        self.starts = "earliest"
        self.options: dict[str, str] = {"checkpointLocation": str(self.checkpoint)}

    def to_topic(self, frame: DataFrame, version: int) -> None:
        """Write a batch to the topic."""
        given = {"kafka.bootstrap.servers": self.servers, "topic": "out", **self.options}
        self._write(frame, "semel", version, given)

    def to_table(self, frame: DataFrame, version: int) -> None:
        """Write a batch to the table."""
        self._write(frame, "semel-delta", version, {"path": str(self.table), **self.options})

    def _write(self, frame: DataFrame, name: str, version: int, given: dict[str, str]) -> None:
        writer = frame.write.format(name).options(**given).option("txnAppId", self.app)
        writer.option("txnVersion", version).mode("append").save()

    def run(self, write: WriteBatch, source: DataFrame | None = None) -> None:
        """Copy what is there, and end."""
        reader = self.spark.readStream.format("semel").option("kafka.bootstrap.servers", self.servers)
        reader = reader.option("subscribe", "in").option("startingOffsets", self.starts)
        rows = (reader.load() if source is None else source).selectExpr("CAST(value AS string) AS value")
        writer = rows.writeStream.foreachBatch(write).trigger(availableNow=True)
        writer.option("checkpointLocation", str(self.checkpoint)).start().awaitTermination()

    def both(self, frame: DataFrame, version: int) -> None:
        """Write a batch to both outputs."""
        self.to_topic(frame, version)
        self.to_table(frame, version)

    def refused(self, words: str) -> WriteBatch:
        """Return a function of `foreachBatch` whose writes to both outputs have to be refused."""

        def write(frame: DataFrame, version: int) -> None:
            for to_output in (self.to_topic, self.to_table):
                with pytest.raises(PySparkException, match=words):
                    to_output(frame, version)

        return write

    def restore(self, copy: Path) -> None:
        """Put a copy in the place of the checkpoint."""
        shutil.rmtree(self.checkpoint)
        shutil.copytree(copy, self.checkpoint)

    def check(self, count: int) -> None:
        """Whether both outputs have the values up to a number, each once."""
        assert committed(self.servers, "out") == values(range(count))
        assert sorted(content(self.table)["value"]) == sorted(f"value {number}" for number in range(count))


@pytest.fixture
def copying(spark: SparkSession, semel_broker: Embedded, tmp_path: Path) -> Copying:
    """A query, its topics, and ten records in the input."""
    create(semel_broker.bootstrap_servers, ("in", 1), ("out", 2))
    fill(semel_broker.bootstrap_servers, "in", range(10))
    return Copying(spark, semel_broker.bootstrap_servers, tmp_path)


def test_versions_are_not_skipped_after_the_checkpoint_is_lost(copying: Copying) -> None:
    copying.run(copying.both)
    shutil.rmtree(copying.checkpoint)
    fill(copying.servers, "in", range(10, 20))
    words = r"'app' .* another query.* version 0\b"
    copying.run(copying.refused(words))
    copying.check(10)
    shutil.rmtree(copying.checkpoint)
    copying.app, copying.starts = "app-2", '{"in": {"0": 10}}'
    copying.run(copying.both)
    copying.check(20)


def test_versions_are_not_skipped_after_the_checkpoint_is_an_older_copy(copying: Copying) -> None:
    copies = [copying.directory / f"copy-{number}" for number in range(3)]
    for number, copy in enumerate(copies):
        copying.run(copying.both)
        shutil.copytree(copying.checkpoint, copy)
        fill(copying.servers, "in", range(10 * number + 10, 10 * number + 20))
    copying.restore(copies[0])
    copying.run(copying.refused("version 1 of txnAppId 'app' .* older copy"))
    copying.restore(copies[1])
    copying.run(copying.refused("version 2 of txnAppId 'app' .* other input"))
    # Now the copy has gone another way for one batch.
    fill(copying.servers, "in", range(40, 50))
    copying.run(copying.refused(r"version 3 of txnAppId 'app' .* version 2\b"))
    copying.check(30)
    copying.restore(copies[2])
    copying.run(copying.both)
    copying.check(50)


def test_a_batch_that_is_repeated_is_recognised_whatever_it_reads(copying: Copying) -> None:
    """Files say nothing of offsets: which of them are in a batch is known by the checkpoint alone."""
    files, attempts = copying.directory / "files", []
    files.mkdir()
    (files / "1.txt").write_text("value 0\nvalue 1\n")

    def fails_once(frame: DataFrame, version: int) -> None:
        copying.both(frame, version)
        attempts.append(version)
        if attempts == [0]:
            raise RuntimeError("a fault after the write")

    def run() -> None:
        copying.run(fails_once, copying.spark.readStream.text(str(files)))

    with pytest.raises(PySparkException, match="a fault after the write"):
        run()
    planned = copying.directory / "planned"
    shutil.copytree(copying.checkpoint, planned)
    (files / "2.txt").write_text("value 2\n")
    run()
    assert attempts == [0, 0, 1]
    copying.check(3)
    # As if the copy were of the moment before the second batch: now it would have both new files.
    copying.restore(planned)
    (copying.checkpoint / "commits").mkdir(exist_ok=True)
    (copying.checkpoint / "commits/0").write_text('v1\n{"nextBatchWatermarkMs":0}')
    (files / "3.txt").write_text("value 3\n")
    with pytest.raises(PySparkException, match=r"version 1 of txnAppId 'app' .* other input"):
        run()
    copying.check(3)


def test_a_write_in_a_stream_says_by_what_it_is_compared(copying: Copying) -> None:
    of_query = copying.options
    foreign = copying.directory / "foreign"

    def refused(frame: DataFrame, version: int) -> None:
        copying.options = {}
        copying.refused("option checkpointLocation")(frame, version)
        copying.options = of_query
        copying.refused("batch 0, .*version 1 of txnAppId 'app'")(frame, version + 1)
        shutil.copytree(copying.checkpoint, foreign)
        (foreign / "metadata").write_text('{"id": "that of another query"}')
        copying.options = {"checkpointLocation": str(foreign)}
        words = r"version 0 of txnAppId 'app' .* batch 0\b"
        copying.refused(words)(frame, version)

    copying.run(refused)
    assert committed(copying.servers, "out") == {}
    assert content(copying.table)["value"] == []


def test_a_thread_of_the_function_is_in_the_stream_too(copying: Copying) -> None:
    """Spark does not tell its tasks of which query, as by Spark Connect."""
    of_query = copying.options

    def in_a_thread(frame: DataFrame, version: int) -> None:
        session = frame.sparkSession
        with ThreadPoolExecutor(1) as pool:
            pool.submit(session.createDataFrame, [], "id int").result()  # makes it active in the thread
            copying.options = {}
            refused = copying.refused("the option checkpointLocation")
            pool.submit(refused, frame, version).result()
            copying.options = of_query
            pool.submit(copying.both, frame, version).result()

    copying.run(in_a_thread)
    fill(copying.servers, "in", range(10, 20))
    copying.run(in_a_thread)
    copying.check(20)


BY_CONNECT = """
import sys
from pyspark.sql import Row
from support.spark.jobs import start_spark

servers, directory = sys.argv[1:]
spark = start_spark("local[2]", is_remote=True)

def write(frame, version, **options):
    writer = frame.selectExpr("value").write.format("semel").option("kafka.bootstrap.servers", servers)
    writer = writer.options(**{"topic": "out", "txnAppId": "app", "txnVersion": version, **options})
    writer.mode("append").save()

def in_stream(frame, version):
    try:
        write(frame, version)
    except Exception as error:
        assert "the option checkpointLocation" in str(error), error
    else:
        raise AssertionError("it was not refused")
    write(frame, version, checkpointLocation=directory)

for _ in range(2):  # the second run has settings of the first one
    rows = spark.readStream.format("semel").option("kafka.bootstrap.servers", servers)
    rows = rows.option("subscribe", "in").option("startingOffsets", "earliest").load()
    query = rows.writeStream.foreachBatch(in_stream).option("checkpointLocation", directory)
    query.trigger(availableNow=True).start().awaitTermination()
    write(spark.createDataFrame([Row(value="value 10")]), 0, txnAppId="plain")
"""


@pytest.mark.long
def test_writes_by_connect(semel_broker: Embedded, tmp_path: Path) -> None:
    """Those of a stream need its checkpoint, or say that they go without; others need nothing."""
    servers = semel_broker.bootstrap_servers
    create(servers, ("in", 1), ("out", 2))
    fill(servers, "in", range(10))
    ran = subprocess.run(
        [sys.executable, "-c", BY_CONNECT, servers, str(tmp_path / "checkpoint")],
        env={**os.environ, **ENVIRONMENT},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-4_000:]
    assert committed(servers, "out") == values(range(11))


def test_versions_of_an_older_release_go_on(copying: Copying) -> None:
    """They are like those of txnCompare=version: what they had read is not known."""
    of_query = copying.options

    def fails(frame: DataFrame, version: int) -> None:
        copying.options = {"txnCompare": "version"}
        copying.both(frame, version)
        raise RuntimeError("a fault after the write")

    def goes_on(frame: DataFrame, version: int) -> None:
        copying.options = of_query
        words = "not known.* txnCompare=version"
        copying.refused(words)(frame, version)
        copying.options = {**of_query, "txnCompare": "version"}
        copying.both(frame, version)

    with pytest.raises(PySparkException, match="a fault after the write"):
        copying.run(fails)
    copying.run(goes_on)
    copying.options = of_query
    fill(copying.servers, "in", range(10, 20))
    copying.run(copying.both)
    copying.options = {}
    rows = copying.spark.createDataFrame([("value 20",)], "value string")
    copying.refused("foreachBatch")(rows, 7)
    copying.check(20)


# ---- without Spark

READ = BatchRead(1, 2)


@pytest.mark.parametrize(
    ("number", "read", "known", "is_done"),
    [
        (3, None, None, True),
        (4, None, None, False),
        (5, READ, None, False),
        (3, READ, READ, True),
        (4, READ, READ, False),
    ],
)
def test_what_can_be_shown_to_be_right(
    number: int, read: BatchRead | None, known: BatchRead | None, is_done: bool, tmp_path: Path
) -> None:
    version = Version("app", number, str(tmp_path), read=read)
    assert is_repeated(version, 3, known) == is_done
    assert is_repeated(replace(version, compares_input=False), 3, BatchRead(8, 9)) == (number <= 3)


def test_versions_are_equal_by_their_names_and_a_write_keeps_what_it_read() -> None:
    assert Version("app", 1) == Version("app", 1, "checkpoint", read=READ)
    for name in (WriteName("app", None, "run"), WriteName("app", "out", None, READ)):
        assert WriteName.of_query_id(name.to_query_id()) == name
    assert WriteName("app", None, "run").to_query_id() == 'write ["app",null,"run"]', "as in older releases"


def test_a_decision_that_was_replaced_by_an_offset_is_missed() -> None:
    last = BatchDecision(0, ProducerIdAndEpoch(1, 0), 'write ["app","out",null]', -1, ())
    check_untouched(Committed({("out", 0): 0}, last), "app")
    check_untouched(Committed({}, None, {("out", 1): 0}), "app")
    with pytest.raises(PipelineError, match="out/1"):
        check_untouched(Committed({("out", 0): 0}, last, {("out", 1): 0}), "app")
