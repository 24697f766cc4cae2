"""A sink for Delta tables in which every input record counts exactly once, without a jar.

    (stream.writeStream.format("semel-delta")
     .option("kafka.bootstrap.servers", "127.0.0.1:9092").option("pipeline.id", "archive")
     .option("checkpointLocation", "/data/checkpoints/archive").start("/data/orders"))

Tasks write Parquet files with pyarrow; the driver names them in one commit of the table, with `deltalake`.
That commit also says how far the pipeline has read, so the table knows by itself what it has.

Where to read on: `pipeline` for how a batch comes to count once, `position` for what the table knows, `group`
for the consumer group that follows it, `leftovers` for files that no commit names. `files`, `partitions` and
`stats` write Parquet; `table`, `schema` and `storage` are the table itself; `data_source` is what Spark
calls.
"""

from semel.spark.delta.data_source import DeltaDataSource

__all__ = ["DeltaDataSource"]
