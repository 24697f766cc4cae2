"""A well-behaved producer, alone and beside clients that use as much as they can get."""

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar

from bench.figures import quantile
from bench.raw import RawClient
from bench.results import Metric
from bench.side_by_side.attacks import ATTACKS, produce
from bench.side_by_side.measuring import Cell, Size, Workload
from bench.subjects import Semel, Subject

ALONE = "alone"
P50, P99, LONGEST = "p50", "p99", "longest"
PACE_SECONDS = 0.005
REQUESTS_MIN = 200
"""A p99 of fewer requests says nothing."""
BEGIN_SECONDS = 1.5
"""How long to wait until an attack is under way."""
TOPICS, PARTITIONS = 50, 400
"""The topics that Metadata must list: 20,000 partitions."""
VERSION = 9


@dataclass(frozen=True)
class Beside(Cell):
    """The client that runs beside the producer."""

    attack: str

    @property
    def label(self) -> str:
        return ALONE if self.attack == ALONE else f"beside {self.attack}"


class Neighbours(Workload[Beside]):
    """One request at a time, at most two hundred a second, and the duration of each."""

    name = "neighbours"
    title = "Noisy neighbours"
    text = (
        "A producer writes 1 KiB records with acks=all and waits for each answer, at most 200 times a second:"
        " alone, and beside each of these clients, which run in a separate process. "
        + "; ".join(f"*{name}*: {attack.__doc__}".rstrip(".") for name, attack in ATTACKS.items())
        + ". All processes share the machine's cores, so part of the cost of an attack is the processor time"
        " that it uses itself. Bulk writers fill the commits: a small request waits for the commit that is"
        " being flushed and for its own, and each of them has megabytes of other clients."
    )
    metrics: ClassVar = (
        Metric(P99, "ms", False),
        Metric(P50, "ms", False),
        Metric(LONGEST, "ms", False),
    )

    def cells(self, size: Size) -> list[Beside]:
        return [Beside(name) for name in (ALONE, *ATTACKS)]

    def why_not(self, subject: Subject, cell: Beside) -> str | None:
        return None if isinstance(subject, Semel) else "isolation between clients is measured on Semel only"

    def measure(self, subject: Subject, cell: Beside, size: Size) -> dict[str, float]:
        mine, theirs = self.fresh("mine"), self.fresh("theirs")
        subject.create({mine: 1})
        subject.create({theirs: 1}, **({"cleanup_policy": "compact"} if cell.attack == "bombs" else {}))
        crowd = [self.fresh("crowd") for _ in range(TOPICS)] if cell.attack == "metadata" else []
        for name in crowd:
            subject.create({name: PARTITIONS})
        client = RawClient(subject.bootstrap)
        with attacking(cell.attack, subject.bootstrap, theirs):
            waits = self._waits(client, mine, size.seconds * 2)
        client.close()
        subject.delete([mine, theirs, *crowd])
        return {P50: quantile(waits, 0.5), P99: quantile(waits, 0.99), LONGEST: max(waits)}

    def _waits(self, client: RawClient, topic: str, seconds: float) -> list[float]:
        """Return the milliseconds of each request."""
        request = produce(topic, bytes(1_024), acks=-1)
        waits: list[float] = []
        end = time.perf_counter() + seconds
        while time.perf_counter() < end or len(waits) < REQUESTS_MIN:
            answer, taken = client.ask_timed(request, VERSION)
            assert answer.responses[0].partition_responses[0].error_code == 0
            waits.append(taken * 1e3)
            time.sleep(PACE_SECONDS)
        return waits


@contextmanager
def attacking(name: str, bootstrap: str, topic: str) -> Iterator[None]:
    """Run an attack until the end of the block."""
    if name == ALONE:
        yield
        return
    attack = subprocess.Popen([sys.executable, "-m", "bench.side_by_side.attacks", name, bootstrap, topic])
    try:
        time.sleep(BEGIN_SECONDS)
        yield
        assert attack.poll() is None, f"the attack {name} has ended"
    finally:
        attack.kill()
        attack.wait()
