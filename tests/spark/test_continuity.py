"""What a pipeline does when the world has changed between two runs: it goes on exactly, or refuses.

The protocol without Spark, in both forms: a checkpoint and a driver's calls are enough. The same with Spark
is in `test_world` and, generated, in `verification`.
"""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.spark.checkpoints import Query
from support.spark.jobs import create, fill

from semel.client import Admin, Client, CommittedOffset
from semel.client.admin.group_offsets import commit_offsets
from semel.embedded import Embedded
from semel.spark import DataLoss, OptionError, PipelineError, PipelineFenced, PipelineMismatch
from semel.spark.checkpoint import Checkpoint
from semel.spark.delta.group import TableName, follow
from semel.spark.options import SourceOptions
from semel.spark.partition_offsets import Span, of_json, topic_ids
from semel.spark.sink import batch_commit, planning
from semel.spark.sink import decision as decisions
from semel.spark.sink.batch_commit import BatchPlan
from semel.spark.sink.versions import Version
from semel.spark.source.source import BatchReader, StreamReader

NAME = "copy"
TOGETHER, PORTABLE = "together", "portable"
HIDDEN = pytest.mark.semel_settings({"semel.extensions.enable": False})


@pytest.fixture(params=[TOGETHER, pytest.param(PORTABLE, marks=HIDDEN)])
def client(request: pytest.FixtureRequest, semel_broker: Embedded) -> Iterator[Client]:
    create(semel_broker.bootstrap_servers, ("in", 2), ("out", 1))
    with Client(semel_broker.bootstrap_servers, timeout_s=5) as client:
        yield client


def batch(query: Query, number: int, ends: dict[str, Any], **more: Any) -> Checkpoint:
    """A batch as Spark's log has it: offsets by topic and partition."""
    entries = {f"{name}:": value for name, value in more.items()}
    text = "\n".join(["v1", '{"batchWatermarkMs":0}', json.dumps({**ends, **entries})])
    (query.directory / "offsets" / str(number)).write_text(text)
    return Checkpoint(str(query.directory))


def count(client: Client, checkpoint: Checkpoint, topic: str | None = None) -> BatchPlan:
    """Plan a batch and decide it, unless it is done."""
    plan = planning.plan_stream(client, NAME, checkpoint, topic)
    if not plan.is_done:
        batch_commit.decide(
            client, plan, [], {} if topic is None else topic_ids(client.describe([topic]).topics)
        )
    return plan


def two_batches(client: Client, tmp_path: Path) -> Query:
    query = Query(tmp_path, "q")
    count(client, batch(query, 0, {"in": {"0": 10, "1": 10}}, began={"in": {"0": 0, "1": 0}}))
    count(client, batch(query, 1, {"in": {"0": 20, "1": 20}}))
    return query


# ---- a checkpoint that was restored


@pytest.mark.parametrize(
    "ends",
    [
        {"in": {"0": 20, "1": 20, "2": 5}},
        {"in": {"0": 20, "1": 20}, "new": {"0": 5}},
        {"in": {"0": 20}},
        {"in": {"0": 20, "1": 15}},
    ],
    ids=["a new partition", "a new topic", "a partition fewer", "another end"],
)
def test_a_batch_counts_as_decided_only_if_it_reads_what_was_decided(
    client: Client, tmp_path: Path, ends: dict[str, Any]
) -> None:
    """What an older copy of a checkpoint plans anew has the number of a decided batch, and other input."""
    query = two_batches(client, tmp_path)
    with pytest.raises(PipelineMismatch, match=r"batch 1 reads .* has decided it with"):
        count(client, batch(query, 1, ends))
    assert count(client, batch(query, 1, {"in": {"0": 20, "1": 20}})).is_done


def test_a_batch_of_the_same_range_that_started_elsewhere_is_not_the_same(
    client: Client, tmp_path: Path
) -> None:
    query = two_batches(client, tmp_path)
    batch(query, 0, {"in": {"0": 9, "1": 10}}, began={"in": {"0": 0, "1": 0}})
    with pytest.raises(PipelineMismatch, match=r"offsets 9 to 20 of in/0, .* with offsets 10 to 20 of in/0"):
        count(client, Checkpoint(str(query.directory)))


