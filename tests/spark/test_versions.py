"""Batch writes with `txnAppId` and `txnVersion`: a version counts once, however often it is written."""

import uuid
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from support.faults.proxy import Proxy
from support.faults.spark_faults import DEAD
from support.faults.spark_points import PORTABLE, Killer, catch
from support.spark.jobs import Pipeline, committed, create, fill, open_transactions, values
from support.spark.lake import content

from semel.client import Admin, Client
from semel.embedded import Embedded
from semel.spark.pipeline.status import Kind, status

pytestmark = pytest.mark.spark


def numbers(spark: SparkSession, begin: int, end: int) -> DataFrame:
    return spark.range(begin, end, numPartitions=2).selectExpr("concat('value ', id) AS value")


def write(frame: DataFrame, servers: str, version: int | None, source: str = "semel", **options: str) -> None:
    given = {"kafka.bootstrap.servers": servers, "topic": "out", "txnAppId": "app", **options}
    if version is not None:
        given["txnVersion"] = str(version)
    named = {name.replace("_", "."): value for name, value in given.items() if value}
    frame.write.format(source).options(**named).mode("append").save()


@pytest.fixture
def servers(semel_broker: Embedded) -> str:
    create(semel_broker.bootstrap_servers, ("out", 3), ("other", 2), ("in", 2))
    return semel_broker.bootstrap_servers


def each_batch(pipeline: Pipeline, write_batch: Callable[[DataFrame, int], None]) -> None:
    """Run a query with foreachBatch over what is in the input."""
    source = pipeline.source().select("value")
    writer = source.writeStream.foreachBatch(write_batch).trigger(availableNow=True)
    writer.option("checkpointLocation", str(pipeline.checkpoint)).start().awaitTermination()


def test_a_function_that_raises_after_its_write_is_run_again_and_rows_count_once(proxied: Pipeline) -> None:
    topic, output = proxied.source_options["subscribe"], proxied.sink_options["topic"]
    proxied.source_options |= {"startingOffsets": "earliest", "maxOffsetsPerTrigger": 600}
    fill(proxied.bootstrap, topic, range(1_000))
    versions: list[int] = []

    def once(frame: DataFrame, batch_id: int) -> None:
        checkpoint = str(proxied.checkpoint)
        write(
            frame,
            proxied.bootstrap,
            batch_id,
            topic=output,
            txnAppId=proxied.name,
            checkpointLocation=checkpoint,
        )
        versions.append(batch_id)
        if versions in ([0], [0, 0, 1]):
            raise RuntimeError("a fault after the write")

    for _ in range(2):
        with pytest.raises(PySparkException, match="a fault after the write"):
            each_batch(proxied, once)
    each_batch(proxied, once)
    assert versions == [0, 0, 1, 1]
    assert committed(proxied.bootstrap, output) == values(range(1_000))
    assert open_transactions(proxied.bootstrap, proxied.name) == []


def test_a_write_that_is_decided_and_not_ended_is_ended_by_its_repetition(
    spark: SparkSession, any_broker: str, tmp_path: Path
) -> None:
    """Who commits is killed when the decision is made, and whom Spark asks to abort then dies, too."""
    mark, fault = uuid.uuid4().hex[:8], tmp_path / "fault"
    output, options = f"out-{mark}", {"topic": f"out-{mark}", "txnAppId": mark}
    create(any_broker, (output, 2))
    with Proxy(any_broker, hides_extensions=True) as proxy:
        # The first end is that of the beginning.
        killer = Killer(catch(proxy, replace(PORTABLE["when it is decided"], earlier=1)))
        killer.start()
        fault.write_text(DEAD)
        with pytest.raises(Py4JJavaError):
            write(
                numbers(spark, 0, 50),
                proxy.bootstrap,
                7,
                source="semel-faulty",
                fault_file=str(fault),
                **options,
            )
        killer.join()
    assert killer.has_killed
    assert not fault.exists(), "the abort has died"
    assert len(open_transactions(any_broker, mark)) == 2
    assert committed(any_broker, output) == {}
    with Proxy(any_broker, hides_extensions=True) as proxy:
        write(numbers(spark, 0, 50), proxy.bootstrap, 7, **options)
    assert committed(any_broker, output) == values(range(50))
    assert open_transactions(any_broker, mark) == []


