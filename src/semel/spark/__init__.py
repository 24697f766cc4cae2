"""An exactly-once source and sink for Spark.

    stream = (spark.readStream.format("semel")
              .option("kafka.bootstrap.servers", "127.0.0.1:9092")
              .option("subscribe", "orders").option("pipeline.id", "billing").load())
    (stream.writeStream.format("semel")
     .option("kafka.bootstrap.servers", "127.0.0.1:9092")
     .option("topic", "invoices").option("pipeline.id", "billing")
     .option("checkpointLocation", "/tmp/billing").start())

It is built on PySpark's data source API and `semel.client`, so it runs on an unmodified Spark and sends only
Kafka's own requests. Spark finds it automatically, through the module `pyspark_semel`.

Read on in: `data_source` for the entry points of Spark, `options`; `source`, `reading` and
`partition_offsets`; `sink`, then `batch_commit` for exactly-once writes, `decision` and `checkpoint`.

The names below are loaded when they are used: `status` and `decision` work where Spark is not installed.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from semel.spark.data_source import SemelDataSource
    from semel.spark.driver.spark_session import session
    from semel.spark.errors import (
        BatchUnfinished,
        DataLoss,
        DecidedTransactionLost,
        JavaNotFound,
        KeyMissing,
        OptionError,
        PipelineError,
        PipelineFenced,
        PipelineMismatch,
        SnapshotOvertaken,
        TableChanged,
        TableTooLarge,
        TableUnreachable,
    )
    from semel.spark.pipeline.running import start
    from semel.spark.sink.batch import Batch, batch

__all__ = [
    "Batch",
    "BatchUnfinished",
    "DataLoss",
    "DecidedTransactionLost",
    "JavaNotFound",
    "KeyMissing",
    "OptionError",
    "PipelineError",
    "PipelineFenced",
    "PipelineMismatch",
    "SemelDataSource",
    "SnapshotOvertaken",
    "TableChanged",
    "TableTooLarge",
    "TableUnreachable",
    "batch",
    "session",
    "start",
]

_MODULES = {
    "Batch": "sink.batch",
    "SemelDataSource": "data_source",
    "batch": "sink.batch",
    "session": "driver.spark_session",
    "start": "pipeline.running",
}


def __getattr__(name: str) -> Any:
    """Load a public name."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(import_module(f"{__name__}.{_MODULES.get(name, 'errors')}"), name)
    globals()[name] = found
    return found
