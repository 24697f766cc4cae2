"""Short transactions back to back: how many per second, and how long one takes."""

from contextlib import ExitStack
from dataclasses import dataclass
from typing import ClassVar, TypeVar

from bench.results import Metric
from bench.side_by_side.clients import JavaClient, Load, Run, librdkafka, semel_client
from bench.side_by_side.measuring import LESS, Cell, Size, Workload, counted
from bench.side_by_side.places import places
from bench.subjects import FlushingKafka, Mock, Subject
from peers.programs import CannotBuild

LIBRDKAFKA, JAVA, OURS = "librdkafka", "java", "semel.client"
IN_PYTHON: dict[str, Run] = {LIBRDKAFKA: librdkafka, OURS: semel_client}
PARTITIONS = (1, 5, 20)
RECORDS = (1, 10, 1000)
PRODUCERS = (1, 8, 32)
BAR_RECORDS = 10
BAR_PRODUCERS = (1, 8)
RATE, P50, P99 = "transactions per second", "p50", "p99"
MOCK_CLIENT = "the mock cluster only works with librdkafka and protocol version 1"


@dataclass(frozen=True)
class Transaction(Cell):
    """The size of a transaction, the client, and the number of producers."""

    client: str
    partitions: int
    records: int
    producers: int

    @property
    def label(self) -> str:
        size = f"{counted(self.partitions, 'partition')} × {counted(self.records, 'record')}"
        return f"{self.client}, {size}, {counted(self.producers, 'producer')}"

    @property
    def is_in_the_bar(self) -> bool:
        return self.records == BAR_RECORDS and self.producers in BAR_PRODUCERS

    def rounds(self, size: Size) -> int:
        return size.rounds if self.is_in_the_bar else size.rounds_of_others

    def seconds(self, size: Size) -> float:
        """Return the length of one measurement."""
        return size.seconds if self.is_in_the_bar else size.seconds_of_others


WIDE = [
    Transaction(client, partitions, records, producers)
    for client in (LIBRDKAFKA, JAVA)
    for partitions in PARTITIONS
    for records in RECORDS
    for producers in PRODUCERS
]
"""Transactions with the clients that are in general use."""

T = TypeVar("T", bound=Transaction)


class ByClients(Workload[T]):
    """A workload that needs the Java client, which is started when first needed."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._java: JavaClient | None = None
        self._no_java: CannotBuild | None = None

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def java_client(self, subject: Subject, size: Size) -> JavaClient:
        """Return a warm Java client. If it cannot be built, it is not tried again."""
        if self._no_java is not None:
            raise self._no_java
        if self._java is None:
            try:
                self._java = self._stack.enter_context(JavaClient())
            except CannotBuild as error:
                self._no_java = error
                raise
            where = places(subject, "warming", 1)
            seconds, name = size.warm_seconds * 2, self.fresh("id")
            self._java(Load(subject.bootstrap, where, BAR_RECORDS, 4, seconds, name))
        return self._java


class Transactions(ByClients[Transaction]):
    """Transactions back to back."""

    name = "transactions"
    title = "Transactions per second"
    text = (
        "Each producer runs transactions back to back. A transaction writes the given number of 100-byte"
        " records to each of the given number of partitions. librdkafka adds partitions explicitly"
        " (protocol version 1); the Java client and `semel.client` use version 2 (KIP-890)."
    )
    metrics: ClassVar = (Metric(RATE, "1/s"), Metric(P50, "ms", False), Metric(P99, "ms", False))

    def cells(self, size: Size) -> list[Transaction]:
        ours = [
            Transaction(OURS, partitions, BAR_RECORDS, producers)
            for partitions in PARTITIONS
            for producers in BAR_PRODUCERS
        ]
        return WIDE + ours

    def why_not(self, subject: Subject, cell: Transaction) -> str | None:
        if subject.name == Mock.name and cell.client != LIBRDKAFKA:
            return MOCK_CLIENT
        if subject.name in (Mock.name, FlushingKafka.name) and not cell.is_in_the_bar:
            return LESS
        return None

    def measure(self, subject: Subject, cell: Transaction, size: Size) -> dict[str, float]:
        where = places(subject, "transactions", cell.partitions)
        run: Run = self.java_client(subject, size) if cell.client == JAVA else IN_PYTHON[cell.client]
        seconds, name = cell.seconds(size), self.fresh("id")
        timed = run(Load(subject.bootstrap, where, cell.records, cell.producers, seconds, name))
        return {RATE: timed.rate, P50: timed.p50_ms, P99: timed.p99_ms}
