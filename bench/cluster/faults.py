"""What clients notice of a broker that dies, of one that is restarted, and of a restart of PostgreSQL."""

import time
from dataclasses import dataclass
from typing import ClassVar

from bench.cluster.subjects import BESIDE, SemelCluster, Several
from bench.cluster.watching import Watch, watched
from bench.results import Metric
from bench.side_by_side.measuring import Cell, Size, Workload
from bench.side_by_side.places import places
from bench.subjects import Subject

LONGEST, ERRORS, AWAY = "longest wait", "errors", "server away"
KILL, RESTART, POSTGRES = "kill -9 of a broker", "planned restart of a broker", "restart of PostgreSQL"
PARTITIONS = 8


@dataclass(frozen=True)
class Happening(Cell):
    """What happens under load."""

    what: str

    @property
    def label(self) -> str:
        return self.what


class Faults(Workload[Happening]):
    """Producers go on through it."""

    name = "cluster-faults"
    title = "Cluster: what clients notice of faults"
    subjects = BESIDE
    text = (
        "Two librdkafka producers run transactions over 8 partitions and two write without transactions,"
        " while a broker is killed or restarted, or PostgreSQL is stopped (mode fast) and started again. The"
        " longest wait is the time of the slowest transaction or write. Errors are those that the library"
        " tells its application. The other nodes replace a dead broker of Semel after its lease of 3 seconds,"
        " and a dead node of Kafka after its session of 9 seconds (both defaults). *Server away* is the time"
        " from the end of the broker or server until it is ready again. A broker that was killed is started"
        " again when clients have gone on without it."
    )
    metrics: ClassVar = (
        Metric(LONGEST, "ms", False),
        Metric(ERRORS, "errors", False),
        Metric(AWAY, "ms", False),
    )

    def cells(self, size: Size) -> list[Happening]:
        return [Happening(what) for what in (RESTART, KILL, POSTGRES)]

    def why_not(self, subject: Subject, cell: Happening) -> str | None:
        if not isinstance(subject, Several):
            return "an embedded broker is the only one"
        if cell.what == POSTGRES and not isinstance(subject, SemelCluster):
            return "Apache Kafka has no PostgreSQL"
        return None

    def measure(self, subject: Subject, cell: Happening, size: Size) -> dict[str, float]:
        assert isinstance(subject, Several)
        where = places(subject, "faults", PARTITIONS)
        with watched(subject.bootstrap, where, self.fresh("id")) as watch:
            away = _seconds_of(subject, cell.what, watch)
            watch.go_on()
            subject.settle()
            watch.go_on()
        return {LONGEST: watch.longest_ms, ERRORS: float(len(watch.errors)), AWAY: away * 1e3}


def _seconds_of(subject: Several, what: str, watch: Watch) -> float:
    """Have it happen. Return how long the server was away."""
    if what == POSTGRES:
        assert isinstance(subject, SemelCluster)
        began = time.perf_counter()
        subject.cluster.postgres.stop()
        subject.cluster.postgres.start()
        return time.perf_counter() - began
    node = subject.nodes[-1]
    if what == KILL:
        node.kill()
        began = time.perf_counter()
        watch.go_on()
    else:
        node.stop()
        began = time.perf_counter()
    node.start()
    return time.perf_counter() - began
