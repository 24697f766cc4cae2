"""Consume, transform, produce: records and the offsets they came from in one transaction, in Python."""

import time
from dataclasses import dataclass
from typing import ClassVar

from confluent_kafka import Consumer, Producer

from bench.figures import quantile
from bench.results import Metric
from bench.side_by_side.clients import PATIENCE_SECONDS, VALUE, WARM, transactional
from bench.side_by_side.measuring import LESS, Cell, Size, Workload
from bench.subjects import FlushingKafka, Mock, Subject
from bench.workloads import bulk_produce

PARTITIONS = 4
RECORDS, TURNS, P50, P99 = "records per second", "turns per second", "p50", "p99"
TURNS_MAX = 400
"""As many turns as there are records for; a faster subject ends early."""


@dataclass(frozen=True)
class LoopCell(Cell):
    """The number of records that one transaction copies."""

    records: int

    @property
    def label(self) -> str:
        return f"{self.records} records a turn"


class Loop(Workload[LoopCell]):
    """One member of a group copies a topic."""

    name = "loop"
    title = "Consume, transform, produce"
    text = (
        "One confluent-kafka process reads from a topic with four partitions as a member of a consumer group,"
        " changes each value, writes it to another topic and commits records and offsets in one transaction."
    )
    metrics: ClassVar = (
        Metric(RECORDS, "records/s"),
        Metric(TURNS, "1/s"),
        Metric(P50, "ms", False),
        Metric(P99, "ms", False),
    )

    def cells(self, size: Size) -> list[LoopCell]:
        return [LoopCell(records) for records in (10, 100, 1000)]

    def why_not(self, subject: Subject, cell: LoopCell) -> str | None:
        if subject.name == Mock.name:
            return "the mock cluster does not support offsets in transactions"
        return LESS if subject.name == FlushingKafka.name else None

    def measure(self, subject: Subject, cell: LoopCell, size: Size) -> dict[str, float]:
        source, target = self.fresh("in"), self.fresh("out")
        subject.create({source: PARTITIONS, target: PARTITIONS})
        where = [(source, partition) for partition in range(PARTITIONS)]
        bulk_produce(subject.bootstrap, where, cell.records * (TURNS_MAX + WARM), [VALUE])
        consumer = Consumer(
            {
                "bootstrap.servers": subject.bootstrap,
                "group.id": self.fresh("group"),
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "log_level": 0,
            }
        )
        consumer.subscribe([source])
        producer = transactional(subject.bootstrap, self.fresh("id"))
        for _ in range(WARM):
            turn(consumer, producer, target, cell.records)
        took: list[float] = []
        done = 0
        began = now = time.perf_counter()
        while now < began + size.seconds and len(took) < TURNS_MAX:
            done += turn(consumer, producer, target, cell.records)
            before, now = now, time.perf_counter()
            took.append(now - before)
        consumer.close()
        return {
            RECORDS: done / (now - began),
            TURNS: len(took) / (now - began),
            P50: quantile(took, 0.5) * 1e3,
            P99: quantile(took, 0.99) * 1e3,
        }


def turn(consumer: Consumer, producer: Producer, target: str, records: int) -> int:
    """Copy records in one transaction; return how many."""
    found = consumer.consume(records, timeout=PATIENCE_SECONDS)
    assert len(found) == records, f"only {len(found)} records within {PATIENCE_SECONDS:g} seconds"
    producer.begin_transaction()
    for message in found:
        value, partition = message.value(), message.partition()
        assert value is not None
        assert partition is not None
        producer.produce(target, value.upper(), partition=partition)
    positions = consumer.position(consumer.assignment())
    producer.send_offsets_to_transaction(positions, consumer.consumer_group_metadata(), PATIENCE_SECONDS)
    producer.commit_transaction(PATIENCE_SECONDS)
    return len(found)
