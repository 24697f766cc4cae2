"""A source and a sink for Spark with which every input record counts exactly once in the output.

    stream = (spark.readStream.format("semel")
              .option("kafka.bootstrap.servers", "127.0.0.1:9092")
              .option("subscribe", "orders").option("pipeline.id", "billing").load())
    (stream.writeStream.format("semel")
     .option("kafka.bootstrap.servers", "127.0.0.1:9092")
     .option("topic", "invoices").option("pipeline.id", "billing")
     .option("checkpointLocation", "/tmp/billing").start())

It is made of PySpark's data source API and of `semel.client`, so it runs on Spark as it is and sends nothing
but Kafka's own requests. Spark finds it by itself, through the module `pyspark_semel`.

Where to read on: `data_source` for what Spark calls, `options`; `source` and `reading`, `vectors`; `sink`,
then `pipeline` for how a batch comes to count once, `decision` and `checkpoint`.
"""

from semel.spark.data_source import SemelDataSource
from semel.spark.errors import (
    DataLoss,
    DecidedTransactionLost,
    JavaNotFound,
    KeyMissing,
    OptionError,
    PipelineError,
    PipelineFenced,
    PipelineMismatch,
    SnapshotOvertaken,
    TableTooLarge,
)
from semel.spark.running import start
from semel.spark.session import session

__all__ = [
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
    "TableTooLarge",
    "session",
    "start",
]
