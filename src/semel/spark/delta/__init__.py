"""An exactly-once sink for Delta tables, without a jar.

    (stream.writeStream.format("semel-delta")
     .option("kafka.bootstrap.servers", "127.0.0.1:9092").option("pipeline.id", "archive")
     .option("checkpointLocation", "/data/checkpoints/archive").start("/data/orders"))

Tasks write Parquet files with pyarrow; the driver adds them to the table in one commit, with `deltalake`.
That commit also holds the position of the pipeline, so the table itself knows what it contains.

Read on in: `batch_commit` for exactly-once writes, `position` for the position in the table, `group` for the
consumer group that follows it, `leftovers` for files that no commit names. `files`, `partitions` and `stats`
write Parquet; `table`, `schema` and `storage` are the table itself; `data_source` has the entry points of
Spark.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from semel.spark.delta.data_source import DeltaDataSource

__all__ = ["DeltaDataSource"]


def __getattr__(name: str) -> Any:
    """Load the data source when it is used: `group` works where Spark is not installed."""
    if name != "DeltaDataSource":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from semel.spark.delta.data_source import DeltaDataSource

    return DeltaDataSource
