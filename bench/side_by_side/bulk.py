"""Many records, as fast as one client can write them, and read them again."""

import random
from dataclasses import dataclass
from typing import ClassVar

from bench.results import Metric
from bench.side_by_side.measuring import Cell, Size, Workload, counted
from bench.side_by_side.places import places, topics_of
from bench.subjects import Mock, Subject
from bench.workloads import bulk_consume, bulk_produce

KIB = 1024
KINDS: dict[str, dict[str, object]] = {
    "plain": {"enable.idempotence": False},
    "idempotent": {},
    "lz4": {"compression.type": "lz4"},
}
PRODUCE, CONSUME = "produce", "consume"
PRODUCE_COST, CONSUME_COST = "broker's processor, produce", "broker's processor, consume"
MANY = 100
READ_AGAIN = 4
"""How often everything is read in one measurement: once takes a fifth of a second, including the start."""


@dataclass(frozen=True)
class Bulk(Cell):
    """What is written, and where."""

    size: int
    kind: str
    partitions: int

    @property
    def label(self) -> str:
        size = "1 KiB" if self.size == KIB else f"{self.size} B"
        return f"{size}, {self.kind}, {counted(self.partitions, 'partition')}"

    def rounds(self, size: Size) -> int:
        return size.rounds if self.size == KIB else size.rounds_of_others


class Bulks(Workload[Bulk]):
    """One producer, then one consumer."""

    name = "bulk"
    title = "Bulk"
    text = (
        "One librdkafka producer with acks=all and linger 5 ms writes as fast as it can, then one consumer"
        f" reads everything {READ_AGAIN} times. Values are half random, so that lz4 has something to"
        " compress. The broker's processor time is given per MiB of values."
    )
    metrics: ClassVar = (
        Metric(PRODUCE, "records/s"),
        Metric(CONSUME, "records/s"),
        Metric(PRODUCE_COST, "ms/MiB", False),
        Metric(CONSUME_COST, "ms/MiB", False),
    )

    def cells(self, size: Size) -> list[Bulk]:
        return [Bulk(each, kind, count) for each in (KIB, 100) for kind in KINDS for count in (1, MANY)]

    def measure(self, subject: Subject, cell: Bulk, size: Size) -> dict[str, float]:
        records = size.records * (1 if cell.size == KIB else 2)
        is_mock = subject.name == Mock.name
        # The mock cluster cannot delete topics, so it gets the same ones again.
        name = self.name if is_mock else self.fresh("topic")
        # The mock cluster keeps the newest five megabytes, so reading as much takes many passes anyway.
        to_read = records * (1 if is_mock else READ_AGAIN)
        where = places(subject, name, cell.partitions)
        mebibytes, mebibytes_read = (count * cell.size / 2**20 for count in (records, to_read))
        before = subject.processor_seconds()
        produced = bulk_produce(subject.bootstrap, where, records, values(cell.size), **KINDS[cell.kind])
        between = subject.processor_seconds()
        consumed = bulk_consume(subject.bootstrap, where, to_read)
        after = subject.processor_seconds()
        subject.delete(topics_of(name, cell.partitions))
        return {
            PRODUCE: produced,
            CONSUME: consumed,
            PRODUCE_COST: (between - before) * 1e3 / mebibytes,
            CONSUME_COST: (after - between) * 1e3 / mebibytes_read,
        }


def values(size: int, count: int = 64) -> list[bytes]:
    """Return this many different values of this size."""
    chance = random.Random(size)
    return [chance.randbytes(size // 2).hex().encode() for _ in range(count)]
