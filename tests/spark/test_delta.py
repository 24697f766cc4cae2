"""The sink for Delta tables: through crashes, retries, zombies and lost checkpoints, table equals input."""

import datetime as dt
import os
import shutil
import signal
import subprocess
import sys
from collections import Counter
from decimal import Decimal
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from support.faults.delta_faults import IN_COMMIT, WAITING, FaultyDelta
from support.spark.jobs import create, fill, values
from support.spark.lake import LakePipeline, unnamed_files
from support.waiting import until

from semel.client import Admin, Client
from semel.embedded import Embedded
from semel.spark.pipeline.status import status

pytestmark = [pytest.mark.spark, pytest.mark.long]


@pytest.fixture
def lake(spark: SparkSession, semel_broker: Embedded, tmp_path: Path) -> LakePipeline:
    """A pipeline from `in`, which has two partitions, to a table."""
    spark.dataSource.register(FaultyDelta)
    create(semel_broker.bootstrap_servers, ("in", 2))
    return LakePipeline(spark, semel_broker.bootstrap_servers, tmp_path)


@pytest.mark.parametrize(
    ("place", "is_lost"),
    [*((place, False) for place in IN_COMMIT), ("before_commit", True), ("before_follow", True)],
)
def test_a_driver_that_dies_in_its_commit(lake: LakePipeline, place: str, is_lost: bool) -> None:
    fill(lake.bootstrap, "in", range(30))
    lake.run()
    fill(lake.bootstrap, "in", range(30, 60))
    lake.fault.write_text(place)
    with pytest.raises(PySparkException):
        lake.run()
    assert not lake.fault.exists(), "the fault came"
    fill(lake.bootstrap, "in", range(60, 90))
    if is_lost:
        shutil.rmtree(lake.checkpoint)
    lake.run()
    assert lake.values() == values(range(90))
    assert lake.lag() == 0
    assert unnamed_files(lake.table) == []


def test_the_first_batch_and_a_lost_checkpoint(lake: LakePipeline) -> None:
    """The group has no offsets that a commit could have told it, but it knows whom to ask."""
    fill(lake.bootstrap, "in", range(30))
    lake.fault.write_text("before_follow")
    with pytest.raises(PySparkException):
        lake.run()
    assert lake.lag() == 30
    shutil.rmtree(lake.checkpoint)
    fill(lake.bootstrap, "in", range(30, 40))
    lake.run()
    assert lake.values() == values(range(40))
    with Client(lake.bootstrap) as client:
        last = status(client, lake.name).last
    assert last is not None
    assert (last.number, last.batch_id, last.written) == (2, 0, {str(lake.table): 10})


def test_a_commit_that_raises_when_all_is_done(lake: LakePipeline) -> None:
    fill(lake.bootstrap, "in", range(30))
    lake.fault.write_text("raise_after")
    with pytest.raises(PySparkException, match="a fault after all was done"):
        lake.run()
    assert lake.values() == values(range(30)), "the abort did not touch what is committed"
    lake.run()
    assert lake.values() == values(range(30))


def test_a_task_that_dies_is_tried_again_and_leaves_nothing(lake: LakePipeline) -> None:
    fill(lake.bootstrap, "in", range(30))
    lake.sink_options = {"partitionBy": "partition"}
    lake.fault.write_text("task")
    lake.run()
    assert not lake.fault.exists()
    assert lake.values() == values(range(30))
    assert unnamed_files(lake.table) == [], "the files of the dead attempt are gone"


def test_a_zombie_driver_stops_and_writes_nothing(lake: LakePipeline, tmp_path: Path) -> None:
    """It has written its files, and was away for so long that another copy of the job has taken over."""
    fill(lake.bootstrap, "in", range(20))
    lake.run()
    fill(lake.bootstrap, "in", range(20, 40))
    lake.fault.write_text("wait_before_commit")
    zombie = lake.start()
    until(lambda: lake.fault.read_text() == WAITING, 60, "the batch of the zombie")
    successor = LakePipeline(lake.spark, lake.bootstrap, tmp_path / "successor")
    successor.table = lake.table
    successor.run()
    lake.fault.write_text("go on")
    with pytest.raises(PySparkException, match=r"PipelineFenced: .*'archive'"):
        zombie.awaitTermination()
    fill(lake.bootstrap, "in", range(40, 60))
    successor.run()
    with pytest.raises(PySparkException, match=r"PipelineMismatch: .*'archive' up to"):
        lake.run()
    assert lake.values() == values(range(60))
    assert unnamed_files(lake.table) == []