def test_new_partitions_of_a_query_are_read_from_their_beginning(client: Client, tmp_path: Path) -> None:
    query = two_batches(client, tmp_path)
    Admin(client).topics.add_partitions("in", 3)
    count(client, batch(query, 2, {"in": {"0": 20, "1": 20, "2": 5}}))
    assert decisions.read_committed(client, NAME).offsets["in", 2] == 5
    # A checkpoint that claims to have read a partition which the pipeline does not know is another one.
    Admin(client).topics.add_partitions("in", 4)
    batch(query, 2, {"in": {"0": 20, "1": 20, "2": 5, "3": 7}})
    with pytest.raises(PipelineMismatch, match=r"starts at offset 7 of in/3, but .* has reached 0"):
        count(client, batch(query, 3, {"in": {"0": 20, "1": 20, "2": 5, "3": 9}}))


def test_a_new_query_does_not_begin_behind_the_records_of_a_new_partition(
    client: Client, tmp_path: Path
) -> None:
    """As one with startingOffsets=latest would."""
    two_batches(client, tmp_path)
    Admin(client).topics.add_partitions("in", 3)
    began = {"in": {"0": 20, "1": 20, "2": 4}}
    late = batch(Query(tmp_path, "r"), 0, {"in": {"0": 20, "1": 20, "2": 6}}, began=began)
    with pytest.raises(PipelineMismatch, match=r"has read nothing of in/2 yet.* begins there at offset 4"):
        count(client, late)
    began["in"]["2"] = 0
    early = batch(Query(tmp_path, "s"), 0, {"in": {"0": 20, "1": 20, "2": 6}}, began=began)
    assert not count(client, early).is_done


# ---- groups that others have changed


def test_a_group_that_was_deleted_is_not_taken_for_a_new_pipeline(client: Client, tmp_path: Path) -> None:
    query = Query(tmp_path, "q")
    first = batch(query, 0, {"in": {"0": 10, "1": 10}}, began={"in": {"0": 0, "1": 0}})
    planning.plan_stream(client, NAME, first)
    assert not count(client, first).is_done, "one that died before its first decision goes on"
    Admin(client).groups.delete(NAME)
    for each in (first, batch(Query(tmp_path, "r"), 0, {"in": {"0": 10}}, began={"in": {"0": 0}})):
        with pytest.raises(PipelineMismatch, match=f"'{NAME}'"):
            count(client, each)


def test_a_first_start_that_was_interrupted_is_no_reason_to_refuse(client: Client, tmp_path: Path) -> None:
    decisions.take_over(client, NAME)
    first = batch(Query(tmp_path, "q"), 0, {"in": {"0": 10, "1": 10}}, began={"in": {"0": 0, "1": 0}})
    assert not count(client, first).is_done


def test_another_query_may_begin_elsewhere_while_nothing_counts(client: Client, tmp_path: Path) -> None:
    first = batch(Query(tmp_path, "q"), 0, {"in": {"0": 10, "1": 10}}, began={"in": {"0": 0, "1": 0}})
    planning.plan_stream(client, NAME, first)
    other = batch(Query(tmp_path, "r"), 0, {"in": {"0": 10, "1": 10}}, began={"in": {"0": 3, "1": 3}})
    assert not count(client, other).is_done


def test_offsets_that_were_reset_moved_or_deleted_are_noticed(client: Client, tmp_path: Path) -> None:
    query = two_batches(client, tmp_path)
    good = dict(Admin(client).groups.offsets(NAME))
    next_batch = batch(query, 2, {"in": {"0": 30, "1": 30}})
    new_query = batch(Query(tmp_path, "r"), 0, {"in": {"0": 30, "1": 30}}, began={"in": {"0": 20, "1": 0}})
    changes: list[CommittedOffset | None] = [
        CommittedOffset(0),
        CommittedOffset(15, good["in", 1].metadata),
        None,
    ]
    for change in changes:
        if change is None:
            Admin(client).groups.delete_offsets(NAME, [("in", 1)])
        else:
            commit_offsets(client, NAME, {("in", 1): change})
        for each in (next_batch, new_query):
            with pytest.raises(PipelineError, match="Another program has reset, changed or deleted offsets"):
                count(client, each)
        commit_offsets(client, NAME, good)
    assert not count(client, next_batch).is_done


