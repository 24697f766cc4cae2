"""What every subject does before it is measured: Java is fast when it has compiled what it meets often."""

from bench.side_by_side.clients import librdkafka
from bench.side_by_side.places import places
from bench.subjects import Subject
from bench.workloads import bulk_consume, bulk_produce

PARTITIONS, RECORDS, PRODUCERS = 8, 10, 4
BULK = 50_000
WINDOWS_MIN, WINDOWS_MAX = 2, 8
FASTER = 1.1
"""A window that is not faster than the best before it by this factor is the last."""


def warm_up(subject: Subject, seconds: float) -> float:
    """Some bulk, then transactions in windows of so long, until they get no faster; how many per second."""
    where = places(subject, "warming", PARTITIONS)
    bulk_produce(subject.bootstrap, where, BULK)
    bulk_consume(subject.bootstrap, where, BULK)
    best = 0.0
    for number in range(WINDOWS_MAX):
        name = f"warming-{number}"
        rate = librdkafka(subject.bootstrap, where, RECORDS, PRODUCERS, seconds, name).rate
        if number >= WINDOWS_MIN and rate < best * FASTER:
            return max(rate, best)
        best = max(rate, best)
    return best
