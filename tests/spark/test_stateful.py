"""State across kills: what Spark keeps and what the sink has written never tell different stories.

A batch that was decided is not written again, but it is done again, for its state. The driver that is killed
is a process of its own; its successor, in the Spark that all tests share, finds the state on disk.
"""

from collections import Counter
from collections.abc import Iterator, Sequence

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from support.faults.proxy import Proxy
from support.faults.spark_points import await_caught, catch, points
from support.spark.driver import DriverProcess
from support.spark.jobs import Pipeline, committed, open_transactions
from support.spark.state import ROCKS_DB, counted_in_windows, numbered, numbered_in_pandas

from semel.client import Admin, Client, Producer

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]

KEYS = ("a", "b", "c")


@pytest.fixture
def rocks_db(spark: SparkSession) -> Iterator[None]:
    for name, value in ROCKS_DB.items():
        spark.conf.set(name, value)
    yield
    for name in ROCKS_DB:
        spark.conf.unset(name)


def write(pipeline: Pipeline, keys: Sequence[str], times: Sequence[int] | None = None) -> None:
    """A record for each key, at these times if they are given; both partitions get as many, in order."""
    topic: str = pipeline.source_options["subscribe"]
    with Client(pipeline.bootstrap) as client, Producer(client) as producer:
        # Nothing is too old to be kept.
        Admin(client).configs.alter_topic(topic, values={"retention.ms": "-1"})
        for number, key in enumerate(keys):
            time = None if times is None else times[number]
            producer.send(topic, b"", key=key.encode(), timestamp_ms=time, partition=number % 2)


def run_with_a_kill(pipeline: Pipeline, proxy: Proxy, protocol: str, settings: dict[str, str]) -> None:
    """A driver is killed when its batch is decided, before Spark knows of it. Another one goes on."""
    caught = catch(proxy, points(protocol)["after the ends"])
    with DriverProcess(pipeline, settings=settings) as driver:
        await_caught(caught, driver.check)
        driver.kill()
    pipeline.succeed()


def check_numbered(pipeline: Pipeline, rows_each: int) -> None:
    expected = Counter(f"{key} {number}".encode() for key in KEYS for number in range(1, rows_each + 1))
    assert committed(pipeline.bootstrap, pipeline.sink_options["topic"]) == expected
    assert open_transactions(pipeline.bootstrap, pipeline.name) == []


@pytest.mark.long
@pytest.mark.parametrize("protocol", ["extended"])
def test_rows_are_numbered(proxied: Pipeline, proxy: Proxy, protocol: str, rocks_db: None) -> None:
    proxied.change = numbered
    write(proxied, KEYS * 20)
    proxied.run()
    write(proxied, KEYS * 20)
    run_with_a_kill(proxied, proxy, protocol, ROCKS_DB)
    write(proxied, KEYS * 20)
    proxied.run()
    check_numbered(proxied, 60)


@pytest.mark.parametrize("place", ["before_decision", pytest.param("after_decision", marks=pytest.mark.slow)])
def test_rows_are_numbered_in_pandas(pipeline: Pipeline, place: str, rocks_db: None) -> None:
    pipeline.change = numbered_in_pandas
    write(pipeline, KEYS * 20)
    pipeline.run()
    write(pipeline, KEYS * 20)
    pipeline.fault.write_text(place)
    with pytest.raises(PySparkException):
        pipeline.run()
    pipeline.run()
    check_numbered(pipeline, 40)


@pytest.mark.long
@pytest.mark.parametrize("protocol", ["portable"])
def test_windows_are_counted(proxied: Pipeline, proxy: Proxy, protocol: str) -> None:
    """Ten records in every second, and at last one that is far behind all of them."""
    proxied.change = counted_in_windows
    proxied.source_options["maxOffsetsPerTrigger"] = 50
    write(proxied, "x" * 100, range(0, 10_000, 100))
    proxied.run()
    write(proxied, "x" * 100, range(10_000, 20_000, 100))
    run_with_a_kill(proxied, proxy, protocol, {})
    write(proxied, "xx", [1_000_000] * 2)
    proxied.run()
    expected = Counter(f"{second} 10".encode() for second in range(20))
    assert committed(proxied.bootstrap, proxied.sink_options["topic"]) == expected
    assert open_transactions(proxied.bootstrap, proxied.name) == []
