"""`semel.spark.session`: what it sets, and what it leaves as others have set it."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.spark.jobs import Pipeline, committed, copied, fill, values

import semel.spark

CHECKPOINTS = "spark.sql.streaming.checkpointFileManagerClass"


def options(*arguments: str, **environment: str) -> dict[str, str]:
    """The options of a builder in a process of its own, in which no session is running."""
    program = (
        "import json, os, semel.spark\n"
        f"builder = semel.spark.session({', '.join(arguments)})\n"
        "print(json.dumps({**builder._options, 'python': os.environ['PYSPARK_PYTHON']}))\n"
    )
    cleared = {name: value for name, value in os.environ.items() if not name.startswith(("PYSPARK", "SPARK"))}
    ran = subprocess.run(
        [sys.executable, "-c", program],
        env=cleared | environment,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert ran.returncode == 0, ran.stderr
    found: dict[str, str] = json.loads(ran.stdout)
    return found


def test_defaults_suit_one_machine() -> None:
    found = options("'billing'")
    assert found["spark.app.name"] == "billing"
    assert found["spark.master"] == "local[*]"
    assert found["spark.python.unix.domain.socket.enabled"] == "true"
    assert found["spark.sql.session.timeZone"] == "UTC"
    assert found["spark.ui.enabled"] == "false"
    assert found["spark.python.daemon.module"] == "semel.spark.workers"
    assert found[CHECKPOINTS].endswith(".FileSystemBasedCheckpointFileManager")
    assert found["python"] == sys.executable


def test_a_cluster_keeps_its_own_ways() -> None:
    found = options("master='spark://somewhere:7077'")
    assert found["spark.master"] == "spark://somewhere:7077"
    assert not {CHECKPOINTS, "spark.ui.enabled", "spark.driver.host"} & set(found)


@pytest.mark.parametrize(
    "line", ["spark.ui.enabled true", "spark.ui.enabled=true", " spark.ui.enabled : true"]
)
def test_spark_defaults_stay(tmp_path: Path, line: str) -> None:
    (tmp_path / "spark-defaults.conf").write_text(f"# a remark\n\nspark.master local[3]\n{line}\n")
    found = options(SPARK_CONF_DIR=str(tmp_path))
    assert "spark.ui.enabled" not in found
    assert found["spark.master"] == "local[3]"
    assert "spark.sql.session.timeZone" in found


def test_what_the_environment_says_stays() -> None:
    submit = "--master local[4] --name mine --conf spark.sql.session.timeZone=Europe/Zurich pyspark-shell"
    found = options(PYSPARK_SUBMIT_ARGS=submit, PYSPARK_PYTHON="/usr/bin/python3")
    assert found["spark.master"] == "local[4]"
    assert found["python"] == "/usr/bin/python3"
    assert not {"spark.app.name", "spark.sql.session.timeZone"} & set(found)


def test_a_server_elsewhere_needs_no_java_here() -> None:
    found = options(SPARK_REMOTE="sc://somewhere", PATH="/nowhere", JAVA_HOME="/nowhere")
    assert set(found) == {"spark.app.name", "spark.sql.session.timeZone", "python"}


@pytest.mark.spark
def test_a_running_session_stays_as_it_is(spark: Any) -> None:
    import semel.spark

    before = dict(spark.sparkContext.getConf().getAll())
    assert semel.spark.session("another").getOrCreate() is spark
    assert dict(spark.sparkContext.getConf().getAll()) == before


def test_the_checkpoint_setting_of_the_session_reaches_the_sinks(pipeline: Pipeline, tmp_path: Path) -> None:
    assert pipeline.spark is not None
    fill(pipeline.bootstrap, "in", range(10))
    semel.spark.session()
    pipeline.spark.conf.set("spark.sql.streaming.checkpointLocation", str(tmp_path / "all"))
    try:
        writer = copied(pipeline.source()).writeStream.format("semel").queryName("named")
        writer = writer.option("kafka.bootstrap.servers", pipeline.bootstrap).options(**pipeline.sink_options)
        writer.trigger(availableNow=True).start().awaitTermination()
        own = writer.queryName("other").option("checkpointLocation", str(tmp_path / "own"))
        own.trigger(availableNow=True).start().awaitTermination()
    finally:
        pipeline.spark.conf.unset("spark.sql.streaming.checkpointLocation")
    assert (tmp_path / "all/named/metadata").exists()
    assert (tmp_path / "own/metadata").exists(), "an option of the query wins"
    assert committed(pipeline.bootstrap, "out") == values(range(10))