def test_versions_that_do_not_grow_are_skipped_and_applications_do_not_share_them(
    spark: SparkSession, servers: str
) -> None:
    write(numbers(spark, 0, 10), servers, 5)
    write(numbers(spark, 10, 20), servers, 5)
    write(numbers(spark, 20, 30), servers, 4)
    write(numbers(spark, 30, 40), servers, 6)
    write(numbers(spark, 40, 50), servers, 0, txnAppId="another")
    assert committed(servers, "out") == values([*range(10), *range(30, 50)])
    with Client(servers) as client:
        found = status(client, "app")
    assert found.kind is Kind.WRITE
    assert found.decision is not None
    assert found.decision.batch_id == 6


def test_a_version_without_rows_counts_too(spark: SparkSession, servers: str) -> None:
    write(numbers(spark, 0, 0), servers, 3)
    write(numbers(spark, 0, 10), servers, 3)
    assert committed(servers, "out") == {}
    write(numbers(spark, 0, 10), servers, 4)
    assert committed(servers, "out") == values(range(10))


def test_a_version_without_rows_and_without_a_place_changes_nothing(
    spark: SparkSession, servers: str
) -> None:
    rows = numbers(spark, 0, 10).selectExpr("value", "'out' AS topic")
    write(rows.limit(0), servers, 3, topic="")
    write(rows, servers, 3, topic="")
    write(rows, servers, 3, topic="")
    assert committed(servers, "out") == values(range(10))


@pytest.mark.parametrize(
    ("protocol", "topic"),
    [
        pytest.param("portable", "out", id="portable-option"),
        pytest.param("extended", "", id="extended-column"),
        pytest.param("portable", "", id="portable-column", marks=pytest.mark.slow),
        pytest.param("extended", "out", id="extended-option", marks=pytest.mark.slow),
    ],
)
def test_versions_that_the_broker_has_forgotten_are_not_written_again(
    spark: SparkSession, servers: str, topic: str, protocol: str
) -> None:
    rows = numbers(spark, 0, 10).selectExpr("value", "'out' AS topic")
    with Proxy(servers, hides_extensions=protocol == "portable") as proxy:
        for _ in range(3):  # that nothing was written yet is no reason to refuse
            write(rows.limit(0), proxy.bootstrap, 0, topic=topic)
        for version in (1, 1, 2):
            write(rows, proxy.bootstrap, version, topic=topic)
        with Client(servers) as client:
            Admin(client).groups.delete("app")
        for version in (2, 3):
            with pytest.raises(PySparkException, match=r"PipelineMismatch: .*'app' .* txnAppId"):
                write(rows, proxy.bootstrap, version, topic=topic)
    assert committed(servers, "out") == values([*range(10), *range(10)])


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        ({"txnAppId": "", "pipeline_id": "app"}, {"txnVersion": "1"}, "without txnVersion"),
        ({"txnVersion": "1"}, {"txnAppId": "", "pipeline_id": "app"}, "of txnAppId 'app'"),
        (
            {"pipeline_id": "p", "txnVersion": "1"},
            {"pipeline_id": "p", "txnAppId": "another", "txnVersion": "2"},
            "'p' .* txnAppId 'app'",
        ),
        ({"txnVersion": "1"}, {"txnVersion": "1", "topic": "other"}, "topic 'out'.* topic 'other'"),
    ],
)
def test_a_name_has_one_owner(
    spark: SparkSession, servers: str, first: dict[str, str], second: dict[str, str], message: str
) -> None:
    write(numbers(spark, 0, 10), servers, None, **first)
    with pytest.raises(PySparkException, match=message):
        write(numbers(spark, 10, 20), servers, None, **second)
    assert committed(servers, "out") == values(range(10))


def test_a_streaming_query_keeps_its_name_and_goes_on(pipeline: Pipeline) -> None:
    fill(pipeline.bootstrap, "in", range(10))
    pipeline.run()
    assert pipeline.spark is not None
    rows = numbers(pipeline.spark, 90, 95)
    for version, options in ((None, {"txnAppId": "", "pipeline_id": "copy"}), (0, {"txnAppId": "copy"})):
        with pytest.raises(PySparkException, match=r"PipelineMismatch: .*'copy' "):
            write(rows, pipeline.bootstrap, version, **options)
    write(rows, pipeline.bootstrap, 0, txnAppId="mine")
    taken = pipeline.copy(pipeline.checkpoint.parent / "taken")
    taken.source_options["pipeline.id"] = taken.sink_options["pipeline.id"] = "mine"
    with pytest.raises(PySparkException, match=r"PipelineMismatch: .*'mine' "):
        taken.run()
    fill(pipeline.bootstrap, "in", range(10, 20))
    pipeline.run()
    assert committed(pipeline.bootstrap, "out") == values([*range(20), *range(90, 95)])


