"""Records whose timestamp is so old for the broker that its retention would delete them at once."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from support.spark.jobs import Pipeline, committed, create, fill, values

import semel
from semel.client import Client, TransactionalProducer
from semel.embedded import Embedded
from semel.spark import PipelineError
from semel.spark.sink.writing import BrokerClock, RowWriter
from verification.world.broker import HOUR_MS, MovedClock

ROWS = pa.record_batch({"key": pa.array([b"a", b"b"]), "value": pa.array([b"a", b"b"])})


@contextmanager
def broker_ahead(hours: float) -> Iterator[Embedded]:
    with (
        patch("semel.broker.broker.Clock", lambda: MovedClock(int(hours * HOUR_MS))),
        semel.embedded() as broker,
    ):
        yield broker


def write(broker: Embedded, **configs: str) -> None:
    """Write rows to a topic with these configs, and commit them."""
    create(broker.bootstrap_servers, ("out", 1), **configs)
    with Client(broker.bootstrap_servers) as client, TransactionalProducer(client, "t") as producer:
        producer.begin()
        rows = RowWriter(client, producer, "out", BrokerClock(client, producer))
        rows.write(ROWS)
        rows.finish()
        producer.commit()


@pytest.mark.parametrize("hours", [2, 0.6], ids=["deleted at once", "deleted too soon"])
def test_a_broker_that_is_ahead_would_delete_the_output(hours: float) -> None:
    words = rf"retention\.ms={HOUR_MS}\).* is ahead of this one by \d{{4}} s"
    with broker_ahead(hours) as broker, pytest.raises(PipelineError, match=words):
        write(broker, **{"retention.ms": str(HOUR_MS)})


@pytest.mark.parametrize(
    ("hours", "configs"),
    [
        (0, {"retention.ms": "1"}),
        (1, {"retention.ms": str(3 * HOUR_MS)}),
        (2, {"retention.ms": "-1"}),
        (2, {"retention.ms": str(HOUR_MS), "message.timestamp.type": "LogAppendTime"}),
        (2, {"retention.ms": str(HOUR_MS), "cleanup.policy": "compact"}),
        (-2, {"retention.ms": str(HOUR_MS), "message.timestamp.after.max.ms": str(3 * HOUR_MS)}),
    ],
    ids=["same time", "kept long", "kept for ever", "time of the broker", "compacted", "broker is behind"],
)
def test_output_that_is_kept_is_written(hours: float, configs: dict[str, str]) -> None:
    with broker_ahead(hours) as broker:
        write(broker, **configs)


@pytest.mark.spark
def test_a_query_is_refused_before_it_decides(spark: SparkSession, tmp_path: Path) -> None:
    with broker_ahead(2) as broker:
        create(broker.bootstrap_servers, ("in", 1), **{"retention.ms": "-1"})
        create(broker.bootstrap_servers, ("out", 1), **{"retention.ms": str(HOUR_MS)})
        fill(broker.bootstrap_servers, "in", range(10))
        pipeline = Pipeline(spark, broker.bootstrap_servers, tmp_path)
        with pytest.raises(PySparkException, match=r"topic out .*3600 s"):
            pipeline.run()
        assert committed(broker.bootstrap_servers, "out") == values([])
