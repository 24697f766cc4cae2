"""Short transactions and small writes on three brokers, beside Apache Kafka and the embedded broker."""

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from bench.cluster.subjects import BESIDE
from bench.results import Metric
from bench.side_by_side.clients import Load, Run, librdkafka
from bench.side_by_side.measuring import Size
from bench.side_by_side.places import places
from bench.side_by_side.transactions import (
    BAR_PRODUCERS,
    BAR_RECORDS,
    JAVA,
    LIBRDKAFKA,
    P50,
    P99,
    RATE,
    ByClients,
    Transaction,
)
from bench.subjects import Subject

PARTITIONS = 5
CELLS = [
    Transaction(client, PARTITIONS, BAR_RECORDS, producers)
    for client in (LIBRDKAFKA, JAVA)
    for producers in BAR_PRODUCERS
]


@dataclass(frozen=True)
class Write(Transaction):
    """Records without a transaction, each acknowledged before the next is sent."""

    @property
    def label(self) -> str:
        return f"{self.client}, single records with acks=all"

    def rounds(self, size: Size) -> int:
        return size.rounds


WRITE = Write(LIBRDKAFKA, 1, 1, 1)


class ClusterTransactions(ByClients[Transaction]):
    """Transactions back to back, and the smallest durable write."""

    name = "cluster-transactions"
    title = "Cluster: transactions per second"
    subjects = BESIDE
    text = (
        "*cluster-3* is three brokers of Semel over one PostgreSQL with `fsync` on. *kafka-3* is three nodes"
        " of Apache Kafka in combined mode, with replication factor 3 and `min.insync.replicas=2`; they do"
        " not flush. *semel* is the embedded broker. All nodes and clients share one machine, so neither"
        " cluster waits for a network. A transaction writes 10 records of 100 bytes to each of 5 partitions."
        " A single record is written with acks=all by an idempotent producer that waits for each answer."
    )
    metrics: ClassVar = (Metric(RATE, "1/s"), Metric(P50, "ms", False), Metric(P99, "ms", False))

    def cells(self, size: Size) -> list[Transaction]:
        return [*CELLS, WRITE]

    def measure(self, subject: Subject, cell: Transaction, size: Size) -> dict[str, float]:
        where = places(subject, "transactions", cell.partitions)
        run: Run = self.java_client(subject, size) if cell.client == JAVA else librdkafka
        if cell is WRITE:
            run = partial(librdkafka, plain=True)
        load = Load(subject.bootstrap, where, cell.records, cell.producers, size.seconds, self.fresh("id"))
        timed = run(load)
        return {RATE: timed.rate, P50: timed.p50_ms, P99: timed.p99_ms}
