"""The work of every subject before it is measured: Java is fast only after it has compiled its hot code."""

from collections.abc import Sequence

from bench.side_by_side.clients import Load, librdkafka
from bench.side_by_side.places import places
from bench.subjects import Subject
from bench.workloads import VALUE, bulk_consume, bulk_produce

PARTITIONS, RECORDS, PRODUCERS = 8, 10, 4
BULK = 50_000
WINDOWS_MAX = 8
STEADY_WINDOWS = 2
FASTER = 1.1
"""Warming ends with two windows in a row that are not faster by this factor than the best one before."""


def warm_up(subject: Subject, seconds: float) -> float:
    """Run bulk, then transactions in windows until they get no faster; return transactions per second."""
    where = places(subject, "warming", PARTITIONS)
    bulk_produce(subject.bootstrap, where, BULK, [VALUE], **subject.access)
    bulk_consume(subject.bootstrap, where, BULK, **subject.access)
    rates: list[float] = []
    while len(rates) < WINDOWS_MAX and not is_steady(rates):
        name = f"warming-{len(rates)}"
        load = Load(subject.bootstrap, where, RECORDS, PRODUCERS, seconds, name, subject.access)
        rates.append(librdkafka(load).rate)
    return max(rates)


def is_steady(rates: Sequence[float]) -> bool:
    """Whether the last windows were no faster than those before; a single one may have been disturbed."""
    before, last = rates[:-STEADY_WINDOWS], rates[-STEADY_WINDOWS:]
    return bool(before) and max(last) < max(before) * FASTER