def test_topics_that_are_not_read_any_more_are_still_remembered(client: Client, tmp_path: Path) -> None:
    """Or their offsets could be deleted unnoticed before they are read again."""
    create(f"{client.describe(()).nodes[0].host}:{client.describe(()).nodes[0].port}", ("more", 1))
    query = Query(tmp_path, "q")
    began = {"in": {"0": 0, "1": 0}, "more": {"0": 0}}
    count(client, batch(query, 0, {"in": {"0": 10, "1": 10}, "more": {"0": 10}}, began=began))
    count(client, batch(query, 1, {"in": {"0": 20, "1": 20}}))
    Admin(client).groups.delete_offsets(NAME, [("more", 0)])
    with pytest.raises(PipelineError, match="topic more"):
        count(client, batch(query, 2, {"in": {"0": 30, "1": 30}}))
    Admin(client).topics.delete("more")
    assert not count(client, batch(query, 2, {"in": {"0": 30, "1": 30}})).is_done
    decision = decisions.read_committed(client, NAME).decision
    assert decision is not None
    assert decision.inputs.keys() == {"in"}


def test_a_decision_outlives_an_input_topic(client: Client, tmp_path: Path) -> None:
    create(f"{client.describe(()).nodes[0].host}:{client.describe(()).nodes[0].port}", ("a", 1))
    query = Query(tmp_path, "q")
    count(client, batch(query, 0, {"a": {"0": 5}, "in": {"0": 9}}, began={"a": {"0": 0}, "in": {"0": 0}}))
    Admin(client).topics.delete("a")
    assert not count(client, batch(query, 1, {"in": {"0": 20}})).is_done


# ---- outputs


def test_an_output_that_was_created_again_is_noticed(client: Client, tmp_path: Path) -> None:
    query = Query(tmp_path, "q")
    first = batch(query, 0, {"in": {"0": 10, "1": 10}}, began={"in": {"0": 0, "1": 0}})
    count(client, first, "out")
    plan = planning.plan_stream(client, NAME, batch(query, 1, {"in": {"0": 20, "1": 20}}), "out")
    before = topic_ids(client.describe(["out"]).topics)
    Admin(client).topics.delete("out")
    create(f"{client.describe(()).nodes[0].host}:{client.describe(()).nodes[0].port}", ("out", 1))
    with pytest.raises(PipelineMismatch, match="output topic out"):
        batch_commit.decide(client, plan, [], before)
    for number in (1, 0):
        with pytest.raises(PipelineMismatch, match="output topic out"):
            count(client, Checkpoint(str(query.directory)), "out")
        (query.directory / f"offsets/{number}").unlink()


def test_an_id_is_not_used_for_another_output(client: Client, tmp_path: Path) -> None:
    query = Query(tmp_path, "q")
    count(client, batch(query, 0, {"in": {"0": 10, "1": 10}}, began={"in": {"0": 0, "1": 0}}), "out")
    with pytest.raises(PipelineMismatch, match=r"topic out.* topic other"):
        count(client, batch(query, 1, {"in": {"0": 20, "1": 20}}), "other")
    with pytest.raises(PipelineMismatch, match="writes to the topics that its rows name"):
        count(client, batch(query, 1, {"in": {"0": 20, "1": 20}}))


def test_an_id_of_a_pipeline_to_a_table_is_not_used_for_topics(client: Client, tmp_path: Path) -> None:
    follow(client, NAME, {}, TableName("some-id", "/tables/t"), {("in", 0): 10, ("in", 1): 10})
    began = {"in": {"0": 10, "1": 10}}
    with pytest.raises(PipelineMismatch, match="belongs to a pipeline that writes to a table"):
        count(client, batch(Query(tmp_path, "q"), 0, began, began=began))
    with pytest.raises(PipelineMismatch, match="belongs to a pipeline that writes to a table"):
        planning.plan_batch(client, NAME)


# ---- checkpoints of others


def test_a_checkpoint_of_another_pipeline_is_noticed_without_new_input(client: Client) -> None:
    """Without input there is no batch, and the sink is not asked."""
    first = reader(client, startingOffsets="earliest", **{"pipeline.id": "first"})
    end = first.latestOffset(first.initialOffset(), first.getDefaultReadLimit())
    second = reader(client, **{"pipeline.id": "second"})
    # It would read everything again, perhaps into the same output, if only the checkpoint were new.
    advice = (
        "is that of pipeline 'first', and this query is .*'second'.* startingOffsets where the output ends"
    )
    with pytest.raises(PipelineMismatch, match=advice):
        second.latestOffset(end, second.getDefaultReadLimit())
    Admin(client).groups.set_offsets("second", {("in", 0): 1})
    with pytest.raises(
        PipelineMismatch, match=r"keep the id 'first'\. Otherwise start with a new checkpointLocation$"
    ):
        second.latestOffset(end, second.getDefaultReadLimit())


# ---- inputs that were created again


