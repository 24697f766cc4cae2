"""The sink: every input record counts once in the output, as another client reads it."""

from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.functions import window
from support.spark.jobs import Pipeline, committed, create, fill, values

from semel.client import LATEST, Admin, Client, Consumer, Producer
from semel.embedded import Embedded
from semel.wire.partitioner import partition_for

pytestmark = pytest.mark.spark


def test_records_keep_key_headers_and_the_partition_of_their_key(
    spark: SparkSession, semel_broker: Embedded, tmp_path: Path
) -> None:
    servers = semel_broker.bootstrap_servers
    create(servers, ("out", 3), ("elsewhere", 2))
    rows = spark.sql(
        "SELECT 'k' AS key, 'text' AS value, array(named_struct('key', 'h', 'value', X'01')) AS headers, "
        "'out' AS topic, CAST(NULL AS INT) AS partition UNION ALL "
        "SELECT NULL, NULL, NULL, 'elsewhere', 1"
    )
    options = {"kafka.bootstrap.servers": servers, "pipeline.id": "once"}
    rows.write.format("semel").options(**options).mode("append").save()
    with Client(servers) as client, Consumer(client, ["out", "elsewhere"]) as consumer:
        found = {record.topic: record for record in consumer.read_to_end()}
    assert (found["out"].key, found["out"].value, found["out"].headers) == (b"k", b"text", (("h", b"\x01"),))
    assert found["out"].partition == partition_for(b"k", 3)
    assert (found["elsewhere"].key, found["elsewhere"].value, found["elsewhere"].partition) == (None, None, 1)


@pytest.mark.parametrize("guarantee", ["exactly-once", "at-least-once"])
def test_a_batch_write_is_all_there_and_can_be_repeated(
    spark: SparkSession, semel_broker: Embedded, guarantee: str
) -> None:
    servers = semel_broker.bootstrap_servers
    create(servers, ("out", 2))
    options = {"kafka.bootstrap.servers": servers, "topic": "out", "pipeline.id": "batch"}
    for begin in (0, 50):
        rows = spark.range(begin, begin + 50, numPartitions=3).selectExpr("concat('value ', id) AS value")
        writer = rows.write.format("semel").options(**options).option("delivery.guarantee", guarantee)
        writer.mode("append").save()
    assert committed(servers, "out") == values(range(100))


def test_a_query_may_have_a_name(pipeline: Pipeline) -> None:
    fill(pipeline.bootstrap, "in", range(3))
    options = {"kafka.bootstrap.servers": pipeline.bootstrap, **pipeline.sink_options}
    writer = pipeline.source().select("value").writeStream.format("semel").options(**options)
    writer = writer.option("checkpointLocation", str(pipeline.checkpoint)).trigger(availableNow=True)
    query = writer.queryName("orders").start()
    query.awaitTermination()
    assert query.name == "orders"
    assert committed(pipeline.bootstrap, "out") == values(range(3))


def test_a_pipeline_goes_on_where_it_stopped_and_lag_tools_see_it(pipeline: Pipeline) -> None:
    pipeline.source_options |= {"maxOffsetsPerTrigger": "70"}
    for begin in (0, 100, 200):
        fill(pipeline.bootstrap, "in", range(begin, begin + 100))
        pipeline.run()
    assert committed(pipeline.bootstrap, "out") == values(range(300))
    with Client(pipeline.bootstrap) as client:
        admin = Admin(client)
        ends = admin.topics.offsets(dict.fromkeys(admin.topics.partitions(["in"]), LATEST))
        reached = admin.groups.offsets("copy")
        assert {key: each.offset for key, each in reached.items()} == {
            key: each.offset for key, each in ends.items()
        }
        assert admin.transactions.all(states=["Ongoing"]) == []


def test_state_is_kept_and_batches_without_input_are_written_too(pipeline: Pipeline) -> None:
    """Spark closes a window in a batch of its own, whose input is empty. Its output counts all the same.

    The first batch writes nothing, is decided, and is done again: without its input its state would be lost.
    """
    rows = pipeline.source().selectExpr("CAST(value AS string) AS word", "timestamp")
    counted = (
        rows.withWatermark("timestamp", "0 seconds").groupBy("word", window("timestamp", "1 second")).count()
    )
    output = counted.selectExpr("concat(word, ' ', count) AS value")
    write_at(pipeline.bootstrap, 1_000, [7, 7, 7])
    pipeline.fault.write_text("after_decision")
    with pytest.raises(PySparkException):
        pipeline.run(output)
    pipeline.run(output)
    write_at(pipeline.bootstrap, 5_000, [8])
    pipeline.run(output)
    assert committed(pipeline.bootstrap, "out") == {b"value 7 3": 1}


def write_at(bootstrap: str, timestamp_ms: int, numbers: list[int]) -> None:
    with Client(bootstrap) as client, Producer(client) as producer:
        for number in numbers:
            producer.send("in", b"value %d" % number, timestamp_ms=timestamp_ms, partition=0)


def test_at_least_once_needs_no_pipeline(pipeline: Pipeline) -> None:
    fill(pipeline.bootstrap, "in", range(20))
    pipeline.source_options = {"subscribe": "in", "startingOffsets": "earliest"}
    pipeline.sink_options = {"topic": "out", "delivery.guarantee": "at-least-once"}
    pipeline.run()
    assert committed(pipeline.bootstrap, "out") == values(range(20))


def test_bad_options_and_columns_are_refused_and_nothing_is_written(
    pipeline: Pipeline, tmp_path: Path
) -> None:
    fill(pipeline.bootstrap, "in", range(3))
    good = dict(pipeline.sink_options)
    for change, message in (
        ({"pipeline.id": ""}, "exactly-once needs the option pipeline.id"),
        ({"delivery.guarentee": "exactly-once"}, "did you mean 'delivery.guarantee'"),
        ({"delivery.guarantee": "at-most-once"}, "exactly-once or at-least-once, not 'at-most-once'"),
        ({"transaction.timeout.ms": "2 minutes"}, "a whole number above 0"),
    ):
        pipeline.sink_options = good | change
        with pytest.raises(PySparkException, match=message):
            pipeline.run()
    pipeline.sink_options = good
    with pytest.raises(PySparkException, match=r"OptionError: .*'value'"):
        pipeline.run(pipeline.source().select("key"))
    with pytest.raises(PySparkException, match=r"'value' .*bigint"):
        pipeline.run(pipeline.source().selectExpr("offset AS value"))
    assert pipeline.spark is not None
    rate = pipeline.spark.readStream.format("rate").load().selectExpr("CAST(value AS string) AS value")
    pipeline.checkpoint = tmp_path / "checkpoint of rate"
    with pytest.raises(PySparkException, match="'semel'"):
        pipeline.start(rate, processingTime="0 seconds").awaitTermination()
    assert committed(pipeline.bootstrap, "out") == {}
