"""Something dies at every point of a batch with two topics, two tables and dead letters: all are equal.

The driver that is killed is a process of its own, with its JVM and its Python workers. Its successor runs in
the Spark that all tests share. `decision_points` has the points.
"""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from support.brokers.process import BrokerProcess
from support.faults.decision_points import AFTER, POINTS, PREPARED, Call, catching, die
from support.faults.proxy import Proxy
from support.faults.spark_points import await_caught, cases, catch, points, sender
from support.spark.driver import DriverProcess
from support.spark.jobs import BATCH, create
from support.spark.lake import content, unnamed_files
from support.spark.outputs import EveryNumber, EverySink
from support.waiting import until

from semel.client import Client
from semel.spark.delta import prepared
from semel.spark.sink.decision import read_committed

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]

LONG = pytest.mark.long
#: The points that a batch passes again if the next start completes it.
COMPLETION = [each for each in AFTER if each not in ("before the tables", "when all is done")]


@pytest.fixture(scope="module")
def killable(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("broker") / "data") as broker:
        yield broker


@pytest.fixture(scope="module")
def any_broker(killable: BrokerProcess) -> str:
    return killable.bootstrap


@pytest.fixture
def every_sink(spark: SparkSession, any_broker: str, proxy: Proxy, tmp_path: Path) -> EverySink:
    pipeline = EverySink(spark, proxy.bootstrap, tmp_path, tmp_path.name)
    create(any_broker, (f"in-{pipeline.name}", 2), *((topic, 2) for topic in pipeline.topics))
    return pipeline


@pytest.fixture
def numbers(every_sink: EverySink) -> EveryNumber:
    """One batch is done, and two are to come."""
    return EveryNumber(every_sink)


def kill_a_driver(pipeline: EverySink, protocol: str, place: str) -> None:
    """Start a driver, and kill it when it has come to a point."""
    pipeline.sink_options |= {"protocol": protocol, "point": place}
    with DriverProcess(pipeline) as driver:
        del pipeline.sink_options["point"]

        def is_there() -> bool:
            driver.check()
            return pipeline.is_waiting

        until(is_there, 120, f"the point {place!r}")
        driver.kill()
    pipeline.fault.unlink()


@pytest.mark.parametrize(
    ("protocol", "place"), cases(short=[("extended", "between the tables")], points=POINTS)
)
def test_a_driver_is_killed(numbers: EveryNumber, every_sink: EverySink, protocol: str, place: str) -> None:
    kill_a_driver(every_sink, protocol, place)
    numbers.succeed()
    numbers.go_on()


@LONG
@pytest.mark.parametrize("protocol", ["extended"])
@pytest.mark.parametrize(
    "place", [each for each in AFTER if each not in ("before the tables", "when all is done")]
)
def test_the_driver_that_completes_a_batch_is_killed_too(
    numbers: EveryNumber, every_sink: EverySink, protocol: str, place: str
) -> None:
    kill_a_driver(every_sink, protocol, "before the tables")
    kill_a_driver(every_sink, protocol, place)
    numbers.succeed()
    numbers.go_on()


@pytest.mark.parametrize(
    ("protocol", "place"),
    cases(short=[("extended", "when it is decided")], slow=[("portable", "after a table")], points=POINTS),
)
def test_the_broker_is_killed(
    numbers: EveryNumber,
    every_sink: EverySink,
    killable: BrokerProcess,
    protocol: str,
    place: str,
) -> None:
    def restart() -> None:
        killable.kill()
        killable.start()

    with catching(POINTS[protocol][place], restart) as has_happened:
        every_sink.run()
    assert has_happened()
    numbers.check()
    numbers.add()
    numbers.run()


@LONG
@pytest.mark.parametrize("protocol", ["extended"])
@pytest.mark.parametrize("place", ["before the decision", "when it is decided", "between the tables"])
def test_the_broker_is_killed_with_the_driver(
    numbers: EveryNumber,
    every_sink: EverySink,
    killable: BrokerProcess,
    protocol: str,
    place: str,
) -> None:
    kill_a_driver(every_sink, protocol, place)
    killable.kill()
    killable.start()
    numbers.succeed()
    numbers.go_on()


