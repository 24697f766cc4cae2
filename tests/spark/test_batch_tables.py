"""`semel.spark.batch` with a topic and a table: one decision makes a batch count in both."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable, Field
from deltalake.schema import PrimitiveType
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from support.faults.proxy import Proxy
from support.faults.spark_points import await_caught, cases, catch, points
from support.spark.driver import DriverProcess
from support.spark.jobs import BATCH, Pipeline, committed, create, fill, open_transactions, values
from support.spark.lake import content, unnamed_files
from support.spark.outputs import TopicAndTable, TopicAndTableNumbers

import semel.spark
from semel.pipeline import Delta, Topic
from semel.spark import OptionError
from semel.spark.delta.merging import merge_of
from semel.spark.sink import batch_commit
from semel.spark.sink.decision import BatchDecision

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]

LONG = pytest.mark.long
#: `test_decision_points` has a short one, with more sinks.
DEATHS = cases(short=[])


@pytest.fixture
def both(spark: SparkSession, any_broker: str, proxy: Proxy, tmp_path: Path) -> TopicAndTable:
    mark = tmp_path.name
    create(any_broker, (f"in-{mark}", 2), (f"out-{mark}", 3))
    return TopicAndTable(spark, proxy.bootstrap, tmp_path, f"copy-{mark}", (f"in-{mark}", f"out-{mark}", ""))


@pytest.fixture
def numbers(both: TopicAndTable) -> TopicAndTableNumbers:
    """One batch is done, and two are to come."""
    return TopicAndTableNumbers(both)


def test_both_count_what_is_read_once(numbers: TopicAndTableNumbers) -> None:
    query = numbers.pipeline.run()
    assert [each["numInputRows"] for each in query.recentProgress] == [BATCH, BATCH]
    numbers.check()


@pytest.mark.parametrize(("protocol", "place"), DEATHS)
def test_a_driver_is_killed(numbers: TopicAndTableNumbers, proxy: Proxy, protocol: str, place: str) -> None:
    """Also when the batch is decided and is not in the table yet."""
    caught = catch(proxy, points(protocol)[place])
    with DriverProcess(numbers.pipeline) as driver:
        await_caught(caught, driver.check)
        driver.kill()
    numbers.succeed()
    caught.release()
    numbers.go_on()


def test_a_decided_batch_is_added_to_the_table_by_the_next_start(
    both: TopicAndTable, numbers: TopicAndTableNumbers, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(pipeline_id: str, decision: object) -> None:
        raise RuntimeError("the driver ends here")

    with monkeypatch.context() as patched:
        patched.setattr(batch_commit, "complete_tables", fail)
        with pytest.raises(PySparkException, match="the driver ends here"):
            both.run()
    assert len(content(both.table)["value"]) == BATCH
    assert committed(both.bootstrap, both.outputs[0]).total() == 2 * BATCH
    # The world goes on: others compact the table and add a column.
    table = DeltaTable(both.table)
    table.optimize.compact()
    table.alter.add_columns([Field("extra", PrimitiveType("string"))])
    both.run()
    numbers.check_outputs()


def test_a_function_that_hides_the_error_loses_nothing(
    both: TopicAndTable, numbers: TopicAndTableNumbers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark takes the batch for done. The next batch completes it first."""
    complete, calls = batch_commit.complete_tables, [0]
    write, hidden = both.write, list[int]()

    def fail_once(pipeline_id: str, decision: BatchDecision) -> None:
        calls[0] += 1
        if calls[0] == 1:
            raise RuntimeError("the table cannot be reached")
        complete(pipeline_id, decision)

    def write_whatever_happens(frame: DataFrame, batch_id: int) -> None:
        try:
            write(frame, batch_id)
        except RuntimeError:
            hidden.append(batch_id)

    monkeypatch.setattr(batch_commit, "complete_tables", fail_once)
    monkeypatch.setattr("semel.spark.sink.planning.complete_tables", complete)
    monkeypatch.setattr(both, "write", write_whatever_happens)
    both.run()
    assert hidden == [1]
    numbers.check()


def test_a_table_that_is_gone_is_not_begun_anew(both: TopicAndTable, numbers: TopicAndTableNumbers) -> None:
    away = both.table.with_name("away")
    shutil.move(both.table, away)
    with pytest.raises(PySparkException, match=r"PipelineMismatch: .*there is no table there any more"):
        both.run()
    shutil.move(away, both.table)
    numbers.run()


def test_a_table_that_was_restored_is_noticed(both: TopicAndTable, numbers: TopicAndTableNumbers) -> None:
    numbers.run()
    DeltaTable(both.table).restore(1)
    numbers.add()
    with pytest.raises(PySparkException, match=r"PipelineMismatch: .*restored"):
        both.run()


def test_two_writes_to_one_table_are_refused(pipeline: Pipeline, tmp_path: Path) -> None:
    fill(pipeline.bootstrap, "in", range(3))

    def write(frame: DataFrame, batch_id: int) -> None:
        with semel.spark.batch(frame, batch_id) as batch:
            batch.write(frame.select("value"), Delta(str(tmp_path / "table")))
            batch.write(frame.select("value"), Delta(f"file://{tmp_path}/table"))

    writer = pipeline.source().writeStream.foreachBatch(write).trigger(availableNow=True)
    with pytest.raises(PySparkException, match="OptionError: two writes of this batch"):
        writer.option("checkpointLocation", str(pipeline.checkpoint)).start().awaitTermination()


