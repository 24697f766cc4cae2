"""Every example of the lake runs, and docs/lake.md, word for word."""

import re
import runpy
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from support.pages import blocks

from semel.embedded import Embedded
from semel.spark.delta import data_source
from semel.spark.relations import RELATIONS

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/lake.md"
EXPECTED = {
    "lake_delta.py": "100 items are in the table, 100 of them different",
    "lake_parquet.py": "100 items are in the files, 100 of them different",
    "lake_iceberg.py": "100 items are in the table, 100 of them different",
}


def test_every_example_is_known_here() -> None:
    assert set(EXPECTED) == {path.name for path in (ROOT / "examples").glob("lake_*.py")}


@pytest.mark.spark
@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_example(
    spark: SparkSession,
    semel_broker: Embedded,
    tmp_path: Path,
    name: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    runpy.run_path(str(ROOT / "examples" / name))["main"](spark, semel_broker.bootstrap_servers, tmp_path)
    assert EXPECTED[name] in capsys.readouterr().out


@pytest.mark.spark
@pytest.mark.parametrize("example", blocks(PAGE, "python"))
def test_page(spark: SparkSession, example: str) -> None:
    exec(compile(example, str(PAGE), "exec"), {})


def test_the_page_has_every_option() -> None:
    rows = re.findall(r"^\| (`.+?`) \|", PAGE.read_text(), re.MULTILINE)
    found = {name for names in rows for name in re.findall(r"`([\w.]+)`", names)}
    only_streams = {*RELATIONS, "checkpointLocation", "queryName", "kafka.bootstrap.servers"}
    assert found == {*data_source.BATCH_SINK, *only_streams}
    assert only_streams <= set(data_source.STREAM_SINK)
