"""One Spark for all tests of a process."""

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession
from support.spark.jobs import start_spark


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    session = start_spark()
    yield session
    session.stop()
