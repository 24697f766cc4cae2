"""The source: what a query reads."""

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import InputPartition
from support.spark.jobs import Pipeline, committed, create, fill, values
from support.waiting import until

from semel.client import Admin, BrokerUnreachable, Client, Producer, TransactionalProducer
from semel.embedded import Embedded
from semel.spark import OptionError
from semel.spark.options import SourceOptions
from semel.spark.partition_offsets import of_json
from semel.spark.source.source import BatchReader, StreamReader

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


def write_at(servers: str, *times_ms: int) -> None:
    """To partition 0 of `in`, one record for each time."""
    with Client(servers) as client, Producer(client) as producer:
        for time_ms in times_ms:
            producer.send("in", b"%d" % time_ms, partition=0, timestamp_ms=time_ms)
            producer.flush()


def batch(servers: str, **options: str) -> BatchReader:
    given = {"kafka.bootstrap.servers": servers, "subscribe": "in", **options}
    return BatchReader(SourceOptions.of(given, is_stream=False), ["value"])


def ranges(tasks: Sequence[InputPartition]) -> list[tuple[int, int, int]]:
    found = [each for task in tasks for each in task.value]
    return [(each.partition, each.start, each.end) for each in found]


def test_times_are_looked_up_as_in_sparks_kafka_source(servers: str) -> None:
    write_at(servers, 1_000, 2_000, 3_000, 4_000)
    late = {"startingOffsetsByTimestampStrategy": "latest"}
    times = {"startingTimestamp": "1500", "endingTimestamp": "3500"}
    assert ranges(batch(servers, **times, **late).partitions()) == [(0, 1, 3)]
    by_partition = {
        "startingOffsetsByTimestamp": '{"in":{"0":3000,"1":0}}',
        "endingOffsetsByTimestamp": '{"in":{"0":9000,"1":0}}',
    }
    # No record is that late: an end is then the end of the log, a start is an error unless it is told.
    assert ranges(batch(servers, **by_partition, **late).partitions()) == [(0, 2, 4)]
    with pytest.raises(OptionError, match=r"in/1 .* timestamp 0"):
        batch(servers, **by_partition).partitions()
    with pytest.raises(OptionError, match=r"startingOffsetsByTimestamp .*in/1"):
        batch(servers, startingOffsetsByTimestamp='{"in":{"0":1}}').partitions()
    # One time for all goes before one for each, and that before offsets.
    every = by_partition | times | {"endingOffsets": '{"in":{"0":1,"1":0}}'}
    assert ranges(batch(servers, **every, **late).partitions()) == [(0, 1, 3)]


def test_more_tasks_than_partitions_read_the_same(spark: SparkSession, servers: str) -> None:
    fill(servers, "in", range(50))
    whole = batch(servers).partitions()
    cut = batch(servers, minPartitions="7").partitions()
    assert (len(whole), len(cut)) == (2, 7)
    small = ranges(batch(servers, maxRecordsPerPartition="4").partitions())
    assert all(end - start <= 4 for _, start, end in small)
    frame = read(spark, servers, subscribe="in", minPartitions="7")
    assert frame.rdd.getNumPartitions() == 7
    assert Counter(read_values(frame)) == values(range(50))


def test_a_stream_waits_for_enough_records(pipeline: Pipeline) -> None:
    pipeline.source_options |= {
        "minOffsetsPerTrigger": "10",
        "maxOffsetsPerTrigger": "12",
        "maxTriggerDelay": "1h",
        "minPartitions": "4",
        "startingOffsets": "earliest",
    }
    query = pipeline.start(processingTime="100 milliseconds")
    try:
        fill(pipeline.bootstrap, "in", range(4))
        query.processAllAvailable()  # the first batch does not wait
        for start in range(4, 40, 4):
            fill(pipeline.bootstrap, "in", range(start, start + 4))
        until(lambda: committed(pipeline.bootstrap, "out").total() >= 30, 60, "most of them")
    finally:
        query.stop()
    sizes = [each["numInputRows"] for each in query.recentProgress if each["numInputRows"]]
    assert sizes[0] <= 4
    assert all(10 <= size <= 12 for size in sizes[1:])
    # With AvailableNow nothing is left behind, however few there are.
    pipeline.run()
    assert committed(pipeline.bootstrap, "out") == values(range(40))


def test_the_list_of_partitions_may_be_kept_for_a_while(servers: str) -> None:
    given = {"kafka.bootstrap.servers": servers, "subscribe": "in"}
    kept = {"partition.metadata.cache.ttl.ms": "3600000"}
    readers = [StreamReader(SourceOptions.of(given | more, is_stream=True), ["value"]) for more in ({}, kept)]
    for reader in readers:
        assert len(reader.initialOffset()["in"]) == 2
    with Client(servers) as client:
        Admin(client).topics.add_partitions("in", 3)
    assert [len(reader.reportLatestOffset()["in"]) for reader in readers] == [3, 2]


def test_what_fails_for_a_moment_is_asked_again(servers: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = 0

    def failing(*_: Any, **__: Any) -> Any:
        nonlocal asked
        asked += 1
        raise BrokerUnreachable("nobody there")

    monkeypatch.setattr(Client, "describe", failing)
    for retries, attempts in (("0", 1), ("2", 3)):
        asked = 0
        options = {"fetchOffset.numRetries": retries, "fetchOffset.retryIntervalMs": "1"}
        with pytest.raises(BrokerUnreachable):
            batch(servers, **options).partitions()
        assert asked == attempts


def test_a_stream_reads_in_portions_and_says_how_far_it_is(pipeline: Pipeline) -> None:
    fill(pipeline.bootstrap, "in", range(100))
    pipeline.source_options |= {"maxOffsetsPerTrigger": "40"}
    query = pipeline.run()
    progress = query.recentProgress
    assert [each["numInputRows"] for each in progress][-1] <= 40
    assert all(each["numInputRows"] <= 40 for each in progress)
    assert sum(each["numInputRows"] for each in progress) == 100
    assert query.lastProgress is not None
    source = query.lastProgress["sources"][0]
    ends = [of_json(json.loads(source[name])) for name in ("endOffset", "latestOffset")]
    assert ends[0] == ends[1]
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
    assert query.lastProgress is not None
    assert query.lastProgress["numInputRows"] == 1


def test_what_retention_took_before_it_was_read_is_a_loss(spark: SparkSession, servers: str) -> None:
    fill(servers, "in", range(20))
    with Client(servers) as client:
        Admin(client).topics.delete_records({("in", 0): 3})
    start = {"subscribe": "in", "startingOffsets": '{"in":{"0":1,"1":0}}'}
    with pytest.raises(PySparkException, match="begins at 3"):
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