def reader(client: Client, **options: str) -> StreamReader:
    node = client.describe(()).nodes[0]
    given = {"kafka.bootstrap.servers": f"{node.host}:{node.port}", "subscribe": "in", **options}
    return StreamReader(SourceOptions.of(given, is_stream=True), ["value"])


def recreate(client: Client, partitions: int, records: int) -> None:
    node = client.describe(()).nodes[0]
    Admin(client).topics.delete("in")
    create(f"{node.host}:{node.port}", ("in", partitions))
    fill(f"{node.host}:{node.port}", "in", range(records))


@pytest.mark.parametrize("records", [5, 40, 400], ids=["shorter", "the same", "longer"])
@pytest.mark.parametrize("is_bounded", [False, True], ids=["running", "available now"])
def test_an_input_that_was_created_again_is_data_loss(client: Client, records: int, is_bounded: bool) -> None:
    recreate(client, 2, 40)
    first = reader(client, startingOffsets="earliest")
    start = first.latestOffset(first.initialOffset(), first.getDefaultReadLimit())
    recreate(client, 2, records)
    for fails in ("true", "false"):
        second = reader(client, failOnDataLoss=fails)
        if is_bounded:
            second.prepareForTriggerAvailableNow()
        if fails == "true":
            with pytest.raises(DataLoss, match=r"input topic.*: in"):
                second.latestOffset(start, second.getDefaultReadLimit())
        else:
            end = second.latestOffset(start, second.getDefaultReadLimit())
            (task,) = second.partitions(start, end)
            ranges = task.ranges  # type: ignore[attr-defined]
            assert sum(each.end for each in ranges) == records
            assert {each.start for each in ranges} == {0}, "all of the new one is read"
            rows = [batch.num_rows for each in second.partitions(start, end) for batch in second.read(each)]
            assert sum(rows) == records


def test_a_planned_batch_is_not_read_from_another_topic(client: Client) -> None:
    recreate(client, 2, 40)
    source = reader(client, startingOffsets="earliest")
    start = source.initialOffset()
    end = source.latestOffset(start, source.getDefaultReadLimit())
    tasks = source.partitions(start, end)
    recreate(client, 2, 400)
    with pytest.raises(DataLoss, match="the topic was deleted and created again"):
        list(source.read(tasks[0]))


def test_a_log_that_is_shorter_than_before_is_data_loss(client: Client) -> None:
    """On a broker without topic ids this is all that can be seen."""
    recreate(client, 2, 40)
    source = reader(client, startingOffsets="earliest")
    beyond = {"in": {"0": 10, "1": 1000}}
    with pytest.raises(DataLoss, match=r"read up to offset 1000, and the log ends at \d+"):
        source.latestOffset(beyond, source.getDefaultReadLimit())
    lenient = reader(client, failOnDataLoss="false")
    end = of_json(lenient.latestOffset(beyond, lenient.getDefaultReadLimit()))
    assert end["in", 1] < 1000, "it goes on with what is written from now on"


def test_a_lost_checkpoint_does_not_hide_that_an_input_is_another_one(client: Client, tmp_path: Path) -> None:
    node = client.describe(()).nodes[0]
    create(f"{node.host}:{node.port}", ("more", 1))
    ids = topic_ids(client.describe(["in", "more"]).topics)
    ends = {"in": {"0": 0, "1": 0}, "more": {"0": 0}}
    count(client, batch(Query(tmp_path, "q"), 0, ends, began=ends, ids=ids))
    recreate(client, 2, 40)
    options = {"subscribe": "in,more", "pipeline.id": NAME}
    with pytest.raises(DataLoss, match=r"input topic.*: in"):
        reader(client, **options).initialOffset()
    start = reader(client, **options, failOnDataLoss="false").initialOffset()
    assert of_json(start) == {("in", 0): 0, ("in", 1): 0, ("more", 0): 0}
    now = topic_ids(client.describe(["in", "more"]).topics)
    with pytest.raises(PipelineMismatch, match="topic in "):
        count(client, batch(Query(tmp_path, "r"), 0, ends, began=ends, ids=now))


