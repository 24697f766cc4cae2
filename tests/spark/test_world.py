"""The world changes between two runs of a pipeline: every record counts once, or the query refuses.

Each test is one scenario that somebody has thought of; `verification.world` makes up others. A step that runs
a job compares its output with the truth if the job ends without error, and fails if the job fails without a
refusal of Semel's own. So there is little left to assert here: a test that ends has shown what it should.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from semel.client import Admin, Client
from verification.world.job import Job
from verification.world.verdict import End
from verification.world.world import World

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]

LONG = pytest.mark.long
SINKS = ["topic", pytest.param("table", marks=LONG)]
LOST = [pytest.param(False, id="checkpoint kept", marks=LONG), pytest.param(True, id="checkpoint lost")]


@pytest.fixture
def world(spark: SparkSession, tmp_path: Path) -> Iterator[World]:
    world = World(spark, tmp_path)
    with world:
        world.create("in-a")
        yield world
    print(world.told())  # noqa: T201 - shown when a test fails


@pytest.fixture(params=SINKS)
def job(world: World, request: pytest.FixtureRequest) -> Job:
    """A pipeline that has done two batches of the topic `in-a`, and has copies of its checkpoint of each."""
    job = world.job("in-a", writes_table=request.param == "table")
    return started(world, job)


@pytest.fixture(params=SINKS)
def pattern_job(world: World, request: pytest.FixtureRequest) -> Job:
    """The same for all topics that match a pattern."""
    job = world.job("in-.*", is_pattern=True, writes_table=request.param == "table")
    return started(world, job)


def started(world: World, job: Job) -> Job:
    for _ in range(2):
        for topic in world.inputs():
            world.write(topic)
        assert world.run(job).end is End.WELL
    return job


@pytest.fixture(params=["topic", "table"])
def function(world: World, request: pytest.FixtureRequest) -> Job:
    """The same with foreachBatch, whose position is in its checkpoint alone."""
    job = world.job("in-a", writes_table=request.param == "table", in_function=True)
    return started(world, job)


def go_on(world: World, job: Job) -> None:
    """What went wrong in a run may show only in the next."""
    world.run(job)
    for topic in world.inputs():
        world.write(topic, 6)
    world.run(job)


@LONG
def test_a_query_is_stopped_in_the_middle_of_a_batch(world: World, job: Job) -> None:
    world.write("in-a")
    world.stop_in_batch(job)
    go_on(world, job)


# ---- checkpoints


def test_an_older_checkpoint_and_a_new_partition(world: World, job: Job) -> None:
    """The batch that is done again is not the one that was decided: it has the new partition."""
    world.restore_checkpoint(job)
    world.write("in-a", 5, to=[world.grow("in-a")[1]])
    go_on(world, job)


@LONG
def test_an_older_checkpoint_and_a_new_topic(world: World, pattern_job: Job) -> None:
    world.restore_checkpoint(pattern_job)
    world.create("in-b")
    world.write("in-b", 5)
    go_on(world, pattern_job)


@LONG
def test_an_older_checkpoint(world: World, job: Job) -> None:
    world.restore_checkpoint(job)
    go_on(world, job)


@LONG
def test_two_queries_swap_their_checkpoints(world: World, job: Job) -> None:
    other = started(world, world.job("in-a"))
    world.write("in-a")
    world.run(job)
    world.swap_checkpoints(job, other)
    for each in (job, other):
        go_on(world, each)


@LONG
def test_a_query_gets_a_copy_of_the_checkpoint_of_another(world: World, job: Job) -> None:
    other = world.job("in-a")
    world.copy_checkpoint(job, other)
    go_on(world, other)
    go_on(world, job)


# ---- topics


@LONG
@pytest.mark.parametrize("count", [0, 5, 20, 50])
def test_an_input_topic_is_made_again(world: World, job: Job, count: int) -> None:
    """With fewer records than were read of the old one, as many, or more."""
    world.recreate("in-a")
    world.write("in-a", count)
    go_on(world, job)


@pytest.mark.parametrize("count", [pytest.param(5, marks=pytest.mark.slow), pytest.param(50, marks=LONG)])
def test_one_of_two_input_topics_is_made_again(world: World, count: int) -> None:
    world.create("in-b")
    job = started(world, world.job("in-a,in-b"))
    world.recreate("in-b")
    world.write("in-b", count)
    go_on(world, job)


@LONG
@pytest.mark.parametrize("count", [5, 50])
def test_an_input_topic_is_made_again_and_the_checkpoint_is_lost(world: World, job: Job, count: int) -> None:
    """The group of the pipeline has offsets of the topic that is gone."""
    world.recreate("in-a")
    world.write("in-a", count)
    world.lose_checkpoint(job)
    go_on(world, job)


def test_an_output_is_made_again(world: World, job: Job) -> None:
    world.recreate_output(job)
    world.write("in-a")
    go_on(world, job)


@LONG
def test_an_output_is_made_again_and_the_checkpoint_is_lost(world: World, job: Job) -> None:
    world.recreate_output(job)
    world.lose_checkpoint(job)
    world.write("in-a")
    go_on(world, job)


@LONG
def test_records_are_deleted_before_they_are_read(world: World, job: Job) -> None:
    world.write("in-a", 10)
    world.delete_records(("in-a", 0), 13)
    assert world.run(job).end is End.REFUSED
    assert world.run(job, fails_on_loss=False).end is End.WELL
    go_on(world, job)


@LONG
@pytest.mark.parametrize("fault", ["before_decision", "after_decision"])
def test_a_compacted_input(world: World, fault: str) -> None:
    """What compaction took away is no loss, and what was read before does not count again."""
    world.create("in-b", 1, is_compacted=True)
    job = started(world, world.job("in-a,in-b", batch_max=7))
    world.write("in-b", 30)
    assert world.run(job, fault=fault).end is End.FAULT
    world.await_compaction("in-b")
    assert world.run(job).end is End.WELL
    world.write("in-b", 30)
    world.await_compaction("in-b")
    go_on(world, job)


# ---- groups


@LONG
def test_a_group_is_deleted(world: World, job: Job) -> None:
    world.delete_group(job)
    world.write("in-a")
    go_on(world, job)


@LONG
def test_group_and_checkpoint_are_deleted(world: World, job: Job) -> None:
    world.delete_group(job)
    world.lose_checkpoint(job)
    go_on(world, job)


@LONG
@pytest.mark.parametrize(
    "is_lost", [False, pytest.param(True, marks=LONG)], ids=["checkpoint kept", "checkpoint lost"]
)
@pytest.mark.parametrize("sink", SINKS)
def test_the_first_batch_is_not_in_the_commits_log_and_the_group_is_deleted(
    world: World, sink: str, is_lost: bool
) -> None:
    job = world.job("in-a", writes_table=sink == "table")
    world.write("in-a")
    world.run(job)
    assert world.uncommit(job)
    world.delete_group(job)
    if is_lost:
        world.lose_checkpoint(job)
    go_on(world, job)


@LONG
@pytest.mark.parametrize("is_lost", LOST)
def test_the_offsets_of_one_partition_are_deleted(world: World, job: Job, is_lost: bool) -> None:
    world.delete_offsets(job, [("in-a", 1)])
    if is_lost:
        world.lose_checkpoint(job)
    world.write("in-a")
    go_on(world, job)


@LONG
@pytest.mark.parametrize("is_lost", LOST)
@pytest.mark.parametrize(
    "partitions", [(1,), pytest.param((0, 1), marks=LONG)], ids=["one partition", "all partitions"]
)
@pytest.mark.parametrize("to", ["earliest", "latest", "4"])
def test_offsets_are_reset(
    world: World, job: Job, to: str, partitions: tuple[int, ...], is_lost: bool
) -> None:
    world.write("in-a")
    with Client(world.bootstrap) as client:
        ends = Admin(client).topics.offsets({("in-a", number): -1 for number in partitions})
    where = {key: each.offset if to == "latest" else 0 if to == "earliest" else int(to)
             for key, each in ends.items()}  # fmt: skip
    world.reset_offsets(job, where)
    if is_lost:
        world.lose_checkpoint(job)
    go_on(world, job)


# ---- pipeline ids


@LONG
@pytest.mark.parametrize(
    "change",
    ["another output", "another input", "nothing else"],
)
def test_another_query_takes_the_id(world: World, job: Job, change: str) -> None:
    reads = "in-a"
    if change == "another input":
        world.create("other")
        world.write("other")
        reads = "other"
    output = None if change == "another output" else job.output
    other = world.job(reads, pipeline_id=job.pipeline_id, writes_table=job.writes_table, output=output)
    go_on(world, other)
    go_on(world, job)


# ---- the broker


@pytest.mark.parametrize("count", [pytest.param(0, marks=LONG), 5, pytest.param(50, marks=LONG)])
@pytest.mark.parametrize(
    "is_lost", [False, pytest.param(True, marks=LONG)], ids=["checkpoint kept", "checkpoint lost"]
)
def test_the_broker_is_restored_from_a_backup(world: World, job: Job, count: int, is_lost: bool) -> None:
    world.back_up()
    world.write("in-a")
    world.run(job)
    world.restore()
    world.write("in-a", count)
    if is_lost:
        world.lose_checkpoint(job)
    go_on(world, job)


@LONG
@pytest.mark.parametrize("hours", [-48, 48, 240])
def test_the_clock_of_the_broker_is_moved(world: World, job: Job, hours: int) -> None:
    world.restart(hours=hours)
    world.write("in-a")
    assert world.run(job).end is End.WELL
    go_on(world, job)


@LONG
@pytest.mark.parametrize("fault", ["before_decision", "after_decision"])
def test_extensions_are_switched_in_the_middle_of_a_batch(world: World, fault: str) -> None:
    job = started(world, world.job("in-a"))
    for has_extensions in (False, True):
        world.write("in-a")
        assert world.run(job, fault=fault).end is End.FAULT
        world.restart(has_extensions=has_extensions)
        world.run(job)
    go_on(world, job)


@LONG
@pytest.mark.parametrize("is_kept", [True, False], ids=["group kept", "group deleted"])
def test_a_pipeline_gets_another_id(world: World, job: Job, is_kept: bool) -> None:
    """As when a sink of a declaration is renamed. The words of the refusal help."""
    world.write("in-a")
    if not is_kept:
        world.delete_group(job)
    world.change_id(job)
    refused = world.run(job)
    assert refused.end is End.REFUSED
    if is_kept or job.writes_table:
        assert f"let it keep its id: pipeline.id={job.former_id}" in refused.words
    if is_kept:
        world.keep_id(job)
        assert world.run(job).end is End.WELL
    else:
        assert world.rename(job)
        assert world.run(job).end is End.WELL
    go_on(world, job)


@LONG
def test_source_and_sink_have_different_ids(world: World, job: Job) -> None:
    world.write("in-a")
    world.name_source(job, "another")
    assert world.run(job).end is End.REFUSED
    world.name_source(job, None)
    assert world.run(job).end is End.WELL
    go_on(world, job)


@LONG
@pytest.mark.parametrize("is_lost", LOST)
def test_the_source_reads_another_topic(world: World, job: Job, is_lost: bool) -> None:
    """With the checkpoint it is refused; without, the new topic is read from its beginning."""
    world.create("in-b")
    world.write("in-b")
    job.reads = "in-b"
    if is_lost:
        world.lose_checkpoint(job)
    else:
        refused = world.run(job)
        assert refused.end is End.REFUSED
        assert "do not name it any more" in refused.words
        world.new_checkpoint(job)
    assert world.run(job).end is End.WELL
    job.reads = "in-a"
    world.write("in-a")
    world.new_checkpoint(job)
    assert world.run(job).end is End.WELL
    go_on(world, job)


# ---- foreachBatch


@LONG
def test_a_function_whose_checkpoint_is_lost(world: World, function: Job) -> None:
    world.lose_checkpoint(function)
    assert "belongs to another query" in world.run(function).words
    assert world.rename(function)
    go_on(world, function)


@LONG
def test_a_function_whose_checkpoint_is_an_older_copy(world: World, function: Job) -> None:
    world.write("in-a")
    world.restore_checkpoint(function)
    assert "was written before with other input" in world.run(function).words
    world.restore_checkpoint(function, age=0)
    go_on(world, function)


@LONG
def test_a_function_that_is_run_again(world: World, function: Job) -> None:
    world.write("in-a")
    assert world.run(function, fault="raise_after").end is End.FAULT
    world.write("in-a")
    go_on(world, function)
