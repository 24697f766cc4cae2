"""Several queries that start at the same moment in a new driver."""

from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter
from support.spark import jobs
from support.spark.jobs import committed, create, fill, values

from semel.embedded import Embedded
from semel.pipeline import Pipeline, Topic
from semel.spark import start
from semel.spark.driver.first_start import FORMAT, NAMES, prepare_first_start
from semel.spark.pipeline.running import Run, RunSettings

pytestmark = pytest.mark.spark


def variables(spark: SparkSession) -> Any:
    """The map that the readers of all queries share, as Spark keeps it in Java."""
    sources = spark._jsparkSession.sessionState().dataSourceManager()
    return sources.lookupDataSource(FORMAT).dataSourceCls().envVars()


def miscount(spark: SparkSession) -> None:
    """Damage the map as two queries do that add to it at once: it counts an entry that it does not have."""
    shared = variables(spark).underlying()
    size = shared.getClass().getDeclaredField("contentSize")
    size.setAccessible(True)
    size.setInt(shared, shared.size() + 1)


def copying(name: str) -> Pipeline:
    return Pipeline(f"copy-{name}", lambda rows: rows.select("key", "value"), Topic("in"), Topic(name))


def start_both(spark: SparkSession, bootstrap: str, checkpoint: Path) -> list[StreamingQuery]:
    return [
        start(spark, copying(name), bootstrap_servers=bootstrap, checkpoint=str(checkpoint), once=True)
        for name in ("one", "two")
    ]


@pytest.fixture
def bootstrap(semel_broker: Embedded) -> str:
    create(semel_broker.bootstrap_servers, ("in", 1), ("one", 1), ("two", 1))
    fill(semel_broker.bootstrap_servers, "in", range(10))
    return semel_broker.bootstrap_servers


def test_a_driver_that_two_queries_have_damaged_is_mended(
    spark: SparkSession, bootstrap: str, tmp_path: Path
) -> None:
    plain = jobs.Pipeline(spark, bootstrap, tmp_path, "plain", ("in", "one"))
    miscount(spark)
    with pytest.raises(PySparkException, match=r"Task not serializable|Task serialization failed"):
        plain.run()
    prepare_first_start(spark)
    plain.run()
    assert committed(bootstrap, "one") == values(range(10))


def test_a_declared_pipeline_starts_in_a_damaged_driver(
    spark: SparkSession, bootstrap: str, tmp_path: Path
) -> None:
    miscount(spark)
    list(Run(spark, copying("one"), RunSettings(bootstrap, str(tmp_path), once=True)).watch(lambda: False))
    assert committed(bootstrap, "one") == values(range(10))
    assert variables(spark).underlying().size() == len(list(variables(spark).keySet()))


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_two_queries_start_at_once_again_and_again(
    spark: SparkSession, bootstrap: str, tmp_path: Path
) -> None:
    for number in range(4):
        for name in NAMES:
            variables(spark).remove(name)
        for query in start_both(spark, bootstrap, tmp_path):
            query.awaitTermination()
        count = 10 * number + 10
        assert committed(bootstrap, "one") == committed(bootstrap, "two") == values(range(count))
        fill(bootstrap, "in", range(count, count + 10))


def test_no_query_adds_to_what_all_of_them_share(
    spark: SparkSession, bootstrap: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two that did it at once would end every later query of the driver."""
    shared = variables(spark)
    for name in NAMES:
        shared.remove(name)
    before: list[set[str]] = []
    original = DataStreamWriter.start

    def start_and_look(self: DataStreamWriter, *args: Any, **options: Any) -> Any:
        before.append(set(shared.keySet()))
        return original(self, *args, **options)

    monkeypatch.setattr(DataStreamWriter, "start", start_and_look)
    for query in start_both(spark, bootstrap, tmp_path):
        query.awaitTermination()
    assert committed(bootstrap, "one") == committed(bootstrap, "two") == values(range(10))
    assert before == [set(shared.keySet())] * 2
    assert set(NAMES) <= before[0]


def test_a_session_without_such_a_map_is_left_alone() -> None:
    prepare_first_start(object())  # type: ignore[arg-type]
