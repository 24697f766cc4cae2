"""`semel.spark.session`: a SparkSession configured for this package, on one machine or on a cluster.

It adds a step to `DataStreamWriter.start`, which prepares what Spark does not:

- The setting `spark.sql.streaming.checkpointLocation` is passed to the sinks. Spark resolves it in Java,
  after the options were passed, and no Python process sees it. So a named query without a checkpointLocation
  of its own gets as an option the location that Spark would give it. Queries of other formats keep their
  location. A query without a name is left alone: Spark chooses a new directory at every start.
- The output mode update is refused. Spark refuses it for all Python sinks, but only when the query has begun
  its first batch, and without saying what works instead.
- A query with `transformWithState` gets the only kind of state store that can serve it.
"""

import functools
import os
import re
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyspark
from pyspark import SparkConf, SparkContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from semel.spark.driver import java
from semel.spark.driver.early import start_early
from semel.spark.driver.first_start import prepare_first_start
from semel.spark.errors import OptionError

SETTING = "spark.sql.streaming.checkpointLocation"
OPTION = "checkpointLocation"


STATE_STORE = "spark.sql.streaming.stateStore.providerClass"
ROCKS_DB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


def prepare_starts() -> None:
    """Add the step, once per process."""
    original = DataStreamWriter.start
    if hasattr(original, "__wrapped__"):
        return
    for name in ("format", "outputMode"):
        _remember(name)

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
        _refuse_update(format or _chosen(self, "format"), outputMode or _chosen(self, "outputMode"))
        prepare_first_start(self._spark)
        given = self._jwrite.extraOptions()
        name = queryName or (given.apply("queryName") if given.contains("queryName") else None)
        root = self._spark.conf.get(SETTING, None)
        has_own = given.contains(OPTION) or OPTION.lower() in map(str.lower, options)
        if root and name and not has_own:
            options[OPTION] = f"{root.rstrip('/')}/{name}"
        with state_store_for(self._df):
            return original(self, path, format, outputMode, partitionBy, queryName, **options)

    DataStreamWriter.start = start  # type: ignore[method-assign]


def _remember(name: str) -> None:
    """Keep what a method of a writer was given: Spark has no method that returns it."""
    original = getattr(DataStreamWriter, name)

    @functools.wraps(original)
    def method(self: DataStreamWriter, value: str) -> DataStreamWriter:
        vars(self)[f"semel {name}"] = value
        found: DataStreamWriter = original(self, value)
        return found

    setattr(DataStreamWriter, name, method)


def _chosen(writer: DataStreamWriter, name: str) -> str:
    found: str = vars(writer).get(f"semel {name}", "")
    return found


def _refuse_update(sink: str, mode: str) -> None:
    if sink in ("semel", "semel-delta") and mode.lower() == "update":
        raise OptionError(
            f"Spark has no output mode update for sinks in Python, such as format {sink!r}. Declare the "
            "pipeline with @pipeline(…, output_mode='update'); or write each batch in foreachBatch, with "
            "semel.spark.batch: there every output mode works, and counts exactly once"
        )


@contextmanager
def state_store_for(rows: DataFrame) -> Iterator[None]:
    """Choose RocksDB while a query with `transformWithState` is started, unless a state store was chosen.

    A query keeps the settings that its session has when it is started.
    """
    spark = rows.sparkSession
    try:
        has_own = spark.conf.get(STATE_STORE, None) is not None
        needs_it = "TransformWithState" in rows._jdf.queryExecution().analyzed().treeString()
    except AttributeError:  # Spark Connect does not show plans.
        has_own, needs_it = True, False
    if needs_it and not _has_protobuf():
        raise OptionError(
            "transformWithState needs the package protobuf, on the executors too: pip install 'semel[state]'"
        )
    if has_own or not needs_it:
        yield
        return
    spark.conf.set(STATE_STORE, ROCKS_DB)
    try:
        yield
    finally:
        spark.conf.unset(STATE_STORE)


def _has_protobuf() -> bool:
    try:
        return find_spec("google.protobuf") is not None
    except ModuleNotFoundError:
        return False


#: Settings for every session: times mean the same everywhere.
SESSION_DEFAULTS = {"spark.sql.session.timeZone": "UTC"}
#: Settings for the process that starts Spark: Python and Java use Unix sockets.
STARTER_DEFAULTS = {"spark.python.unix.domain.socket.enabled": "true"}
#: On one machine: Python workers end without a traceback, no ports are open to the network, and checkpoints
#: are written through plain file operations, which takes half the time. A result with state has a task for
#: every partition of its state, in every batch: Spark's default of 200 is meant for clusters.
LOCAL_DEFAULTS = {
    "spark.python.daemon.module": "semel.spark.workers",
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
    prepare_starts()
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
        _start_early(builder)
    for name, value in defaults.items():
        if name not in given:
            builder.config(name, value)
    return builder


def _start_early(builder: SparkSession.Builder) -> None:
    original = builder.getOrCreate

    def create() -> SparkSession:
        spark = original()
        start_early(spark)
        return spark

    builder.getOrCreate = create  # type: ignore[method-assign]


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
