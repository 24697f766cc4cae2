"""The targets, as ratios within one run, each with whether it is met."""

import statistics
from dataclasses import replace

from bench.cluster import goals
from bench.console import goals as console_goals
from bench.figures import median_of, ratio_of
from bench.results import Results
from bench.rows import Row
from bench.security import goals as security_goals
from bench.side_by_side import bulk, neighbours, overhead, small, stall, starting, transactions, visibility
from bench.side_by_side.attacks import ATTACKS
from bench.side_by_side.comparing import ratio_rows, row_of
from bench.side_by_side.measuring import counted
from bench.side_by_side.transactions import BAR_RECORDS, JAVA, LIBRDKAFKA, OURS, PARTITIONS, Transaction
from bench.subjects import Kafka, Mock, Semel

OF_THE_FLOOR = 0.85
OVER_KAFKA = {1: 1.5, 5: 2.0, 20: 3.5}
"""Transactions per second, by number of partitions."""
P99_OF_KAFKA = 0.25
SECOND_FORM_OVER_KAFKA = 3.0
EIGHT_OVER_KAFKA = 2.0
OVERHEAD_MAX = 0.30
FIRST_ROW_MAX, SMALL_BATCH_MAX, SMALL_BATCH_BUSY_MAX = 1.3, 0.7, 1.2
"""Over Spark's own connector."""
NOISE_MAX, NOISE_MS_MAX = 10.0, 250.0
"""How much longer a request may take beside clients that use as much as they can get."""
READY_OF_KAFKA, MEMORY_OF_KAFKA = 0.1, 0.2


def rows(results: Results) -> list[Row]:
    """Return the targets that were measured."""
    return [
        *_short_transactions(results),
        *_overhead(results),
        *_readers(results),
        *_bulk(results),
        *_pipeline(results),
        *_small_batches(results),
        *_starting(results),
        *_neighbours(results),
        *console_goals.rows(results),
        *security_goals.rows(results),
        *goals.rows(results),
    ]


def _short_transactions(results: Results) -> list[Row]:
    def beside(
        client: str, partitions: int, producers: int, metric: str, target: float, other: str, *, more: bool
    ) -> list[Row]:
        cell = Transaction(client, partitions, BAR_RECORDS, producers).label
        what = f"{cell}: {metric}, over {other}'s"
        where = ("transactions", cell, metric)
        found = _ratio(results, what, where, target, other, higher_is_better=more)
        beyond = _beyond_the_floor(results, cell, metric, target) if other == Kafka.name else ""
        return [replace(row, measured=f"{row.measured}{beyond}") for row in found]

    rate, p99 = transactions.RATE, transactions.P99
    found: list[Row] = []
    for count in PARTITIONS:
        found += beside(LIBRDKAFKA, count, 1, rate, OF_THE_FLOOR, Mock.name, more=True)
    for count in PARTITIONS:
        found += beside(LIBRDKAFKA, count, 1, rate, OVER_KAFKA[count], Kafka.name, more=True)
        found += beside(LIBRDKAFKA, count, 1, p99, P99_OF_KAFKA, Kafka.name, more=False)
    for client in (JAVA, OURS):
        for count in PARTITIONS:
            found += beside(client, count, 1, rate, SECOND_FORM_OVER_KAFKA, Kafka.name, more=True)
    for client in (LIBRDKAFKA, JAVA, OURS):
        for count in PARTITIONS:
            found += beside(client, count, 8, rate, EIGHT_OVER_KAFKA, Kafka.name, more=True)
    return found


def _beyond_the_floor(results: Results, cell: str, metric: str, target: float) -> str:
    """Say so if no broker could meet the target: the client itself takes longer with the mock cluster.

    A p99 is compared with the floor's p50, because no broker's p99 can be lower.
    """
    floor_metric = transactions.P50 if metric == transactions.P99 else metric
    floor = results.find("transactions", cell, Mock.name, floor_metric)
    theirs = results.find("transactions", cell, Kafka.name, metric)
    if floor is None or theirs is None:
        return ""
    wanted, least = target * statistics.median(theirs.values), statistics.median(floor.values)
    is_beyond = wanted < least if metric == transactions.P99 else wanted > least
    return f"; the target, {wanted:,.4g}, is beyond the client's floor of {least:,.4g}" if is_beyond else ""


def _overhead(results: Results) -> list[Row]:
    found: list[Row] = []
    metric = overhead.OVERHEAD
    cells = overhead.CELLS
    for cell in cells:
        ours = results.find("overhead", cell.label, Semel.name, metric)
        if ours is not None and cell.records == max(transactions.RECORDS):
            what = f"overhead of a transaction, {cell.label}: share of the throughput that is lost"
            floor = results.find("overhead", cell.label, Mock.name, metric)
            least = statistics.median(floor.values) if floor is not None else 0.0
            own = f"the client itself loses {least:.2f} with the mock cluster" if least > OVERHEAD_MAX else ""
            found.append(row_of(what, median_of(ours.values), OVERHEAD_MAX, own, higher_is_better=False))
    for cell in cells:
        ours = results.find("overhead", cell.label, Semel.name, metric)
        theirs = results.find("overhead", cell.label, Kafka.name, metric)
        if ours is not None and theirs is not None:
            pairs = zip(ours.values, theirs.values, strict=False)
            less = median_of([mine - other for mine, other in pairs])
            what = f"overhead of a transaction, {cell.label}: less Apache Kafka's"
            found.append(row_of(what, less, 0.0, _with_and_without(results, cell), higher_is_better=False))
    return found


