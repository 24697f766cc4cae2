"""Errors that leave the data source begin with their message, as Spark's Python workers report them."""

import io
import pickle
from collections.abc import Iterator

import pytest
from pyspark.errors import PySparkException
from pyspark.serializers import read_int
from pyspark.sql import SparkSession
from pyspark.util import handle_worker_exception
from support.spark.jobs import create, fill

from semel.client import BrokerUnreachable, ClientError
from semel.embedded import Embedded
from semel.spark import DataLoss
from semel.spark.edge import faces_spark


@faces_spark
class Part:
    def read(self, error: Exception) -> Iterator[int]:
        yield 1
        raise error

    def commit(self, error: Exception) -> None:
        try:
            raise KeyError("a detail")
        except KeyError as cause:
            raise error from cause

    def abort(self, error: Exception) -> None:
        self.commit(error)

    def partitions(self) -> list[int]:
        return [1, 2]


def report(error: Exception) -> list[str]:
    """What a worker tells of an error."""
    written = io.BytesIO()
    try:
        raise error
    except (DataLoss, ClientError, ValueError) as raised:
        handle_worker_exception(raised, written)
    written.seek(0)
    assert read_int(written) == -2  # type: ignore[no-untyped-call]  # PySpark has no types here
    return written.read()[4:].decode().splitlines()


@pytest.mark.parametrize("simplified", [True, False])
@pytest.mark.parametrize("method", ["read", "commit", "abort"])
@pytest.mark.parametrize(
    ("error", "line"),
    [
        (DataLoss("records are lost"), "semel.spark.errors.DataLoss: records are lost"),
        (BrokerUnreachable("no broker answers"), "semel.client.errors.BrokerUnreachable: no broker answers"),
    ],
)
def test_the_message_is_first_and_the_trace_follows(
    monkeypatch: pytest.MonkeyPatch, simplified: bool, method: str, error: Exception, line: str
) -> None:
    if simplified:
        monkeypatch.setenv("SPARK_SIMPLIFIED_TRACEBACK", "1")
    fresh = pickle.loads(pickle.dumps(error))
    with pytest.raises(type(error)) as raised:
        list(getattr(Part(), method)(fresh) or ())
    lines = report(raised.value)
    assert (lines[0], lines[-1]) == (line, line)
    assert any("in commit" in each or "in read" in each for each in lines)
    assert raised.value is fresh
    again = pickle.loads(pickle.dumps(raised.value))
    assert (type(again), str(again)) == (type(error), str(error))


def test_what_goes_well_is_left_alone() -> None:
    assert Part().partitions() == [1, 2]


def test_an_error_that_nobody_foresaw_is_raised_as_it_is() -> None:
    with pytest.raises(ValueError, match="what") as raised:
        Part().commit(ValueError("what"))
    assert report(raised.value)[0] == "ValueError: what"


@pytest.mark.spark
def test_a_query_that_fails_says_why_before_anything_else(
    spark: SparkSession, semel_broker: Embedded
) -> None:
    create(semel_broker.bootstrap_servers, ("in", 1))
    fill(semel_broker.bootstrap_servers, "in", range(3))
    table = spark.read.format("semel").option("kafka.bootstrap.servers", semel_broker.bootstrap_servers)
    with pytest.raises(PySparkException) as planned:
        table.option("subscribe", "nowhere").load().count()
    assert "semel.spark.errors.OptionError: there is no topic nowhere" in str(planned.value).splitlines()[0]
    rows = table.option("subscribe", "in").load().selectExpr("value", "CAST(7 AS int) AS partition")
    writer = rows.write.format("semel").option("kafka.bootstrap.servers", semel_broker.bootstrap_servers)
    writer = writer.option("topic", "in").option("pipeline.id", "x").mode("append")
    with pytest.raises(PySparkException) as written:
        writer.save()
    assert "KafkaError: UNKNOWN_TOPIC_OR_PARTITION" in "".join(str(written.value).splitlines()[:2])