@LONG
def test_a_worker_is_killed(numbers: EveryNumber, every_sink: EverySink, proxy: Proxy, protocol: str) -> None:
    """Its task is tried again. What it had sent arrives when the batch is done."""
    caught = catch(proxy, points(protocol)["while tasks write"])
    query = every_sink.start()
    sender(await_caught(caught)).kill()
    query.awaitTermination()
    numbers.check()
    caught.release()
    numbers.go_on()


@LONG
@pytest.mark.parametrize("protocol", ["extended"])
def test_two_drivers_run_the_same_query(
    numbers: EveryNumber, every_sink: EverySink, protocol: str, tmp_path: Path
) -> None:
    """They have copies of one checkpoint, and the same batch. The second decides while the first is held."""
    with catching(POINTS[protocol]["before the decision"], every_sink.wait):
        zombie = every_sink.start()
        until(lambda: every_sink.is_waiting, 120, "the batch of the zombie")
        other = EverySink(None, every_sink.bootstrap, tmp_path, every_sink.name)
        other.checkpoint = tmp_path / "copy" / "checkpoint"
        shutil.copytree(every_sink.checkpoint, other.checkpoint)
        with DriverProcess(other) as driver:
            assert driver.wait() == 0
        every_sink.fault.write_text("go on")
        with pytest.raises(PySparkException, match=r"PipelineFenced: another copy of this query"):
            zombie.awaitTermination()
    with pytest.raises(PySparkException, match=r"PipelineMismatch: .*older copy"):
        every_sink.run()
    every_sink.checkpoint = other.checkpoint
    numbers.run()


# ---- the completion, in the process of the test


def die_at(every_sink: EverySink, protocol: str, place: str) -> None:
    with (
        catching(POINTS[protocol][place], die),
        pytest.raises(PySparkException, match="the driver ends here"),
    ):
        every_sink.run()


@pytest.mark.parametrize("protocol", ["extended"])
@pytest.mark.parametrize("place", ["after a merge", pytest.param("between later deletions", marks=LONG)])
def test_the_staged_files_of_a_merge_are_deleted_by_the_next_start(
    numbers: EveryNumber, every_sink: EverySink, protocol: str, place: str
) -> None:
    die_at(every_sink, protocol, place)
    assert unnamed_files(every_sink.merged) != []
    numbers.run()


@pytest.mark.parametrize("protocol", ["extended"])
def test_two_drivers_complete_a_batch_at_the_same_time(
    numbers: EveryNumber, every_sink: EverySink, protocol: str
) -> None:
    """The other one has deleted the staged files when this one reads them."""

    def complete() -> None:
        with Client(every_sink.bootstrap) as client:
            last = read_committed(client, every_sink.name).decision
        assert last is not None
        prepared.complete(every_sink.name, last.tables)

    with catching(Call(PREPARED, "rows_of"), complete) as has_happened:
        every_sink.run()
    assert has_happened()
    numbers.check()


@pytest.mark.parametrize("protocol", ["extended"])
@pytest.mark.parametrize("change", [pytest.param("is gone", marks=LONG), "has other columns"])
def test_a_table_that_is_changed_holds_up_no_other(
    numbers: EveryNumber, every_sink: EverySink, protocol: str, change: str
) -> None:
    die_at(every_sink, protocol, "before the tables")
    table, away = every_sink.table, every_sink.table.with_name("away")
    if change == "is gone":
        shutil.move(table, away)
    else:
        write_deltalake(table, pa.table({"other": [1]}), mode="overwrite", schema_mode="overwrite")
    with pytest.raises(
        PySparkException, match=r"DecidedTableChanged: .*/table: .*Undo that change"
    ) as caught:
        every_sink.run()
    assert not re.search(r"DecidedTableChanged: .*(nothing was committed|Start again)", str(caught.value))
    assert len(content(every_sink.merged)["number"]) == 2 * BATCH * 4 // 5
    if change == "is gone":
        shutil.move(away, table)
    else:
        DeltaTable(table).restore(1)
    every_sink.run()
    numbers.check_outputs()
