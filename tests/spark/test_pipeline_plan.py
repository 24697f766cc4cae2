"""`semel.spark.pipeline.plan`: what a start would do. Pipelines are changed, planned and run."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession, functions
from support.spark.checkpoints import Query
from support.spark.jobs import committed, create, fill, values

from semel.client import Admin, Client, Codec, NewTopic
from semel.client.produce.transaction_coordinator import Coordinator
from semel.embedded import Embedded
from semel.pipeline import Delta, Pipeline, Topic
from semel.spark.pipeline import plan as planning
from semel.spark.pipeline.planned import Kind, PipelinePlan, Then, Verdict
from semel.spark.pipeline.running import Run, RunSettings
from semel.spark.sink.batch_commit import begin_attempt
from semel.spark.sink.decision import make
from semel.spark.sink.planning import foresee, plan_stream

pytestmark = pytest.mark.spark


class World:
    """A broker, a checkpoint, and a pipeline that is planned and run."""

    def __init__(self, spark: SparkSession, client: Client, bootstrap: str, directory: Path) -> None:
        self.spark, self.client, self.bootstrap = spark, client, bootstrap
        self.directory = directory
        self.settings = RunSettings(bootstrap, str(directory / "checkpoint"), once=True)

    def plan(
        self, declared: Pipeline, *, is_new: bool = False, checkpoint: str = "checkpoint"
    ) -> PipelinePlan:
        """Plan a start; nothing changes anywhere."""
        before = self.everything()
        settings = replace(self.settings, is_new=is_new, checkpoint=str(self.directory / checkpoint))
        found = planning.plan(self.spark, self.client, declared, settings)
        assert self.everything() == before
        return found

    def run(self, declared: Pipeline) -> None:
        for _ in Run(self.spark, declared, self.settings).watch(lambda: False):
            pass

    def everything(self) -> object:
        admin = Admin(self.client)
        groups = {each.group_id: admin.groups.offsets(each.group_id) for each in admin.groups.all()}
        topics = [(each.name, each.topic_id) for each in admin.topics.all()]
        ids = [(each.transactional_id, each.state) for each in admin.transactions.all()]
        files = sorted((str(path), path.stat().st_mtime_ns) for path in self.directory.rglob("*"))
        return groups, topics, ids, files


@pytest.fixture
def world(spark: SparkSession, semel_broker: Embedded, tmp_path: Path) -> Iterator[World]:
    bootstrap = semel_broker.bootstrap_servers
    create(bootstrap, ("in", 2), ("out", 1), ("more", 1))
    with Client(bootstrap) as client:
        yield World(spark, client, bootstrap, tmp_path)


def copied(rows: DataFrame) -> DataFrame:
    return rows.select("key", "value")


IN = Topic("in")


def copying(*, pipeline_id: str = "copy", source: Topic = IN, **sinks: Topic | Delta) -> Pipeline:
    def results(rows: DataFrame) -> dict[str, DataFrame]:
        return dict.fromkeys(sinks, copied(rows))

    return Pipeline(pipeline_id, results, source, sinks)


def sinks_of(plan: PipelinePlan) -> dict[str, tuple[str | None, Then]]:
    return {each.writes_to: (each.sink, each.then) for each in plan.sinks}


def findings(plan: PipelinePlan, kind: Kind) -> str:
    return "\n".join(each.text for each in plan.findings if each.kind is kind)


def test_a_pipeline_that_is_not_changed(world: World) -> None:
    plain = copying(copy=Topic("out"))
    fill(world.bootstrap, "in", range(10))

    new = world.plan(plain)
    assert (new.verdict, new.position, new.checkpoint) == (Verdict.SAFE, "none", "new")
    assert sinks_of(new) == {"out": ("copy", Then.BEGINS)}
    (source,) = new.sources
    assert (source.then, source.offsets, source.lag) == (Then.BEGINS, {0: 0, 1: 0}, 10)
    world.run(plain)

    fill(world.bootstrap, "in", range(10, 15))
    goes_on = world.plan(plain)
    assert (goes_on.verdict, goes_on.checkpoint) == (Verdict.SAFE, "batch 1 is next")
    assert sinks_of(goes_on) == {"out": ("copy", Then.CONTINUES)}
    (source,) = goes_on.sources
    assert (source.then, sum(source.offsets.values()), source.lag) == (Then.CONTINUES, 10, 5)

    # The checkpoint is lost.
    lost = world.plan(plain, checkpoint="other")
    assert (lost.verdict, lost.checkpoint) == (Verdict.SAFE, "new, continues at the position")
    assert [(each.then, sum(each.offsets.values()), each.lag) for each in lost.sources] == [
        (Then.CONTINUES, 10, 5)
    ]

    world.run(plain)
    assert committed(world.bootstrap, "out") == values(range(15))

    # An older copy of the checkpoint.
    fill(world.bootstrap, "in", range(15, 20))
    for name in ("offsets/1", "commits/1"):
        (world.directory / "checkpoint/copy" / name).unlink()
    older = world.plan(plain)
    assert "The checkpoint is an older copy" in findings(older, Kind.REFUSED)


def test_other_sinks_and_sources(world: World) -> None:
    fill(world.bootstrap, "in", range(5))
    world.run(copying(copy=Topic("out")))

    # Sinks are added, renamed and removed.
    table = world.directory / "table"
    more = world.plan(copying(same=Topic("out"), more=Topic("more"), table=Delta(str(table))))
    assert more.verdict is Verdict.SAFE
    assert sinks_of(more) == {
        "out": ("same", Then.CONTINUES),
        "more": ("more", Then.BEGINS),
        str(table): ("table", Then.BEGINS),
    }
    assert [each.details for each in more.sinks if each.sink == "table"] == ["is created"]
    fewer = world.plan(copying(more=Topic("more")))
    assert sinks_of(fewer) == {"more": ("more", Then.BEGINS), "out": (None, Then.ORPHANED)}

    short = world.plan(Pipeline("copy", lambda rows: rows.select("key"), IN, Topic("out")))
    assert "sink 'copy': the sink needs a column 'value'" in findings(short, Kind.REFUSED)
    assert sinks_of(short) == {"out": ("copy", Then.REFUSED)}

    # One source more.
    def both(rows: DataFrame, others: DataFrame) -> DataFrame:
        return copied(rows).union(copied(others))

    wider = Pipeline("copy", both, {"rows": IN, "others": Topic("more")}, Topic("out"))
    more = world.plan(wider)
    (refused,) = more.findings
    assert "it reads 2 inputs (in; more), and the checkpoint has 1 (in)" in refused.text
    assert (more.verdict, refused.kind) == (Verdict.REFUSED, Kind.REFUSED)
    more = world.plan(wider, checkpoint="other")
    assert more.verdict is Verdict.SAFE
    assert [(each.source, each.then) for each in more.sources] == [
        ("rows", Then.CONTINUES),
        ("others", Then.BEGINS),
    ]

    # Other sources.
    elsewhere = world.plan(copying(source=Topic("more"), copy=Topic("out")))
    assert elsewhere.verdict is Verdict.REFUSED
    assert "in/0, in/1 is there, and was read by this query before" in findings(elsewhere, Kind.REFUSED)
    elsewhere = world.plan(copying(source=Topic("more"), copy=Topic("out")), checkpoint="other")
    assert [(each.topic, each.then) for each in elsewhere.sources] == [
        ("more", Then.BEGINS),
        ("in", Then.REMOVED),
    ]


def test_other_ids(world: World) -> None:
    fill(world.bootstrap, "in", range(5))
    world.run(copying(copy=Topic("out")))
    other = copying(pipeline_id="other", copy=Topic("out"))
    refused = world.plan(other)
    assert refused.verdict is Verdict.REFUSED
    assert "renamed_from='copy'" in findings(refused, Kind.REFUSED)
    again = world.plan(other, is_new=True)
    assert again.verdict is Verdict.LOSS
    assert "would write what is there from offset 0 on a second time" in findings(again, Kind.AGAIN)
    renamed = Pipeline("other", copied, Topic("in"), Topic("out"), renamed_from="copy")
    assert (world.plan(renamed).verdict, world.plan(renamed).pipeline_id) == (Verdict.SAFE, "copy")
    wrong = world.plan(Pipeline("other", copied, Topic("in"), Topic("more"), renamed_from="cpoy"))
    assert "no pipeline has a position under that id" in findings(wrong, Kind.AGAIN)


def test_tables_and_topics_that_do_not_fit(world: World) -> None:
    fill(world.bootstrap, "in", range(3))
    table = str(world.directory / "table")
    world.run(copying(table=Delta(table)))

    def changed(rows: DataFrame) -> DataFrame:
        return rows.selectExpr("CAST(key AS STRING) AS key", "value", "offset", "partition")

    wrong = Pipeline("copy", lambda rows: {"t": changed(rows)}, Topic("in"), {"t": Delta(table)})
    assert "sink 't': the column 'key' is string, and binary in the table" in findings(
        world.plan(wrong), Kind.REFUSED
    )

    def widened(rows: DataFrame) -> dict[str, DataFrame]:
        return {"t": rows.select("key", "value", "offset")}

    wide = world.plan(Pipeline("copy", widened, Topic("in"), {"t": Delta(table)}))
    assert "has no column 'offset'" in findings(wide, Kind.REFUSED)
    merged = world.plan(Pipeline("copy", widened, Topic("in"), {"t": Delta(table, {"mergeSchema": "true"})}))
    assert (merged.verdict, [each.details for each in merged.sinks]) == (Verdict.SAFE, ["gets offset"])
    gone = world.plan(copying(table=Delta(table), new=Topic("nowhere")))
    assert [each.details for each in gone.sinks] == ["", "is created by the broker"]
    # Both outputs of before are gone: the table was moved, and the topic of the source created again.
    Path(table).rename(world.directory / "moved")
    moved = world.plan(copying(table=Delta(table)))
    assert "there is no table there any more" in findings(moved, Kind.REFUSED)
    Path(world.directory / "moved").rename(table)
    Admin(world.client).topics.delete("in")
    missing = world.plan(copying(table=Delta(table)))
    assert "there is no topic in" in findings(missing, Kind.REFUSED)
    Admin(world.client).topics.create(NewTopic("in", partitions=2))
    anew = world.plan(copying(table=Delta(table)))
    assert "an input topic was deleted and created again: in" in findings(anew, Kind.REFUSED)
    fill(world.bootstrap, "in", range(4))
    loses = world.plan(copying(source=Topic("in", {"failOnDataLoss": "false"}), table=Delta(table)))
    assert (loses.verdict, loses.sources[0].then, loses.sources[0].lag) == (Verdict.LOSS, Then.STARTS_OVER, 4)
    assert "topic in was deleted and created again" in findings(loses, Kind.LOST)


def test_a_pipeline_that_runs(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The plan is made again if the pipeline has made a batch meanwhile."""
    plain, moves = copying(copy=Topic("out")), iter([True])
    fill(world.bootstrap, "in", range(5))
    world.run(plain)
    fill(world.bootstrap, "in", range(5, 10))

    def moving(*arguments: Any) -> bool:
        if next(moves, False):
            world.run(plain)
            fill(world.bootstrap, "in", range(10, 13))
        return foresee(*arguments)

    monkeypatch.setattr(planning, "foresee", moving)
    found = planning.plan(world.spark, world.client, plain, world.settings)
    assert (found.verdict, found.checkpoint, found.sources[0].lag) == (Verdict.SAFE, "batch 2 is next", 3)


