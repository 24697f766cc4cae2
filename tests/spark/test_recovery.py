"""Dead commits, lost and old checkpoints, and a zombie: output equals input, record by record.

Drivers that are killed, tasks that die and commits that raise are in `test_scenarios`.
"""

import shutil
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from support.faults.proxy import Proxy
from support.faults.spark_points import await_caught, cases, catch, points, sender
from support.spark.jobs import Numbers, Pipeline, committed, create, fill, values
from support.waiting import until

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]

IN_COMMIT = cases(
    short=[("portable", "in the decision"), ("extended", "before the decision")],
    slow=[("portable", "between the ends"), ("extended", "after the ends")],
    but="while tasks write",
)


@pytest.mark.parametrize(("protocol", "place"), IN_COMMIT)
def test_the_process_that_commits_dies_and_the_driver_aborts(
    proxied: Pipeline, proxy: Proxy, protocol: str, place: str
) -> None:
    """Spark asks another process to abort, which has to find out first whether the batch was decided.

    In the middle of a decision it cannot, for as long as it waits, and leaves all as it is.
    """
    numbers = Numbers(proxied)
    patient = dict(proxied.sink_options)
    proxied.sink_options |= {"kafka.request.timeout.ms": 5_000, "kafka.default.api.timeout.ms": 5_000}
    caught = catch(proxy, points(protocol)[place])
    query = proxied.start()
    sender(await_caught(caught)).kill()
    with pytest.raises(PySparkException):
        query.awaitTermination()
    proxied.sink_options = patient
    numbers.run()
    caught.release()
    numbers.check()


@pytest.mark.parametrize("place", ["before_decision", pytest.param("after_decision", marks=pytest.mark.slow)])
def test_a_lost_checkpoint_loses_and_doubles_nothing(pipeline: Pipeline, place: str) -> None:
    fill(pipeline.bootstrap, "in", range(60))
    pipeline.run()
    fill(pipeline.bootstrap, "in", range(60, 120))
    pipeline.fault.write_text(place)
    with pytest.raises(PySparkException):
        pipeline.run()
    shutil.rmtree(pipeline.checkpoint)
    pipeline.run()
    assert committed(pipeline.bootstrap, "out") == values(range(120))


def test_a_zombie_driver_stops_and_writes_nothing(pipeline: Pipeline, tmp_path: Path) -> None:
    """It has written its batch, and was away for so long that another copy of the job has taken over."""
    fill(pipeline.bootstrap, "in", range(30))
    pipeline.run()
    fill(pipeline.bootstrap, "in", range(30, 60))
    pipeline.fault.write_text("wait_before_decision")
    zombie = pipeline.start()
    until(lambda: pipeline.fault.read_text() == "waiting", 60, "the batch of the zombie")
    successor = Pipeline(pipeline.spark, pipeline.bootstrap, tmp_path / "successor")
    successor.run()
    fill(pipeline.bootstrap, "in", range(60, 90))
    pipeline.fault.write_text("go on")
    words = "PipelineFenced: .*'copy' .* query "
    with pytest.raises(PySparkException, match=f"{words}{successor.query_id()}"):
        zombie.awaitTermination()
    successor.run()
    assert committed(pipeline.bootstrap, "out") == values(range(90))
    with pytest.raises(PySparkException, match="PipelineMismatch"):
        pipeline.run()


def test_an_old_checkpoint_is_refused(pipeline: Pipeline, tmp_path: Path) -> None:
    fill(pipeline.bootstrap, "in", range(30))
    pipeline.run()
    shutil.copytree(pipeline.checkpoint, tmp_path / "old")
    fill(pipeline.bootstrap, "in", range(30, 60))
    pipeline.run()
    fill(pipeline.bootstrap, "in", range(60, 90))
    pipeline.run()
    good, pipeline.checkpoint = pipeline.checkpoint, tmp_path / "old"
    with pytest.raises(PySparkException, match=r"PipelineMismatch: .* older copy"):
        pipeline.run()
    shutil.rmtree(pipeline.checkpoint)
    pipeline.source_options |= {"startingOffsets": "earliest"}
    with pytest.raises(PySparkException, match="PipelineMismatch"):
        pipeline.run()
    pipeline.checkpoint = good
    pipeline.run()
    assert committed(pipeline.bootstrap, "out") == values(range(90))


def test_two_pipelines_do_not_share_a_checkpoint(pipeline: Pipeline) -> None:
    create(pipeline.bootstrap, ("out-2", 1))
    fill(pipeline.bootstrap, "in", range(10))
    pipeline.run()
    fill(pipeline.bootstrap, "in", range(10, 20))
    pipeline.sink_options = {"topic": "out-2", "pipeline.id": "other"}
    with pytest.raises(PySparkException, match=r"PipelineMismatch: .*'copy'.*'other'"):
        pipeline.run()
    del pipeline.source_options["pipeline.id"]
    with pytest.raises(PySparkException, match=r"PipelineMismatch: .*'copy'.*'other'"):
        pipeline.run()
