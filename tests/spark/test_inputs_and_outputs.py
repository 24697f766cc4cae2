"""More than one source, a query that ends by itself, and batches: output equals input, record by record."""

import shutil

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from support.faults.proxy import Proxy
from support.faults.spark_points import Killer, await_caught, catch, points
from support.spark.jobs import Numbers, Pipeline, committed, create, fill, open_transactions, values

from semel.client import Admin, Client

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]


class TwoSources:
    """A pipeline with a second source, and the query that has both."""

    def __init__(self, pipeline: Pipeline) -> None:
        self.pipeline = pipeline
        create(pipeline.bootstrap, ("more", 3))

    def query(self) -> DataFrame:
        first = self.pipeline.source()
        self.pipeline.source_options["subscribe"] = "more"
        second = self.pipeline.source()
        self.pipeline.source_options["subscribe"] = "in"
        return first.select("key", "value").union(second.select("key", "value"))

    def fill(self, numbers: range) -> None:
        fill(self.pipeline.bootstrap, "in", numbers[::2])
        fill(self.pipeline.bootstrap, "more", numbers[1::2])


@pytest.mark.parametrize("place", ["before_decision", pytest.param("after_decision", marks=pytest.mark.slow)])
def test_two_sources_have_one_position(pipeline: Pipeline, place: str) -> None:
    sources = TwoSources(pipeline)
    sources.fill(range(60))
    pipeline.run(sources.query())
    sources.fill(range(60, 120))
    pipeline.fault.write_text(place)
    with pytest.raises(PySparkException):
        pipeline.run(sources.query())
    pipeline.run(sources.query())
    fill(pipeline.bootstrap, "more", range(120, 130))
    shutil.rmtree(pipeline.checkpoint)
    pipeline.run(sources.query())
    assert committed(pipeline.bootstrap, "out") == values(range(130))
    with Client(pipeline.bootstrap) as client:
        assert {topic for topic, _ in Admin(client).groups.offsets("copy")} == {"in", "more"}


@pytest.mark.parametrize("protocol", ["extended"])
def test_a_query_ends_with_what_was_there_when_it_began(
    proxied: Pipeline, proxy: Proxy, protocol: str
) -> None:
    numbers = Numbers(proxied)
    was_there = numbers.count
    caught = catch(proxy, points(protocol)["before the decision"])
    query = proxied.start(availableNow=True)
    await_caught(caught)
    numbers.add()
    caught.release()
    query.awaitTermination()
    assert committed(proxied.bootstrap, numbers.output) == values(range(was_there))
    numbers.run()


def test_a_batch_is_copied(spark: SparkSession, pipeline: Pipeline) -> None:
    fill(pipeline.bootstrap, "in", range(1_000))
    options = {"kafka.bootstrap.servers": pipeline.bootstrap}
    rows = spark.read.format("semel").options(**options).option("subscribe", "in").load()
    assert rows.selectExpr("CAST(value AS string)").distinct().count() == 1_000
    writer = rows.select("key", "value").write.format("semel").options(**options, topic="out")
    writer.option("pipeline.id", "batch").mode("append").save()
    assert committed(pipeline.bootstrap, "out") == values(range(1_000))
    assert open_transactions(pipeline.bootstrap, "batch") == []


@pytest.mark.parametrize("protocol", ["portable", "extended"])
def test_a_task_of_a_batch_dies_and_is_tried_again(
    spark: SparkSession, proxied: Pipeline, proxy: Proxy, protocol: str
) -> None:
    """The process of the task is killed while what it wrote is on its way, which arrives in the end."""
    output: str = proxied.sink_options["topic"]
    options = {"kafka.bootstrap.servers": proxy.bootstrap, "topic": output, "pipeline.id": proxied.name}
    rows = spark.range(0, 1_000, numPartitions=3).selectExpr("concat('value ', id) AS value")
    caught = catch(proxy, points(protocol)["while tasks write"])
    killer = Killer(caught)
    killer.start()
    rows.write.format("semel").options(**options).mode("append").save()
    killer.join()
    assert killer.has_killed
    assert committed(proxied.bootstrap, output) == values(range(1_000))
    caught.release()
    assert committed(proxied.bootstrap, output) == values(range(1_000))
