"""Rows between Arrow and the log, as the executors of Spark do it; no Spark is needed for that."""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

import semel
from semel.client import Admin, Client, Codec, Consumer, KafkaError, NewTopic, Producer, TransactionalProducer
from semel.client.consume.fetch import ConsumedRecord, FetchUnderWay
from semel.spark.columns import ARROW_TYPES
from semel.spark.errors import DataLoss, OptionError
from semel.spark.options import SourceOptions
from semel.spark.sink.writing import RowWriter
from semel.spark.source import reading
from semel.spark.source.reading import OffsetRange, read_range
from semel.wire.partitioner import partition_for


@pytest.fixture
def client(semel_broker: semel.Embedded) -> Iterator[Client]:
    with Client(semel_broker.bootstrap_servers, timeout_s=10) as client:
        Admin(client).topics.create(NewTopic("out", partitions=3), NewTopic("other", partitions=1))
        yield client


def write(client: Client, *batches: pa.RecordBatch, topic: str | None = "out") -> Any:
    with Producer(client) as producer:
        rows = RowWriter(client, producer, topic)
        for batch in batches:
            rows.write(batch)
        rows.finish()
    return rows.where


def found(client: Client, topic: str = "out") -> list[ConsumedRecord]:
    with Consumer(client, topic) as consumer:
        return list(consumer.read_to_end())


def read(client: Client, end: int, *columns: str, start: int = 0, **options: str) -> list[pa.RecordBatch]:
    servers = ",".join(f"{node.host}:{node.port}" for node in client.describe().nodes)
    given = {"kafka.bootstrap.servers": servers, "subscribe": "other", **options}
    source = SourceOptions.of(given, is_stream=False)
    return list(
        read_range(client, OffsetRange("other", 0, start, end), source, columns or tuple(ARROW_TYPES))
    )


