"""Archives Spark's classes in one file, which a JVM maps: ``python -m tools.spark_classes``.

Tests and the demo start Spark very often, and a start is mostly class loading. With this file the JVM need
not load each class, and a start takes half the time. A JVM that the file does not fit (another Java, other
jars) ignores it.
"""

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

FILE: Final = Path(sys.prefix, "spark-classes.jsa")
#: Runs are short: thorough compilation, or compilation by several threads, does not pay off.
QUICK: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
#: Without this, a JVM prints on its standard output why it does not use such a file.
QUIET: Final = "-Xlog:disable -Xlog:all=error:stderr"


def java_options() -> str:
    """Return the JVM options of a short run."""
    return f"{QUICK} -XX:SharedArchiveFile={FILE} {QUIET}" if FILE.exists() else QUICK


def main() -> None:
    """Write the file if it does not exist, in a separate process, because a JVM writes it on exit."""
    if len(sys.argv) > 1:
        _work(sys.argv[1])
    elif not FILE.exists():
        made = FILE.with_suffix(".new")
        # The pipe of its output stays open until the JVM has exited, too.
        subprocess.run(
            [sys.executable, "-m", "tools.spark_classes", str(made)], capture_output=True, check=False
        )
        if made.exists():
            made.rename(FILE)
        else:
            print("Spark's classes were not written to a file (is there a Java?): starts take longer")  # noqa: T201


def _work(made: str) -> None:
    """Run a pipeline with the most common features: the classes that it loads go into the file."""
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
