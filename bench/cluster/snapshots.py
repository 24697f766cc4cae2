"""What a snapshot in PostgreSQL costs while it is held: all versions of all rows are kept meanwhile."""

import asyncio
import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import asyncpg
from support.pages import blocks
from support.servers.postgres import binaries
from support.waiting import until

from bench.cluster.subjects import ClusterOfOne, SemelCluster
from bench.results import Metric
from bench.side_by_side.clients import WARM, Load, librdkafka
from bench.side_by_side.measuring import FULL, QUICK, Cell, Size, Workload
from bench.side_by_side.places import places
from bench.subjects import Subject

FREE, HELD = "transactions per second without it", "transactions per second with it"
POSTGRES_FREE, POSTGRES_HELD = "of PostgreSQL without it", "of PostgreSQL with it"
SNAPSHOT, DUMP = "a snapshot", "the documented dump"
PARTITIONS, RECORDS, PRODUCERS = 5, 10, 8
SECONDS, QUICK_SECONDS = 600, 5
"""How long the snapshot is held, and how long each load is measured."""
_PAGE = Path(__file__).parents[2] / "docs/cluster.md"
_DUMP_THAT_LASTS = """#!/bin/sh
"{real}" "$@" || exit 1
while [ -e "$HOLD" ]; do sleep 0.1; done
"""
"""Makes pg_dump last: it dumps a benchmark's ledger within a second, but a ledger in use takes longer."""


@dataclass(frozen=True)
class Holding(Cell):
    """What is held, and for how long."""

    what: str
    seconds: int

    @property
    def label(self) -> str:
        return f"{self.what}, for {self.seconds} seconds"

    def rounds(self, size: Size) -> int:
        """One round: it compares two loads of ten minutes, each of hundreds of thousands of transactions."""
        return size.rounds if size.name == FULL.name else 1


CELLS = tuple(Holding(what, seconds) for seconds in (SECONDS, QUICK_SECONDS) for what in (SNAPSHOT, DUMP))


class MergingCluster(ClusterOfOne):
    """Old batches are merged in both loads: by default, that begins ten minutes after the first record."""

    settings: ClassVar = {"semel.merge.age.ms": 30_000}


class OldSnapshots(Workload[Holding]):
    """The same load, with a snapshot and without."""

    name = "cluster-snapshots"
    title = "Cluster: an old snapshot"
    subjects = (MergingCluster,)
    text = (
        "Eight librdkafka producers run transactions of 10 records of 100 bytes to each of 5 partitions, once"
        " while somebody holds a snapshot of the database, so that PostgreSQL can remove no old version of"
        " any row (ADR 0052), and once for as long while nobody does. One is first in one round, the other in"
        " the next, and tables are vacuumed before both. The snapshot is that of an idle session (`BEGIN"
        " ISOLATION LEVEL REPEATABLE READ`), or that of the dump in [A cluster](cluster.md#operating), whose"
        " `pg_dump` lasts as long. Batches are merged when they are half a minute old (`semel.merge.age.ms`),"
        " so that both loads bear it."
    )
    metrics: ClassVar = (
        Metric(FREE, "1/s"),
        Metric(HELD, "1/s"),
        Metric(POSTGRES_FREE, "ms", False),
        Metric(POSTGRES_HELD, "ms", False),
    )

    def __init__(self) -> None:
        self._rounds = dict.fromkeys(CELLS, 0)

    def cells(self, size: Size) -> list[Holding]:
        return [
            each for each in CELLS if each.seconds == (QUICK_SECONDS if size.name == QUICK.name else SECONDS)
        ]

    def measure(self, subject: Subject, cell: Holding, size: Size) -> dict[str, float]:
        assert isinstance(subject, SemelCluster)
        self._rounds[cell] += 1
        found: dict[str, float] = {}
        for is_held in (False, True) if self._rounds[cell] % 2 else (True, False):
            subject.cluster.query("VACUUM")
            where = places(subject, "snapshots", PARTITIONS)
            load = Load(subject.bootstrap, where, RECORDS, PRODUCERS, cell.seconds, self.fresh("id"))
            with (_dumped if cell.what == DUMP else _held)(subject, is_held):
                before = subject.postgres_seconds()
                timed = librdkafka(load)
                spent = subject.postgres_seconds() - before
            found[HELD if is_held else FREE] = timed.rate
            milliseconds = spent * 1e3 / (timed.count + WARM * PRODUCERS)
            found[POSTGRES_HELD if is_held else POSTGRES_FREE] = milliseconds
        return found


@contextmanager
def _held(subject: SemelCluster, is_held: bool) -> Iterator[None]:
    """Hold a snapshot during the block."""
    if not is_held:
        yield
        return
    with asyncio.Runner() as runner:
        connection: Any = runner.run(asyncpg.connect(subject.cluster.dsn, timeout=10))
        runner.run(connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT FROM semel.topics"))
        try:
            yield
        finally:
            runner.run(connection.close())


@contextmanager
def _dumped(subject: SemelCluster, is_held: bool) -> Iterator[None]:
    """Dump the ledger during the block, as the page says. The dump ends with the block, and must succeed."""
    if not is_held:
        yield
        return
    programs = binaries()
    assert programs is not None
    (script,) = (each for each in blocks(_PAGE, "sh") if "pg_dump" in each)
    with tempfile.TemporaryDirectory(prefix="semel-dump-") as name:
        directory = Path(name)
        hold = directory / "hold"
        hold.touch()
        (directory / "pg_dump").write_text(_DUMP_THAT_LASTS.format(real=programs / "pg_dump"))
        (directory / "pg_dump").chmod(0o755)
        path = f"{directory}:{programs}:{os.environ['PATH']}"
        environment = {**os.environ, "PATH": path, "HOLD": str(hold), "SEMEL_LEDGER": subject.cluster.dsn}
        dump = subprocess.Popen(["sh", "-ec", script], cwd=directory, env=environment)
        try:
            until(lambda: dump.poll() is not None or (directory / "semel.part").exists(), what="a dump")
            yield
        finally:
            hold.unlink()
            code = dump.wait(60)
        assert code == 0, f"the dump ended with {code}"
