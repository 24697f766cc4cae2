"""The source: what a query reads."""

import json
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from support.sparking import Pipeline, committed, create, fill, values

from semel.client import Admin, Client, Producer, TransactionalProducer
from semel.embedded import Embedded

pytestmark = pytest.mark.spark


@pytest.fixture
def servers(semel_broker: Embedded) -> str:
    create(semel_broker.bootstrap_servers, ("in", 2))
    return semel_broker.bootstrap_servers


def read(spark: SparkSession, servers: str, **options: Any) -> DataFrame:
    return spark.read.format("semel").options(**{"kafka.bootstrap.servers": servers, **options}).load()


def read_values(frame: DataFrame) -> list[bytes]:
    return [bytes(row.value) for row in frame.select("value").collect()]


def test_a_batch_has_the_columns_of_sparks_kafka_source(spark: SparkSession, servers: str) -> None:
    with Client(servers) as client, Producer(client) as producer:
        producer.send(
            "in", b"apples", key=b"k", headers=[("h", b"1"), ("h", None)], partition=1, timestamp_ms=1234
        )
        producer.send("in", None, partition=1, timestamp_ms=5678)
    frame = read(spark, servers, subscribe="in", includeHeaders="true")
    assert frame.schema.simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,timestamp:timestamp,"
        "timestampType:int,headers:array<struct<key:string,value:binary>>>"
    )
    first, second = frame.orderBy("offset").selectExpr("*", "unix_millis(timestamp) AS ms").collect()
    assert (bytes(first.key), bytes(first.value), first.topic, first.partition, first.offset) == (
        b"k",
        b"apples",
        "in",
        1,
        0,
    )
    assert (first.ms, first.timestampType) == (1234, 0)
    assert [(header.key, header.value) for header in first.headers] == [("h", b"1"), ("h", None)]
    assert (second.key, second.value, second.headers, second.ms) == (None, None, None, 5678)


def test_some_columns_are_enough(spark: SparkSession, servers: str) -> None:
    fill(servers, "in", range(3))
    reader = spark.read.format("semel").schema("value binary, partition int")
    frame = reader.options(**{"kafka.bootstrap.servers": servers, "subscribe": "in"}).load()
    assert sorted(read_values(frame)) == sorted(values(range(3)))


def test_only_what_was_committed_is_read_and_no_gap_is_a_loss(spark: SparkSession, servers: str) -> None:
    with Client(servers) as client, TransactionalProducer(client, "writer") as producer:
        for number in range(6):
            producer.begin()
            for partition in range(2):
                producer.send("in", b"value %d" % number, partition=partition)
            producer.flush()
            if number % 2:
                producer.commit()
            else:
                producer.abort()
        producer.begin()
        producer.send("in", b"open", partition=0)
        producer.flush()
        frame = read(spark, servers, subscribe="in")
        assert sorted(read_values(frame)) == [
            b"value 1",
            b"value 1",
            b"value 3",
            b"value 3",
            b"value 5",
            b"value 5",
        ]
        everything = read(spark, servers, subscribe="in", **{"kafka.isolation.level": "read_uncommitted"})
        assert len(read_values(everything)) == 13


def test_offsets_and_topics_are_chosen_as_in_sparks_kafka_source(spark: SparkSession, servers: str) -> None:
    create(servers, ("in-more", 1), ("other", 1))
    for topic in ("in", "in-more", "other"):
        with Client(servers) as client, Producer(client) as producer:
            for number in range(4):
                producer.send(topic, f"{topic} {number}".encode(), partition=0)
    assert len(read_values(read(spark, servers, subscribe="in, other"))) == 8
    assert len(read_values(read(spark, servers, subscribePattern="in.*"))) == 8
    assert len(read_values(read(spark, servers, assign='{"in":[0],"other":[0]}'))) == 8
    assert read_values(read(spark, servers, assign='{"in":[1]}')) == []
    bounds = {
        "startingOffsets": json.dumps({"in": {"0": 1, "1": -2}}),
        "endingOffsets": json.dumps({"in": {"0": 3, "1": -1}}),
    }
    assert sorted(read_values(read(spark, servers, subscribe="in", **bounds))) == [b"in 1", b"in 2"]


def test_a_stream_reads_in_portions_and_says_how_far_it_is(pipeline: Pipeline) -> None:
    fill(pipeline.bootstrap, "in", range(100))
    pipeline.source_options |= {"maxOffsetsPerTrigger": "40"}
    query = pipeline.run()
    progress = query.recentProgress
    assert [each["numInputRows"] for each in progress][-1] <= 40
    assert all(each["numInputRows"] <= 40 for each in progress)
    assert sum(each["numInputRows"] for each in progress) == 100
    source = query.lastProgress["sources"][0]
    assert source["endOffset"] == source["latestOffset"]
    assert sum(json.loads(source["endOffset"])["in"].values()) == 100


def test_latest_is_where_the_query_began_also_when_it_starts_again(pipeline: Pipeline) -> None:
    fill(pipeline.bootstrap, "in", range(10))
    pipeline.source_options |= {"startingOffsets": "latest"}
    pipeline.fault.write_text("before_decision")
    with pytest.raises(PySparkException):
        pipeline.run()
    fill(pipeline.bootstrap, "in", range(10, 15))
    pipeline.run()
    assert committed(pipeline.bootstrap, "out") == values(range(10, 15))
    with Client(pipeline.bootstrap) as client:
        reached = Admin(client).groups.offsets("copy")
    assert sum(each.offset for each in reached.values()) == 15


def test_a_new_partition_is_read_from_its_beginning(pipeline: Pipeline) -> None:
    fill(pipeline.bootstrap, "in", range(4))
    pipeline.run()
    with Client(pipeline.bootstrap) as client:
        Admin(client).topics.add_partitions("in", 3)
        client.forget_topic("in")
        with Producer(client) as producer:
            producer.send("in", b"new", partition=2)
    query = pipeline.run()
    assert query.lastProgress["numInputRows"] == 1


def test_what_retention_took_before_it_was_read_is_a_loss(spark: SparkSession, servers: str) -> None:
    fill(servers, "in", range(20))
    with Client(servers) as client:
        Admin(client).topics.delete_records({("in", 0): 3})
    start = {"subscribe": "in", "startingOffsets": '{"in":{"0":1,"1":0}}'}
    with pytest.raises(PySparkException, match="the log begins at 3 by now"):
        read_values(read(spark, servers, **start))
    assert len(read_values(read(spark, servers, failOnDataLoss="false", **start))) == 17


def test_a_stream_says_what_is_wrong_with_its_options(pipeline: Pipeline) -> None:
    good = dict(pipeline.source_options)
    for change, message in (
        ({"maxOffsetPerTrigger": "5"}, "did you mean 'maxOffsetsPerTrigger'"),
        ({"maxOffsetsPerTrigger": "none"}, "a whole number above 0"),
        ({"subscribe": "nowhere"}, "there is no topic nowhere"),
    ):
        pipeline.source_options = good | change
        with pytest.raises(PySparkException, match=message):
            pipeline.run()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"subscirbe": "in"}, "did you mean 'subscribe'"),
        ({"subscribe": "in", "assign": '{"in":[0]}'}, "exactly one of"),
        ({"subscribe": "nowhere"}, "there is no topic nowhere"),
        ({"subscribe": "in", "startingOffsets": '{"in":{"0":1}}'}, "check in/1"),
    ],
)
def test_bad_options_are_refused(
    spark: SparkSession, servers: str, options: dict[str, str], message: str
) -> None:
    with pytest.raises(PySparkException, match=message):
        read(spark, servers, **options).collect()
