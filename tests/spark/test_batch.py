"""`semel.spark.batch`: the writes of a `foreachBatch` function count together, once, or not at all."""

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession, functions
from support.faults.proxy import Proxy
from support.faults.spark_points import await_caught, cases, catch, points, sender
from support.spark.driver import DriverProcess
from support.spark.jobs import BATCH, Pipeline, committed, create, fill, open_transactions, values
from support.spark.outputs import TwiceNumbers, TwoOutputs

import semel.spark
from semel.client import Client, Consumer
from semel.pipeline import Topic
from semel.spark.pipeline.status import status

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]

LONG = pytest.mark.long
DEATHS = cases(short=[("portable", "between the ends")])


@pytest.fixture
def numbers(two_outputs: TwoOutputs) -> TwiceNumbers:
    """One batch is done, and two are to come."""
    return TwiceNumbers(two_outputs)


def failing(times: int) -> Callable[[int], None]:
    """Return a function that raises the first times that it is called."""
    left = [times]

    def fail(batch_id: int) -> None:
        left[0] -= 1
        if left[0] >= 0:
            raise RuntimeError(f"a fault in batch {batch_id}")

    return fail


# ---- once


def test_the_input_is_read_once(numbers: TwiceNumbers) -> None:
    query = numbers.pipeline.run()
    assert [each["numInputRows"] for each in query.recentProgress] == [BATCH, BATCH]
    numbers.check()
    with Client(numbers.pipeline.bootstrap) as client:
        found = status(client, numbers.pipeline.name)
    assert found.behind == 0
    assert found.decision is not None
    assert set(found.decision.outputs) == set(numbers.pipeline.sink_options.values()) - {
        numbers.pipeline.name
    }


def test_a_function_that_fails_before_the_decision_writes_nothing(
    two_outputs: TwoOutputs, numbers: TwiceNumbers
) -> None:
    two_outputs.before = failing(1)
    with pytest.raises(PySparkException, match="a fault in batch 1"):
        two_outputs.run()
    for output in two_outputs.outputs:
        assert committed(two_outputs.bootstrap, output) == values(range(BATCH))
    numbers.run()


def test_a_function_that_fails_after_the_decision_writes_nothing_twice(
    two_outputs: TwoOutputs, numbers: TwiceNumbers
) -> None:
    two_outputs.after = failing(2)
    for _ in range(2):
        with pytest.raises(PySparkException, match="a fault in batch 1"):
            two_outputs.run()
    numbers.run()


def test_if_one_write_fails_none_counts(spark: SparkSession, pipeline: Pipeline) -> None:
    create(pipeline.bootstrap, ("small", 1), **{"max.message.bytes": "1000"})
    fill(pipeline.bootstrap, "in", range(50))
    size = [2_000]

    def write(frame: DataFrame, batch_id: int) -> None:
        with semel.spark.batch(frame, batch_id) as batch:
            batch.write(frame.select("value"), Topic("out"))
            batch.write(frame.select(functions.lit("x" * size[0]).alias("value")), Topic("small"))

    with pytest.raises(PySparkException, match=r"max\.message\.bytes"):
        each_batch(pipeline, write)
    assert open_transactions(pipeline.bootstrap) == [], "nobody has to wait for the next start"
    assert committed(pipeline.bootstrap, "out") == {}
    size[0] = 10
    each_batch(pipeline, write)
    assert committed(pipeline.bootstrap, "out") == values(range(50))
    assert committed(pipeline.bootstrap, "small").total() == 50


@pytest.mark.parametrize(("protocol", "place"), DEATHS)
def test_a_driver_is_killed(numbers: TwiceNumbers, proxy: Proxy, protocol: str, place: str) -> None:
    caught = catch(proxy, points(protocol)[place])
    with DriverProcess(numbers.pipeline) as driver:
        await_caught(caught, driver.check)
        driver.kill()
    numbers.succeed()
    caught.release()
    numbers.go_on()


def test_a_task_dies_and_is_tried_again(numbers: TwiceNumbers, proxy: Proxy, protocol: str) -> None:
    numbers.pipeline.source_options["minPartitions"] = "2"  # So few records are else written by the driver.
    caught = catch(proxy, points(protocol)["while tasks write"])
    query = numbers.pipeline.start()
    sender(await_caught(caught)).kill()
    query.awaitTermination()
    numbers.check()
    caught.release()
    numbers.go_on()


# ---- what is written


def each_batch(
    pipeline: Pipeline,
    write: Callable[[DataFrame, int], None],
    mode: str = "append",
    change: Callable[[DataFrame], DataFrame] = lambda rows: rows,
) -> None:
    """Run a query with this function over what is in the input."""
    writer = change(pipeline.source()).writeStream.foreachBatch(write).outputMode(mode)
    writer = writer.option("checkpointLocation", str(pipeline.checkpoint))
    writer.trigger(availableNow=True).start().awaitTermination()


def test_changed_rows_of_an_aggregation(pipeline: Pipeline) -> None:
    """Update mode: one record for each key that a batch has changed."""

    def write(frame: DataFrame, batch_id: int) -> None:
        with semel.spark.batch(frame, batch_id) as batch:
            batch.write(frame.selectExpr("key", "CAST(count AS STRING) AS value"), Topic("out"))

    def counts(rows: DataFrame) -> DataFrame:
        return rows.groupBy(functions.substring("key", 1, 5).alias("key")).count()

    fill(pipeline.bootstrap, "in", range(20))
    each_batch(pipeline, write, "update", counts)
    fill(pipeline.bootstrap, "in", range(10, 13))
    each_batch(pipeline, write, "update", counts)
    # The keys of the first batch: "key 0" to "key 9", of which "key 1" has eleven records.
    assert committed(pipeline.bootstrap, "out") == {b"1": 9, b"11": 1, b"14": 1}


