"""What TLS costs: bulk and transactions, on Semel and on Apache Kafka, with and without it."""

from dataclasses import dataclass
from typing import ClassVar

from bench.results import Metric
from bench.security.acls import COST, P50, P99, RATE, Commit, timed
from bench.security.subjects import PARTITIONS, TLS
from bench.side_by_side.bulk import CONSUME, KIB, PRODUCE, READ_AGAIN, values
from bench.side_by_side.clients import librdkafka
from bench.side_by_side.measuring import Cell, Size, Workload
from bench.side_by_side.places import places, topics_of
from bench.side_by_side.transactions import BAR_PRODUCERS, LIBRDKAFKA
from bench.subjects import Subject
from bench.workloads import bulk_consume, bulk_produce


@dataclass(frozen=True)
class Bulk(Cell):
    """Many records, written or read."""

    what: str

    @property
    def label(self) -> str:
        return f"{self.what} in bulk, records of 1 KiB"


CELLS: list[Bulk | Commit] = [
    Bulk(PRODUCE),
    Bulk(CONSUME),
    *(Commit(producers, LIBRDKAFKA) for producers in BAR_PRODUCERS),
]


class Tls(Workload[Bulk | Commit]):
    """The same work on four brokers."""

    name = "security-tls"
    title = "Security: what TLS costs"
    subjects = TLS
    text = (
        "*semel-tls* and *kafka-tls* have an SSL listener with the same certificate; *semel* and *kafka* are"
        " the same brokers without encryption. One idempotent librdkafka producer with linger 5 ms writes"
        f" records to {PARTITIONS} partitions as fast as it can, and one consumer reads as many"
        f" {READ_AGAIN} times. Transactions write 10 records of 100 bytes to each of 5 partitions. Figures"
        " are records or transactions per second, and the broker's processor time for one of them. The"
        " client encrypts, too, on the same cores. Connections are open when the clock starts, so the rates"
        " do not include handshakes."
    )
    metrics: ClassVar = (
        Metric(RATE, "1/s"),
        Metric(P50, "ms", False),
        Metric(P99, "ms", False),
        Metric(COST, "µs", False),
    )

    def __init__(self) -> None:
        self._filled: dict[str, str] = {}
        """The topic of each subject that is read repeatedly."""

    def cells(self, size: Size) -> list[Bulk | Commit]:
        return CELLS

    def measure(self, subject: Subject, cell: Bulk | Commit, size: Size) -> dict[str, float]:
        if isinstance(cell, Commit):
            return timed(subject, librdkafka, cell.producers, size.seconds, self.fresh("id"))
        return (self._produce if cell.what == PRODUCE else self._consume)(subject, size.records)

    def _produce(self, subject: Subject, records: int) -> dict[str, float]:
        topic = self.fresh("topic")
        where = places(subject, topic, PARTITIONS)
        before = subject.processor_seconds()
        rate = bulk_produce(subject.bootstrap, where, records, values(KIB), **subject.access)
        used = subject.processor_seconds() - before
        subject.delete(topics_of(topic, PARTITIONS))
        return {RATE: rate, COST: used / records * 1e6}

    def _consume(self, subject: Subject, records: int) -> dict[str, float]:
        if subject.name not in self._filled:
            self._filled[subject.name] = self.fresh("topic")
            where = places(subject, self._filled[subject.name], PARTITIONS)
            bulk_produce(subject.bootstrap, where, records, values(KIB), **subject.access)
        where = places(subject, self._filled[subject.name], PARTITIONS)
        to_read = records * READ_AGAIN
        before = subject.processor_seconds()
        rate = bulk_consume(subject.bootstrap, where, to_read, **subject.access)
        return {RATE: rate, COST: (subject.processor_seconds() - before) / to_read * 1e6}
