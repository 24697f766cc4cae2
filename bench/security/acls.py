"""What ACLs cost: small writes and transactions with and without them, by the same authenticated client."""

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from bench.results import Metric
from bench.security.bindings import TEAMS
from bench.security.subjects import PARTITIONS, SASL, TOPIC
from bench.side_by_side.clients import WARM, Load, Run, librdkafka, semel_client
from bench.side_by_side.measuring import Cell, Size, Workload, counted
from bench.side_by_side.places import places
from bench.side_by_side.transactions import BAR_PRODUCERS, BAR_RECORDS, LIBRDKAFKA, OURS, Transaction
from bench.subjects import Subject
from bench.workloads import IDEMPOTENT_UNDER_WAY, small_requests

RATE, P50, P99, COST = "per second", "p50", "p99", "broker's processor"
TRANSACTION_PARTITIONS = 5
MANY = 8
ONE_AT_A_TIME: Run = partial(librdkafka, plain=True)
RUNS: dict[str, Run] = {LIBRDKAFKA: librdkafka, OURS: semel_client}


@dataclass(frozen=True)
class Secured(Cell):
    """Work of this many producers."""

    producers: int


@dataclass(frozen=True)
class Produce(Secured):
    """Idempotent requests of one record each, with this many in flight for each producer."""

    in_flight: int

    @property
    def label(self) -> str:
        return f"one record per request, {self.in_flight} in flight, {counted(self.producers, 'producer')}"


@dataclass(frozen=True)
class Commit(Secured):
    """Short transactions."""

    client: str

    @property
    def label(self) -> str:
        like = Transaction(self.client, TRANSACTION_PARTITIONS, BAR_RECORDS, self.producers)
        return f"transactions, {like.label}"


CELLS: list[Secured] = [
    *(Produce(producers, 1) for producers in BAR_PRODUCERS),
    Produce(MANY, IDEMPOTENT_UNDER_WAY),
    *(Commit(producers, client) for client in RUNS for producers in BAR_PRODUCERS),
]


class Acls(Workload[Secured]):
    """The same work with the rights of many ACLs, and without an authorizer."""

    name = "security-acls"
    title = "Security: what ACLs cost"
    subjects = SASL
    text = (
        "All clients authenticate with SASL_PLAINTEXT and SCRAM-SHA-256. *semel-sasl* has no authorizer."
        " *semel-acl* has `semel.authorizer=acl` and more than 5,000 ACLs, prefixed and literal: those of"
        f" {TEAMS} other principals, and the few that the client needs. *semel-sasl-2* is a second broker"
        " without an authorizer: its ratio to *semel-sasl* shows by how much two equal brokers differ in"
        " this run. Idempotent librdkafka producers send one 100-byte record per request; transactions write"
        " 10 such records to each of 5 partitions. The broker's processor time is given per request or"
        " transaction."
    )
    metrics: ClassVar = (
        Metric(RATE, "1/s"),
        Metric(P50, "ms", False),
        Metric(P99, "ms", False),
        Metric(COST, "µs", False),
    )

    def cells(self, size: Size) -> list[Secured]:
        return CELLS

    def measure(self, subject: Subject, cell: Secured, size: Size) -> dict[str, float]:
        if isinstance(cell, Produce) and cell.in_flight > 1:
            return self._in_flight(subject, cell, size)
        if isinstance(cell, Commit):
            return timed(subject, RUNS[cell.client], cell.producers, size.seconds, self.fresh("id"))
        return timed(subject, ONE_AT_A_TIME, cell.producers, size.seconds, self.fresh("id"), 1, 1)

    def _in_flight(self, subject: Subject, cell: Produce, size: Size) -> dict[str, float]:
        where = places(subject, TOPIC, PARTITIONS)
        done, used = small_requests(
            subject.bootstrap,
            where,
            cell.producers,
            size.seconds,
            subject.processor_seconds,
            idempotent=True,
            **subject.access,
        )
        return {RATE: done / size.seconds, COST: used / done * 1e6}


def timed(
    subject: Subject,
    run: Run,
    producers: int,
    seconds: float,
    name: str,
    partitions: int = TRANSACTION_PARTITIONS,
    records: int = BAR_RECORDS,
) -> dict[str, float]:
    """Time groups of records back to back: transactions, unless `run` writes plain groups."""
    where = places(subject, TOPIC, PARTITIONS)[:partitions]
    before = subject.processor_seconds()
    found = run(Load(subject.bootstrap, where, records, producers, seconds, name, subject.access))
    used = subject.processor_seconds() - before
    cost = used / (found.count + WARM * producers) * 1e6
    return {RATE: found.rate, P50: found.p50_ms, P99: found.p99_ms, COST: cost}
