"""Small batches: how soon the first row comes, and how long a batch of a few records takes."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar, Self

from bench.results import Metric
from bench.side_by_side.measuring import Cell, Size, Workload
from bench.side_by_side.small_driver import CONNECTOR, DECLARED, FORMAT
from bench.spark import ROOT
from bench.subjects import Semel, Subject
from peers.programs import fetch_spark_connector
from semel.client import Admin, Client, NewTopic

FIRST, BATCH, LATENCY = "first row", "batch", "end to end"
OVER = "{}, over Spark's connector"
PARTITIONS = 2
LOOPS = 8
"""Busy processes beside the query, on two cores."""
SECONDS_MIN = 10.0
"""The least time in which batches are measured."""


@dataclass(frozen=True)
class Small(Cell):
    """A kind of query, alone or beside busy processes."""

    kind: str
    loops: int

    @property
    def label(self) -> str:
        return f"{self.kind}, {f'beside {self.loops} busy loops' if self.loops else 'alone'}"

    def rounds(self, size: Size) -> int:
        return 1 if self.loops else size.rounds


CELLS = [Small(kind, loops) for kind in (DECLARED, FORMAT) for loops in (0, LOOPS)]


class SmallBatches(Workload[Small]):
    """Each measurement starts a new driver for Semel's query, and one for that of Spark's connector."""

    name = "small"
    title = "Small batches on Spark"
    text = (
        "Ten records a second are copied from topic to topic on one Semel broker, in a new Spark driver with"
        f" two cores, with {PARTITIONS} partitions each, and with as many batches as fit. Semel's queries are"
        " exactly-once; that of Spark's own connector, measured right after each of them on the same broker,"
        " writes at least once. *first row*: from the start of the query until a consumer has the first"
        " record. *batch*: the median of Spark's `triggerExecution`. *end to end*: the median from a send to"
        " its arrival in the output."
    )
    metrics: ClassVar = (
        Metric(FIRST, "s", False),
        Metric(BATCH, "ms", False),
        Metric(LATENCY, "ms", False),
        *(Metric(OVER.format(name), "ratio", False) for name in (FIRST, BATCH, LATENCY)),
    )
    subjects: ClassVar = (Semel,)

    def __enter__(self) -> Self:
        self._jars = ",".join(map(str, fetch_spark_connector()))
        return self

    def cells(self, size: Size) -> list[Small]:
        return CELLS

    def measure(self, subject: Subject, cell: Small, size: Size) -> dict[str, float]:
        with busy(cell.loops):
            seconds = max(SECONDS_MIN, 5 * size.seconds)
            ours, theirs = (self._run(subject, kind, seconds) for kind in (cell.kind, CONNECTOR))
        return ours | {OVER.format(name): ours[name] / theirs[name] for name in ours}

    def _run(self, subject: Subject, kind: str, seconds: float) -> dict[str, float]:
        source, target = self.fresh("source"), self.fresh("target")
        with Client(subject.bootstrap) as client:
            for topic in (source, target):
                Admin(client).topics.create(NewTopic(topic, partitions=PARTITIONS))
        jars = self._jars if kind == CONNECTOR else ""
        command = [sys.executable, "-m", "bench.side_by_side.small_driver"]
        done = subprocess.run(
            [*command, kind, subject.bootstrap, source, target, str(seconds), jars],
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])},
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=600,
        )
        assert done.returncode == 0, done.stderr[-2000:]
        found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
        return found


@contextmanager
def busy(loops: int) -> Iterator[None]:
    """Run this many processes that never wait."""
    running = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(loops)]
    try:
        yield
    finally:
        for each in running:
            each.kill()
            each.wait()
