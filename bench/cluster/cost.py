"""Processor time of a transaction and of a megabyte on one to four brokers, and PostgreSQL's share of it."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import ClassVar

from bench.cluster.subjects import GROWING, SemelCluster
from bench.results import Metric
from bench.side_by_side.clients import WARM, Load, librdkafka
from bench.side_by_side.measuring import Cell, Size, Workload
from bench.side_by_side.places import places
from bench.subjects import Subject
from bench.workloads import VALUE, bulk_produce

ALL, BROKERS, POSTGRES = "processor time", "of the brokers", "of PostgreSQL"
COMMITS, CONFLICTS = "commits", "conflicts"
TRANSACTION, GROWING_LOAD, MEGABYTE = "a transaction", "a transaction of a growing load", "a megabyte"
PARTITIONS, RECORDS, PRODUCERS = 5, 10, 8
BULK_PARTITIONS = 8


@dataclass(frozen=True)
class Unit(Cell):
    """The unit of work whose cost is measured."""

    what: str

    @property
    def label(self) -> str:
        return self.what


class Cost(Workload[Unit]):
    """The same work, on one broker and on several."""

    name = "cluster-cost"
    title = "Cluster: processor time by the number of brokers"
    subjects = GROWING
    text = (
        "Processor time of all brokers and of PostgreSQL, divided by the work done: transactions of 8"
        " librdkafka producers that write 10 records of 100 bytes to each of 5 partitions; transactions of 8"
        " such producers and 5 partitions for each broker, as a cluster grows with its load; and megabytes of"
        " 1 KiB records that one producer writes to 8 partitions as fast as it can. *cluster-1* to"
        " *cluster-4* have so many brokers. A conflict is a tick that a broker had to decide again, because"
        " another broker had changed what it read."
    )
    metrics: ClassVar = (
        Metric(ALL, "ms", False),
        Metric(BROKERS, "ms", False),
        Metric(POSTGRES, "ms", False),
        Metric(COMMITS, "commits", False),
        Metric(CONFLICTS, "conflicts", False),
    )

    def cells(self, size: Size) -> list[Unit]:
        return [Unit(TRANSACTION), Unit(GROWING_LOAD), Unit(MEGABYTE)]

    def measure(self, subject: Subject, cell: Unit, size: Size) -> dict[str, float]:
        assert isinstance(subject, SemelCluster)
        if cell.what == MEGABYTE:
            where = places(subject, "cost-bulk", BULK_PARTITIONS)
            before = _spent(subject)
            bulk_produce(subject.bootstrap, where, size.records)
            done = size.records * len(VALUE) / 1e6
        else:
            loads = [
                Load(
                    subject.bootstrap,
                    places(subject, f"cost-{number}", PARTITIONS),
                    RECORDS,
                    PRODUCERS,
                    size.seconds,
                    self.fresh("id"),
                )
                for number in range(subject.count if cell.what == GROWING_LOAD else 1)
            ]
            before = _spent(subject)
            with ThreadPoolExecutor(len(loads)) as threads:
                done = sum(each.count + WARM * PRODUCERS for each in threads.map(librdkafka, loads))
        return {name: (value - before[name]) / done for name, value in _spent(subject).items()}


def _spent(subject: SemelCluster) -> dict[str, float]:
    """Return the totals so far, for all work."""
    brokers, postgres = subject.broker_seconds() * 1e3, subject.postgres_seconds() * 1e3
    return {
        ALL: brokers + postgres,
        BROKERS: brokers,
        POSTGRES: postgres,
        COMMITS: subject.commits(),
        CONFLICTS: subject.conflicts(),
    }
