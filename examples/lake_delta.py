"""Orders from a topic into a Delta table, exactly once and without a jar, in two runs.
stopped.

python examples/lake_delta.py                  # with a broker of its own
python examples/lake_delta.py 127.0.0.1:9092   # with one that is running, of any kind
"""

import sys
import tempfile
import uuid
from contextlib import nullcontext
from pathlib import Path

from deltalake import DeltaTable
from pyspark.sql import SparkSession

import semel
from semel.client import Admin, Client, NewTopic, Producer


def archive(spark: SparkSession, bootstrap_servers: str, topic: str, directory: Path) -> None:
    """Write what the topic has to the table, one directory for every shop."""
    options = {"kafka.bootstrap.servers": bootstrap_servers, "pipeline.id": f"archive-{topic}"}
    orders = spark.readStream.format("semel").options(**options).option("subscribe", topic).load()
    rows = orders.selectExpr("CAST(key AS string) AS shop", "CAST(value AS string) AS item", "timestamp")
    query = (
        rows.writeStream.format("semel-delta")
        .options(**options)
        .option("partitionBy", "shop")
        .option("checkpointLocation", str(directory / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(directory / "orders"))
    )
    query.awaitTermination()


def main(spark: SparkSession, bootstrap_servers: str, directory: Path) -> None:
    """Write orders twice, archive them twice, and read the table without Spark."""
    topic = f"orders-{uuid.uuid4().hex[:8]}"
    with Client(bootstrap_servers) as client:
        Admin(client).topics.create(NewTopic(topic, partitions=2))
        for start in (0, 50):
            with Producer(client) as producer:
                for number in range(start, start + 50):
                    producer.send(topic, b"item %d" % number, key=b"shop %d" % (number % 3))
            archive(spark, bootstrap_servers, topic, directory)

        table = DeltaTable(directory / "orders")
        items = table.to_pyarrow_table(columns=["item"])["item"].to_pylist()
        print(f"{len(items)} items are in the table, {len(set(items))} of them different")
        print("the newest commit says", table.history(1)[0]["userMetadata"])
        Admin(client).groups.delete(f"archive-{topic}")
        Admin(client).topics.delete(topic)


if __name__ == "__main__":
    session = SparkSession.builder.master("local[2]").getOrCreate()
    broker = nullcontext() if len(sys.argv) > 1 else semel.embedded()
    with broker as embedded, tempfile.TemporaryDirectory() as place:
        main(session, sys.argv[1] if embedded is None else embedded.bootstrap_servers, Path(place))
