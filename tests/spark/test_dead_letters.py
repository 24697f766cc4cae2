"""Records that cannot be parsed: they stop a pipeline, are counted, or become dead letters of their batch."""

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession, functions
from support.spark.jobs import committed, create

from semel.client import Client, Consumer, Producer
from semel.embedded import Embedded
from semel.pipeline import DeclarationError, Delta, Json, Pipeline, Topic
from semel.spark import PipelineError
from semel.spark.pipeline.running import Run, RunSettings
from semel.spark.pipeline.status import status
from semel.spark.sink.dead_letters import why_bad

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]

CLICK = "user STRING, page STRING, ms BIGINT"
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


def dead(bootstrap: str) -> list[tuple[bytes | None, dict[str, bytes]]]:
    with Client(bootstrap) as client, Consumer(client, "clicks-dead") as consumer:
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
    assert set(found.outputs) == {"counts", "clicks-dead", str(tmp_path / "table")}


def test_declarations_that_are_wrong(spark: SparkSession, bootstrap: str, tmp_path: Path) -> None:
    with pytest.raises(DeclarationError, match="nothing is parsed"):
        Pipeline("p", pages, Topic("clicks", bad="skip"), Topic("pages"))
    with pytest.raises(DeclarationError, match="parse and bad are for sources"):
        Pipeline("p", pages, Topic("clicks"), Topic("pages", bad="skip"))
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
