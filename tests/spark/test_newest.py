"""Topics as tables: one row for each key, whatever was written, deleted and compacted; lookups."""

import json
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType
from support.brokers.compaction_by_hand import CONFIGS, SETTINGS, compact, put
from support.faults.proxy import Proxy
from support.spark.jobs import committed, create

import semel
from semel.client import Admin, Client, NewTopic, Producer, TransactionalProducer
from semel.embedded import Embedded
from semel.pipeline import Lookup, Pipeline, Topic
from semel.spark import KeyMissing, OptionError, SnapshotOvertaken, TableTooLarge, start
from semel.spark.data_source import SemelDataSource
from semel.spark.edge import Headline
from semel.spark.source import newest
from semel.spark.source.newest import NewestReader
from semel.spark.source.reading import OffsetRange

pytestmark = pytest.mark.spark

TABLE = "table"
SCHEMA = StructType().add("key", "binary").add("value", "binary").add("offset", "long")


@pytest.fixture(scope="module")
def broker() -> Iterator[Embedded]:
    with semel.embedded(settings=SETTINGS) as broker:
        yield broker


@pytest.fixture(params=["semel", "other"])
def servers(broker: Embedded, request: pytest.FixtureRequest) -> Iterator[str]:
    """The broker as it is, and as one that has Kafka's requests alone; with a new table."""
    with Client(broker.bootstrap_servers) as client:
        Admin(client).topics.create(NewTopic(TABLE, partitions=2, configs=CONFIGS))
        with Proxy(broker.bootstrap_servers, hides_extensions=True) as proxy:
            yield broker.bootstrap_servers if request.param == "semel" else proxy.bootstrap
        Admin(client).topics.delete(TABLE)


class Table:
    """What Spark does with a reader, in this process."""

    def __init__(self, servers: str, schema: StructType = SCHEMA, **options: str) -> None:
        given = {"kafka.bootstrap.servers": servers, "subscribe": TABLE, "newestByKey": "true"}
        reader = SemelDataSource(given | options).reader(schema)
        assert isinstance(reader, NewestReader)
        self._reader = reader
        (self._task,) = reader.partitions()

    def rows(self) -> list[dict[str, Any]]:
        return [row for batch in self._reader.read(self._task) for row in batch.to_pylist()]

    def values(self) -> dict[str, str]:
        rows = self.rows()
        found = {row["key"].decode(): row["value"].decode() for row in rows}
        assert len(found) == len(rows), "one row for each key"
        return found


def send(servers: str, *records: tuple[str | None, str | None], partition: int = 0, at_ms: int = 1) -> None:
    with Client(servers) as client, Producer(client) as producer:
        for key, value in records:
            producer.send(
                TABLE,
                None if value is None else value.encode(),
                key=None if key is None else key.encode(),
                partition=partition,
                timestamp_ms=at_ms,
            )


def test_the_newest_record_of_each_key_is_its_row(servers: str) -> None:
    assert Table(servers).rows() == []
    send(servers, ("a", "1"), ("b", "1"), ("a", "2"), ("c", "1"), ("b", None), ("d", None), ("d", "again"))
    send(servers, ("e", "other partition"), partition=1)
    assert Table(servers).values() == {"a": "2", "c": "1", "d": "again", "e": "other partition"}


def test_time_decides_between_partitions_and_the_offset_within_one(servers: str) -> None:
    send(servers, ("a", "old"), ("b", "new"), ("c", "old"), partition=0, at_ms=100)
    send(servers, ("a", "late but older"), partition=0, at_ms=50)
    send(servers, ("a", "new"), ("c", None), partition=1, at_ms=200)
    send(servers, ("b", "old"), partition=1, at_ms=10)
    assert Table(servers).values() == {"a": "new", "b": "new"}


def test_only_what_is_committed_counts_and_offsets_decide_whatever_was_committed_first(servers: str) -> None:
    with Client(servers) as client:
        producers = [TransactionalProducer(client, f"writer {number}") for number in range(3)]
        slow, aborted, open_ = producers
        for producer, value in zip(producers, ("slow", "aborted", "open"), strict=True):
            producer.begin()
            producer.send(TABLE, value.encode(), key=value.encode(), partition=0)
            producer.send(TABLE, value.encode(), key=b"shared", partition=0)
            producer.flush()
        send(servers, ("shared", "plain"))
        slow.commit()
        aborted.abort()
        found = Table(servers).values()
        open_.abort()
        if client.feature("semel.snapshot"):
            assert found == {"slow": "slow", "shared": "plain"}
        else:
            assert found == {"slow": "slow", "shared": "slow"}, "up to the open transaction"
        assert Table(servers).values() == {"slow": "slow", "shared": "plain"}
        for producer in producers:
            producer.close()