def test_records_that_were_deleted(world: World) -> None:
    fill(world.bootstrap, "in", range(10))
    world.run(copying(copy=Topic("out")))
    fill(world.bootstrap, "in", range(10))
    Admin(world.client).topics.delete_records({("in", 0): 7})
    stops = world.plan(copying(copy=Topic("out")))
    assert "2 offsets of in/0 were deleted before they were read" in findings(stops, Kind.REFUSED)
    tolerant = Topic("in", {"failOnDataLoss": "false"})
    loses = world.plan(copying(source=tolerant, copy=Topic("out")))
    assert (loses.verdict, loses.sources[0].lost, loses.sources[0].lag) == (Verdict.LOSS, 2, 10)
    fresh = world.plan(copying(pipeline_id="fresh", more=Topic("more")))
    assert (fresh.verdict, fresh.sources[0].offsets) == (Verdict.SAFE, {0: 7, 1: 0})


def test_a_decision_that_is_not_finished(world: World) -> None:
    """As on brokers other than Semel, and with tables, after a driver has died."""
    fill(world.bootstrap, "in", range(10))
    query = Query(world.directory / "died", "q")
    batch = plan_stream(world.client, "copy", query.batch(0, 3, began=0))
    producer = begin_attempt(world.client, batch, "0.0", transaction_timeout_ms=60_000, codec=Codec.NONE)
    producer.send("out", b"decided")
    prepared = producer.prepare()
    assert prepared is not None
    make(world.client, "copy", batch.decision([prepared], {}))
    plain = copying(copy=Topic("out"))
    found = world.plan(plain)
    assert (found.verdict, found.position) == (Verdict.SAFE, "batch 0, decision 1")
    assert "the start commits what is decided and still open, 1 transactions" in findings(found, Kind.NOTE)
    assert [each.offsets for each in found.sources] == [{0: 3, 1: 3}]
    world.run(plain)
    assert committed(world.bootstrap, "out")[b"decided"] == 1
    assert world.plan(plain).findings == ()


