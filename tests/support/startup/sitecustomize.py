"""Runs first in every Python that Spark starts for the tests, to save work in each worker.

Spark puts its own archives first on the path, and Python compiles modules from an archive anew in each
process: half a second for every worker. So the archives are removed from the path: the same modules are
installed, and those are compiled already.

Most workers are forked by a daemon, one for each kind of worker, and import what they need after the fork:
another half second each, more than the work of most tests. So the daemon imports these modules before it
forks.

A driver that another copy of its pipeline has fenced waits ten seconds for that copy's first decision, to
name it. In these tests the other copy has decided before, or is dead and never will, so there is no wait.
"""

import gc
import importlib
import sys
from contextlib import suppress

DAEMON = "pyspark.daemon"
#: What workers of Semel's data sources import. The only thread that this starts belongs to an allocator,
#: which works without it after a fork.
MODULES = (
    "pyarrow.compute",
    "pyspark.worker",
    "pyspark.sql.conversion",
    "pyspark.sql.pandas.serializers",
    "semel.spark.data_source",
    "support.faults.spark_faults",
)
#: What only task workers import: if pandas is installed, pyarrow imports it to ask whether values are a
#: series.
OF_TASKS = ("pandas", "pyarrow.parquet") if "pyspark.worker" in sys.orig_argv else ()

sys.path[:] = [each for each in sys.path if "/pyspark/" not in each or not each.endswith((".zip", ".jar"))]

if DAEMON in sys.orig_argv:
    # A driver that does not belong to these tests may lack some of the modules.
    with suppress(ImportError):
        for name in (
            *MODULES,
            *OF_TASKS,
            *(each for each in sys.orig_argv if each.startswith("pyspark.sql.")),
        ):
            importlib.import_module(name)
        importlib.import_module("semel.spark.sink.batch_commit").OTHER_DECIDES_S = 0.0  # type: ignore[attr-defined]
    gc.freeze()
