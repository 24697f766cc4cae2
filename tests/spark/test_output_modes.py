"""Output modes and save modes, as docs/spark.md has them: what works, what is refused, and by whom."""

from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter
from support.spark.jobs import Pipeline, committed, create, fill

from semel.embedded import Embedded
from semel.spark import OptionError
from semel.spark.driver import spark_session

pytestmark = pytest.mark.spark


@pytest.fixture
def counted(spark: SparkSession, semel_broker: Embedded, tmp_path: Path) -> tuple[Pipeline, DataFrame]:
    """A pipeline, and the number of records of its input as a row that changes."""
    create(semel_broker.bootstrap_servers, ("in", 2), ("out", 1))
    fill(semel_broker.bootstrap_servers, "in", range(10))
    pipeline = Pipeline(spark, semel_broker.bootstrap_servers, tmp_path)
    return pipeline, pipeline.source().groupBy().count().selectExpr("CAST(count AS string) AS value")


def run(pipeline: Pipeline, frame: DataFrame, mode: str, **options: str) -> None:
    writer = frame.writeStream.outputMode(mode).format("semel-delta" if "path" in options else "semel")
    given = {"pipeline.id": "copy", "checkpointLocation": str(pipeline.checkpoint), **options}
    writer = writer.option("kafka.bootstrap.servers", pipeline.bootstrap).options(**given)
    writer.trigger(availableNow=True).start().awaitTermination()


def test_complete_writes_the_whole_result_with_every_batch(counted: tuple[Pipeline, DataFrame]) -> None:
    pipeline, frame = counted
    run(pipeline, frame, "complete", topic="out")
    fill(pipeline.bootstrap, "in", range(10, 15))
    run(pipeline, frame, "complete", topic="out")
    assert committed(pipeline.bootstrap, "out") == {b"10": 1, b"15": 1}


def test_tables_refuse_complete_and_spark_refuses_update(
    counted: tuple[Pipeline, DataFrame], tmp_path: Path
) -> None:
    pipeline, frame = counted
    with pytest.raises(PySparkException, match="rows are only ever added to the table"):
        run(pipeline, frame, "complete", path=str(tmp_path / "table"))
    with pytest.raises(PySparkException, match="semel does not support Update mode"):
        run(pipeline, frame, "update", topic="out")


def test_a_session_of_ours_says_what_works_instead_of_update(
    counted: tuple[Pipeline, DataFrame], monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline, frame = counted
    for name in ("start", "format", "outputMode"):
        monkeypatch.setattr(DataStreamWriter, name, getattr(DataStreamWriter, name))  # put back afterwards
    spark_session.prepare_starts()
    with pytest.raises(OptionError, match=r"output_mode='update'.*semel\.spark\.batch"):
        run(pipeline, frame, "update", topic="out")
    with pytest.raises(OptionError, match="format 'semel-delta'"):
        frame.writeStream.start(format="semel-delta", outputMode="Update")
    run(pipeline, frame, "complete", topic="out")
    assert committed(pipeline.bootstrap, "out") == {b"10": 1}


def test_writes_append_and_nothing_else(spark: SparkSession, tmp_path: Path) -> None:
    rows = spark.range(3).selectExpr("CAST(id AS string) AS value")
    topic = rows.write.format("semel").options(**{"kafka.bootstrap.servers": "x:1", "pipeline.id": "p"})
    table = rows.write.format("semel-delta").option("pipeline.id", "p")
    with pytest.raises(PySparkException, match="a topic cannot be overwritten"):
        topic.option("topic", "out").mode("overwrite").save()
    with pytest.raises(PySparkException, match="rows are only ever added to the table"):
        table.mode("overwrite").save(str(tmp_path / "table"))
    for mode in ("ignore", "errorifexists"):
        with pytest.raises(PySparkException, match="cannot be written in the"):
            topic.mode(mode).save()
