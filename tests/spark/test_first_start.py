"""Several queries that start at the same moment in a new driver."""

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter
from support.spark.jobs import committed, create, fill, values

from semel.embedded import Embedded
from semel.pipeline import Pipeline, Topic
from semel.spark import start
from semel.spark.first_start import FORMAT, NAMES, prepare_first_start

pytestmark = pytest.mark.spark


def variables(spark: SparkSession) -> Any:
    """The map that the readers of all queries share, as Spark keeps it in Java."""
    sources = spark._jsparkSession.sessionState().dataSourceManager()
    return sources.lookupDataSource(FORMAT).dataSourceCls().envVars()


def test_no_query_adds_to_what_all_of_them_share(
    spark: SparkSession, semel_broker: Embedded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two that did it at once would end every later query of the driver."""
    shared, bootstrap = variables(spark), semel_broker.bootstrap_servers
    for name in NAMES:
        shared.remove(name)
    before: list[set[str]] = []
    original = DataStreamWriter.start

    def start_and_look(self: DataStreamWriter, *args: Any, **options: Any) -> Any:
        before.append(set(shared.keySet()))
        return original(self, *args, **options)

    monkeypatch.setattr(DataStreamWriter, "start", start_and_look)
    create(bootstrap, ("in", 1), ("one", 1), ("two", 1))
    fill(bootstrap, "in", range(10))
    both = Pipeline(
        "copy",
        lambda rows: dict.fromkeys(("one", "two"), rows.select("key", "value")),
        Topic("in"),
        {"one": Topic("one"), "two": Topic("two")},
    )
    for query in start(
        spark, both, bootstrap_servers=bootstrap, checkpoint=str(tmp_path), once=True
    ).values():
        query.awaitTermination()
    assert committed(bootstrap, "one") == committed(bootstrap, "two") == values(range(10))
    assert before == [set(shared.keySet())] * 2
    assert set(NAMES) <= before[0]


def test_a_session_without_such_a_map_is_left_alone() -> None:
    prepare_first_start(object())  # type: ignore[arg-type]
