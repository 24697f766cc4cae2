"""``python -m tools.spark_classes``: Spark's classes as one file, which a JVM maps instead of loading each.

Tests and the demo start Spark very often, and a start is mostly the loading of classes: with this file it
takes half the time. A JVM that the file does not fit (another Java, other jars) does without it.
"""

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

FILE: Final = Path(sys.prefix, "spark-classes.jsa")
#: Runs are short: what is compiled well, or by several threads, is compiled for nothing.
QUICK: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
#: A JVM tells on its standard output what it does not like about such a file.
QUIET: Final = "-Xlog:disable -Xlog:all=error:stderr"


def java_options() -> str:
    """What a JVM of a short run is started with."""
    return f"{QUICK} -XX:SharedArchiveFile={FILE} {QUIET}" if FILE.exists() else QUICK


def main() -> None:
    """Write the file if there is none; in a process of its own, because a JVM writes it when it ends."""
    if len(sys.argv) > 1:
        _work(sys.argv[1])
    elif not FILE.exists():
        made = FILE.with_suffix(".new")
        # Its pipe is open until the JVM has ended, too.
        subprocess.run(
            [sys.executable, "-m", "tools.spark_classes", str(made)], capture_output=True, check=False
        )
        if made.exists():
            made.rename(FILE)
        else:
            print("Spark's classes were not written to a file (is there a Java?): starts take longer")  # noqa: T201


def _work(made: str) -> None:
    """A pipeline with most of what the others have: their classes are those that count."""
    import semel.spark
    from semel.client import Admin, Client, NewTopic, Producer

    options = f"{QUICK} -XX:ArchiveClassesAtExit={made} {QUIET}"
    builder = semel.spark.session(master="local[2]").config("spark.driver.extraJavaOptions", options)
    builder = builder.config("spark.sql.codegen.wholeStage", "false").config(
        "spark.sql.shuffle.partitions", "2"
    )
    spark = builder.getOrCreate()
    with semel.embedded() as broker, Client(broker.bootstrap_servers) as client:
        for topic in ("in", "out"):
            Admin(client).topics.create(NewTopic(topic, partitions=2))
        with Producer(client) as producer:
            for number in range(100):
                producer.send("in", b"%d" % number, key=b"%d" % (number % 10))
        with tempfile.TemporaryDirectory() as directory:
            rows = (
                spark.readStream.format("semel")
                .option("kafka.bootstrap.servers", broker.bootstrap_servers)
                .option("subscribe", "in")
                .option("startingOffsets", "earliest")
                .load()
            )
            query = (
                rows.dropDuplicates(["key"])
                .select("key", "value")
                .writeStream.format("semel")
                .option("kafka.bootstrap.servers", broker.bootstrap_servers)
                .option("topic", "out")
                .option("pipeline.id", "classes")
                .option("checkpointLocation", f"{directory}/checkpoint")
                .trigger(availableNow=True)
                .start()
            )
            query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main()
