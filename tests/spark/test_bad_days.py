"""Bad days: each stops the query with an error that says what to do, and nothing is lost or doubled.

What options and columns are refused is in `test_options`, `test_source` and `test_sink`; checkpoints of
others are in `test_recovery`, and a second copy of a pipeline is in `test_zombies`.
"""

from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from support.brokers.process import free_port
from support.faults.proxy import Proxy
from support.faults.spark_points import await_caught, catch, points
from support.spark.driver import DriverProcess
from support.spark.jobs import Numbers, Pipeline, committed, create, fill, open_transactions, values
from support.waiting import until

from semel.client import Admin, Client, Consumer, Producer

pytestmark = [pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(400)]


def test_a_null_value_is_a_deletion_in_a_compacted_topic(pipeline: Pipeline) -> None:
    create(pipeline.bootstrap, ("table", 1), **{"cleanup.policy": "compact"})
    pipeline.sink_options["topic"] = "table"
    fill(pipeline.bootstrap, "in", range(3))
    pipeline.run(pipeline.source().selectExpr("key", "CAST(NULL AS binary) AS value"))
    with Client(pipeline.bootstrap) as client, Consumer(client, "table") as consumer:
        found = sorted((record.key, record.value) for record in consumer.read_to_end())
    assert found == [(b"key %d" % number, None) for number in range(3)]


@pytest.mark.semel_settings({"auto.create.topics.enable": False})
def test_a_topic_that_does_not_exist(pipeline: Pipeline) -> None:
    fill(pipeline.bootstrap, "in", range(30))
    pipeline.sink_options["topic"] = "outt"
    with pytest.raises(PySparkException, match=r"there is no topic 'outt'\. Check the name"):
        pipeline.run()
    create(pipeline.bootstrap, ("outt", 1))
    pipeline.run()
    assert committed(pipeline.bootstrap, "outt") == values(range(30))


def test_a_record_that_is_too_large(pipeline: Pipeline) -> None:
    create(pipeline.bootstrap, ("small", 1), **{"max.message.bytes": "1000"})
    pipeline.sink_options["topic"] = "small"
    with Client(pipeline.bootstrap) as client, Producer(client) as producer:
        producer.send("in", bytes(5_000), key=b"large")
    with pytest.raises(PySparkException, match=r"(?s)small.*max\.message\.bytes"):
        pipeline.run()
    assert committed(pipeline.bootstrap, "small") == {}
    with Client(pipeline.bootstrap) as client:
        Admin(client).configs.alter_topic("small", values={"max.message.bytes": "10000"})
    pipeline.run()
    assert committed(pipeline.bootstrap, "small") == {bytes(5_000): 1}


def test_a_broker_that_cannot_be_reached(pipeline: Pipeline, spark: SparkSession, tmp_path: Path) -> None:
    nobody = f"127.0.0.1:{free_port()}"
    away = Pipeline(spark, nobody, tmp_path / "away")
    for options in (away.source_options, away.sink_options):
        options["kafka.request.timeout.ms"] = 1_000
    with pytest.raises(PySparkException, match=rf"(?s){nobody}.*Is a broker running there"):
        away.run()
    reader = spark.read.format("semel").option("kafka.bootstrap.servers", nobody).option("subscribe", "in")
    with pytest.raises(PySparkException, match=rf"(?s){nobody}.*Is a broker running there"):
        reader.load().count()
    fill(pipeline.bootstrap, "in", range(10))
    for options in (away.source_options, away.sink_options):
        del options["kafka.request.timeout.ms"]
    away.bootstrap = pipeline.bootstrap
    away.run()
    assert committed(pipeline.bootstrap, "out") == values(range(10))


@pytest.mark.parametrize(
    ("offset", "message"),
    [
        (7, "records of one/0 are lost: the log begins at 10 by now, and 7 was still to be read"),
        (1_000, "startingOffsets begins at 1000 of one/0, which ends at 20"),
    ],
)
def test_offsets_out_of_range(pipeline: Pipeline, offset: int, message: str) -> None:
    """Before what is left of the log, or behind its end."""
    create(pipeline.bootstrap, ("one", 1))
    fill(pipeline.bootstrap, "one", range(20))
    with Client(pipeline.bootstrap) as client:
        Admin(client).topics.delete_records({("one", 0): 10})
    pipeline.source_options |= {"subscribe": "one", "startingOffsets": f'{{"one":{{"0":{offset}}}}}'}
    with pytest.raises(PySparkException, match=message):
        pipeline.run()
    assert committed(pipeline.bootstrap, "out") == {}
    pipeline.source_options["startingOffsets"] = "earliest"
    other = pipeline.copy(pipeline.checkpoint.parent / "other")
    other.run()
    assert committed(pipeline.bootstrap, "out") == values(range(10, 20))


@pytest.mark.parametrize("protocol", ["portable"])
def test_a_decided_transaction_expires(proxied: Pipeline, proxy: Proxy, protocol: str) -> None:
    """The driver dies between the decision and the ends, and stays away for too long."""
    proxied.sink_options["transaction.timeout.ms"] = 15_000
    numbers = Numbers(proxied)
    caught = catch(proxy, points(protocol)["before the ends"])
    with DriverProcess(proxied) as driver:
        await_caught(caught, driver.check)
        driver.kill()
    until(lambda: not open_transactions(proxied.bootstrap, proxied.name), 60, "the timeout")
    for _ in range(2):
        with pytest.raises(PySparkException, match=r"(?s) is decided, but the broker"):
            proxied.run()
    caught.let_go()
    there = committed(proxied.bootstrap, numbers.output)
    assert there == values(range(400)), "nothing is done behind what is missing"
