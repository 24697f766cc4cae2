"""What clients notice of a slow object store."""

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from bench.cluster.subjects import OVER_S3, ClusterOverS3
from bench.results import Metric
from bench.side_by_side.clients import Load, librdkafka
from bench.side_by_side.measuring import Cell, Size, Workload
from bench.side_by_side.places import places
from bench.subjects import Subject

P50, P99 = "p50", "p99"
DELAYS = (0, 100)
SINGLE, TRANSACTION, LARGE = "a single record", "a transaction of 5 × 10 records", "a write of 1 MB"
SHAPES = {SINGLE: (1, 1), TRANSACTION: (5, 10), LARGE: (1, 10_000)}
"""Number of partitions, and of records of 100 bytes to each."""


@dataclass(frozen=True)
class Slow(Cell):
    """What is written, and by how much each request to the object store is delayed."""

    what: str
    delay_ms: int

    @property
    def label(self) -> str:
        return f"{self.what}, S3 {f'takes {self.delay_ms} ms longer' if self.delay_ms else 'as it is'}"


class SlowStore(Workload[Slow]):
    """Small commits do not wait for the object store; large ones do."""

    name = "cluster-slow-store"
    title = "Cluster: a slow object store"
    subjects = OVER_S3
    text = (
        "Three brokers over PostgreSQL and SeaweedFS, with a proxy that delays every request. One librdkafka"
        " producer waits for each write or transaction. Commits up to 256 KiB are first kept in PostgreSQL"
        " (ADR 0043); larger ones are uploaded before they are acknowledged."
    )
    metrics: ClassVar = (Metric(P50, "ms", False), Metric(P99, "ms", False))

    def cells(self, size: Size) -> list[Slow]:
        return [Slow(what, delay_ms) for what in SHAPES for delay_ms in DELAYS]

    def measure(self, subject: Subject, cell: Slow, size: Size) -> dict[str, float]:
        assert isinstance(subject, ClusterOverS3)
        partitions, records = SHAPES[cell.what]
        where = places(subject, "slow", partitions)
        run = partial(librdkafka, plain=cell.what != TRANSACTION)
        subject.proxy.delay_seconds = cell.delay_ms / 1e3
        try:
            timed = run(Load(subject.bootstrap, where, records, 1, size.seconds, self.fresh("id")))
        finally:
            subject.proxy.delay_seconds = 0.0
        return {P50: timed.p50_ms, P99: timed.p99_ms}