def test_a_leader_that_lags_behind_the_plan_loses_nothing(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a change of the leader: with failOnDataLoss=false the rest of the range was left out."""
    write(client, pa.record_batch([pa.array([b"1", b"2"])], names=["value"]), topic="other")
    wait, lagging = FetchUnderWay.wait, iter([True, True])

    def lag(fetch: FetchUnderWay) -> Any:
        ((key, data),) = wait(fetch)
        if next(lagging, False):
            data.high_watermark = data.last_stable_offset = 0
            data.records = b""
        return [(key, data)]

    monkeypatch.setattr(FetchUnderWay, "wait", lag)
    rows = read(client, 2, "value", failOnDataLoss="false")
    assert [value for batch in rows for value in batch["value"].to_pylist()] == [b"1", b"2"]


def test_records_that_no_leader_has_any_more_are_lost(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "LAGGING_LEADER_WAIT_S", 0.1)
    write(client, pa.record_batch([pa.array([b"1", b"2"])], names=["value"]), topic="other")
    with pytest.raises(DataLoss, match="ends at 2 by now, and 3 was there"):
        read(client, 3, "value")
    assert sum(batch.num_rows for batch in read(client, 3, "value", failOnDataLoss="false")) == 2


BYTES = [b"a", None, b"", b"key 3", b"key 4"]


@pytest.mark.parametrize("kind", [pa.binary(), pa.string(), pa.large_binary(), pa.large_string()], ids=str)
def test_keys_go_where_other_clients_put_them_whatever_their_type(client: Client, kind: pa.DataType) -> None:
    keys = pa.array(BYTES, pa.binary()).cast(kind)
    values = pa.array([b"%d" % at for at in range(5)])
    # A slice has its buffers in common with what was cut off.
    rows = pa.record_batch([keys, values], names=["key", "value"]).slice(1)
    write(client, rows)
    records = found(client)
    assert sorted((record.value, record.key) for record in records) == [
        (b"1", None),
        (b"2", b""),
        (b"3", b"key 3"),
        (b"4", b"key 4"),
    ]
    assert all(
        record.partition == partition_for(record.key, 3) for record in records if record.key is not None
    )


def test_rows_name_their_topic_partition_and_headers(client: Client) -> None:
    rows = pa.record_batch(
        {
            "topic": pa.array(["out", "other", "out"]),
            "value": pa.array([b"1", b"2", None]),
            "partition": pa.array([2, None, None], pa.int32()),
            "key": pa.array([None, None, b"k"]),
            "headers": pa.array([[("h", b"1"), ("h", None)], None, []], ARROW_TYPES["headers"]),
            "left out": pa.array([1, 2, 3]),
        }
    )
    assert write(client, rows, topic=None) == ("out", 2)
    first, second = sorted(found(client), key=lambda record: record.value or b"2")
    assert (first.value, first.partition, first.headers) == (b"1", 2, (("h", b"1"), ("h", None)))
    assert (second.value, second.partition, second.headers) == (None, partition_for(b"k", 3), ())
    assert [record.value for record in found(client, "other")] == [b"2"]


def test_rows_that_cannot_be_records_are_refused(client: Client) -> None:
    values = pa.array([b"1", b"2"])
    with pytest.raises(OptionError, match="topic"):
        write(client, pa.record_batch({"topic": pa.array(["out", None]), "value": values}), topic=None)
    wrong = pa.record_batch({"value": values, "partition": pa.array([0, 3], pa.int32())})
    with pytest.raises(KafkaError, match=r"'out' .* 3, .*0 to 2"):
        write(client, wrong)
    headers = pa.array([[(None, b"1")], None], ARROW_TYPES["headers"])
    with pytest.raises(OptionError, match="header"):
        write(client, pa.record_batch({"value": values, "headers": headers}))
    assert found(client) == []


def test_much_more_than_a_batch_is_written_in_order(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("semel.spark.sink.writing.BATCH_BYTES", 5_000)
    monkeypatch.setattr("semel.spark.sink.writing.WAITING_BYTES_MAX", 9_000)
    numbers = [b"%06d" % at for at in range(20_000)]
    keys = [number[-1:] for number in numbers]
    rows = pa.record_batch({"key": pa.array(keys), "value": pa.array(numbers)})
    with TransactionalProducer(client, "writer", codec=Codec.LZ4) as producer, producer.transaction():
        writer = RowWriter(client, producer, "out")
        for start in range(0, 20_000, 3_000):
            writer.write(rows.slice(start, 3_000))
        writer.finish()
    records = found(client)
    assert sorted(record.value or b"" for record in records) == numbers
    for partition in range(3):
        of_partition = [record.value or b"" for record in records if record.partition == partition]
        assert of_partition == sorted(of_partition)


def test_batches_are_as_small_as_their_topic_wants_them(client: Client) -> None:
    Admin(client).topics.create(NewTopic("small", 1, configs={"max.message.bytes": "2000"}))
    values = [b"%04d" % at + bytes(96) for at in range(1_000)]
    write(client, pa.record_batch({"value": pa.array(values)}), topic="small")
    assert [record.value for record in found(client, "small")] == values
    with pytest.raises(KafkaError, match="MESSAGE_TOO_LARGE"):
        write(client, pa.record_batch({"value": pa.array([bytes(2_000)])}), topic="small")


def test_records_become_rows_with_all_columns_or_some(client: Client) -> None:
    with Producer(client) as producer:
        producer.send("other", b"v", key=b"k", headers=[("ü", b"1"), ("h", None)], timestamp_ms=1234)
        producer.send("other", None, timestamp_ms=1235)
    (rows,) = read(client, 2)
    assert rows.schema.types == list(ARROW_TYPES.values())
    rows.validate(full=True)
    assert {name: rows.column(name).to_pylist() for name in ARROW_TYPES if name != "timestamp"} == {
        "key": [b"k", None],
        "value": [b"v", None],
        "topic": ["other", "other"],
        "partition": [0, 0],
        "offset": [0, 1],
        "timestampType": [0, 0],
        "headers": [[{"key": "ü", "value": b"1"}, {"key": "h", "value": None}], None],
    }
    assert rows.column("timestamp").cast(pa.int64()).to_pylist() == [1_234_000, 1_235_000]
    (some,) = read(client, 2, "offset", "value")
    assert some.to_pydict() == {"offset": [0, 1], "value": [b"v", None]}


def test_a_range_is_read_by_many_fetches_and_into_many_batches(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "ROWS_WANTED", 100)
    monkeypatch.setattr(reading, "ROWS_MAX", 150)
    with Producer(client, batch_bytes=2_000) as producer:
        for number in range(3_000):
            producer.send("other", b"%d" % number)
    batches = read(client, 2_900, "offset", "value", start=50, **{"kafka.max.partition.fetch.bytes": "9000"})
    assert max(batch.num_rows for batch in batches) <= 150
    table = pa.Table.from_batches(batches)
    assert table.column("offset").to_pylist() == list(range(50, 2_900))
    assert table.column("value").to_pylist() == [b"%d" % number for number in range(50, 2_900)]