def test_random_histories(servers: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is replaced is dropped on the way, and the outcome is the same."""
    monkeypatch.setattr(newest, "COLLECTED_BYTES", 100)
    chance = random.Random(7)
    expected: dict[str, str | None] = {}
    for turn in range(10):
        records = [(f"key {chance.randrange(20)}", chance.choice([None, f"{turn} {n}"])) for n in range(30)]
        expected |= dict(records)
        send(servers, *records)
    small: dict[str, Any] = {"kafka.max.partition.fetch.bytes": "500"}
    found = Table(servers, **small).values()
    assert found == {key: value for key, value in expected.items() if value is not None}


def after_planning(monkeypatch: pytest.MonkeyPatch, act: Callable[[], None]) -> None:
    """Do something when a task knows what to read, and has read nothing."""
    plan = NewestReader._ranges

    def gated(reader: NewestReader) -> Sequence[OffsetRange]:
        ranges = plan(reader)
        act()
        return ranges

    monkeypatch.setattr(NewestReader, "_ranges", gated)


def test_a_key_that_is_updated_and_compacted_before_it_is_read_is_there(
    broker: Embedded, servers: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A snapshot holds compaction. Elsewhere the task reads on until it is at the end."""
    send(servers, ("a", "1"), ("b", "1"))
    table = Table(servers)

    def update() -> None:
        send(servers, ("a", "2"))
        compact(broker)

    after_planning(monkeypatch, update)
    assert table.values() == {"a": "1" if "semel.snapshot" in _features(servers) else "2", "b": "1"}


def _features(servers: str) -> set[str]:
    with Client(servers) as client:
        return {name for name in ("semel.snapshot",) if client.feature(name)}


def test_a_table_that_compaction_has_overtaken_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with semel.embedded(settings={**SETTINGS, "semel.compaction.hold.ms": 0}) as broker:
        with Client(broker.bootstrap_servers) as client:
            Admin(client).topics.create(NewTopic(TABLE, configs=CONFIGS))
        put(broker, TABLE, "a", "1")
        table = Table(broker.bootstrap_servers)

        def update() -> None:
            put(broker, TABLE, "a", "2")
            compact(broker)

        after_planning(monkeypatch, update)
        with pytest.raises(SnapshotOvertaken):
            table.rows()


def test_a_record_without_a_key_is_refused(semel_broker: Embedded) -> None:
    servers = semel_broker.bootstrap_servers
    create(servers, (TABLE, 1))
    send(servers, ("a", "1"), (None, "1"))
    with pytest.raises(KeyMissing, match=f"offset 1 of {TABLE}/0") as raised:
        Table(servers).rows()
    assert isinstance(raised.value.__cause__, Headline), "what Spark shows begins with the message"


def test_a_table_that_does_not_fit_is_refused(servers: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for partition in (0, 1):
        send(
            servers, *((f"key {partition} {number}", "x" * 500) for number in range(100)), partition=partition
        )
    monkeypatch.setattr(newest, "TABLE_BYTES_MAX", 150_000)
    assert len(Table(servers).rows()) == 200
    monkeypatch.setattr(newest, "TABLE_BYTES_MAX", 80_000)
    with pytest.raises(TableTooLarge, match=f"{TABLE}/1"):
        Table(servers).rows()


def test_it_takes_the_options_of_a_batch(servers: str) -> None:
    send(servers, ("a", "1"), ("b", "1"), ("a", "2"))
    ends = json.dumps({TABLE: {"0": 2, "1": 0}})
    assert Table(servers, endingOffsets=ends).values() == {"a": "1", "b": "1"}
    starts = json.dumps({TABLE: {"0": 1, "1": 0}})
    assert Table(servers, startingOffsets=starts, minPartitions="9").values() == {"a": "2", "b": "1"}
    uncommitted: dict[str, Any] = {"kafka.isolation.level": "read_uncommitted"}
    assert Table(servers, **uncommitted).values() == {"a": "2", "b": "1"}
    only_offsets = Table(servers, StructType().add("offset", "long")).rows()
    assert sorted(row["offset"] for row in only_offsets) == [1, 2]


def test_a_snapshot_that_is_asked_for_is_one_or_refused(servers: str) -> None:
    send(servers, ("a", "1"))
    if _features(servers):
        assert Table(servers, snapshot="true").values() == {"a": "1"}
    else:
        with pytest.raises(OptionError, match="snapshot=true"):
            Table(servers, snapshot="true")


def joined(orders: Any, customers: Any) -> Any:
    known = customers.selectExpr("key AS customer", "CAST(value AS STRING) AS country")
    wanted = orders.selectExpr("key AS customer", "CAST(value AS STRING) AS number")
    return wanted.join(known, "customer", "left").selectExpr(
        "customer AS key", "concat(number, ' ', coalesce(country, '-')) AS value"
    )


@pytest.mark.parametrize(
    "options", [pytest.param({}, marks=pytest.mark.slow), {"includeHeaders": "true", "minPartitions": "3"}]
)
def test_every_batch_of_a_pipeline_looks_up_what_is_newest(
    spark: SparkSession, semel_broker: Embedded, tmp_path: Path, options: dict[str, str]
) -> None:
    """One query, whose lookup is written to between its batches: nothing is doubled."""
    servers = semel_broker.bootstrap_servers
    create(servers, ("orders", 2), ("customers", 2), ("invoices", 1))
    sources: dict[str, Topic | Lookup] = {
        "orders": Topic("orders"),
        "customers": Lookup("customers", options),
    }
    billing = Pipeline("billing", joined, sources, Topic("invoices"))

    def write(topic: str, *records: tuple[bytes, bytes | None]) -> None:
        with Client(servers) as client, Producer(client) as producer:
            for key, value in records:
                producer.send(topic, value, key=key)

    write("customers", (b"a", b"CH"), (b"b", b"CH"), (b"c", b"CH"))
    query = start(
        spark,
        billing,
        bootstrap_servers=servers,
        checkpoint=str(tmp_path),
        trigger="100 milliseconds",
    )
    expected: Counter[bytes] = Counter()
    changes: list[Callable[[], None]] = [
        lambda: None,
        lambda: write("customers", (b"a", b"FR"), (b"b", None)),
        lambda: write("customers", (b"b", b"IT"), (b"a", b"DE")),
    ]
    for number, (change, countries) in enumerate(
        zip(changes, (("CH", "CH", "CH"), ("FR", "-", "CH"), ("DE", "IT", "CH")), strict=True)
    ):
        change()
        for name, country in zip("abc", countries, strict=True):
            write("orders", *((name.encode(), b"%d" % number) for _ in range(3)))
            expected[f"{number} {country}".encode()] += 3
        query.processAllAvailable()
        assert committed(servers, "invoices") == expected
    query.stop()
