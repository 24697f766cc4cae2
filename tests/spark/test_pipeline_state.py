"""A changed declaration and the state in the checkpoint: what goes on with it, and what is refused."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession, functions
from support.spark.jobs import committed, create, fill

from semel.embedded import Embedded
from semel.pipeline import Pipeline, Topic
from semel.spark import PipelineMismatch, start
from semel.spark.checkpoint import Checkpoint
from semel.spark.pipeline.operators import ResultState, state_of
from semel.spark.pipeline.query import OneQuery
from semel.spark.pipeline.state import FILE, Fit, fit_states, record

Results = Callable[[DataFrame], dict[str, DataFrame]]


def stream(spark: SparkSession, topic: str = "in") -> DataFrame:
    options = {"kafka.bootstrap.servers": "127.0.0.1:1", "subscribe": topic, "pipeline.id": "counting"}
    return spark.readStream.format("semel").options(**options).load()


def rows(spark: SparkSession, schema: str = "customer STRING, country STRING, amount BIGINT") -> DataFrame:
    records = stream(spark)
    row = functions.from_json(records.value.cast("string"), schema).alias("row")
    return records.select("timestamp", row).select("timestamp", "row.*")


def described(frame: DataFrame) -> ResultState:
    found = state_of(frame)
    assert found is not None
    return found


def total(frame: DataFrame) -> DataFrame:
    return frame.groupBy("customer").agg(functions.sum("amount").alias("total"))


@pytest.mark.spark
def test_changes_that_keep_the_meaning_of_the_state(spark: SparkSession) -> None:
    known = described(total(rows(spark)))
    assert str(known) == "aggregation by json(value).customer string: sum(amount) bigint"
    for changed in (
        total(rows(spark).where("amount > 0")),
        total(rows(spark, "more INT, amount BIGINT, customer STRING")),
        total(rows(spark).withColumn("amount", functions.expr("amount * 2"))),
        total(rows(spark)).where("total > 3").withColumn("more", functions.lit(1)),
        rows(spark).selectExpr("customer AS who", "amount AS a").groupBy("who").agg(functions.sum("a")),
    ):
        assert described(changed).is_that_of(known), described(changed)
    # A field of a structure is the column that it was made of.
    records = rows(spark).withColumn("record", functions.struct("country", "timestamp"))
    assert described(records.groupBy("record.timestamp").count()).operators[0].keys == (
        "timestamp timestamp",
    )
    late, later = (
        rows(spark).withWatermark("timestamp", delay).dropDuplicates(["customer", "timestamp"])
        for delay in ("1 minute", "2 minutes")
    )
    assert described(late).is_that_of(described(later))
    assert described(late).is_that_of(described(rows(spark).dropDuplicates(["customer", "timestamp"])))


@pytest.mark.spark
def test_changes_of_the_state(spark: SparkSession) -> None:
    """Spark notices none of them: the types of the state are the same."""
    table = rows(spark)

    def windows(*spans: str) -> DataFrame:
        return table.groupBy(functions.window("timestamp", *spans)).count()

    def joined(left: str, right: str, how: str) -> DataFrame:
        a, b = (rows(spark).select("customer", "country").toDF(f"{n}1", f"{n}2") for n in "ab")
        return a.join(b, functions.expr(f"{left} = {right}"), how)

    for known, changed in (
        (total(table), table.groupBy("country").agg(functions.sum("amount"))),
        (total(table), table.groupBy(functions.lower("customer")).agg(functions.sum("amount"))),
        (total(table), total(table.withColumn("customer", table.country))),
        (total(table), table.groupBy("customer").agg(functions.max("amount"))),
        (total(table), table.groupBy("customer").agg(functions.sum(functions.length("country")))),
        (total(table), total(table).dropDuplicates(["customer"])),
        (windows("1 minute"), windows("2 minutes")),
        (windows("2 minutes"), windows("2 minutes", "1 minute")),
        (windows("2 minutes"), windows("2 minutes", "2 minutes", "1 minute")),
        (table.dropDuplicates(["customer"]), table.dropDuplicates(["country"])),
        (joined("a1", "b1", "inner"), joined("a1", "b2", "inner")),
        (joined("a1", "b1", "inner"), joined("a1", "b1", "leftouter")),
        (
            table.withWatermark("timestamp", "1 minute").dropDuplicatesWithinWatermark(["customer"]),
            table.withColumn("timestamp", functions.expr("timestamp - INTERVAL 1 YEAR"))
            .withWatermark("timestamp", "1 minute")
            .dropDuplicatesWithinWatermark(["customer"]),
        ),
    ):
        assert not described(changed).is_that_of(described(known)), described(changed)
    assert str(described(windows("2 minutes", "1 minute"))) == (
        "aggregation by window(timestamp, 60 s, 120 s): count(1) bigint"
    )


@pytest.mark.spark
def test_results_that_get_other_names(spark: SparkSession, tmp_path: Path) -> None:
    table, checkpoint = rows(spark), Checkpoint(str(tmp_path))
    for name in ("offsets", "commits", "state"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "0").touch()
    totals, unique = described(total(table)), described(table.dropDuplicates(["country"]))
    assert fit_states(checkpoint, {"totals": totals}) == Fit(["totals"], [], is_known=False)
    record(checkpoint, {"totals": totals, "unique": unique})
    assert fit_states(checkpoint, {"unique": unique, "totals": totals}).order == ["totals", "unique"]
    assert fit_states(checkpoint, {"once": unique, "totals": totals}).order == ["totals", "once"]
    assert fit_states(checkpoint, {"once": unique, "sums": totals}).order == ["sums", "once"]
    (change,) = fit_states(checkpoint, {"totals": totals}).changes
    assert (change.result, change.was, change.now) == ("unique", unique, None)
    swapped = fit_states(checkpoint, {"unique": totals, "totals": unique})
    assert [each.result for each in swapped.changes] == ["totals", "unique"]
    # It is not known which of two equal results has got which name.
    record(checkpoint, {"a": totals, "b": totals})
    assert fit_states(checkpoint, {"a": totals, "c": totals}).order == ["a", "c"]
    assert len(fit_states(checkpoint, {"c": totals, "d": totals}).changes) == 4
    # Another version of Spark may describe the same plan in other words.
    note = json.loads((tmp_path / FILE).read_text())
    (tmp_path / FILE).write_text(json.dumps({**note, "spark": "5.0"}))
    assert not fit_states(checkpoint, {"other": unique}).is_known


def counting(results: Results, *names: str) -> Pipeline:
    sinks = {name: Topic(name) for name in names}
    return Pipeline("counting", results, Topic("in"), sinks, output_mode="update")


def counts(key: str) -> Callable[[DataFrame], DataFrame]:
    def count(frame: DataFrame) -> DataFrame:
        return (
            frame.groupBy(functions.expr(key).alias("key"))
            .count()
            .selectExpr("key", "CAST(count AS STRING) value")
        )

    return count


@pytest.mark.spark
def test_a_start_refuses_the_state_of_something_else(
    spark: SparkSession, semel_broker: Embedded, tmp_path: Path
) -> None:
    bootstrap = semel_broker.bootstrap_servers
    create(bootstrap, ("in", 1), ("first", 1), ("all", 1))
    by_start, by_none = counts("substring(key, 1, 4)"), counts("'all'")

    def run(results: Results, *names: str) -> None:
        declared = counting(results, *names)
        query = start(spark, declared, bootstrap_servers=bootstrap, checkpoint=str(tmp_path), once=True)
        query.awaitTermination()

    fill(bootstrap, "in", range(3))
    run(lambda frame: {"first": by_start(frame), "all": by_none(frame)}, "first", "all")
    fill(bootstrap, "in", range(3))
    # Another order, and a filter.
    run(
        lambda frame: {"all": by_none(frame), "first": by_start(frame.where("value IS NOT NULL"))},
        "all", "first",
    )  # fmt: skip
    assert committed(bootstrap, "first") == committed(bootstrap, "all") == {b"3": 1, b"6": 1}
    with pytest.raises(
        PipelineMismatch,
        match=r"first was aggregation by substring\(key, 1, 4\) binary: count\(1\) bigint, and is "
        r"aggregation by substring\(key, 1, 5\) binary.* new checkpoint directory.*semel-state\.json",
    ):
        run(
            lambda frame: {"first": counts("substring(key, 1, 5)")(frame), "all": by_none(frame)},
            "first", "all",
        )  # fmt: skip
    with pytest.raises(PipelineMismatch, match=r"reads 1 inputs \(in\), and the checkpoint has 2 \(in; in\)"):
        run(lambda frame: {"first": by_start(frame)}, "first")
    # It reads as many sources as before, and Spark would look for the state in vain.
    with pytest.raises(PipelineMismatch, match="is not declared any more"):
        run(lambda frame: {"first": frame.select("value"), "all": by_none(frame)}, "first", "all")


@pytest.mark.spark
def test_a_first_batch_that_failed_has_left_no_state(spark: SparkSession, tmp_path: Path) -> None:
    """So a declaration can be corrected before anything has counted."""
    checkpoint = Checkpoint(str(tmp_path))
    record(checkpoint, {"totals": described(total(rows(spark)))})
    (tmp_path / "offsets").mkdir()
    (tmp_path / "offsets/0").write_text('v1\n{}\n{"in": {"0": 3}}')
    other = counting(lambda frame: {"totals": frame.groupBy("key").count()}, "totals")
    OneQuery(other, {"frame": stream(spark)}, {}).go_on(checkpoint)
    (known,) = json.loads((tmp_path / FILE).read_text())["results"]
    assert known["operators"][0]["keys"] == ["key binary"]


@pytest.mark.spark
def test_sources_in_another_order_are_the_same(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "offsets").mkdir()
    (tmp_path / "offsets/0").write_text('v1\n{}\n{"a": {"0": 3}}\n{"b": {"0": 4}}')

    def both(**frames: DataFrame) -> DataFrame:
        return frames["x"].union(frames["y"])

    declared = Pipeline("copy", lambda y, x: both(x=x, y=y), {"y": Topic("b"), "x": Topic("a")}, Topic("out"))
    query = OneQuery(declared, {"y": stream(spark, "b"), "x": stream(spark, "a")}, {})
    fit = query.fit(Checkpoint(str(tmp_path)))
    assert fit is not None
    assert fit.inputs is None
    assert [topics for each in query._branches for topics in each.inputs] == [{"a"}, {"b"}]
