"""How each cost grows while the work is doubled repeatedly. A cost that outgrows the work is flagged."""

import time
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from confluent_kafka import Consumer

from bench.figures import exponent
from bench.results import Metric, Results
from bench.side_by_side.clients import PATIENCE_SECONDS, VALUE, WARM, transactional, write
from bench.side_by_side.measuring import LESS, Cell, Size, Workload
from bench.side_by_side.places import places, topics_of
from bench.subjects import FlushingKafka, Mock, Subject
from bench.together import together
from bench.workloads import bulk_consume, bulk_produce
from semel.client import Client, TransactionalProducer

SECONDS, PROCESSOR = "seconds", "broker's processor"
RECORDS, PARTITIONS, PRODUCERS = "records", "partitions", "producers"
OPEN, MEMBERS = "open transactions", "group members"
FIRST = {RECORDS: 20_000, PARTITIONS: 4, PRODUCERS: 1, OPEN: 16, MEMBERS: 2}
"""The smallest amount of each kind of work."""
LAST = {PRODUCERS: 64, MEMBERS: 16}
"""The largest amount of some kinds, beyond which the clients are the limit."""
EACH = 20
"""Transactions of each producer, or for each number of partitions."""
FASTER_THAN_WORK = 1.15
"""From this slope on, a cost grows faster than the work; smaller excess is noise."""
TOP_POINTS = 4
"""How many of the largest points determine the slope: fixed costs hide it in the smaller ones."""
SMALLEST_SECONDS = 0.03
"""Processor time is counted in hundredths of a second: smaller values say nothing."""


@dataclass(frozen=True)
class Point(Cell):
    """An amount of one kind of work."""

    what: str
    count: int

    @property
    def label(self) -> str:
        return f"{self.what}: {self.count:,}"

    def rounds(self, size: Size) -> int:
        # Most of the time of a group is waiting, which is the same every time.
        return 1 if self.what == MEMBERS else max(1, size.rounds_of_others)


class Growth(Workload[Point]):
    """Each point does work in proportion to its count."""

    name = "growth"
    title = "How cost grows"
    text = (
        "The amount of work is doubled repeatedly. *records*: written and read by one client."
        f" *partitions*: {EACH} transactions with one record in each partition. *producers*: concurrent"
        f" producers with {EACH} transactions each. *open transactions*: all are opened, then all are"
        " committed. *group members*: all join a group, get their partitions and leave. The slope is that"
        " of a line through the largest sizes in a log-log plot: 1 means that cost is proportional to the"
        " work, and less is better."
    )
    metrics: ClassVar = (Metric(SECONDS, "s", False), Metric(PROCESSOR, "s", False))

    def cells(self, size: Size) -> list[Point]:
        return [
            Point(what, first << doubling)
            for what, first in FIRST.items()
            for doubling in range(size.doublings)
            if first << doubling <= LAST.get(what, first << doubling)
        ]

    def why_not(self, subject: Subject, cell: Point) -> str | None:
        if subject.name == Mock.name and cell.what in (OPEN, MEMBERS):
            return "the mock cluster does not support these transactions and groups"
        return LESS if subject.name == FlushingKafka.name else None

    def measure(self, subject: Subject, cell: Point, size: Size) -> dict[str, float]:
        work = {
            RECORDS: self._records,
            PARTITIONS: self._partitions,
            PRODUCERS: self._producers,
            OPEN: self._open,
            MEMBERS: self._members,
        }[cell.what]
        before = subject.processor_seconds()
        seconds = work(subject, cell.count)
        return {SECONDS: seconds, PROCESSOR: subject.processor_seconds() - before}

    def _records(self, subject: Subject, count: int) -> float:
        name = self.name if subject.name == Mock.name else self.fresh("records")
        where = places(subject, name, 4)
        seconds = count / bulk_produce(subject.bootstrap, where, count, [VALUE])
        seconds += count / bulk_consume(subject.bootstrap, where, count)
        subject.delete(topics_of(name, 4))
        return seconds

    def _partitions(self, subject: Subject, count: int) -> float:
        where = places(subject, "growth-partitions", count)
        producer = transactional(subject.bootstrap, self.fresh("id"))
        began = 0.0
        for number in range(WARM + EACH):
            if number == WARM:
                began = time.perf_counter()
            producer.begin_transaction()
            write(producer, where, 1)
            producer.commit_transaction(PATIENCE_SECONDS)
        return time.perf_counter() - began

    def _producers(self, subject: Subject, count: int) -> float:
        where = places(subject, "growth-producers", 4)
        producers = [transactional(subject.bootstrap, self.fresh("id")) for _ in range(count)]

        def work(number: int, turns: int) -> None:
            for _ in range(turns):
                producers[number].begin_transaction()
                write(producers[number], where, 1)
                producers[number].commit_transaction(PATIENCE_SECONDS)

        together([partial(work, number, WARM) for number in range(count)])
        began = time.perf_counter()
        together([partial(work, number, EACH) for number in range(count)])
        return time.perf_counter() - began

    def _open(self, subject: Subject, count: int) -> float:
        topic = self.fresh("open")
        subject.create({topic: 1})
        with ExitStack() as stack:
            client = stack.enter_context(Client(subject.bootstrap))
            producers = [
                stack.enter_context(TransactionalProducer(client, self.fresh("id"))) for _ in range(count)
            ]
            began = time.perf_counter()
            for producer in producers:
                producer.begin()
                producer.send(topic, VALUE, partition=0)
                producer.flush()
            for producer in producers:
                producer.commit()
            return time.perf_counter() - began

    def _members(self, subject: Subject, count: int) -> float:
        topic, group = self.fresh("members"), self.fresh("group")
        subject.create({topic: 64})
        began = time.perf_counter()
        members = [
            Consumer(
                {
                    "bootstrap.servers": subject.bootstrap,
                    "group.id": group,
                    "enable.auto.commit": False,
                    "log_level": 0,
                }
            )
            for _ in range(count)
        ]
        for member in members:
            member.subscribe([topic])
        while not all(member.assignment() for member in members):
            for member in members:
                member.poll(0.001)
            assert time.perf_counter() - began < PATIENCE_SECONDS, f"{count} members have not all joined"
        for member in members:
            member.close()
        return time.perf_counter() - began


@dataclass(frozen=True)
class Slope:
    """How a cost of a subject grows with one kind of work."""

    what: str
    subject: str
    metric: str
    exponent: float

    @property
    def is_faster_than_work(self) -> bool:
        return self.exponent > FASTER_THAN_WORK


def points(results: Results, what: str, subject: str, metric: str) -> list[tuple[float, float]]:
    """Return work and median cost, in order."""
    found = []
    for series in results.of(Growth.name):
        kind, _, count = series.cell.partition(": ")
        if (kind, series.subject, series.metric) == (what, subject, metric):
            values = sorted(series.values)
            found.append((float(count.replace(",", "")), values[len(values) // 2]))
    return sorted(found)


def slopes(results: Results) -> list[Slope]:
    """Return all slopes with at least three points at which the cost is large enough to measure."""
    subjects = list(dict.fromkeys(series.subject for series in results.of(Growth.name)))
    found = []
    for what in FIRST:
        for subject in subjects:
            for metric in (SECONDS, PROCESSOR):
                seen = [
                    each for each in points(results, what, subject, metric) if each[1] >= SMALLEST_SECONDS
                ]
                if len(seen) >= 3:
                    top = seen[-TOP_POINTS:]
                    slope = exponent([x for x, _ in top], [y for _, y in top])
                    found.append(Slope(what, subject, metric, slope))
    return found
