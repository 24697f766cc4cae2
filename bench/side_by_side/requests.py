"""Small requests: one record each, durable, from few and from many connections."""

import time
from dataclasses import dataclass
from typing import ClassVar

from bench.figures import quantile
from bench.raw import RawClient, batch
from bench.results import Metric
from bench.side_by_side.clients import VALUE
from bench.side_by_side.measuring import Cell, Size, Workload, counted
from bench.side_by_side.places import places
from bench.subjects import Subject
from bench.workloads import small_requests

PARTITIONS = 8
CONNECTIONS = (1, 8, 64)
VERSION = 9
"""The version of Produce: the newest that all subjects know."""
RATE, COST = "requests per second", "broker's processor"
P50, P99 = "p50 of one at a time", "p99 of one at a time"


@dataclass(frozen=True)
class Connections(Cell):
    """The number of connections."""

    count: int

    @property
    def label(self) -> str:
        return counted(self.count, "connection")


class Requests(Workload[Connections]):
    """One record per request."""

    name = "requests"
    title = "Small requests"
    text = (
        "Idempotent librdkafka producers send one 100-byte record per request, with five requests in"
        " flight each. For one connection, the latency of sequential requests is also measured, with a"
        " client that does nothing else."
    )
    metrics: ClassVar = (
        Metric(RATE, "1/s"),
        Metric(COST, "µs/request", False),
        Metric(P50, "ms", False),
        Metric(P99, "ms", False),
    )

    def cells(self, size: Size) -> list[Connections]:
        return [Connections(count) for count in CONNECTIONS]

    def measure(self, subject: Subject, cell: Connections, size: Size) -> dict[str, float]:
        where = places(subject, self.name, PARTITIONS)
        cost = subject.processor_seconds
        done, used = small_requests(subject.bootstrap, where, cell.count, size.seconds, cost, idempotent=True)
        found = {RATE: done / size.seconds, COST: used / done * 1e6}
        if cell.count == 1:
            found |= self._one_at_a_time(subject, where[0][0], size.seconds)
        return found

    def _one_at_a_time(self, subject: Subject, topic: str, seconds: float) -> dict[str, float]:
        client = RawClient(subject.bootstrap)
        took: list[float] = []
        record = batch([VALUE])
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            took.append(client.produce(topic, [record], version=VERSION))
        client.close()
        return {P50: quantile(took, 0.5) * 1e3, P99: quantile(took, 0.99) * 1e3}
