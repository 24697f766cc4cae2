"""What a snapshot that somebody holds in PostgreSQL costs: all versions of all rows are kept meanwhile."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import asyncpg

from bench.cluster.subjects import ClusterOfOne, SemelCluster
from bench.results import Metric
from bench.side_by_side.clients import WARM, Load, librdkafka
from bench.side_by_side.measuring import Cell, Size, Workload
from bench.side_by_side.places import places
from bench.side_by_side.transactions import RATE
from bench.subjects import Subject

POSTGRES = "of PostgreSQL"
FREE, HELD = "without a snapshot", "with a snapshot that is held for a minute"
PARTITIONS, RECORDS, PRODUCERS = 5, 10, 8
BEFORE_SECONDS = 60.0
"""Of load, in both cases, before it is measured: so long versions pile up."""
MEASURED_SECONDS = 10.0


@dataclass(frozen=True)
class Holding(Cell):
    """Whether somebody holds a snapshot."""

    what: str

    @property
    def label(self) -> str:
        return self.what


class OldSnapshots(Workload[Holding]):
    """The same load, with a snapshot and without."""

    name = "cluster-snapshots"
    title = "Cluster: an old snapshot"
    subjects = (ClusterOfOne,)
    text = (
        "Eight librdkafka producers run transactions of 10 records of 100 bytes to each of 5 partitions for a"
        " minute and are then measured for ten seconds. In one case a session holds a snapshot of the"
        " database meanwhile (`BEGIN ISOLATION LEVEL REPEATABLE READ`), as `pg_dump` does, so that PostgreSQL"
        " can remove no old version of any row (ADR 0052)."
    )
    metrics: ClassVar = (Metric(RATE, "transactions/s", True), Metric(POSTGRES, "ms", False))

    def cells(self, size: Size) -> list[Holding]:
        return [Holding(FREE), Holding(HELD)]

    def measure(self, subject: Subject, cell: Holding, size: Size) -> dict[str, float]:
        assert isinstance(subject, SemelCluster)
        where = places(subject, "snapshots", PARTITIONS)

        def run(seconds: float) -> Any:
            load = Load(subject.bootstrap, where, RECORDS, PRODUCERS, seconds, self.fresh("id"))
            return librdkafka(load)

        with _held(subject.cluster.dsn, cell.what == HELD):
            run(BEFORE_SECONDS)
            before = subject.postgres_seconds()
            timed = run(MEASURED_SECONDS)
            spent = subject.postgres_seconds() - before
        return {RATE: timed.rate, POSTGRES: spent * 1e3 / (timed.count + WARM * PRODUCERS)}


@contextmanager
def _held(dsn: str, is_held: bool) -> Iterator[None]:
    """Hold a snapshot meanwhile."""
    if not is_held:
        yield
        return
    with asyncio.Runner() as runner:
        connection: Any = runner.run(asyncpg.connect(dsn, timeout=10))
        runner.run(connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT FROM semel.topics"))
        try:
            yield
        finally:
            runner.run(connection.close())
