"""Records that cannot be parsed, and rows that a sink cannot take.

They stop a pipeline, are counted, or become dead letters of their batch.
"""

import json
import os
import random
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Schema
from pyspark.sql import DataFrame, SparkSession, functions
from support.faults.proxy import Proxy
from support.faults.spark_points import await_caught, catch, points
from support.spark.driver import DriverProcess
from support.spark.jobs import committed, create, open_transactions
from support.spark.lake import content
from support.spark.outputs import NumbersOrDeadLetters, TopicAndDeadLetters

from semel.client import Client, Codec, Consumer, KafkaError, Producer
from semel.embedded import Embedded
from semel.pipeline import DeclarationError, Delta, Json, Pipeline, Topic
from semel.spark import PipelineError
from semel.spark.pipeline.running import Run, RunSettings
from semel.spark.pipeline.status import status
from semel.spark.sink.dead_letters import why_bad
from semel.spark.sink.writing import RowWriter

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]

CLICK = "user STRING, page STRING, ms BIGINT"
LONG = pytest.mark.long
PLACES = {
    "portable": ["while tasks write", "before the decision", "when it is decided", "between the ends"],
    "extended": ["before the decision", "after the ends"],
}
SHORT = ("extended", "after the ends")
DEATHS = [
    pytest.param(protocol, place, id=f"{protocol}, {place}", marks=() if (protocol, place) == SHORT else LONG)
    for protocol, places in PLACES.items()
    if protocol == "portable" or "SEMEL_PEER" not in os.environ
    for place in places
]
GOOD = [{"user": "a", "page": "/", "ms": 1}, {"user": "b", "page": "/x", "ms": 2, "new": [1]}, {"user": "c"}]
BAD = [b"", b"{", b"[]", b"5", b"null", b"\xff", b'{"ms": "soon"}', b'{"ms": 1} and more', b"{},{}", b"{}{}"]


@pytest.fixture
def bootstrap(semel_broker: Embedded) -> str:
    create(semel_broker.bootstrap_servers, ("clicks", 2), ("pages", 1), ("clicks-dead", 1), ("counts", 1))
    return semel_broker.bootstrap_servers


def click(bootstrap: str, *values: bytes | None) -> None:
    with Client(bootstrap) as client, Producer(client) as producer:
        for value in values:
            producer.send("clicks", value, key=b"k", headers=[("h", b"1")])


def pages(rows: DataFrame) -> DataFrame:
    return rows.selectExpr("record.key AS key", "concat(coalesce(user, '-'), ' ', coalesce(ms, 0)) AS value")


def reading(bad: str) -> Pipeline:
    return Pipeline(
        "pages", pages, Topic("clicks", parse=Json(CLICK, record="record"), bad=bad), Topic("pages")
    )


def run(spark: SparkSession, pipeline: Pipeline, bootstrap: str, directory: Path) -> list[Any]:
    place = RunSettings(bootstrap, str(directory), once=True)
    return [each for each in Run(spark, pipeline, place).watch(lambda: False) if each is not None]


def dead(bootstrap: str, topic: str = "clicks-dead") -> list[tuple[bytes | None, dict[str, bytes]]]:
    with Client(bootstrap) as client, Consumer(client, topic) as consumer:
        return [
            (each.value, {header.key: header.value or b"" for header in each.headers})
            for each in consumer.read_to_end()
        ]


