"""The workload: requests and transactions beside a console in use, and the console's pages."""

import statistics
from contextlib import nullcontext
from dataclasses import dataclass
from typing import ClassVar

from bench.console.subjects import BROWSERS, GROUPS, LARGE, PARTITIONS, TOPICS, TRANSACTIONS, WithConsole
from bench.results import Metric
from bench.security.acls import ONE_AT_A_TIME, P50, P99, RATE, Commit, Produce, Secured, timed
from bench.side_by_side.clients import librdkafka
from bench.side_by_side.measuring import Size, Workload
from bench.side_by_side.transactions import LIBRDKAFKA
from bench.subjects import Subject

SECONDS_MIN = 5.0
ASKED = 20
"""How often a page is requested in a round."""
TO_LOAD = "page"


@dataclass(frozen=True)
class Page(Secured):
    """A page of the console, while browsers follow a topic."""

    path: str

    @property
    def label(self) -> str:
        return f"page {self.path}"


PAGES = ("/", "/topics", "/topics?q=042", "/topics/many-00100", "/groups", "/transactions", "/cluster")
LOADS: list[Secured] = [Produce(1, 1), Commit(1, LIBRDKAFKA)]
CELLS: list[Secured] = [*LOADS, *(Page(0, path) for path in PAGES)]


class Console(Workload[Secured]):
    """The same work beside a suspended console, and beside a console that fifty browsers use."""

    name = "console"
    title = "The console"
    subjects = LARGE
    text = (
        f"Both brokers have {TOPICS:,} topics of {PARTITIONS} partitions, {GROUPS} groups and"
        f" {TRANSACTIONS:,} open transactions. *semel-console* has `semel console` in a process of its own,"
        f" and {BROWSERS} browsers that follow a topic with 20 new records a second; the console is"
        " suspended while *semel-large* is measured. One idempotent librdkafka producer sends one 100-byte"
        " record per request; transactions write 10 such records to each of 5 partitions. Broker, console,"
        " browsers and client share the machine. Pages are asked for one after the other, while the browsers"
        " follow."
    )
    metrics: ClassVar = (
        Metric(RATE, "1/s"),
        Metric(P50, "ms", False),
        Metric(P99, "ms", False),
        Metric(TO_LOAD, "ms", False),
    )

    def cells(self, size: Size) -> list[Secured]:
        return CELLS

    def why_not(self, subject: Subject, cell: Secured) -> str | None:
        return (
            "it has no console" if isinstance(cell, Page) and not isinstance(subject, WithConsole) else None
        )

    def measure(self, subject: Subject, cell: Secured, size: Size) -> dict[str, float]:
        with subject.looked_at() if isinstance(subject, WithConsole) else nullcontext():
            if isinstance(cell, Page):
                assert isinstance(subject, WithConsole)
                return {TO_LOAD: statistics.median(subject.page(cell.path) for _ in range(ASKED))}
            return self._timed(subject, cell, max(size.seconds, SECONDS_MIN))

    def _timed(self, subject: Subject, cell: Secured, seconds: float) -> dict[str, float]:
        if isinstance(cell, Commit):
            found = timed(subject, librdkafka, cell.producers, seconds, self.fresh("id"))
        else:
            found = timed(subject, ONE_AT_A_TIME, cell.producers, seconds, self.fresh("id"), 1, 1)
        return {name: found[name] for name in (RATE, P50, P99)}