def test_tables_of_several_kinds(pipeline: Pipeline, tmp_path: Path) -> None:
    """Partitioned, with new columns, and without rows in some batches."""
    pipeline.source_options["maxOffsetsPerTrigger"] = 10
    fill(pipeline.bootstrap, "in", range(20))
    first, second = tmp_path / "first", tmp_path / "second"

    def write(frame: DataFrame, batch_id: int) -> None:
        number = "CAST(substring(CAST(value AS STRING), 7) AS INT) AS number"
        rows = frame.selectExpr(number, "topic", "timestamp")
        with semel.spark.batch(frame, batch_id) as batch:
            batch.write(
                rows.selectExpr("number", "number % 3 AS rest"), Delta(str(first), {"partitionBy": "rest"})
            )
            batch.write(rows.where("number >= 10"), Delta(str(second)))
            batch.write(frame.select("key", "value"), Topic("out"))

    writer = pipeline.source().writeStream.foreachBatch(write).trigger(availableNow=True)
    writer.option("checkpointLocation", str(pipeline.checkpoint)).start().awaitTermination()
    found = content(first)
    assert sorted(zip(found["number"], found["rest"], strict=True)) == [
        (each, each % 3) for each in range(20)
    ]
    assert sorted(content(second)["number"]) == [*range(10, 20)]
    assert committed(pipeline.bootstrap, "out") == values(range(20))


# ---- merged tables


def merging(
    pipeline: Pipeline, path: Path, batches: list[list[Any]], **options: Any
) -> dict[str, list[object]]:
    """Merge these rows (user, amount, at) by user, one batch after another; return the table."""
    spark = pipeline.spark
    assert spark is not None
    schema = "user STRING, amount INT, at INT"
    left = list(batches)

    def write(frame: DataFrame, batch_id: int) -> None:
        rows = spark.createDataFrame(left.pop(0), schema)
        if "order_by" not in options:
            rows = rows.drop("at")
        with semel.spark.batch(frame, batch_id) as batch:
            batch.write(rows, Delta(str(path), merge_on="user", **options))
            batch.write(frame.select("value"), Topic("out"))

    for number in range(len(batches)):
        fill(pipeline.bootstrap, "in", [number])
        writer = pipeline.source().writeStream.foreachBatch(write).trigger(availableNow=True)
        writer.option("checkpointLocation", str(pipeline.checkpoint)).start().awaitTermination()
    return content(path)


def test_rows_replace_and_delete_those_with_the_same_key(pipeline: Pipeline, tmp_path: Path) -> None:
    path = tmp_path / "table"
    found = merging(
        pipeline,
        path,
        [
            [("a", 1, 0), ("b", 2, 0), ("c", 3, 0)],
            [("b", 20, 0), ("d", 4, 0), ("a", None, 0)],
            [("a", None, 0)],  # which changes nothing
            [],
            [("a", 5, 0)],
        ],
    )
    rows = dict(zip(found["user"], found["amount"], strict=True))
    assert rows == {"a": 5, "b": 20, "c": 3, "d": 4}
    left = [Path(each).name for each in unnamed_files(path)]
    assert not [name for name in left if name.startswith("copy-") or name.endswith(".json")]
    assert DeltaTable(path).transaction_version("copy") == 4, "one commit for each batch with rows"


def test_the_greatest_of_several_rows_counts(pipeline: Pipeline, tmp_path: Path) -> None:
    rows = [("a", 1, 7), ("a", 2, 9), ("a", 3, 8), ("b", 4, 1), ("b", None, 2)]
    found = merging(pipeline, tmp_path / "table", [rows], order_by="at")
    assert found == {"user": ["a"], "amount": [2], "at": [9]}


@pytest.mark.parametrize(
    ("rows", "why"),
    [
        ([("a", 1, 0), ("a", 2, 0)], r"several rows for \{'user': 'a'\}"),
        ([(None, 1, 0)], "has no user"),
    ],
)
def test_rows_without_a_single_key_are_refused_before_the_decision(
    pipeline: Pipeline, tmp_path: Path, rows: list[Any], why: str
) -> None:
    with pytest.raises(PySparkException, match=f"(PipelineError|BadRecords): .*{why}"):
        merging(pipeline, tmp_path / "table", [rows])
    assert committed(pipeline.bootstrap, "out") == {}
    assert open_transactions(pipeline.bootstrap) == [], "they would hold readers back until the next start"


@pytest.mark.parametrize(
    ("sink", "why"),
    [
        ({"merge_on": "use"}, "merge_on of the table .* names 'use'"),
        ({"merge_on": ("user", "user")}, "must name different columns"),
        ({"merge_on": ("user", "amount")}, "must name different columns, and leave at least one other"),
        ({"merge_on": "user", "order_by": "at"}, "order_by of the table .* names 'at'"),
        ({"order_by": "amount"}, "order_by of the table .* is for tables with merge_on"),
    ],
)
def test_columns_that_rows_cannot_be_merged_by(
    spark: SparkSession, tmp_path: Path, sink: dict[str, Any], why: str
) -> None:
    rows = spark.createDataFrame([("a", 1)], "user STRING, amount INT")
    with pytest.raises(OptionError, match=why):
        merge_of(Delta(str(tmp_path), **sink), rows.schema)
