"""From the acknowledgement of a commit until a reader can see it."""

import time
from dataclasses import dataclass
from typing import ClassVar

from bench.figures import quantile
from bench.raw import RawClient
from bench.results import Metric
from bench.side_by_side.clients import VALUE, WARM
from bench.side_by_side.measuring import Cell, Size, Workload
from bench.subjects import Mock, Semel, Subject
from semel.client import Client, TransactionalProducer

MARKER, JOURNAL = "marker", "journal"
AT_ONCE, P50, P99 = "visible at once", "p50", "p99"


@dataclass(frozen=True)
class Visibility(Cell):
    """The visibility of a topic."""

    kind: str

    @property
    def label(self) -> str:
        return f"{self.kind} topic"

    @property
    def configs(self) -> dict[str, str]:
        """The configs of the topic; without any, a topic has marker visibility."""
        return {"semel_visibility": JOURNAL} if self.kind == JOURNAL else {}

    def why_not(self, subject: Subject) -> str | None:
        if subject.name == Mock.name:
            return "the mock cluster has no isolation levels and returns uncommitted records"
        if self.kind == JOURNAL and not isinstance(subject, Semel):
            return "only Semel has journal topics"
        return None


class OfBothVisibilities(Workload[Visibility]):
    """A workload on a topic of either visibility."""

    def cells(self, size: Size) -> list[Visibility]:
        return [Visibility(MARKER), Visibility(JOURNAL)]

    def why_not(self, subject: Subject, cell: Visibility) -> str | None:
        return cell.why_not(subject)


class Visible(OfBothVisibilities):
    """A client commits, and then polls as a reader."""

    name = "visibility"
    title = "From commit to visible"
    text = (
        "A producer (`semel.client`, protocol version 2) commits one record. When the commit is"
        " acknowledged, a `read_committed` reader polls for it without waiting until it is there. The"
        " delay is the time from the acknowledgement to the sending of the request that returned the"
        " record, so it is 0 if the first request did."
    )
    metrics: ClassVar = (
        Metric(AT_ONCE, "share"),
        Metric(P50, "ms", False),
        Metric(P99, "ms", False),
    )

    def measure(self, subject: Subject, cell: Visibility, size: Size) -> dict[str, float]:
        topic = self.fresh("topic")
        subject.create({topic: 1}, **cell.configs)
        reader = RawClient(subject.bootstrap)
        waits: list[float] = []
        offset = 0
        with Client(subject.bootstrap) as client, TransactionalProducer(client, self.fresh("id")) as producer:
            end = time.perf_counter() + size.seconds
            while time.perf_counter() < end or len(waits) <= WARM:
                producer.begin()
                producer.send(topic, VALUE, partition=0)
                producer.commit()
                wait, offset = self._until_visible(reader, topic, offset)
                waits.append(wait)
        reader.close()
        del waits[:WARM]
        return {
            AT_ONCE: sum(wait == 0 for wait in waits) / len(waits),
            P50: quantile(waits, 0.5) * 1e3,
            P99: quantile(waits, 0.99) * 1e3,
        }

    def _until_visible(self, reader: RawClient, topic: str, offset: int) -> tuple[float, int]:
        """Return the delay in seconds, and the offset from which to continue."""
        acknowledged = asked = time.perf_counter()
        while True:
            count, offset = reader.fetch(topic, offset)
            if count:
                return asked - acknowledged, offset
            asked = time.perf_counter()
            assert asked - acknowledged < 30, "a committed record did not show within 30 seconds"
