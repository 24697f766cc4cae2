"""Orders from a topic into an Iceberg table, with pyiceberg in place of a jar.

Every snapshot of the table says which batch of which query it holds, so a batch that Spark does again is not
written again. As with every `foreachBatch`, that holds as long as the checkpoint lives.

python examples/lake_iceberg.py                  # with a broker of its own
python examples/lake_iceberg.py 127.0.0.1:9092   # with one that is running, of any kind
"""

import sys
import tempfile
import uuid
from contextlib import nullcontext
from pathlib import Path

import pyarrow as pa
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table
from pyspark.sql import DataFrame, SparkSession

import semel
from semel.client import Admin, Client, NewTopic, Producer

ROWS = pa.schema([("item", pa.string()), ("offset", pa.int64())])


def last_batch(table: Table, query: str) -> int:
    """The last batch of a query that the table has."""
    summaries = [each.summary for each in table.snapshots() if each.summary is not None]
    return max((int(each["batch"] or -1) for each in summaries if each["query"] == query), default=-1)


def append(table: Table, query: str, batch: DataFrame, batch_id: int) -> None:
    """Append the rows of a batch, once. They pass through the driver, so batches have to be small."""
    table.refresh()
    if batch_id > last_batch(table, query):
        rows = batch.toArrow().cast(ROWS)
        table.append(rows, snapshot_properties={"query": query, "batch": str(batch_id)})


def main(spark: SparkSession, bootstrap_servers: str, directory: Path) -> None:
    """Write orders twice, archive them twice, do the last batch again, and read the table without Spark."""
    topic = f"orders-{uuid.uuid4().hex[:8]}"
    catalog = SqlCatalog(
        "lake", uri=f"sqlite:///{directory}/catalog.db", warehouse=f"file://{directory}/lake"
    )
    catalog.create_namespace("shop")
    table = catalog.create_table("shop.orders", ROWS)

    def write(batch: DataFrame, batch_id: int) -> None:
        append(table, topic, batch, batch_id)
        append(table, topic, batch, batch_id)  # as after a crash

    with Client(bootstrap_servers) as client:
        Admin(client).topics.create(NewTopic(topic, partitions=2))
        for start in (0, 50):
            with Producer(client) as producer:
                for number in range(start, start + 50):
                    producer.send(topic, b"item %d" % number)
            source = spark.readStream.format("semel").option("kafka.bootstrap.servers", bootstrap_servers)
            orders = source.option("subscribe", topic).option("startingOffsets", "earliest").load()
            query = (
                orders.selectExpr("CAST(value AS string) AS item", "offset")
                .writeStream.foreachBatch(write)
                .option("checkpointLocation", str(directory / "checkpoint"))
                .trigger(availableNow=True)
                .start()
            )
            query.awaitTermination()
        items = catalog.load_table("shop.orders").scan().to_arrow()["item"].to_pylist()
        print(f"{len(items)} items are in the table, {len(set(items))} of them different")
        Admin(client).topics.delete(topic)
    catalog.close()


if __name__ == "__main__":
    session = SparkSession.builder.master("local[2]").getOrCreate()
    broker = nullcontext() if len(sys.argv) > 1 else semel.embedded()
    with broker as embedded, tempfile.TemporaryDirectory() as place:
        main(session, sys.argv[1] if embedded is None else embedded.bootstrap_servers, Path(place))