def test_a_decision_whose_driver_has_died(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A start waits, and then takes over. A plan does not."""
    fill(world.bootstrap, "in", range(10))
    batch = plan_stream(world.client, "copy", Query(world.directory / "died", "q").batch(0, 3, began=0))
    monkeypatch.setattr(Coordinator, "end", lambda *_, **__: None)
    make(world.client, "copy", batch.decision([], {}))
    found = world.plan(copying(copy=Topic("out")))
    assert (found.verdict, found.position) == (Verdict.SAFE, "none")
    assert "a batch is being written: the pipeline runs, or was killed" in findings(found, Kind.NOTE)


def test_state_and_checkpoints(world: World) -> None:
    def counting(key: str) -> Pipeline:
        def count(rows: DataFrame) -> DataFrame:
            return rows.groupBy(functions.expr(key).alias("key")).count().selectExpr("key", "'' AS value")

        return Pipeline("counting", count, Topic("in"), Topic("out"), output_mode="update")

    fill(world.bootstrap, "in", range(3))
    assert [each.then for each in world.plan(counting("key")).states] == [Then.BEGINS]
    world.run(counting("key"))
    assert [each.then for each in world.plan(counting("key")).states] == [Then.CONTINUES]
    other = world.plan(counting("value"))
    assert (other.verdict, other.states[0].then) == (Verdict.REFUSED, Then.REFUSED)
    assert "was aggregation by key binary" in findings(other, Kind.REFUSED)
    # With a new checkpoint it goes on, and its state is lost.
    anew = world.plan(counting("value"), checkpoint="other")
    assert (anew.verdict, anew.states[0].then) == (Verdict.LOSS, Then.BEGINS_EMPTY)
    assert "begins empty" in findings(anew, Kind.LOST)
    # A checkpoint of an older release.
    checkpoint = world.directory / "checkpoint/counting"
    (checkpoint / "semel-state.json").unlink()
    unknown = world.plan(counting("value"))
    assert (unknown.verdict, unknown.states[0].then) == (Verdict.SAFE, Then.UNKNOWN)
    # A batch that Spark repeats, and that was decided.
    (checkpoint / "commits/0").unlink()
    assert world.plan(counting("key")).checkpoint == "batch 0 was decided and is not written again"
    # The checkpoint of another pipeline.
    mine = world.directory / "checkpoint/mine"
    checkpoint.rename(mine)
    foreign = Pipeline("mine", counting("key").function, Topic("in"), Topic("more"), output_mode="update")
    assert "the checkpoint is that of pipeline 'counting'" in findings(world.plan(foreign), Kind.REFUSED)