def test_the_only_input_topic_is_deleted_and_created_again(client: Client, tmp_path: Path) -> None:
    """The decisions were kept beside its offsets and are gone. The checkpoint shows that this is why."""
    query = Query(tmp_path, "q")
    first = topic_ids(client.describe(["in"]).topics)
    count(client, batch(query, 0, {"in": {"0": 10, "1": 10}}, began={"in": {"0": 0, "1": 0}}, ids=first))
    recreate(client, 2, 40)
    second = topic_ids(client.describe(["in"]).topics)
    again = batch(query, 1, {"in": {"0": 4, "1": 3}}, ids=second)
    planning.plan_stream(client, NAME, again)
    plan = count(client, again)
    assert not plan.is_done, "one that died after its plan is written"
    assert plan.spans == {("in", 0): Span(0, 4), ("in", 1): Span(0, 3)}
    assert count(client, again).is_done
    assert not count(client, batch(query, 2, {"in": {"0": 6, "1": 5}}, ids=second)).is_done
    # A group that was deleted while the topic stayed is no such case.
    Admin(client).groups.delete(NAME)
    with pytest.raises(PipelineMismatch, match="has decided none"):
        count(client, batch(query, 3, {"in": {"0": 7, "1": 7}}, ids=second))


def test_a_topic_that_left_the_subscription_is_not_said_to_be_gone(client: Client) -> None:
    node = client.describe(()).nodes[0]
    create(f"{node.host}:{node.port}", ("more", 1))
    both = reader(client, subscribe="in,more", startingOffsets="earliest")
    end = both.latestOffset(both.initialOffset(), both.getDefaultReadLimit())
    fewer = reader(client)
    with pytest.raises(DataLoss, match="more/0"):
        fewer.latestOffset(end, fewer.getDefaultReadLimit())
    Admin(client).topics.delete("more")
    with pytest.raises(DataLoss, match="more/0"):
        fewer.latestOffset(end, fewer.getDefaultReadLimit())


@pytest.mark.parametrize(
    ("start", "end", "message"),
    [
        ("earliest", [41, -1], "endingOffsets ends at 41 of in/0, which can be read up to 2"),
        ([3, -2], [1, -1], "endingOffsets ends at 1 of in/0, and the read begins there at 3"),
    ],
)
def test_an_end_that_cannot_be_is_refused(
    client: Client, start: str | list[int], end: list[int], message: str
) -> None:
    node = client.describe(()).nodes[0]
    fill(f"{node.host}:{node.port}", "in", range(40))
    given = {"kafka.bootstrap.servers": f"{node.host}:{node.port}", "subscribe": "in"}
    for name, wanted in (("startingOffsets", start), ("endingOffsets", end)):
        given[name] = wanted if isinstance(wanted, str) else json.dumps({"in": dict(enumerate(wanted))})
    with pytest.raises(OptionError, match=message):
        BatchReader(SourceOptions.of(given, is_stream=False), ["value"]).partitions()


def test_two_versions_at_once_are_not_said_to_be_the_same(client: Client) -> None:
    first = planning.plan_batch(client, NAME, Version("app", 1), "out")
    second = planning.plan_batch(client, NAME, Version("app", 2), "out")
    batch_commit.decide(client, replace(second, spans={("out", 0): Span(0, second.number)}), [])
    with pytest.raises(PipelineFenced, match=r"another batch write\. .* run it again when"):
        batch_commit.decide(client, replace(first, spans={("out", 0): Span(0, first.number)}), [])


def test_source_and_sink_with_different_ids_are_refused_before_anything_is_written(
    client: Client, tmp_path: Path
) -> None:
    """The source would not find the position of the sink when the checkpoint is lost."""
    began = {"in": {"0": 0, "1": 0}}
    other = batch(Query(tmp_path, "q"), 0, {"in": {"0": 10, "1": 10}}, began=began, pipeline="source")
    words = f"pipeline.id 'source', and its sink has '{NAME}'.*Give the source pipeline.id={NAME}"
    with pytest.raises(PipelineMismatch, match=words):
        count(client, other)
    assert decisions.read_committed(client, NAME) == ({}, None, {}, False)
    same = batch(Query(tmp_path, "r"), 0, {"in": {"0": 10, "1": 10}}, began=began, pipeline=NAME)
    assert not count(client, same).is_done


@pytest.mark.parametrize("name", ["a b", "a#b", "a?b", "a%20b", "ü"])
def test_a_checkpoint_may_have_an_odd_name(tmp_path: Path, name: str) -> None:
    """As Spark takes it, in a path as in a URL."""
    directory = tmp_path / name
    (directory / "offsets").mkdir(parents=True)
    (directory / "offsets/3").write_text("v1")
    for location in (
        str(directory),
        f"file:{directory}",
        f"file://{directory}",
        f"file://localhost{directory}",
    ):
        found = Checkpoint(location)
        assert (found.newest_batch(), found.entry(3), found.entry(2)) == (3, "v1", None)
