"""What a driver remembers of its runs: its processes know of each other, and strangers are still refused."""

import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from support.spark.checkpoints import Query
from support.spark.jobs import Pipeline, create, fill
from support.spark.planners import Planner

from semel.client import Client, ProducerIdAndEpoch
from semel.embedded import Embedded
from semel.spark import PipelineFenced
from semel.spark.scratch import SCRATCH
from semel.spark.sink import planning
from semel.spark.sink.decision import read_committed

NAME = "copy"
A_RUN, NEXT_RUN = ProducerIdAndEpoch(7, 3), ProducerIdAndEpoch(7, 4)
NOW = 1_000_000_000


@pytest.fixture
def planners(semel_broker: Embedded, tmp_path: Path) -> Iterator[tuple[Planner, Planner, Planner]]:
    """Two processes of one driver, and one of another."""
    create(semel_broker.bootstrap_servers, ("in", 2), ("out", 1))
    with ExitStack() as stack:
        first, sibling, stranger = (
            stack.enter_context(Planner(semel_broker.bootstrap_servers, tmp_path / f"blockmgr-{driver}"))
            for driver in ("ours", "ours", "theirs")
        )
        yield first, sibling, stranger


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    directory = tmp_path / "blockmgr-1"
    directory.mkdir()
    monkeypatch.setenv(SCRATCH, f"{directory},{tmp_path / 'blockmgr-2'}")
    return directory


def test_a_sibling_that_decided_nothing_is_no_other_copy(
    planners: tuple[Planner, Planner, Planner], tmp_path: Path
) -> None:
    first, sibling, _ = planners
    query = Query(tmp_path, "q")
    begun = [first.plan(NAME, query.batch(0, 10, began=0), decides=True)]
    begun.append(sibling.plan(NAME, query.batch(1, 20)))
    begun.append(first.plan(NAME, query.batch(1, 20), decides=True))
    begun.append(sibling.plan(NAME, query.batch(2, 30), decides=True))
    begun.append(first.plan(NAME, query.batch(3, 40), decides=True))
    assert begun == sorted(set(begun)), "every plan has begun a run of its own"


def test_every_process_of_a_driver_is_refused_when_another_copy_has_begun(
    planners: tuple[Planner, Planner, Planner], tmp_path: Path
) -> None:
    """Also one that has planned nothing yet, and also if the other one has a copy of the checkpoint."""
    first, sibling, stranger = planners
    query = Query(tmp_path, "q")
    first.plan(NAME, query.batch(0, 10, began=0), decides=True)
    stranger.plan(NAME, query.batch(1, 20))
    with pytest.raises(PipelineFenced, match="nothing"):
        sibling.plan(NAME, query.batch(1, 20))
    # That was said once, for all of them: whoever starts the query again wants it to run here.
    first.plan(NAME, query.batch(1, 20), decides=True)
    sibling.plan(NAME, query.batch(2, 30), decides=True)


def test_two_queries_of_one_driver_are_two_copies(
    planners: tuple[Planner, Planner, Planner], tmp_path: Path
) -> None:
    first, sibling, _ = planners
    one, other = Query(tmp_path, "one"), Query(tmp_path, "other")
    first.plan(NAME, one.batch(0, 10, began=0), decides=True)
    sibling.plan(NAME, other.batch(0, 20, began=10))
    with pytest.raises(PipelineFenced):
        first.plan(NAME, one.batch(1, 20))


@pytest.mark.spark
def test_the_processes_of_spark_have_a_place_in_common(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(pipeline.bootstrap, "in", range(3))
    pipeline.run()
    assert pipeline.spark is not None
    # Driver and executor are one here, so that a task is told the same as a process that plans.
    told = pipeline.spark.sparkContext.parallelize([SCRATCH], 1).map(os.getenv).first()
    monkeypatch.setenv(SCRATCH, str(told))
    with Client(pipeline.bootstrap) as client:
        last = read_committed(client, pipeline.name).decision
    assert last is not None
    assert planning.recall(pipeline.name, pipeline.query_id()) == last.run


def test_what_is_remembered_is_replaced_and_forgotten(scratch: Path) -> None:
    assert planning.recall(NAME, "q") is None
    for run in (A_RUN, NEXT_RUN):
        planning.remember(NAME, "q", run)
        assert planning.recall(NAME, "q") == run
    assert (planning.recall(NAME, "r"), planning.recall("other", "q")) == (None, None)
    (file,) = (scratch / planning.DIRECTORY).iterdir()
    assert file.parent.stat().st_mode & 0o077 == 0, "for nobody else"
    planning.forget(NAME, "q")
    planning.forget(NAME, "q")
    assert planning.recall(NAME, "q") is None


@pytest.mark.parametrize("content", [b"", b"7", b"7 3 1", b"7 x", b"\xff\xfe"])
def test_a_file_that_makes_no_sense_is_no_memory(scratch: Path, content: bytes) -> None:
    planning.remember(NAME, "q", A_RUN)
    (file,) = (scratch / planning.DIRECTORY).iterdir()
    file.write_bytes(content)
    assert planning.recall(NAME, "q") is None
    planning.remember(NAME, "q", NEXT_RUN)
    assert planning.recall(NAME, "q") == NEXT_RUN


def test_what_cannot_be_kept_is_forgotten(scratch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    planning.remember(NAME, "q", A_RUN)

    def full(*_: object) -> None:
        raise OSError("no space left")

    with monkeypatch.context() as context:
        context.setattr(Path, "write_text", full)
        planning.remember(NAME, "q", NEXT_RUN)
    assert planning.recall(NAME, "q") is None
    # Spark has deleted the directory: it is not made again.
    (scratch / planning.DIRECTORY).rmdir()
    scratch.rmdir()
    planning.remember(NAME, "q", A_RUN)
    planning.forget(NAME, "q")
    assert not scratch.exists()


def test_the_oldest_are_forgotten(scratch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "RUNS_MAX", 2)
    for age, query in ((3, "first"), (2, "second"), (1, "third")):
        before = set(scratch.glob(f"{planning.DIRECTORY}/*"))
        planning.remember(NAME, query, A_RUN)
        (new,) = set(scratch.glob(f"{planning.DIRECTORY}/*")) - before
        os.utime(new, (NOW - age, NOW - age))
    assert [planning.recall(NAME, query) for query in ("first", "second", "third")] == [
        None,
        A_RUN,
        A_RUN,
    ]


@pytest.mark.parametrize("place", ["", "/tmp", "{tmp_path}"])
def test_without_such_a_directory_a_process_remembers_for_itself(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The name of the variable is that of a setting, too, whose directories many drivers share."""
    monkeypatch.setenv(SCRATCH, place.format(tmp_path=tmp_path))
    monkeypatch.setattr(planning, "_own", {})
    monkeypatch.setattr(planning, "RUNS_MAX", 2)
    for query in ("first", "second", "third"):
        planning.remember(NAME, query, A_RUN)
    assert [planning.recall(NAME, query) for query in ("first", "second", "third")] == [
        None,
        A_RUN,
        A_RUN,
    ]
    planning.forget(NAME, "third")
    assert planning.recall(NAME, "third") is None
    assert list(tmp_path.iterdir()) == []
