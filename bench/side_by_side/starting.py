"""How long a broker takes to start, empty and with many batches, and how much memory and disk it uses."""

import time
from dataclasses import dataclass
from typing import ClassVar

from bench.raw import PRODUCE_VERSION, RawClient, batch, encoded, produce_request
from bench.results import Metric
from bench.side_by_side.bulk import values
from bench.side_by_side.measuring import LESS, Cell, Size, Workload
from bench.subjects import FlushingKafka, Mock, Subject, running
from bench.workloads import bulk_consume, bulk_produce
from semel.wire.messages import ProduceRequest

READY, AGAIN, AFTER_KILL = "ready when new", "ready again", "ready after kill -9"
IDLE, BUSY, DISK = "memory when idle", "memory after work", "disk"
PARTITIONS = 100
"""So many that one request carries a hundred batches."""
LEADERS_SECONDS = 30.0


@dataclass(frozen=True)
class Start(Cell):
    """What the broker holds when it is started."""

    batches: int

    @property
    def label(self) -> str:
        return f"{self.batches:,} batches" if self.batches else "empty"

    def rounds(self, size: Size) -> int:
        return 1 if self.batches else size.rounds


class Starting(Workload[Start]):
    """Starts subjects of its own, because the running ones are not new."""

    name = "starting"
    title = "Start, memory and disk"
    text = (
        "A process is started and polled until it answers a Metadata request. *empty*: with a new"
        " directory; memory is measured at once, and again after 1 KiB records were written and read. With"
        " batches: the given number of batches with one record each is written, the process is stopped and"
        " started again, then killed and started again. Disk is the size of all files per 100-byte record"
        " after a clean stop, with the batch sizes that librdkafka chooses."
    )
    metrics: ClassVar = (
        Metric(READY, "s", False),
        Metric(AGAIN, "s", False),
        Metric(AFTER_KILL, "s", False),
        Metric(IDLE, "MiB", False),
        Metric(BUSY, "MiB", False),
        Metric(DISK, "B/record", False),
    )

    def cells(self, size: Size) -> list[Start]:
        return [Start(0), *(Start(batches) for batches in size.batches)]

    def why_not(self, subject: Subject, cell: Start) -> str | None:
        if subject.name == Mock.name:
            return "the mock cluster stores nothing"
        return LESS if subject.name == FlushingKafka.name else None

    def measure(self, subject: Subject, cell: Start, size: Size) -> dict[str, float]:
        with running(type(subject)) as another:
            return self._filled(another, cell.batches) if cell.batches else self._empty(another, size.records)

    def _empty(self, subject: Subject, records: int) -> dict[str, float]:
        ready, idle = subject.ready_seconds, subject.resident_bytes()
        subject.create({"bulk": 4, "small": 4})
        subject.stop()
        before = subject.disk_bytes()
        subject.start()
        again = subject.ready_seconds
        small = [("small", partition) for partition in range(4)]
        bulk_produce(subject.bootstrap, small, records, values(100))
        subject.stop()
        taken = subject.disk_bytes() - before
        subject.start()
        bulk = [("bulk", partition) for partition in range(4)]
        bulk_produce(subject.bootstrap, bulk, records, values(1024))
        bulk_consume(subject.bootstrap, bulk, records)
        return {
            READY: ready,
            AGAIN: again,
            IDLE: idle / 2**20,
            BUSY: subject.resident_bytes() / 2**20,
            DISK: taken / records,
        }

    def _filled(self, subject: Subject, batches: int) -> dict[str, float]:
        fill(subject, batches)
        subject.stop()
        subject.start()
        again, idle = subject.ready_seconds, subject.resident_bytes()
        subject.kill()
        subject.start()
        return {AGAIN: again, AFTER_KILL: subject.ready_seconds, IDLE: idle / 2**20}


def fill(subject: Subject, batches: int) -> float:
    """Write this many batches of one record, a hundred in each request; return the seconds."""
    subject.create({"batches": PARTITIONS})
    client = RawClient(subject.bootstrap)
    request = produce_request("batches", [batch([b"x" * 20])] * PARTITIONS)
    frame = encoded(request, PRODUCE_VERSION)
    _until_led(client, request, frame)
    began = time.perf_counter()
    for _ in range(batches // PARTITIONS - 1):
        client.produce_frame(request, frame)
    client.close()
    return time.perf_counter() - began


def _until_led(client: RawClient, request: ProduceRequest, frame: bytes) -> None:
    """Write the first batches. Apache Kafka creates a topic before its partitions have leaders."""
    end = time.perf_counter() + LEADERS_SECONDS
    while True:
        try:
            client.produce_frame(request, frame)
            return
        except AssertionError:
            if time.perf_counter() > end:
                raise
            time.sleep(0.1)
