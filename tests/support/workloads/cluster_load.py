"""Load on a cluster while a test acts on it, and what the clients saw.

Transactions of three libraries move money between accounts of several leaders, an auditor adds up all
accounts again and again, and a group copies what another producer writes. Everything is recorded in a
history that `semel.check` judges at the end.
"""

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from uuid import uuid4

from support.brokers.cluster import Cluster
from support.chance import fresh_seed
from support.waiting import until
from support.workloads.chaos_run import Run, run_of
from support.workloads.copying import Copy
from support.workloads.money import Money
from support.workloads.running import PATIENCE_SECONDS, Writer

KINDS = ("own", "librdkafka", "aiokafka")


class Load:
    """Writers at work."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.writers = [
            worker for workload in run.workloads for worker in workload.writers if isinstance(worker, Writer)
        ]

    def go_on(self, steps: int = 5) -> None:
        """Wait until each writer has ended a transaction, all of them `steps`, and something was copied."""
        self.run.progress(steps, of_everyone=True)
        for workload in self.run.workloads:
            if isinstance(workload, Copy):
                until(workload.has_copied, PATIENCE_SECONDS, "a copy")

    @property
    def money(self) -> Money:
        """The workload of transfers."""
        return next(each for each in self.run.workloads if isinstance(each, Money))

    def audit(self, audits: int = 3) -> None:
        """Wait until all accounts were added up this many more times."""
        self._audited(self.money.auditor.audits + audits)

    def audited(self) -> None:
        """Wait until all accounts were added up at least once."""
        self._audited(1)

    def _audited(self, enough: int) -> None:
        auditor = self.money.auditor

        def is_enough() -> bool:
            self.run.mend()
            # An auditor that has found a wrong sum stops, and the verdict reports it.
            return auditor.audits >= enough or bool(auditor.wrong or self.run.failures())

        until(is_enough, PATIENCE_SECONDS, "audits")

    @property
    def slowest_seconds(self) -> float:
        """The duration of the slowest transaction."""
        return max(each.slowest_seconds for each in self.writers)

    @property
    def troubles(self) -> list[str]:
        """The errors that libraries have reported to their applications."""
        return [each for writer in self.writers for each in writer.producing.troubles]


@contextmanager
def loaded(
    cluster: Cluster,
    *,
    kinds: Sequence[str] = KINDS,
    visibility: str | None = None,
    tells_timeouts: bool = True,
    copies: bool = True,
) -> Iterator[Load]:
    """Run load until the end of the block. Then nothing may be lost, doubled, torn, aborted or hanging."""
    seed = fresh_seed()
    chance = random.Random(seed)
    name = f"load-{uuid4().hex[:6]}"
    with run_of(name, seed) as run:
        run.mend = cluster.mend
        place = run.place(cluster.bootstrap, tells_timeouts=tells_timeouts)
        visibility = visibility or chance.choice(["marker", "journal"])
        run.create(Money(place, f"{name}-money", kinds, chance, visibility))
        if copies:
            run.create(Copy(place, f"{name}-copy", ["own", "librdkafka"], chance, visibility, "librdkafka"))
        load = Load(run)
        with run.running():
            load.go_on()
            yield load
            load.go_on()
            load.audited()
        outcome = run.judge(cluster.bootstrap)
    assert outcome.is_clean, f"{outcome}\n{cluster.logs()[-5000:]}"