def test_columns_that_only_one_output_has(pipeline: Pipeline) -> None:
    create(pipeline.bootstrap, ("other", 2))
    fill(pipeline.bootstrap, "in", range(6))

    def write(frame: DataFrame, batch_id: int) -> None:
        with semel.spark.batch(frame, batch_id) as batch:
            batch.write(frame.selectExpr("CAST(value AS STRING) AS value"), Topic("out"))
            batch.write(
                frame.selectExpr(
                    "key", "value", "array(struct('h' AS key, key AS value)) AS headers", "1 AS partition"
                ),
                Topic("other"),
            )
            named = frame.where("value = 'value 3'").selectExpr("value", "'out' AS topic")
            batch.write(named, Topic("other", {"topic": ""}))

    each_batch(pipeline, write)
    assert committed(pipeline.bootstrap, "out") == values([*range(6), 3])
    with Client(pipeline.bootstrap) as client, Consumer(client, "other") as consumer:
        found = list(consumer.read_to_end())
    assert {(each.partition, each.key, each.headers) for each in found} == {
        (1, b"key %d" % number, (("h", b"key %d" % number),)) for number in range(6)
    }


def test_a_batch_of_which_nothing_is_written_counts_too(pipeline: Pipeline) -> None:
    fill(pipeline.bootstrap, "in", range(5))

    def write(frame: DataFrame, batch_id: int) -> None:
        with semel.spark.batch(frame, batch_id):
            pass

    each_batch(pipeline, write)
    with Client(pipeline.bootstrap) as client:
        assert status(client, "copy").behind == 0


# ---- what is refused


def refusal(pipeline: Pipeline, write: Callable[[DataFrame, int], None]) -> str:
    fill(pipeline.bootstrap, "in", range(3))
    with pytest.raises(PySparkException) as caught:
        each_batch(pipeline, write)
    assert committed(pipeline.bootstrap, "out") == {}
    return str(caught.value)


def test_rows_that_are_no_records(pipeline: Pipeline) -> None:
    def write(frame: DataFrame, batch_id: int) -> None:
        with semel.spark.batch(frame, batch_id) as batch:
            batch.write(frame.select("value"), Topic("out"))
            batch.write(frame.select("key"), Topic("out"))

    assert "OptionError: the sink needs a column 'value'" in refusal(pipeline, write)


def test_a_source_without_a_position(pipeline: Pipeline) -> None:
    del pipeline.source_options["pipeline.id"]
    pipeline.source_options["startingOffsets"] = "earliest"

    def write(frame: DataFrame, batch_id: int) -> None:
        semel.spark.batch(frame, batch_id)

    assert "OptionError: no source of this query has format 'semel'" in refusal(pipeline, write)


def test_another_pipeline(pipeline: Pipeline) -> None:
    def write(frame: DataFrame, batch_id: int) -> None:
        with semel.spark.batch(frame, batch_id) as batch:
            batch.write(frame.select("value"), Topic("out", {"pipeline.id": "another"}))

    assert "OptionError: the options of topic 'out' name another pipeline" in refusal(pipeline, write)


def test_another_batch(pipeline: Pipeline) -> None:
    def write(frame: DataFrame, batch_id: int) -> None:
        with semel.spark.batch(frame, batch_id + 1) as batch:
            batch.write(frame.select("value"), Topic("out"))

    assert "PipelineError: batch 1 was planned as batch 0" in refusal(pipeline, write)


def test_a_thread_of_the_function_names_its_query(pipeline: Pipeline) -> None:
    fill(pipeline.bootstrap, "in", range(3))
    refused: list[str] = []

    def write(frame: DataFrame, batch_id: int) -> None:
        def work() -> None:
            try:
                semel.spark.batch(frame, batch_id)
            except semel.spark.OptionError as error:
                refused.append(str(error))
            with semel.spark.batch(
                frame,
                batch_id,
                pipeline_id="copy",
                bootstrap_servers=pipeline.bootstrap,
                checkpoint=str(pipeline.checkpoint),
                client={"request.timeout.ms": "20000"},
            ) as batch:
                batch.write(frame.select("value"), Topic("out"))

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()

    each_batch(pipeline, write)
    assert "does not tell which streaming query" in refused[0]
    assert committed(pipeline.bootstrap, "out") == values(range(3))


def test_an_old_checkpoint_is_refused(pipeline: Pipeline, tmp_path: Path) -> None:
    def write(frame: DataFrame, batch_id: int) -> None:
        with semel.spark.batch(frame, batch_id) as batch:
            batch.write(frame.select("value"), Topic("out"))

    fill(pipeline.bootstrap, "in", range(3))
    each_batch(pipeline, write)
    fill(pipeline.bootstrap, "in", range(3, 6))
    pipeline.checkpoint = tmp_path / "new"
    pipeline.source_options["startingOffsets"] = "earliest"
    with pytest.raises(PySparkException, match="PipelineMismatch: batch 0 starts at offset 0"):
        each_batch(pipeline, write)
    assert committed(pipeline.bootstrap, "out") == values(range(3))
