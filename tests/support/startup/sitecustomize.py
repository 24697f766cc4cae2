"""What every Python that Spark starts does first, for the tests: less work for each worker.

Spark puts its own archives before all else on the path, and Python compiles what it takes from an archive
anew in each process: half a second for every worker. They are left aside: the same files are installed, and
those are compiled already.

Most workers are forked by a daemon, one for each kind of worker, and import what they need after that:
another half second for each, more than the work of most tests. So a daemon imports it before it forks.

A driver that another copy of its pipeline has fenced waits ten seconds for the first decision of that copy,
to name it. In these tests the other copy has decided before, or is dead and never will: nobody waits.
"""

import gc
import importlib
import sys
from contextlib import suppress

DAEMON = "pyspark.daemon"
#: What workers of Semel's data sources import. The only thread that this starts is one of an allocator, which
#: does its work without it after a fork.
MODULES = (
    "pyarrow.compute",
    "pyspark.worker",
    "pyspark.sql.conversion",
    "pyspark.sql.pandas.serializers",
    "semel.spark.data_source",
    "support.faults.spark_faults",
)
#: What only those of tasks import: pyarrow asks pandas, where it is installed, whether values are a series.
OF_TASKS = ("pandas", "pyarrow.parquet") if "pyspark.worker" in sys.orig_argv else ()

sys.path[:] = [each for each in sys.path if "/pyspark/" not in each or not each.endswith((".zip", ".jar"))]

if DAEMON in sys.orig_argv:
    # A driver that is not of these tests has not all of them on its path.
    with suppress(ImportError):
        for name in (
            *MODULES,
            *OF_TASKS,
            *(each for each in sys.orig_argv if each.startswith("pyspark.sql.")),
        ):
            importlib.import_module(name)
        importlib.import_module("semel.spark.fencing").OTHER_DECIDES_S = 0.0  # type: ignore[attr-defined]
    gc.freeze()