def test_dead_letters_have_the_bytes_and_the_reason(
    spark: SparkSession, bootstrap: str, tmp_path: Path
) -> None:
    click(bootstrap, *(json.dumps(each).encode() for each in GOOD), None, *BAD)
    run(spark, reading("clicks-dead"), bootstrap, tmp_path)
    assert committed(bootstrap, "pages") == {b"a 1": 1, b"b 2": 1, b"c 0": 1, b"- 0": 1}
    found = dead(bootstrap)
    assert sorted(value or b"" for value, _ in found) == sorted(BAD)
    reasons = {value: headers["semel.reason"].decode() for value, headers in found}
    assert reasons[b'{"ms": "soon"}'] == 'ms is "soon", and should be bigint'
    assert reasons[b"[]"] == "the value is no JSON object"
    assert reasons[b"{"].startswith("the value is not JSON: ")
    with Client(bootstrap) as client, Consumer(client, "clicks") as consumer:
        at = {(each.partition, each.offset): each for each in consumer.read_to_end()}
    for value, headers in found:
        assert headers["semel.topic"] == b"clicks"
        original = at[int(headers["semel.partition"]), int(headers["semel.offset"])]
        assert (original.value, original.timestamp) == (value, int(headers["semel.timestamp"]))


def test_the_first_bad_records_are_named(spark: SparkSession, bootstrap: str, tmp_path: Path) -> None:
    click(bootstrap, b'{"user": "a"}', *[b"nonsense"] * 30)
    with pytest.raises(
        PipelineError, match=r"30 records .*clicks/\d offset 1: the value is not JSON"
    ) as caught:
        run(spark, reading("fail"), bootstrap, tmp_path)
    assert str(caught.value).count("offset") == 10
    assert committed(bootstrap, "pages") == {}
    # The declaration was changed, and the batch is tried again.
    run(spark, reading("skip"), bootstrap, tmp_path)
    assert committed(bootstrap, "pages") == {b"a 0": 1}


def test_results_with_state_and_tables_count_with_the_dead_letters(
    spark: SparkSession, bootstrap: str, tmp_path: Path
) -> None:
    def count(rows: DataFrame) -> dict[str, DataFrame]:
        counts = rows.groupBy("user").agg(functions.sum("ms").alias("ms"))
        return {"counts": counts.selectExpr("user AS key", "CAST(ms AS STRING) AS value"), "table": counts}

    pipeline = Pipeline(
        "counts",
        count,
        Topic("clicks", parse=Json(CLICK), bad="clicks-dead"),
        {"counts": Topic("counts"), "table": Delta(str(tmp_path / "table"), merge_on="user")},
        output_mode="update",
    )
    for number in range(2):
        click(bootstrap, *[b'{"user": "a", "ms": 2}'] * 3, b"bad %d" % number)
        run(spark, pipeline, bootstrap, tmp_path / "checkpoint")
    assert committed(bootstrap, "counts") == {b"6": 1, b"12": 1}
    assert [value for value, _ in dead(bootstrap)] == [b"bad 0", b"bad 1"]
    with Client(bootstrap) as client:
        found = status(client, "counts")
    assert found.last is not None
    assert (found.last.number, found.last.read, found.last.dead) == (2, 4, 1)
    assert found.last.written == {"counts": 1, str(tmp_path / "table"): 1}
    assert set(found.outputs) == {"counts", str(tmp_path / "table")}
    assert found.decision is not None
    assert set(found.decision.dead) == {"clicks-dead"}


def unfit(rows: DataFrame) -> dict[str, DataFrame]:
    """Rows of which some have no key, a partition that does not exist, or are too large."""
    records = rows.selectExpr("user AS key", "page AS value", "CAST(ms AS INT) AS partition", "record")
    named = rows.selectExpr("user AS key", "page AS value", "concat('to-', user) AS topic", "record")
    table = rows.select("user", "page", "ms")
    return {"clean": records, "named": named, "table": table}


def writing(bad: str, table: Path) -> Pipeline:
    sinks: dict[str, Topic | Delta] = {
        "clean": Topic("clean", bad=bad),
        "named": Topic("named", {"topic": ""}, bad=bad),
        "table": Delta(str(table), merge_on="user", bad=bad),
    }
    return Pipeline("clean", unfit, Topic("clicks", parse=Json(CLICK, record="record")), sinks)


