"""What a transaction costs: the same records, written by the same client, with and without one."""

from functools import partial
from typing import ClassVar

from bench.results import Metric
from bench.side_by_side.clients import Load, Run, librdkafka
from bench.side_by_side.measuring import Size
from bench.side_by_side.places import places
from bench.side_by_side.transactions import (
    JAVA,
    LIBRDKAFKA,
    MOCK_CLIENT,
    RECORDS,
    WIDE,
    ByClients,
    Transaction,
)
from bench.subjects import FlushingKafka, Mock, Subject

OVERHEAD, WITH, WITHOUT = "overhead", "with", "without"


class Both(Transaction):
    """A transaction, and the same records without one."""

    def rounds(self, size: Size) -> int:
        is_one = self.client == LIBRDKAFKA and self.producers == 1
        return size.rounds if is_one or self.is_large else size.rounds_of_others

    @property
    def is_large(self) -> bool:
        """Large ones get more time and rounds: few fit into a second, and each has a target."""
        return self.records == max(RECORDS)

    @property
    def is_in_the_bar(self) -> bool:
        return super().is_in_the_bar or self.is_large


CELLS = [Both(each.client, each.partitions, each.records, each.producers) for each in WIDE]
"""The cells of transactions per second, for clients that can also write without transactions."""


class Overhead(ByClients[Both]):
    """Groups of records, with and without a transaction."""

    name = "overhead"
    title = "What a transaction costs"
    text = (
        "Each producer writes groups of records of the same sizes as the transactions above. Without"
        " transactions, an idempotent producer waits until each group is acknowledged; with them, it waits"
        " for the commit. The two are measured right after each other. Overhead is the share of throughput"
        " that is lost: 0.30 means that 70 % is left."
    )
    metrics: ClassVar = (
        Metric(OVERHEAD, "share", False),
        Metric(WITH, "records/s"),
        Metric(WITHOUT, "records/s"),
    )

    def cells(self, size: Size) -> list[Both]:
        return CELLS

    def why_not(self, subject: Subject, cell: Both) -> str | None:
        if subject.name == Mock.name and cell.client != LIBRDKAFKA:
            return MOCK_CLIENT
        if subject.name in (Mock.name, FlushingKafka.name) and cell.producers > 1:
            return "several producers are only compared with Apache Kafka in its default configuration"
        return None

    def measure(self, subject: Subject, cell: Both, size: Size) -> dict[str, float]:
        without, having = (self._rate(subject, cell, size, plain=plain) for plain in (True, False))
        return {OVERHEAD: 1 - having / without, WITH: having, WITHOUT: without}

    def _rate(self, subject: Subject, cell: Both, size: Size, *, plain: bool) -> float:
        """Records per second."""
        where = places(subject, self.name, cell.partitions)
        run: Run = partial(librdkafka, plain=plain)
        if cell.client == JAVA:
            run = partial(self.java_client(subject, size), plain=plain)
        seconds, name = cell.seconds(size), self.fresh("id")
        timed = run(Load(subject.bootstrap, where, cell.records, cell.producers, seconds, name))
        return timed.rate * cell.records * cell.partitions