def test_a_delete_while_a_batch_is_written_stops_nothing(lake: LakePipeline) -> None:
    fill(lake.bootstrap, "in", range(20))
    lake.run()
    fill(lake.bootstrap, "in", range(20, 40))
    lake.fault.write_text("wait_before_commit")
    query = lake.start()
    until(lambda: lake.fault.read_text() == WAITING, 60, "the batch")
    DeltaTable(lake.table).delete("value = 'value 3'")
    lake.fault.write_text("go on")
    query.awaitTermination()
    assert lake.values() == values([*range(3), *range(4, 40)])


def test_an_old_checkpoint_skips_nothing(lake: LakePipeline, tmp_path: Path) -> None:
    """Its next batch has a number that the table has, and other offsets."""
    fill(lake.bootstrap, "in", range(10))
    lake.run()
    shutil.copytree(lake.checkpoint, tmp_path / "old")
    fill(lake.bootstrap, "in", range(10, 20))
    lake.run()
    fill(lake.bootstrap, "in", range(20, 30))
    good, lake.checkpoint = lake.checkpoint, tmp_path / "old"
    with pytest.raises(PySparkException, match=r"PipelineMismatch: .*'archive' up to"):
        lake.run()
    lake.checkpoint = good
    lake.run()
    assert lake.values() == values(range(30))