def test_rows_that_a_sink_cannot_take(spark: SparkSession, bootstrap: str, tmp_path: Path) -> None:
    create(bootstrap, ("clean", 1), **{"cleanup.policy": "compact", "max.message.bytes": "1000"})
    create(bootstrap, ("to-a", 1), ("to-c", 1), **{"max.message.bytes": "1500"})
    create(bootstrap, ("small-dead", 1), **{"max.message.bytes": "700"})
    large = "x" * 1200
    clicks = [
        {"user": "a", "page": "/"},
        {"page": "/x"},
        {"user": "a b", "ms": 5},
        {"user": "c", "page": large},
    ]
    click(bootstrap, *(json.dumps(each).encode() for each in clicks))
    with pytest.raises(PipelineError, match="rows of a task") as caught:
        run(spark, writing("fail", tmp_path / "table"), bootstrap, tmp_path)
    assert re.search(
        r"written to (topic clean. clicks/0 offset|the topics that they name. clicks/0 offset)",
        str(caught.value),
    )
    assert open_transactions(bootstrap, "clean") == []
    (batch,) = run(spark, writing("small-dead", tmp_path / "table"), bootstrap, tmp_path)
    assert (batch.written, batch.dead) == ({"clean": 1, "named": 2, "table": 3}, {})
    assert batch.dead_by_sink == {"clean": 3, "named": 2, "table": 1}
    assert committed(bootstrap, "clean") == {b"/": 1}
    assert committed(bootstrap, "to-c") == {large.encode(): 1}
    assert sorted(content(tmp_path / "table")["user"]) == ["a", "a b", "c"]
    found = {
        (headers.get("semel.sink"), headers["semel.reason"].decode().partition(",")[0]): (value, headers)
        for value, headers in dead(bootstrap, "small-dead")
    }
    value, headers = found.pop((b"clean", "the record takes 1271 bytes"))
    assert value == large[: len(value or b"")].encode() != b""
    assert (headers["semel.value.bytes"], headers["semel.topic"]) == (b"1200", b"clicks")
    assert found.pop((b"clean", "the record has no key"))[0] == b"/x"
    assert found.pop((b"clean", "topic clean has no partition 5"))[0] is None
    assert found.pop((b"to-a b", "there is no topic 'to-a b'"))[0] is None
    assert found.pop((b"", "the row has no topic: its column is null"))[0] == b"/x"
    value, headers = found.pop((None, "the row has no user"))
    assert json.loads(value or b"") == {"user": None, "page": "/x", "ms": None}
    assert headers["semel.table"] == str(tmp_path / "table").encode()
    assert found == {}
    with Client(bootstrap) as client:
        known = status(client, "clean")
    assert "small-dead" not in known.outputs
    assert known.decision is not None
    assert set(known.decision.dead) == {"small-dead"}


def test_a_table_refuses_null_where_it_allows_none(
    spark: SparkSession, bootstrap: str, tmp_path: Path
) -> None:
    fields = pa.schema([pa.field("user", pa.string(), nullable=False), pa.field("ms", pa.int64())])
    DeltaTable.create(str(tmp_path / "table"), schema=Schema.from_arrow(fields))
    click(bootstrap, b'{"user": "a", "ms": 1}', b'{"ms": 2}')
    pipeline = Pipeline(
        "users",
        lambda rows: rows.select("user", "ms"),
        Topic("clicks", parse=Json(CLICK)),
        Delta(str(tmp_path / "table"), bad="clicks-dead"),
    )
    run(spark, pipeline, bootstrap, tmp_path)
    assert content(tmp_path / "table") == {"user": ["a"], "ms": [1]}
    ((value, headers),) = dead(bootstrap)
    assert json.loads(value or b"") == {"user": None, "ms": 2}
    assert headers["semel.reason"].startswith(b"column 'user' is null")


def test_a_topic_that_would_not_keep_dead_letters(
    spark: SparkSession, bootstrap: str, tmp_path: Path
) -> None:
    create(bootstrap, ("compacted", 1), **{"cleanup.policy": "compact"})
    click(bootstrap, b"{}")
    with pytest.raises(PipelineError, match="'compacted' is for dead letters, and it is compacted"):
        run(spark, reading("compacted"), bootstrap, tmp_path)


