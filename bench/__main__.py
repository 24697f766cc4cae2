"""``make bench``: measure, print a table, write docs/benchmarks.md.

Everything is a ratio taken in one run on one machine: the same client does the same work against Semel,
which writes it durably to disk in another process, and against librdkafka's in-memory mock cluster, which
does as little as a broker can. Rounds are interleaved and the median of their ratios is shown, because
machines are noisy.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

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
from bench.workloads import BULK_PARTITIONS, bulk_consume, bulk_produce, small_requests

ROOT = Path(__file__).parents[1]
TOPICS = {"bulk": BULK_PARTITIONS, "small": 8}


def beside_the_mock(rounds: int, records: int) -> list[Row]:
    produce: list[float] = []
    consume: list[float] = []
    rates: list[tuple[float, float]] = []
    for _ in range(rounds):
        with semel() as subject, mock_cluster(TOPICS) as mock:
            create_topics(subject.bootstrap, TOPICS)
            floor = bulk_produce(mock, "bulk", records)
            ours = bulk_produce(subject.bootstrap, "bulk", records)
            # A restart, so that what is read comes from files and not from a tail in memory.
            subject.stop()
            subject.start()
            floor_read = bulk_consume(mock, "bulk", records)
            ours_read = bulk_consume(subject.bootstrap, "bulk", records)
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
            before = subject.processor_seconds()
            done = small_requests(subject.bootstrap, "small", 8, seconds, idempotent=idempotent)
            rates.append(done / (subject.processor_seconds() - before))
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
            bulk_produce(subject.bootstrap, "bulk", records)
            highest = max(highest, subject.resident_bytes())
            bulk_consume(subject.bootstrap, "bulk", records)
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


def table(rows: list[Row]) -> str:
    lines = ["| what | measured | value | target | met |", "| --- | --- | --- | --- | --- |"]
    for row in rows:
        sign = "≥" if row.higher_is_better else "≤"
        met = "yes" if row.met else "**no**"
        lines.append(f"| {row.what} | {row.measured} | {row.value:,.2f} | {sign} {row.target:,.2f} | {met} |")
    return "\n".join(lines)


PAGE = """# Benchmarks

Written by `make bench`. Each ratio compares the same client doing the same work in the same run; absolute
rates belong to the machine they were taken on and are only shown to give them a size. The mock cluster is
librdkafka's own, in memory and inside the client's process: the fastest broker that this client can meet,
which keeps nothing.

{cores} cores, Python {python}, {system}; median of {rounds} interleaved rounds; commit {commit}.

{table}
"""


def document(rows: list[Row], rounds: int) -> str:
    git = ["git", "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(git, cwd=ROOT, capture_output=True, text=True, check=False)
    return PAGE.format(
        cores=os.cpu_count(),
        python=platform.python_version(),
        system=f"{platform.system()} {platform.machine()}",
        rounds=rounds,
        commit=commit.stdout.strip(),
        table=table(rows),
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="make bench")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--records", type=int, default=200_000)
    parser.add_argument("--rows", type=int, default=4_000_000, help="that Spark reads in a round")
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument(
        "--batches", type=int, default=10_000_000, help="in the ledger, for the start with many"
    )
    parser.add_argument(
        "--open-seconds", type=float, default=60.0, help="how long one transaction is left open"
    )
    parser.add_argument("--only", default="", help="a part of a workload's name")
    parser.add_argument("--no-write", action="store_true", help="do not touch docs/benchmarks.md")
    options = parser.parse_args()
    parts: dict[str, Callable[[], list[Row]]] = {
        "bulk": lambda: beside_the_mock(options.rounds, options.records),
        "small": lambda: [
            requests_per_core(options.rounds, options.seconds, idempotent=False),
            requests_per_core(options.rounds, options.seconds, idempotent=True),
        ],
        "transactions": lambda: [
            beside_a_plain_write(options.rounds),
            one_producer_beside_the_mock(options.rounds),
            eight_producers_beside_the_mock(options.rounds, options.seconds),
            *readers_beside_an_open_transaction(options.open_seconds),
        ],
        "spark": lambda: rows_on_spark(options.rounds, options.rows, options.rows // 4),
        "start": lambda: start_and_memory(options.rounds),
        "memory": lambda: [memory_under_load(options.records)],
        "many": lambda: [ready_with_many_batches(options.batches)],
    }
    rows: list[Row] = []
    for name, part in parts.items():
        if options.only in name:
            print(f"measuring: {name} …", flush=True)
            rows.extend(part())
    print(table(rows))
    if not options.no_write and not options.only:
        (ROOT / "docs/benchmarks.md").write_text(document(rows, options.rounds))
        (ROOT / "docs/benchmarks.json").write_text(
            json.dumps([asdict(row) | {"met": row.met} for row in rows], indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
