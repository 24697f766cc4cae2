"""The world changes between two runs of a declared pipeline with several sinks, or in the middle of a batch.

A step that runs a pipeline compares all its sinks with the truth and with each other, and fails if the
pipeline fails without a refusal of Semel's own. `verification.world.declared_program` makes up other
scenarios.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from verification.world import runs
from verification.world.declared import Declared
from verification.world.declared_world import DeclaredWorld
from verification.world.sinks import Kind
from verification.world.verdict import End

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]

LONG = pytest.mark.long


@pytest.fixture
def world(spark: SparkSession, tmp_path: Path) -> Iterator[DeclaredWorld]:
    world = DeclaredWorld(spark, tmp_path)
    with world:
        world.create("in-a")
        yield world
    print(world.told())  # noqa: T201 - shown when a test fails


@pytest.fixture
def job(world: DeclaredWorld) -> Declared:
    """A pipeline to a topic, a table and dead letters that has done a batch."""
    job = world.declare("in-a", [Kind.TOPIC, Kind.TABLE, Kind.DEAD])
    world.write("in-a")
    assert world.run(job).end is End.WELL
    return job


def test_a_broker_is_restored_and_a_table_is_not(world: DeclaredWorld, job: Declared) -> None:
    """The table has a batch that the broker does not know any more, and must not get it twice."""
    world.write("in-a")
    world.back_up()
    assert world.run(job).end is End.WELL
    world.restore()
    world.new_checkpoint(job)
    refused = world.run(job)
    assert refused.end is End.REFUSED
    assert "has commit 2 of pipeline" in refused.words


def test_the_topic_of_a_sink_that_was_removed_is_made_again(world: DeclaredWorld, job: Declared) -> None:
    """It belongs to others now. As a sink again, it lacks what it had."""
    topic, *_ = job.sinks
    world.remove_sink(job, topic)
    world.recreate_sink(job, topic)
    world.write("in-a")
    assert world.run(job).end is End.WELL
    world.put_back_sink(job, topic)
    world.write("in-a")
    refused = world.run(job)
    assert refused.end is End.REFUSED
    assert "was deleted and created again" in refused.words


@LONG
def test_another_copy_decides_the_batch(world: DeclaredWorld, job: Declared) -> None:
    world.write("in-a")
    held, successor = world.run_as_zombie(job)
    assert (held.end, successor.end) == (End.REFUSED, End.WELL)
    assert world.run(job).end is End.REFUSED


@LONG
@pytest.mark.parametrize("seed", range(4))
def test_a_scenario_that_was_made_up(spark: SparkSession, seed: int) -> None:
    """`make test` plays some in its verification run."""
    played = runs.declared(spark, seed)
    assert not played.failure, played.steps
