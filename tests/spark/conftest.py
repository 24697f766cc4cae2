"""One Spark for all tests of a process, and a broker for each."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from support.spark_faults import FaultySource
from support.sparking import Pipeline, create

from semel.embedded import Embedded

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """Spark with two cores, in which a task may fail and be tried again."""
    # The processes that Spark starts run this Python, with what these tests have on their path.
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT / "src"), str(ROOT / "tests")])
    session = (
        SparkSession.builder.master("local[2,4]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "OFF")
        # Tests are short: what is compiled well, or by several threads, is compiled for nothing.
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
        .config("spark.sql.codegen.wholeStage", "false")
        .config("spark.python.unix.domain.socket.enabled", "true")
        .getOrCreate()
    )
    session.dataSource.register(FaultySource)
    yield session
    session.stop()


@pytest.fixture
def pipeline(spark: SparkSession, semel_broker: Embedded, tmp_path: Path) -> Pipeline:
    """A pipeline from `in`, which has two partitions, to `out`, which has three."""
    create(semel_broker.bootstrap_servers, ("in", 2), ("out", 3))
    return Pipeline(spark, semel_broker.bootstrap_servers, tmp_path)
