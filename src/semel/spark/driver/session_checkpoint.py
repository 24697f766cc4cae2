"""Passes the setting `spark.sql.streaming.checkpointLocation` to the sinks, and prepares their first start.

Spark resolves the setting in Java, after the options were passed, and no Python process sees it. So
`semel.spark.session` adds a step to `DataStreamWriter.start`: a named query without a checkpointLocation of
its own gets as an option the location that Spark would give it. Queries of other formats keep their location.
A query without a name is left alone: Spark chooses a new directory at every start.
"""

import functools
from typing import Any

from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

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