def test_a_second_write_of_the_same_names_in_one_function_is_refused(
    spark: SparkSession, servers: str, tmp_path: Path
) -> None:
    pipeline = Pipeline(spark, servers, tmp_path)
    pipeline.source_options = {"subscribe": "in", "startingOffsets": "earliest"}
    fill(servers, "in", range(10))
    table, of_query = str(tmp_path / "table"), {"checkpointLocation": str(pipeline.checkpoint)}

    def twice(frame: DataFrame, batch_id: int) -> None:
        write(frame, servers, batch_id, **of_query)
        write(frame.selectExpr("concat(value, ' again') AS value"), servers, batch_id, **of_query)

    def twice_in_table(frame: DataFrame, batch_id: int) -> None:
        write_table(frame, table, batch_id, **of_query)
        write_table(frame, table, batch_id, **of_query)

    for function in (twice, twice_in_table):
        for _ in range(2):  # the second run skips the first write, which the first run has made
            with pytest.raises(PySparkException, match=r"PipelineMismatch: .* second write"):
                each_batch(pipeline, function)

    def twice_and_once_without_rows(frame: DataFrame, batch_id: int) -> None:
        write(frame.limit(0), servers, batch_id, txnAppId="empty", **of_query)
        write(frame, servers, batch_id, txnAppId="empty", **of_query)

    with pytest.raises(PySparkException, match=r"PipelineMismatch: .* second write"):
        each_batch(pipeline, twice_and_once_without_rows)

    def once_each(frame: DataFrame, batch_id: int) -> None:
        write(frame, servers, batch_id, **of_query)
        write(frame, servers, batch_id, txnAppId="another", topic="other", **of_query)
        write_table(frame, table, batch_id, **of_query)

    each_batch(pipeline, once_each)
    assert committed(servers, "out") == committed(servers, "other") == values(range(10))
    assert len(content(table)["value"]) == 10


# ---- tables


def write_table(frame: DataFrame, path: str, version: int | None, **options: Any) -> None:
    given = {"path": path, "txnAppId": "app", **options}
    if version is not None:
        given["txnVersion"] = version
    named = {name.replace("_", "."): value for name, value in given.items() if value != ""}
    frame.write.format("semel-delta").options(**named).mode("append").save()


def test_a_table_has_a_version_once_under_deltas_own_identifier(spark: SparkSession, tmp_path: Path) -> None:
    table = str(tmp_path / "table")
    for version in (3, 3, 2):
        write_table(numbers(spark, 0, 10), table, version)
    write_table(numbers(spark, 0, 10), table, 0, txnAppId="another", pipeline_id="p")
    write_table(numbers(spark, 0, 10), table, None, txnAppId="", pipeline_id="p")
    assert len(content(table)["value"]) == 30
    write_table(numbers(spark, 0, 0), table, 4)
    write_table(numbers(spark, 0, 10), table, 4)
    assert len(content(table)["value"]) == 30
    found = DeltaTable(table)
    assert (found.transaction_version("app"), found.transaction_version("another")) == (4, 0)


def test_a_table_tells_versions_from_the_commits_of_a_stream(
    spark: SparkSession, servers: str, tmp_path: Path
) -> None:
    fill(servers, "in", range(10))
    table = str(tmp_path / "table")

    def run(name: str) -> None:
        cluster = {"kafka.bootstrap.servers": servers, "pipeline.id": name}
        rows = spark.readStream.format("semel").options(**cluster).option("subscribe", "in").load()
        writer = rows.selectExpr("CAST(value AS string) AS value").writeStream.format("semel-delta")
        writer = writer.options(**cluster, path=table, checkpointLocation=str(tmp_path / name))
        writer.trigger(availableNow=True).start().awaitTermination()

    run("stream")
    with pytest.raises(PySparkException, match=r"'stream' as the pipeline\.id"):
        write_table(numbers(spark, 0, 10), table, 1, txnAppId="stream")
    write_table(numbers(spark, 0, 10), table, 1)
    with pytest.raises(PySparkException, match="'app' as the txnAppId"):
        run("app")
    assert len(content(table)["value"]) == 20
