"""Small batches: read when they are planned, written by the driver, planned with one request."""

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource_internal import _SimpleStreamReaderWrapper
from support.spark.jobs import Pipeline, committed, create, fill, values
from support.spark.outputs import TwiceNumbers, TwoOutputs

import semel.spark
from semel.client import Client, Producer
from semel.embedded import Embedded
from semel.pipeline import Topic
from semel.spark.options import SourceOptions
from semel.spark.sink import batch as batches
from semel.spark.sink import planning
from semel.spark.sink.decision import take_over
from semel.spark.source.prefetch import OFFSETS_MAX
from semel.spark.source.source import StreamReader

pytestmark = pytest.mark.spark

COLUMNS = ["value", "topic", "partition", "offset"]


@pytest.fixture
def servers(semel_broker: Embedded) -> str:
    create(semel_broker.bootstrap_servers, ("in", 3))
    return semel_broker.bootstrap_servers


def planned(servers: str, **options: str) -> tuple[StreamReader, dict[str, Any], list[Any]]:
    """Return a reader, the end of its first batch and the tasks for it."""
    given = {"kafka.bootstrap.servers": servers, "subscribe": "in", "startingOffsets": "earliest", **options}
    reader = StreamReader(SourceOptions.of(given, is_stream=True), COLUMNS)
    start = reader.initialOffset()
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    return reader, end, list(reader.partitions(start, end))


def offered(reader: StreamReader) -> list[pa.RecordBatch] | None:
    """Return the records that Spark takes from the planner, if it takes any."""
    if not isinstance(reader, _SimpleStreamReaderWrapper):
        return None
    found = reader.getCache({}, {})
    assert not isinstance(reader, _SimpleStreamReaderWrapper), "only while records are offered"
    return None if found is None else list(found)


def rows_of(found: list[pa.RecordBatch]) -> list[dict[str, Any]]:
    return sorted(pa.Table.from_batches(found).to_pylist(), key=lambda row: (row["partition"], row["offset"]))


def test_the_records_of_a_small_batch_come_with_its_plan(servers: str) -> None:
    fill(servers, "in", range(100))
    reader, end, tasks = planned(servers)
    assert end["small:"] is True
    (task,) = tasks
    records = offered(reader)
    assert records is not None
    rows = rows_of(records)
    assert {row["value"] for row in rows} == {b"value %d" % number for number in range(100)}
    assert rows == rows_of(list(reader.read(task))), "a task reads the same, if Spark has lost the records"


def test_a_batch_is_not_small(servers: str) -> None:
    fill(servers, "in", range(OFFSETS_MAX + 1))
    reader, end, tasks = planned(servers)
    assert ("small:" in end, len(tasks), offered(reader)) == (False, 3, None)


@pytest.mark.parametrize("option", [{"minPartitions": "3"}, {"maxRecordsPerPartition": "40"}])
def test_options_ask_for_several_tasks(servers: str, option: dict[str, str]) -> None:
    fill(servers, "in", range(100))
    reader, end, tasks = planned(servers, **option)
    assert "small:" not in end
    assert len(tasks) >= 3
    assert offered(reader) is None


def test_few_records_of_many_bytes_are_read_by_a_task(servers: str) -> None:
    with Client(servers) as client, Producer(client) as producer:
        for number in range(8):
            producer.send("in", b"%d" % number * 500_000, partition=number % 3)
    reader, end, tasks = planned(servers)
    assert "small:" not in end
    (task,) = tasks
    assert offered(reader) is None
    assert len(rows_of(list(reader.read(task)))) == 8


def test_a_batch_that_is_repeated_is_read_by_a_task(servers: str) -> None:
    """After a restart Spark does not ask for the end of a batch that it has logged."""
    fill(servers, "in", range(10))
    _, end, _ = planned(servers)
    again = StreamReader(
        SourceOptions.of({"kafka.bootstrap.servers": servers, "subscribe": "in"}, is_stream=True), COLUMNS
    )
    (task,) = again.partitions({"in": {"0": 0, "1": 0, "2": 0}}, end)
    assert offered(again) is None
    assert len(rows_of(list(again.read(task)))) == 10


# ---- written by the driver


def run(pipeline: Pipeline, change: Callable[[DataFrame], DataFrame]) -> None:
    def write(frame: DataFrame, batch_id: int) -> None:
        with semel.spark.batch(frame, batch_id) as batch:
            batch.write(change(frame), Topic("out"))

    writer = pipeline.source().writeStream.foreachBatch(write)
    writer = writer.option("checkpointLocation", str(pipeline.checkpoint))
    writer.trigger(availableNow=True).start().awaitTermination()


@pytest.mark.parametrize(("copies", "size", "is_few"), [(1, 10, True), (60, 10, False), (1, 20_000, False)])
def test_few_rows_are_written_by_the_driver_and_many_or_large_ones_by_tasks(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch, copies: int, size: int, is_few: bool
) -> None:
    collected = []
    collect_few = batches._collect_few

    def watched(rows: DataFrame) -> list[pa.RecordBatch] | None:
        found = collect_few(rows)
        collected.append(None if found is None else sum(each.num_rows for each in found))
        return found

    monkeypatch.setattr(batches, "_collect_few", watched)
    fill(pipeline.bootstrap, "in", range(100))
    # One row is enough to be too large.
    value = f"IF(value = 'value 7', rpad(value, {size}, 'x'), rpad(value, 10, 'x')) AS value"
    run(pipeline, lambda rows: rows.selectExpr(value, f"explode(sequence(1, {copies})) AS n"))
    assert collected == [100 if is_few else None]
    found = committed(pipeline.bootstrap, "out")
    assert found.total() == 100 * copies
    assert set(found.values()) == {copies}
    assert max(map(len, found)) == size


def test_a_second_context_for_a_batch_is_refused(pipeline: Pipeline) -> None:
    """The batch is decided, so its writes would be skipped without a word."""

    def write(frame: DataFrame, batch_id: int) -> None:
        for _ in range(2):
            with semel.spark.batch(frame, batch_id) as batch:
                batch.write(frame.select("value"), Topic("out"))

    fill(pipeline.bootstrap, "in", range(10))
    writer = pipeline.source().writeStream.foreachBatch(write)
    writer = writer.option("checkpointLocation", str(pipeline.checkpoint))
    for _ in range(2):
        with pytest.raises(PySparkException, match="Put all writes of the batch into one 'with'"):
            writer.trigger(availableNow=True).start().awaitTermination()
    assert committed(pipeline.bootstrap, "out") == values(range(10))


def test_the_next_batch_needs_no_look_at_the_last_decision(
    spark: SparkSession, two_outputs: TwoOutputs, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers = TwiceNumbers(two_outputs)
    monkeypatch.setattr(planning, "plan_stream", None)
    numbers.run()
    monkeypatch.undo()
    # Another process may have decided in between, so a run that was replaced looks.
    with Client(two_outputs.bootstrap) as client:
        take_over(client, two_outputs.name)
    numbers.go_on()


# ---- the processes of Spark


def test_looking_for_the_formats_imports_little() -> None:
    """Spark starts a process for it before the first query."""
    program = "import sys, pyspark_semel, pyspark_semel_delta; print('pyarrow' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
