"""`semel.spark.session`: a SparkSession configured for this package, on one machine or on a cluster.

Passes the setting `spark.sql.streaming.checkpointLocation` to the sinks, and prepares their first start.

Spark resolves the setting in Java, after the options were passed, and no Python process sees it. So
`semel.spark.session` adds a step to `DataStreamWriter.start`: a named query without a checkpointLocation of
its own gets as an option the location that Spark would give it. Queries of other formats keep their location.
A query without a name is left alone: Spark chooses a new directory at every start.
"""

import functools
import os
import re
import shlex
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyspark
from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from semel.spark.driver import java
from semel.spark.driver.first_start import prepare_first_start

SETTING = "spark.sql.streaming.checkpointLocation"
OPTION = "checkpointLocation"


def pass_checkpoint_setting() -> None:
    """Add the step, once per process."""
    original = DataStreamWriter.start
    if hasattr(original, "__wrapped__"):
        return

    @functools.wraps(original)
    def start(
        self: DataStreamWriter,
        path: str | None = None,
        format: str | None = None,  # noqa: A002 - Spark's name
        outputMode: str | None = None,  # noqa: N803
        partitionBy: Any = None,  # noqa: N803
        queryName: str | None = None,  # noqa: N803
        **options: Any,
    ) -> StreamingQuery:
        prepare_first_start(self._spark)
        given = self._jwrite.extraOptions()
        name = queryName or (given.apply("queryName") if given.contains("queryName") else None)
        root = self._spark.conf.get(SETTING, None)
        has_own = given.contains(OPTION) or OPTION.lower() in map(str.lower, options)
        if root and name and not has_own:
            options[OPTION] = f"{root.rstrip('/')}/{name}"
        return original(self, path, format, outputMode, partitionBy, queryName, **options)

    DataStreamWriter.start = start  # type: ignore[method-assign]


#: Settings for every session: times mean the same everywhere.
SESSION_DEFAULTS = {"spark.sql.session.timeZone": "UTC"}
#: Settings for the process that starts Spark: Python and Java use Unix sockets.
STARTER_DEFAULTS = {"spark.python.unix.domain.socket.enabled": "true"}
#: On one machine: no ports are open to the network, and checkpoints are written through plain file
#: operations, which takes half the time. A result with state has a task for every partition of its state, in
#: every batch: Spark's default of 200 is meant for clusters.
LOCAL_DEFAULTS = {
    "spark.sql.shuffle.partitions": str(max(2, min(8, os.cpu_count() or 2))),
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
}
LOCAL_MASTER = "local[*]"


def session(app_name: str = "semel", *, master: str | None = None) -> SparkSession.Builder:
    """Return a builder of a SparkSession with settings for Semel; end it with `.getOrCreate()`.

        spark = semel.spark.session("billing").config("spark.driver.memory", "4g").getOrCreate()

    It finds a Java, or uses the one that comes with `semel[spark]`; Spark's Python processes run this Python;
    without a master it runs on this machine, with all of its cores. Settings made elsewhere are kept: in
    spark-defaults.conf, by spark-submit, in PYSPARK_SUBMIT_ARGS, by the environment, or by a running session.
    Settings made on the builder afterwards win. The sinks of this package follow
    `spark.sql.streaming.checkpointLocation` for queries that have a name.
    """
    builder = SparkSession.builder
    pass_checkpoint_setting()
    if SparkSession.getActiveSession() is not None:
        return builder
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    given = _given()
    defaults = {"spark.app.name": app_name, **SESSION_DEFAULTS}
    if "spark.remote" not in given and "SPARK_REMOTE" not in os.environ:
        java.prepare()
        where = master or given.get("spark.master", LOCAL_MASTER)
        builder.master(where)
        defaults |= STARTER_DEFAULTS | (LOCAL_DEFAULTS if where.startswith("local") else {})
    for name, value in defaults.items():
        if name not in given:
            builder.config(name, value)
    return builder


def _given() -> dict[str, str]:
    """Return the settings that were made before, in all places where that is possible."""
    if "PYSPARK_GATEWAY_PORT" in os.environ:
        # spark-submit has started this program, so a JVM is running, which knows them all.
        SparkContext._ensure_initialized()
        return dict(SparkConf().getAll())
    found = _from_files()
    found |= _from_arguments(shlex.split(os.environ.get("PYSPARK_SUBMIT_ARGS", "")))
    if "MASTER" in os.environ:
        found["spark.master"] = os.environ["MASTER"]
    return found


def _from_files() -> dict[str, str]:
    home = os.environ.get("SPARK_HOME") or Path(pyspark.__file__).parent
    path = Path(os.environ.get("SPARK_CONF_DIR") or Path(home, "conf"), "spark-defaults.conf")
    return _properties(path) if path.is_file() else {}


def _from_arguments(arguments: list[str]) -> dict[str, str]:
    """Return the settings in the arguments of spark-submit."""
    found: dict[str, str] = {}
    names = {"--master": "spark.master", "--name": "spark.app.name", "--remote": "spark.remote"}
    for option, value in pairwise(arguments):
        if option in names:
            found[names[option]] = value
        elif option in ("--conf", "-c"):
            name, _, text = value.partition("=")
            found[name] = text
        elif option == "--properties-file" and Path(value).is_file():
            found = {**_properties(Path(value)), **found}
    return found


def _properties(path: Path) -> dict[str, str]:
    """Parse Spark's property files: names and values separated by a space or a sign, # for comments."""
    lines = (line.strip() for line in path.read_text().splitlines())
    found = (re.fullmatch(r"([^\s=:#]+)[\s=:]*(.*)", line) for line in lines)
    return {each[1]: each[2] for each in found if each}