@pytest.mark.parametrize(("protocol", "place"), DEATHS)
def test_a_driver_is_killed(
    spark: SparkSession, any_broker: str, proxy: Proxy, tmp_path: Path, protocol: str, place: str
) -> None:
    mark = tmp_path.name
    topics = (f"in-{mark}", f"out-{mark}", f"dead-{mark}")
    create(any_broker, *((topic, 2) for topic in topics))
    pipeline = TopicAndDeadLetters(spark, proxy.bootstrap, tmp_path, f"copy-{mark}", topics)
    numbers = NumbersOrDeadLetters(pipeline)
    caught = catch(proxy, points(protocol)[place])
    with DriverProcess(pipeline) as driver:
        await_caught(caught, driver.check)
        driver.kill()
    numbers.succeed()
    caught.release()
    numbers.go_on()


@pytest.mark.parametrize("codec", list(Codec))
def test_a_row_is_refused_if_the_broker_would_refuse_it(semel_broker: Embedded, codec: Codec) -> None:
    """Records around the limit, alone in a batch and with others, compressed or not."""
    create(semel_broker.bootstrap_servers, ("t", 1), **{"max.message.bytes": "600"})
    noise = random.Random(1)
    values = [noise.randbytes(size) for size in (*range(400, 620), 0, 1)] + [b"x" * 5_000, None]
    keys = [b"k" if number % 2 else None for number in range(len(values))]
    rows = pa.RecordBatch.from_arrays([pa.array(keys), pa.array(values, pa.binary())], ["key", "value"])
    with Client(semel_broker.bootstrap_servers) as client, Producer(client, codec=codec) as producer:
        writer = RowWriter(client, producer, "t", codec=codec)
        faults = writer.faults(rows)
        writer.write(rows.take(pa.array([at for at in range(len(values)) if at not in faults])))
        writer.finish()
        producer.flush()
        for at in faults:
            with pytest.raises(KafkaError, match="MESSAGE_TOO_LARGE"):
                producer.send("t", values[at], key=keys[at]).result()
    assert len(faults) > 50
    assert (len(values) - 2 in faults) == (codec is Codec.NONE), "what compresses well is small enough"


def test_declarations_that_are_wrong(spark: SparkSession, bootstrap: str, tmp_path: Path) -> None:
    with pytest.raises(DeclarationError, match="nothing is parsed"):
        Pipeline("p", pages, Topic("clicks", bad="skip"), Topic("pages"))
    with pytest.raises(DeclarationError, match="parse is for sources"):
        Pipeline("p", pages, Topic("clicks"), Topic("pages", parse=Json(CLICK)))
    for topic in ("clicks", "pages"):
        with pytest.raises(DeclarationError, match="a topic of their own"):
            Pipeline("p", pages, Topic("clicks"), Topic("pages", bad=topic))
    for schema, why in (
        ("user STRNG", "cannot be read"),
        ("_corrupt STRING", "cannot have a column '_corrupt'"),
        ("STRING", "not columns"),
    ):
        wrong = Pipeline("p", pages, Topic("clicks", parse=Json(schema)), Topic("pages"))
        with pytest.raises(DeclarationError, match=f"the schema of source 'rows' .*{why}"):
            run(spark, wrong, bootstrap, tmp_path)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b'{"ms": true}', "ms is true, and should be bigint"),
        (b'{"tags": {}}', "tags is {}, and should be array<string>"),
        (b'{"at": []}', "at is [], and should be timestamp"),
        (b'{"ms": 1e400}', "the value does not fit the schema"),
        (b"[" * 100_000, "the value is not JSON: "),
    ],
)
def test_reasons(value: bytes, reason: str) -> None:
    types = {"ms": "bigint", "tags": "array<string>", "at": "struct<x:int>"}
    types = {**types, "at": "timestamp"} if b"at" in value else types
    found = why_bad(value, types)
    assert found.startswith(reason)
    assert len(found) <= 200
