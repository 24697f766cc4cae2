"""Earlier targets: Semel beside what the same client reaches with a broker that does nothing.

Everything is a ratio within one run on one machine: the same client does the same work on Semel, which writes
it durably to disk in another process, and on librdkafka's in-memory mock cluster, which does as little as a
broker can. Rounds are interleaved and the median of their ratios is shown, because machines are noisy.
"""

import statistics
from collections.abc import Callable
from dataclasses import dataclass

from bench.large_ledger import make_large_ledger
from bench.rows import Row, spread
from bench.spark import rows_on_spark
from bench.subjects import create_topics, mock_cluster, semel
from bench.transactions import (
    beside_a_plain_write,
    eight_producers_beside_the_mock,
    one_producer_beside_the_mock,
    readers_beside_an_open_transaction,
)
from bench.workloads import BULK_PLACES, bulk_consume, bulk_produce, small_requests

TOPICS = {"bulk": 4, "small": 8}
SMALL_PLACES = [("small", partition) for partition in range(8)]


@dataclass(frozen=True)
class BarSize:
    """How much work each measurement does."""

    rounds: int
    records: int
    rows: int
    """Rows that Spark reads in a round: enough to measure a rate, and not the start of a job."""
    batch_rows: int
    """Rows of a micro-batch."""
    seconds: float
    batches: int
    """Batches in the ledger, for the start with many."""
    open_seconds: float
    """How long one transaction is left open."""


QUICK = BarSize(1, 40_000, 200_000, 50_000, 0.5, 200_000, 3.0)
DEFAULT = BarSize(3, 200_000, 20_000_000, 1_000_000, 3.0, 10_000_000, 60.0)


def beside_the_mock(rounds: int, records: int) -> list[Row]:
    produce: list[float] = []
    consume: list[float] = []
    rates: list[tuple[float, float]] = []
    for _ in range(rounds):
        with semel() as subject, mock_cluster(TOPICS) as mock:
            create_topics(subject.bootstrap, TOPICS)
            floor = bulk_produce(mock, BULK_PLACES, records)
            ours = bulk_produce(subject.bootstrap, BULK_PLACES, records)
            # Restart, so that records are read from files and not from a tail in memory.
            subject.stop()
            subject.start()
            floor_read = bulk_consume(mock, BULK_PLACES, records)
            ours_read = bulk_consume(subject.bootstrap, BULK_PLACES, records)
        produce.append(ours / floor)
        consume.append(ours_read / floor_read)
        rates.append((ours, ours_read))
    produced = statistics.median(rate for rate, _ in rates)
    consumed = statistics.median(rate for _, rate in rates)
    return [
        Row(
            "one idempotent producer, 1 KiB records, acks=all, linger 5 ms, beside the mock cluster",
            f"ratio {spread(produce)}; {produced:,.0f} records/s durable",
            statistics.median(produce),
            0.60,
        ),
        Row(
            "one consumer reading back from disk, beside the mock cluster",
            f"ratio {spread(consume)}; {consumed:,.0f} records/s",
            statistics.median(consume),
            0.70,
        ),
    ]


def requests_per_core(rounds: int, seconds: float, *, idempotent: bool) -> Row:
    rates: list[float] = []
    wall: list[float] = []
    for _ in range(rounds):
        with semel() as subject:
            create_topics(subject.bootstrap, TOPICS)
            cost = subject.processor_seconds
            done, used = small_requests(
                subject.bootstrap, SMALL_PLACES, 8, seconds, cost, idempotent=idempotent
            )
            rates.append(done / used)
            wall.append(done / seconds)
    kind = "idempotent, so five requests each under way" if idempotent else "not idempotent, fifty each"
    return Row(
        f"eight producers, one record per request ({kind}): durable requests per second and broker core",
        f"{spread(rates)}; {statistics.median(wall):,.0f} requests/s by the clock",
        statistics.median(rates),
        20_000,
    )


def start_and_memory(rounds: int) -> list[Row]:
    seconds: list[float] = []
    idle: list[float] = []
    for _ in range(rounds):
        with semel() as subject:
            seconds.append(subject.ready_seconds)
            idle.append(subject.resident_bytes() / 2**20)
    return [
        Row(
            "ready with an empty directory, seconds", spread(seconds), statistics.median(seconds), 1.0, False
        ),
        Row("resident memory when idle, MiB", spread(idle), statistics.median(idle), 150, False),
    ]


def memory_under_load(records: int) -> Row:
    with semel() as subject:
        create_topics(subject.bootstrap, TOPICS)
        highest = 0
        for _ in range(3):
            bulk_produce(subject.bootstrap, BULK_PLACES, records)
            highest = max(highest, subject.resident_bytes())
            bulk_consume(subject.bootstrap, BULK_PLACES, records)
            highest = max(highest, subject.resident_bytes())
    return Row(
        "resident memory after bulk rounds, MiB", f"{highest / 2**20:,.0f}", highest / 2**20, 300, False
    )


def ready_with_many_batches(batches: int) -> Row:
    with semel() as subject:
        subject.stop()
        for file in subject.directory.glob("ledger.db*"):
            file.unlink()
        make_large_ledger(subject.directory / "ledger.db", batches)
        subject.start()
        return Row(
            f"ready with {batches:,} batches in the ledger, seconds",
            f"{subject.ready_seconds:,.2f}",
            subject.ready_seconds,
            3.0,
            False,
        )


def parts(size: BarSize) -> dict[str, Callable[[], list[Row]]]:
    """Return the measurements by name."""
    return {
        "bulk": lambda: beside_the_mock(size.rounds, size.records),
        "small": lambda: [
            requests_per_core(size.rounds, size.seconds, idempotent=False),
            requests_per_core(size.rounds, size.seconds, idempotent=True),
        ],
        "transactions": lambda: [
            beside_a_plain_write(size.rounds),
            one_producer_beside_the_mock(size.rounds),
            eight_producers_beside_the_mock(size.rounds, size.seconds),
            *readers_beside_an_open_transaction(size.open_seconds),
        ],
        "spark": lambda: rows_on_spark(size.rounds, size.rows, size.batch_rows),
        "start": lambda: start_and_memory(size.rounds),
        "memory": lambda: [memory_under_load(size.records)],
        "many": lambda: [ready_with_many_batches(size.batches)],
    }