@pytest.mark.timeout(300)  # a second Spark beside the first takes long to start where others are busy
def test_a_driver_that_is_killed_between_the_table_and_the_group(lake: LakePipeline, tmp_path: Path) -> None:
    """A real driver with a JVM of its own, SIGKILL for all of it, and its checkpoint is lost too."""
    fill(lake.bootstrap, "in", range(30))
    lake.fault.write_text("hang_before_follow")
    program = (
        "import sys; from pathlib import Path; from pyspark.sql import SparkSession\n"
        "from support.spark.lake import LakePipeline; from support.faults.delta_faults import FaultyDelta\n"
        "spark = SparkSession.builder.master('local[2]').config('spark.ui.enabled', 'false').getOrCreate()\n"
        "spark.dataSource.register(FaultyDelta)\n"
        "LakePipeline(spark, sys.argv[1], Path(sys.argv[2])).run()\n"
    )
    driver = subprocess.Popen(
        [sys.executable, "-c", program, lake.bootstrap, str(tmp_path)],
        env={**os.environ, "PYSPARK_PYTHON": sys.executable},
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        until(lambda: lake.fault.read_text() == WAITING or driver.poll() is not None, 240, "the commit")
    finally:
        os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()
    assert lake.fault.read_text() == WAITING
    lake.fault.unlink()
    assert lake.values() == values(range(30)), "the table has it"
    assert lake.lag() == 30, "the group does not know it"
    shutil.rmtree(lake.checkpoint)
    fill(lake.bootstrap, "in", range(30, 60))
    lake.run()
    assert lake.values() == values(range(60))
    assert lake.lag() == 0


def test_two_pipelines_write_to_one_table(lake: LakePipeline, tmp_path: Path) -> None:
    fill(lake.bootstrap, "in", range(20))
    other = LakePipeline(lake.spark, lake.bootstrap, tmp_path / "other", "other")
    other.table = lake.table
    # Without that it could be the first one under another name, and is refused.
    other.sink_options = {"pipeline.beside": "archive"}
    for _ in range(2):
        lake.run()
        other.run()
        fill(lake.bootstrap, "in", range(20, 30))
    lake.run()
    other.run()
    assert lake.values() == values([*range(20), *range(20, 30), *range(20, 30)] * 2)


def test_a_pipeline_keeps_to_its_table_and_a_moved_table_is_the_same(
    lake: LakePipeline, tmp_path: Path
) -> None:
    fill(lake.bootstrap, "in", range(10))
    lake.run()
    lake.table.rename(tmp_path / "moved")
    fill(lake.bootstrap, "in", range(10, 20))
    with pytest.raises(PySparkException, match=r"and there is no table in .* any more"):
        lake.run()
    assert not lake.table.exists()
    lake.table = tmp_path / "moved"
    lake.run()
    assert lake.values() == values(range(20))
    with Client(lake.bootstrap) as client:
        notes = {each.metadata for each in Admin(client).groups.offsets("archive").values()}
    assert all(str(lake.table) in note for note in notes)


def test_bad_days(lake: LakePipeline, tmp_path: Path) -> None:
    fill(lake.bootstrap, "in", range(3))
    full, file = tmp_path / "full", tmp_path / "file"
    full.mkdir()
    (full / "letter.txt").write_text("not a table")
    file.write_text("not a directory")
    good = lake.table
    for table, message in (
        (full, "not a Delta table and not empty: it has 'letter.txt'"),
        (file / "t", "cannot be"),
    ):
        lake.table = table
        with pytest.raises(PySparkException, match=message):
            lake.run()
    lake.table = good
    rows = lake.source()
    for frame, message in (
        (rows.selectExpr("value", "make_dt_interval(1) AS age"), "no type for 'age', which is interval"),
        (rows.selectExpr("value AS `a b`"), "cannot contain ' ': 'a b'"),
        (rows.groupBy("value").count(), "a Delta table|not supported|append"),
    ):
        with pytest.raises(PySparkException, match=message):
            lake.run(frame)
    assert not good.exists()
    lake.checkpoint = tmp_path / "checkpoint of rate"
    rate = lake.spark.readStream.format("rate").load()
    with pytest.raises(PySparkException, match="a source of format 'semel'"):
        lake.run(rate)


TYPES = """
    CAST(1 AS tinyint) AS a, CAST(2 AS smallint) AS b, 3 AS c, 4L AS d, CAST(0.5 AS float) AS e, 0.25D AS f,
    CAST(1.50 AS decimal(20, 2)) AS g, 'ü' AS h, X'00FF' AS i, true AS j, DATE'2026-11-15' AS k,
    TIMESTAMP'2026-11-15 01:02:03.000004+01:00' AS l, TIMESTAMP_NTZ'2026-11-15 01:02:03' AS m,
    named_struct('x', 1, 'y', array(TIMESTAMP'2026-11-15 00:00:00Z', NULL)) AS n, map('k', X'01') AS o,
    CAST(NULL AS int) AS p
"""


def test_a_batch_write_keeps_every_type_and_null_partitions(spark: SparkSession, tmp_path: Path) -> None:
    table = tmp_path / "lake/deep/table"
    rows = spark.sql(f"SELECT {TYPES}, 'one' AS part UNION ALL SELECT {TYPES}, NULL")
    for pipeline_id in ("first", "first", "second"):
        writer = rows.write.format("semel-delta").option("pipeline.id", pipeline_id)
        writer.option("partitionBy", "part").mode("append").save(table.as_uri())
    found = DeltaTable(table).to_pyarrow_table().to_pylist()
    moment = dt.datetime(2026, 11, 15, 0, 2, 3, 4, dt.UTC)
    expected = {
        **{"a": 1, "b": 2, "c": 3, "d": 4, "e": 0.5, "f": 0.25, "g": Decimal("1.50"), "h": "ü"},
        **{"i": b"\x00\xff", "j": True, "k": dt.date(2026, 11, 15), "l": moment},
        **{"m": dt.datetime.fromisoformat("2026-11-15T01:02:03")},
        **{"n": {"x": 1, "y": [dt.datetime(2026, 11, 15, tzinfo=dt.UTC), None]}, "o": [("k", b"\x01")]},
        "p": None,
    }
    assert [{name: row[name] for name in expected} for row in found] == [expected] * 6
    assert Counter(row["part"] for row in found) == {"one": 3, None: 3}
    assert unnamed_files(table) == []
    with pytest.raises(PySparkException, match="rows are only ever added"):
        rows.write.format("semel-delta").option("pipeline.id", "first").mode("overwrite").save(str(table))
    with pytest.raises(PySparkException, match="format semel-delta only writes"):
        spark.read.format("semel-delta").load(str(table))
    more = rows.selectExpr("c AS new", "part")
    writer = more.write.format("semel-delta").option("pipeline.id", "first").mode("append")
    with pytest.raises(PySparkException, match=r"OptionError: .*'new'"):
        writer.save(str(table))
    writer.option("mergeSchema", "true").save(str(table))
    assert Counter(DeltaTable(table).to_pyarrow_table()["new"].to_pylist()) == {None: 6, 3: 2}
