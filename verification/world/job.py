"""Runs a pipeline of a scenario: a query that copies numbers to a topic or a table, and its checkpoint."""

import itertools
import re
import shutil
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from deltalake import DeltaTable
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from support.spark.jobs import committed

from semel.client import Client
from verification.world.truth import Partition
from verification.world.verdict import Broken, End, RunResult, result_of

RUN_SECONDS: Final = 90
"""A run has only a few seconds of work, so it hangs if it takes this long."""


@dataclass
class Job:
    """A query as an operator declares it. Its checkpoint may be exchanged; its name in the log is fixed."""

    name: str
    pipeline_id: str
    reads: str
    """A regular expression for the names of its input topics, or the names, separated by commas."""
    output: str
    """A topic, or the directory of a table if the job writes to one."""
    directory: Path
    is_pattern: bool = False
    writes_table: bool = False
    in_function: bool = False
    """Whether it writes with foreachBatch and versions. Then only the checkpoint has its position."""
    batch_max: int | None = None
    begun: set[Partition] = field(default_factory=set)
    """The partitions that runs without error have read."""
    forgiven: set[int] = field(default_factory=set)
    """Records that may be missing from the output, for example because of failOnDataLoss=false."""
    destroyed: set[int] = field(default_factory=set)
    """Records that were in the output when it was deleted. Only a run with a batch must notice that."""
    resets: dict[Partition, int] = field(default_factory=dict)
    """Offsets of its group that were set by hand since it last ended without error."""
    copies: list[Path] = field(default_factory=list)
    """Copies of the checkpoint, the oldest first."""
    starting_offsets: str | None = None
    former_id: str | None = None
    """Its pipeline.id before an operator changed it by mistake."""
    source_id: str | None = None
    """The pipeline.id of its source, if it differs from that of the sink."""
    is_new: bool = False
    """The option pipeline.new: begin, whatever other pipelines have written to the output."""

    def __post_init__(self) -> None:
        self.directory.mkdir(parents=True)
        self.checkpoint = self.directory / "checkpoint"
        self.fault = self.directory / "fault"
        self._checkpoints = itertools.count(2)

    def matches(self, topic: str) -> bool:
        """Whether it reads a topic."""
        if self.is_pattern:
            return re.fullmatch(self.reads, topic) is not None
        return topic in self.reads.split(",")

    @property
    def is_fresh(self) -> bool:
        """Whether it has a table to write to that does not exist, and no checkpoint."""
        is_gone = self.writes_table and not DeltaTable.is_deltatable(self.output)
        return is_gone and not self.checkpoint.exists()

    # ---- its checkpoint

    def new_checkpoint(self) -> None:
        """Use an empty checkpoint in another directory from now on."""
        self.checkpoint = self.directory / f"checkpoint-{next(self._checkpoints)}"

    def keep_copy(self) -> None:
        """Keep a copy of the current checkpoint in `copies`."""
        copy = self.directory / f"copy-{len(self.copies)}"
        shutil.copytree(self.checkpoint, copy)
        self.copies.append(copy)

    @property
    def logs(self) -> Path:
        """The directory with Spark's logs."""
        return self.checkpoint

    def logged(self, name: str) -> list[int]:
        """Return the batches in one of the logs of the checkpoint, `offsets` or `commits`."""
        found = (self.logs / name).glob("*") if (self.logs / name).exists() else ()
        return sorted(int(each.name) for each in found if each.name.isdigit())

    # ---- running it

    def start(
        self, spark: SparkSession, bootstrap: str, options: dict[str, Any] | None = None
    ) -> StreamingQuery:
        """Start the query with Trigger.AvailableNow, and with the fault in its fault file, if any."""
        both: dict[str, Any] = {"kafka.bootstrap.servers": bootstrap}
        if not self.in_function:
            both["pipeline.id"] = self.pipeline_id
        reading = {"subscribePattern" if self.is_pattern else "subscribe": self.reads, **(options or {})}
        if self.batch_max is not None:
            reading["maxOffsetsPerTrigger"] = self.batch_max
        if self.starting_offsets is not None:
            reading["startingOffsets"] = self.starting_offsets
        elif self.in_function:
            reading["startingOffsets"] = "earliest"
        if not self.in_function:
            reading["pipeline.id"] = self.source_id or self.pipeline_id
        rows = spark.readStream.format("semel").options(**{**both, **reading}).load()
        writer = rows.selectExpr("CAST(value AS string) AS value").writeStream
        if self.in_function:
            writer = writer.foreachBatch(lambda batch, version: self._write(bootstrap, batch, version))
            return (
                writer.option("checkpointLocation", str(self.checkpoint)).trigger(availableNow=True).start()
            )
        writer = writer.format("semel-delta-faulty" if self.writes_table else "semel-faulty")
        writer = writer.options(**both | {"fault.file": str(self.fault), "pipeline.new": self.is_new})
        writer = writer.option("checkpointLocation", str(self.checkpoint)).trigger(availableNow=True)
        return writer.start(self.output) if self.writes_table else writer.option("topic", self.output).start()

    def _write(self, bootstrap: str, batch: DataFrame, version: int) -> None:
        place = {"path": self.output} if self.writes_table else {"topic": self.output}
        if not self.writes_table:
            place["kafka.bootstrap.servers"] = bootstrap
        writer = batch.write.format("semel-delta" if self.writes_table else "semel").options(**place)
        writer = writer.option("txnAppId", self.pipeline_id).option("txnVersion", version)
        writer.option("checkpointLocation", str(self.checkpoint)).mode("append").save()
        if self.fault.exists():
            self.fault.unlink()
            raise RuntimeError("a fault after all was done")

    def run(
        self,
        spark: SparkSession,
        bootstrap: str,
        options: dict[str, Any] | None = None,
        *,
        fault: str = "",
        is_interrupted: bool = False,
    ) -> RunResult:
        """Run the query to its end, or to a fault. Broken if it hangs or fails without a refusal by Semel.

        The fault is one that the query finds in its file, or the caller has prepared to interrupt it.
        """
        if fault:
            self.fault.write_text(fault)
        before = self.logged("offsets"), self.logged("commits")
        try:
            outcome = wait(self.start(spark, bootstrap, options))
        except PySparkException as error:
            outcome = result_of(error, fault_was_asked=bool(fault) or is_interrupted)
        finally:
            self.fault.unlink(missing_ok=True)
        had_batch = (self.logged("offsets"), self.logged("commits")) != before
        return RunResult(outcome.end, outcome.words, had_batch)

    # ---- what it wrote

    def judged(self, bootstrap: str, counted: set[int]) -> Counter[int]:
        """Return what is compared with the truth. `counted` is what the position of the job covers."""
        return self.found(bootstrap)

    def torn(self, bootstrap: str, counted: set[int], *, had_batch: bool) -> str:
        """Return what differs between the outputs: nothing, because there is only one."""
        return ""

    def found(self, bootstrap: str) -> Counter[int]:
        """Return the numbers in the output and how often each occurs, as another program reads them."""
        if self.writes_table:
            if not DeltaTable.is_deltatable(self.output):
                return Counter()
            rows = DeltaTable(self.output).to_pyarrow_table()["value"].to_pylist()
            return Counter(map(int, rows))
        with Client(bootstrap) as client:
            if not client.describe([self.output]).topics:
                return Counter()
        return Counter({int(value): count for value, count in committed(bootstrap, self.output).items()})


def wait(query: StreamingQuery) -> RunResult:
    """Wait until a query ends. PySparkException if it fails, Broken if it hangs."""
    if not query.awaitTermination(RUN_SECONDS):
        query.stop()
        raise Broken(f"the query has not ended within {RUN_SECONDS} s")
    return RunResult(End.WELL)
