"""What clients notice when a broker is killed, when one is restarted, and when PostgreSQL is restarted."""

import time
from dataclasses import dataclass
from typing import ClassVar

from bench.cluster.subjects import BESIDE, SemelCluster, Several
from bench.cluster.watching import KINDS, Watch, watched
from bench.results import Metric
from bench.side_by_side.measuring import Cell, Size, Workload
from bench.side_by_side.places import places
from bench.subjects import Subject

LONGEST, ERRORS, AWAY = "longest wait", "errors", "server away"
KILL, RESTART, POSTGRES = "kill -9 of a broker", "planned restart of a broker", "restart of PostgreSQL"
PARTITIONS = 8


@dataclass(frozen=True)
class Happening(Cell):
    """The event under load."""

    what: str

    @property
    def label(self) -> str:
        return self.what

    def rounds(self, size: Size) -> int:
        """Half the rounds, because each takes half a minute."""
        return max(2, size.rounds // 2)


class Faults(Workload[Happening]):
    """Producers run through an event."""

    name = "cluster-faults"
    title = "Cluster: what clients notice of faults"
    subjects = BESIDE
    text = (
        "Two librdkafka producers run transactions over 8 partitions, two write without transactions, and two"
        " of `semel.client` run transactions, while a broker is killed or restarted, or PostgreSQL is stopped"
        " (mode fast) and started again. The longest wait is the time of the slowest transaction or write."
        " Errors are those that the library tells its application. The other nodes replace a dead broker of"
        " Semel after its lease of 3 seconds, and a dead node of Kafka after its session of 9 seconds (both"
        " defaults). It is started again when clients have gone on without it. *Server away* is how long"
        " PostgreSQL did not run."
    )
    metrics: ClassVar = (
        Metric(LONGEST, "ms", False),
        *(Metric(f"{LONGEST} of {kind}", "ms", False) for kind in KINDS),
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
            found = _happen(subject, cell.what, watch)
            watch.go_on()
            subject.settle()
            watch.go_on()
        longest = {f"{LONGEST} of {kind}": watch.longest_ms(kind) for kind in KINDS}
        return {LONGEST: max(longest.values()), **longest, ERRORS: float(len(watch.errors)), **found}


def _happen(subject: Several, what: str, watch: Watch) -> dict[str, float]:
    """Cause the event under load; return any figures known about it."""
    if what == POSTGRES:
        assert isinstance(subject, SemelCluster)
        began = time.perf_counter()
        subject.cluster.postgres.stop()
        subject.cluster.postgres.start()
        return {AWAY: (time.perf_counter() - began) * 1e3}
    node = subject.nodes[-1]
    if what == KILL:
        node.kill()
        watch.go_on()
    else:
        node.stop()
    node.start()
    return {}