def _with_and_without(results: Results, cell: overhead.Both) -> str:
    """Return the rates that the shares refer to: a subject that is slow without transactions loses little."""
    said: list[str] = []
    for metric in (overhead.WITH, overhead.WITHOUT):
        both = [results.find("overhead", cell.label, name, metric) for name in (Semel.name, Kafka.name)]
        rates = [f"{statistics.median(each.values):,.4g}" for each in both if each is not None]
        if len(rates) == len(both):
            said.append(f"{metric} {' and '.join(rates)}")
    return ", ".join(said) + " records/s" if said else ""


def _readers(results: Results) -> list[Row]:
    found: list[Row] = []
    for kind in (visibility.MARKER, visibility.JOURNAL):
        cell = visibility.Visibility(kind).label
        seen = results.find("visibility", cell, Semel.name, visibility.AT_ONCE)
        if seen is not None:
            what = f"from commit to visible, {cell}: share that is visible at once, in the worst round"
            found.append(Row(what, counted(len(seen.values), "round"), min(seen.values), 1.0))
    cell = visibility.Visibility(visibility.JOURNAL).label
    read = results.find("stall", cell, Semel.name, stall.SHARE)
    if read is not None:
        what = f"a producer hangs, {cell}: share of the committed records that a reader gets meanwhile"
        found.append(row_of(what, median_of(read.values), 1.0))
    return found


def _bulk(results: Results) -> list[Row]:
    found: list[Row] = []
    for metric in (bulk.PRODUCE, bulk.CONSUME):
        for kind in bulk.KINDS:
            for partitions in (1, bulk.MANY):
                cell = bulk.Bulk(bulk.KIB, kind, partitions).label
                what = f"bulk, {cell}: {metric}, over kafka's without a flush"
                found += _ratio(results, what, ("bulk", cell, metric), 1.0, Kafka.name)
    return found


def _pipeline(results: Results) -> list[Row]:
    found: list[Row] = []
    for step in ("source", "sink"):
        what = f"Spark, {step}, exactly-once: rows per second, over Spark's own connector on kafka"
        found += _ratio(results, what, ("pipeline", step, "rows per second"), 1.0, Kafka.name)
    return found


def _small_batches(results: Results) -> list[Row]:
    found: list[Row] = []
    for cell in small.CELLS:
        batch = SMALL_BATCH_BUSY_MAX if cell.loops else SMALL_BATCH_MAX
        for name, target in ((small.FIRST, FIRST_ROW_MAX), (small.BATCH, batch)):
            metric = small.OVER.format(name)
            ratio = results.find("small", cell.label, Semel.name, metric)
            if ratio is not None:
                what = f"small batches, {cell.label}: {metric}"
                found.append(row_of(what, median_of(ratio.values), target, "", higher_is_better=False))
    return found


def _starting(results: Results) -> list[Row]:
    cell = starting.Start(0).label
    found: list[Row] = []
    for metric, target in (
        (starting.READY, READY_OF_KAFKA),
        (starting.IDLE, MEMORY_OF_KAFKA),
        (starting.BUSY, MEMORY_OF_KAFKA),
    ):
        what = f"{metric}, over kafka's"
        where = ("starting", cell, metric)
        found += _ratio(results, what, where, target, Kafka.name, higher_is_better=False)
    return found


def _neighbours(results: Results) -> list[Row]:
    alone = results.find("neighbours", neighbours.ALONE, Semel.name, neighbours.P99)
    found: list[Row] = []
    for attack in ATTACKS:
        label = neighbours.Beside(attack).label
        beside = results.find("neighbours", label, Semel.name, neighbours.P99)
        if alone is None or beside is None:
            continue
        both = f"{statistics.median(beside.values):,.4g} and {statistics.median(alone.values):,.4g} ms"
        ratio = ratio_of(beside.values, alone.values)
        what = f"a producer {label}: p99"
        found.append(row_of(f"{what}, over alone", ratio, NOISE_MAX, both, higher_is_better=False))
        found.append(row_of(f"{what}, in ms", median_of(beside.values), NOISE_MS_MAX, higher_is_better=False))
    return found


def _ratio(
    results: Results,
    what: str,
    where: tuple[str, str, str],
    target: float,
    other: str,
    *,
    higher_is_better: bool = True,
) -> list[Row]:
    """Return the ratio of Semel's figure to another's, if both were measured."""
    return ratio_rows(results, what, where, (Semel.name, other), target, higher_is_better=higher_is_better)
