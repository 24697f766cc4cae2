"""Sources and a sink for Spark that do nothing: the base cost of a micro-batch, or a row, from Python."""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from semel.spark.columns import ARROW_TYPES
from semel.spark.data_source import COLUMNS

PARTITIONS = 2
READY_ROWS = 50_000
"""Rows of one Arrow batch, as many as in the real source."""


class NoopSource(DataSource):
    """Batches without rows, one after another."""

    @classmethod
    def name(cls) -> str:
        return "bench-noop"

    def schema(self) -> str:
        return "key binary, value binary"

    def streamReader(self, schema: StructType) -> "Reader":  # noqa: N802 - Spark's name
        return Reader()

    def streamWriter(self, schema: StructType, overwrite: bool) -> "Writer":  # noqa: N802
        return Writer()


class Reader(DataSourceStreamReader):
    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        return {"at": 0}

    def latestOffset(self, start: dict[str, Any], limit: object) -> dict[str, Any]:  # noqa: N802
        return {"at": start["at"] + 1}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        return [InputPartition(number) for number in range(PARTITIONS)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return iter(())


class Writer(DataSourceStreamArrowWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        for _ in iterator:
            continue
        return WriterCommitMessage()

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        return

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        return


class ReadySource(DataSource):
    """The requested number of rows, like those of a topic, out of one prebuilt Arrow batch."""

    def __init__(self, options: dict[str, str]) -> None:
        self._batches = int(options["rows"]) // PARTITIONS // READY_ROWS

    @classmethod
    def name(cls) -> str:
        return "bench-ready"

    def schema(self) -> str:
        return ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items() if name != "headers")

    def reader(self, schema: StructType) -> "ReadyReader":
        return ReadyReader(self._batches)


class ReadyReader(DataSourceReader):
    def __init__(self, batches: int) -> None:
        self._batches = batches

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(number) for number in range(PARTITIONS)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        values = {
            "key": b"key %08d" % partition.value,
            "value": bytes(range(100)),
            "topic": "full",
            "timestamp": 1_700_000_000_000_000,
        }
        names = [name for name in COLUMNS if name != "headers"]
        arrays = [pa.repeat(pa.scalar(values.get(name, 0), ARROW_TYPES[name]), READY_ROWS) for name in names]
        batch = pa.RecordBatch.from_arrays(arrays, names=names)
        return iter([batch] * self._batches)
