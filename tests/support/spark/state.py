"""Queries that keep state, in a module that Spark's Python processes can import."""

from collections.abc import Iterator
from typing import Any

import pandas as pd
from pyspark.sql import DataFrame, Row
from pyspark.sql.functions import window
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

#: Both forms of state in Python require it.
ROCKS_DB = {
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    )
}


class Numbering(StatefulProcessor):
    """Numbers the rows of a key from 1: a lost or repeated row changes all numbers after it."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.count = handle.getValueState("count", "count long")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:  # noqa: N802, N803
        number = self._number()
        for _ in rows:
            number += 1
            yield Row(value=f"{key[0]} {number}")
        self.count.update((number,))

    def close(self) -> None:
        return

    def _number(self) -> int:
        found = self.count.get()
        return 0 if found is None else int(found[0])


class NumberingInPandas(Numbering):
    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:  # noqa: N802, N803
        number = self._number()
        for frame in rows:
            yield pd.DataFrame({"value": [f"{key[0]} {number + 1 + at}" for at in range(len(frame))]})
            number += len(frame)
        self.count.update((number,))


def numbered(source: DataFrame) -> DataFrame:
    grouped = source.selectExpr("CAST(key AS string) AS key").groupBy("key")
    return grouped.transformWithState(Numbering(), "value string", "append", "none")


def numbered_in_pandas(source: DataFrame) -> DataFrame:
    grouped = source.selectExpr("CAST(key AS string) AS key").groupBy("key")
    return grouped.transformWithStateInPandas(NumberingInPandas(), "value string", "append", "none")


def counted_in_windows(source: DataFrame) -> DataFrame:
    """Count the records of each second, and emit the count when the second is over."""
    counted = source.withWatermark("timestamp", "0 seconds").groupBy(window("timestamp", "1 second")).count()
    return counted.selectExpr("concat(unix_seconds(window.start), ' ', count) AS value")
