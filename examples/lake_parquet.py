"""Orders from a topic into Parquet files, by Spark's own file sink.

The sink keeps a list of its files in `_spark_metadata`, and Spark reads no others: each batch counts once as
long as the checkpoint lives. Without the checkpoint Spark begins anew, and everything is there twice; the
table of lake_delta.py does not need it.

python examples/lake_parquet.py                  # with a broker of its own
python examples/lake_parquet.py 127.0.0.1:9092   # with one that is running, of any kind
"""

import sys
import tempfile
import uuid
from contextlib import nullcontext
from pathlib import Path

from pyspark.sql import SparkSession

import semel
from semel.client import Admin, Client, NewTopic, Producer


def main(spark: SparkSession, bootstrap_servers: str, directory: Path) -> None:
    """Write orders twice, archive them twice, and read the files."""
    topic, files = f"orders-{uuid.uuid4().hex[:8]}", str(directory / "orders")
    with Client(bootstrap_servers) as client:
        Admin(client).topics.create(NewTopic(topic, partitions=2))
        for start in (0, 50):
            with Producer(client) as producer:
                for number in range(start, start + 50):
                    producer.send(topic, b"item %d" % number)
            source = spark.readStream.format("semel").option("kafka.bootstrap.servers", bootstrap_servers)
            orders = source.option("subscribe", topic).option("startingOffsets", "earliest").load()
            query = (
                orders.selectExpr("CAST(value AS string) AS item", "timestamp")
                .writeStream.format("parquet")
                .option("checkpointLocation", str(directory / "checkpoint"))
                .trigger(availableNow=True)
                .start(files)
            )
            query.awaitTermination()
        items = [row.item for row in spark.read.parquet(files).collect()]
        print(f"{len(items)} items are in the files, {len(set(items))} of them different")
        Admin(client).topics.delete(topic)


if __name__ == "__main__":
    session = SparkSession.builder.master("local[2]").getOrCreate()
    broker = nullcontext() if len(sys.argv) > 1 else semel.embedded()
    with broker as embedded, tempfile.TemporaryDirectory() as place:
        main(session, sys.argv[1] if embedded is None else embedded.bootstrap_servers, Path(place))
