"""Scenarios with several sinks on Apache Kafka: every record is in all sinks of a pipeline, or in none.

`verification.world.declared_program` makes them up. ``SEMEL_SCENARIOS`` sets their number; the default is 5.
"""

import os
from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession
from support.spark.jobs import start_spark

from verification.world.broker import Kafka
from verification.world.runs import SETTINGS, declared

SEEDS = range(int(os.environ.get("SEMEL_SCENARIOS", "5")))


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    session = start_spark(settings=SETTINGS)
    yield session
    session.stop()


@pytest.mark.parametrize("seed", SEEDS)
def test_a_scenario_on_apache_kafka(spark: SparkSession, kafka_jars: str, seed: int) -> None:
    played = declared(spark, seed, Kafka)
    assert not played.failure, f"{played.steps}\n{played.failure}"
