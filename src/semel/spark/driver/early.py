"""Starts what the first query of a session needs, while the program prepares that query.

When a program names a format for the first time, Spark looks for formats in Python, in a process that it
starts for this. Then it asks another new process for the columns, and a third one to plan the reading. Each
takes most of a second, and a first query would wait for all of them.
"""

import threading
from contextlib import suppress

from pyspark.sql import SparkSession


def start_early(spark: SparkSession) -> None:
    """Have Spark find format "semel" in the background."""
    threading.Thread(target=_find, args=(spark,), name="semel-early", daemon=True).start()


def _find(spark: SparkSession) -> None:
    # The program may have stopped the session again; and what fails here, a query tries again and reports.
    with suppress(Exception):
        # Spark looks data sources up in the active session, and each thread has its own.
        spark._jvm.org.apache.spark.sql.classic.SparkSession.setActiveSession(spark._jsparkSession)  # type: ignore[union-attr]
        rows = spark.read.format("semel").load()
        # This read is refused, because it names no topic. But the process that plans reads is there then.
        rows._jdf.queryExecution().toRdd().getNumPartitions()
