"""Prepares a driver for several queries that start at the same moment.

Spark 4.3 has one map of environment variables for all readers of a Python data source in a driver. The first
streaming reader adds four names to it, in the thread of its query and without a lock. If two queries do that
at once, the map counts a name twice, and from then on no task of any query can be sent: "Task not
serializable", because of an "Illegal size 5 of collection, expected 6". So the names are added here, before
any query starts. Spark replaces their values whenever it uses them.

In a session where queries were started in another way, the map may be wrong already. A restart of a query
alone does not help then, so the map is filled anew. That is no risk for other queries of the driver, because
with such a map all of them fail.
"""

import threading
from contextlib import suppress
from typing import TYPE_CHECKING

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: The source that streaming queries have in common.
FORMAT = "semel"
NAMES = ("SPARK_LOCAL_DIRS", "SPARK_AUTH_SOCKET_TIMEOUT", "SPARK_BUFFER_SIZE", "SPARK_PYTHON_RUNTIME")

_lock = threading.Lock()


def prepare_first_start(spark: "SparkSession") -> None:
    """Add the names, if this program runs in the driver and its Spark has such a map. Mend a wrong one."""
    # Spark Connect has no access to it, and another version of Spark may have none.
    with _lock, suppress(AttributeError, Py4JError, PySparkException):
        sources = spark._jsparkSession.sessionState().dataSourceManager()
        variables = sources.lookupDataSource(FORMAT).dataSourceCls().envVars()
        right = spark._jvm.java.util.HashMap(variables)  # type: ignore[union-attr]
        if right.size() != variables.size():
            variables.underlying().clear()
            variables.putAll(right)
        for name in NAMES:
            if not variables.containsKey(name):
                variables.put(name, "")
