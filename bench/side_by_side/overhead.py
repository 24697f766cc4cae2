"""What a transaction costs: the same records, written by the same client, with one and without."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from confluent_kafka import Producer

from bench.results import Metric
from bench.side_by_side.clients import PATIENCE_SECONDS, WARM, transactional, write
from bench.side_by_side.measuring import Cell, Size, Workload, counted
from bench.side_by_side.places import places
from bench.side_by_side.transactions import PARTITIONS, RECORDS
from bench.subjects import Subject
from bench.workloads import Place

OVERHEAD, WITH, WITHOUT, STREAMED = "overhead", "with", "without", "overhead beside a stream"
TURNS = 4
"""One kind after the other, so often, so that both meet the same machine."""

QUEUE = 20_000
"""Records that may wait in the client of a stream; a longer queue makes it slower."""


@dataclass(frozen=True)
class Group(Cell):
    """The records that are written together."""

    partitions: int
    records: int

    @property
    def label(self) -> str:
        return f"{counted(self.partitions, 'partition')} × {counted(self.records, 'record')}"


GROUPS = [Group(partitions, records) for partitions in PARTITIONS for records in RECORDS]


class Overhead(Workload[Group]):
    """Groups of records: acknowledged, or committed."""

    name = "overhead"
    title = "What a transaction costs"
    text = (
        "One librdkafka producer writes groups of records. Without transactions an idempotent producer waits"
        " until each group is acknowledged; with them it waits for the commit. Overhead is the part of the"
        " throughput that is lost: 0.30 means that 70 % is left. Beside a stream, the idempotent producer"
        " waits for nothing and batches as it likes, which says what small transactions cost at all."
    )
    metrics: ClassVar = (
        Metric(OVERHEAD, "share", False),
        Metric(STREAMED, "share", False),
        Metric(WITH, "records/s"),
        Metric(WITHOUT, "records/s"),
    )

    def cells(self, size: Size) -> list[Group]:
        return GROUPS

    def measure(self, subject: Subject, cell: Group, size: Size) -> dict[str, float]:
        where = places(subject, "overhead", cell.partitions)
        plain = Producer({"bootstrap.servers": subject.bootstrap, "enable.idempotence": True, "log_level": 0})
        writers = {
            WITHOUT: Acknowledged(plain, where, cell.records),
            WITH: Committed(transactional(subject.bootstrap, self.fresh("id")), where, cell.records),
            STREAMED: Streamed(plain, where, cell.records),
        }
        for writer in writers.values():
            for _ in range(WARM):
                writer.group()
            writer.finish()
        rates = dict.fromkeys(writers, 0.0)
        for _ in range(TURNS):
            for name, writer in writers.items():
                rates[name] += writer.rate(size.seconds / TURNS) / TURNS
        return {
            OVERHEAD: 1 - rates[WITH] / rates[WITHOUT],
            STREAMED: 1 - rates[WITH] / rates[STREAMED],
            WITH: rates[WITH],
            WITHOUT: rates[WITHOUT],
        }


class Acknowledged:
    """Writes a group and waits until it is acknowledged."""

    def __init__(self, producer: Producer, where: Sequence[Place], records: int) -> None:
        self.producer = producer
        self.where = where
        self.records = records

    def group(self) -> None:
        write(self.producer, self.where, self.records)
        self.finish()

    def finish(self) -> None:
        left = self.producer.flush(PATIENCE_SECONDS)
        assert left == 0, f"{left} records were not acknowledged"

    def rate(self, seconds: float) -> float:
        """Records per second."""
        groups = 0
        began = time.perf_counter()
        while time.perf_counter() - began < seconds:
            self.group()
            groups += 1
        self.finish()
        return groups * self.records * len(self.where) / (time.perf_counter() - began)


class Committed(Acknowledged):
    """Writes a group in a transaction."""

    def group(self) -> None:
        self.producer.begin_transaction()
        write(self.producer, self.where, self.records)
        self.producer.commit_transaction(PATIENCE_SECONDS)


class Streamed(Acknowledged):
    """Writes group after group, and waits only in the end."""

    def group(self) -> None:
        while len(self.producer) > QUEUE:
            self.producer.poll(0.01)
        write(self.producer, self.where, self.records)
