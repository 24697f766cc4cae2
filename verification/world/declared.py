"""Runs a declared pipeline of a scenario, or a `foreachBatch` function that writes to the same sinks by hand.

A run can be interrupted at any point of `decision_points`, by the death of the driver or by what happens
elsewhere at that moment.
"""

import itertools
import os
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from support.faults.decision_points import POINTS, Call, catching, die

import semel.spark
from semel.client import Client
from semel.client.produce.commit_transactions import serves_commit_transactions
from semel.pipeline import SKIP, Json, Pipeline, Topic
from semel.spark.sink import batch as batches
from verification.world.job import Job
from verification.world.sinks import (
    SCHEMA,
    Kind,
    WorldSink,
    check_sinks,
    check_totals,
    is_bad,
)
from verification.world.verdict import RunResult

#: The fault at which a Python worker dies, and its task is tried again.
WORKER: Final = "a worker dies"


@dataclass
class Declared(Job):
    """A pipeline with several sinks, whose records can be compared."""

    sinks: list[WorldSink] = field(default_factory=list)
    """Also those that were removed from the declaration."""
    by_hand: bool = False
    """Whether it is a function of `foreachBatch` that uses `semel.spark.batch`."""
    output_mode: str = "append"
    epochs: list[set[int]] = field(default_factory=lambda: [set()])
    """What was counted whenever the state was lost, the first entry for the beginning."""
    excused: set[int] = field(default_factory=set)
    """Records that only some sinks have, because the broker was restored from a backup."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._sink_numbers = itertools.count(1)

    @property
    def logs(self) -> Path:
        """The directory with Spark's logs: a pipeline has its own below the checkpoint."""
        return self.checkpoint / self.pipeline_id

    @property
    def wired(self) -> list[WorldSink]:
        """The sinks that the declaration has now."""
        return [each for each in self.sinks if each.is_wired]

    @property
    def parses(self) -> bool:
        """Whether it parses its input, so that bad records are dead letters."""
        return not self.by_hand

    @property
    def has_totals(self) -> bool:
        """Whether one of its sinks depends on the state."""
        return any(each.kind.has_totals for each in self.wired)

    @property
    def has_state(self) -> bool:
        """Whether one of its results keeps state."""
        return any(each.kind.has_state for each in self.wired)

    def next_sink_number(self) -> int:
        """Return a number for the name of another sink."""
        return next(self._sink_numbers)

    # ---- running it

    def start(
        self, spark: SparkSession, bootstrap: str, options: dict[str, Any] | None = None
    ) -> StreamingQuery:
        """Start the query until it has read what is there."""
        given = {name: str(value).lower() for name, value in (options or {}).items()}
        if self.batch_max is not None:
            given["maxOffsetsPerTrigger"] = str(self.batch_max)
        if self.starting_offsets is not None:
            given["startingOffsets"] = self.starting_offsets
        if self.by_hand:
            return self._start_by_hand(spark, bootstrap, given)
        dead = next((each.place for each in self.wired if each.kind is Kind.DEAD), SKIP)
        sinks = [each for each in self.wired if each.kind is not Kind.DEAD]
        fault = self.fault if self.fault.exists() else None

        def function(rows: DataFrame) -> dict[str, DataFrame]:
            if fault is not None:
                rows = rows.mapInArrow(_dying_once(str(fault)), rows.schema)
            return {each.name: each.result(rows) for each in sinks}

        declared = Pipeline(
            self.pipeline_id,
            function,
            Topic(self.reads, given, parse=Json(SCHEMA), bad=dead),
            {each.name: each.declared() for each in sinks},
            output_mode=self.output_mode,
        )
        return semel.spark.start(
            spark,
            declared,
            bootstrap_servers=bootstrap,
            checkpoint=str(self.checkpoint),
            once=True,
            new=self.is_new,
        )

    def _start_by_hand(self, spark: SparkSession, bootstrap: str, options: dict[str, str]) -> StreamingQuery:
        given = {
            "kafka.bootstrap.servers": bootstrap,
            "pipeline.id": self.pipeline_id,
            "subscribe": self.reads,
            **options,
        }
        fault = self.fault if self.fault.exists() else None

        def write(frame: DataFrame, batch_id: int) -> None:
            rows = frame.selectExpr(
                "CAST(regexp_extract(CAST(value AS STRING), '[0-9]+', 0) AS BIGINT) AS number"
            )
            if fault is not None:
                rows = rows.mapInArrow(_dying_once(str(fault)), rows.schema)
            with semel.spark.batch(frame, batch_id, new=self.is_new) as batch:
                for each in self.wired:
                    batch.write(each.result(rows), each.declared())

        writer = spark.readStream.format("semel").options(**given).load().writeStream.foreachBatch(write)
        return writer.option("checkpointLocation", str(self.logs)).trigger(availableNow=True).start()

    def run_to(
        self,
        spark: SparkSession,
        bootstrap: str,
        point: str,
        act: Callable[[], None] = die,
        options: dict[str, Any] | None = None,
    ) -> RunResult:
        """Run it to a point at which something happens: the driver dies, if not told else."""
        with catching(self.points(bootstrap)[point], act):
            result = self.run(spark, bootstrap, options, is_interrupted=True)
        batches._completed.clear()  # The next driver is another process.
        return result

    def points(self, bootstrap: str) -> dict[str, Call]:
        """Return the points of a batch, with the requests that this broker serves."""
        with Client(bootstrap) as client:
            return POINTS["extended" if serves_commit_transactions(client) else "portable"]

    # ---- what it wrote

    def found(self, bootstrap: str) -> Counter[int]:
        """Return the numbers that any sink has, and how often the sink has them that has them most often."""
        found: Counter[int] = Counter()
        for each in self.sinks:
            found |= each.found(bootstrap)
        return found

    def judged(self, bootstrap: str, counted: set[int]) -> Counter[int]:
        """Return `found`; with complete totals, of which only the newest count, also what they cover."""
        found = self.found(bootstrap)
        return found | Counter(counted) if self.output_mode == "complete" else found

    def torn(self, bootstrap: str, counted: set[int], *, had_batch: bool) -> str:
        """Return what differs between the sinks. `counted` is what the position of the pipeline covers."""
        found = {each.place: each.found(bootstrap) for each in self.sinks}
        wrong = check_sinks(
            self.sinks,
            found,
            parses=self.parses,
            excused=self.excused,
            pipeline_id=self.pipeline_id,
            had_batch=had_batch,
        )
        if self.output_mode != "complete":
            # A record that was skipped because of data loss is below the position, and in no sink.
            counted = set().union(*found.values())
        good = {each for each in counted if not is_bad(each)}
        totals = [
            check_totals(each, bootstrap, good, self.epochs)
            for each in self.wired
            # Only a batch notices that a table was taken away.
            if each.kind.has_totals and (had_batch or self.pipeline_id not in each.destroyed)
        ]
        return "; ".join(each for each in (wrong, *totals) if each)


def _dying_once(fault: str) -> Callable[[Any], Any]:
    """Return a step of a task that ends its process, once."""

    def pass_on(batches: Any) -> Any:
        yield from batches
        try:
            Path(fault).unlink()
        except FileNotFoundError:
            return
        os._exit(1)

    return pass_on
