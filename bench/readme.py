"""The figures of README.md: a few figures of the run, written between two marks together with the page."""

import statistics
from dataclasses import dataclass

from bench.figures import number, ratio_of
from bench.results import Results
from bench.side_by_side import bulk, overhead, pipeline, starting, transactions
from bench.side_by_side.transactions import BAR_RECORDS, JAVA, LIBRDKAFKA, Transaction
from bench.subjects import Kafka, Semel

BEGIN, END = "<!-- figures -->\n", "<!-- /figures -->"


@dataclass(frozen=True)
class Figure:
    """One line."""

    what: str
    workload: str
    cell: str
    metric: str


def _short(client: str, partitions: int, producers: int, metric: str, unit: str) -> Figure:
    cell = Transaction(client, partitions, BAR_RECORDS, producers).label
    return Figure(f"transactions, {cell}: {unit}", transactions.Transactions.name, cell, metric)


LARGE = Transaction(LIBRDKAFKA, 1, 1000, 1).label
KIB = bulk.Bulk(bulk.KIB, "idempotent", bulk.MANY).label
EMPTY = starting.Start(0).label
FIGURES = (
    *(_short(LIBRDKAFKA, count, 1, transactions.RATE, "per second") for count in transactions.PARTITIONS),
    _short(LIBRDKAFKA, 5, 1, transactions.P99, "p99 in ms"),
    _short(LIBRDKAFKA, 5, 8, transactions.RATE, "per second"),
    _short(JAVA, 5, 1, transactions.RATE, "per second"),
    Figure(f"throughput lost to transactions, {LARGE}: share", "overhead", LARGE, overhead.OVERHEAD),
    Figure(f"written in bulk, {KIB}: records/s", "bulk", KIB, bulk.PRODUCE),
    Figure(f"read in bulk, {KIB}: records/s", "bulk", KIB, bulk.CONSUME),
    *(
        Figure(f"Spark, {step}: rows/s", "pipeline", step, pipeline.RATE)
        for step in (pipeline.SOURCE, pipeline.SINK, pipeline.COPY)
    ),
    Figure("ready when new: seconds", "starting", EMPTY, starting.READY),
    Figure("memory when idle: MiB", "starting", EMPTY, starting.IDLE),
)


def readme(text: str, results: Results) -> str:
    """Return the text with the figures of these results."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"README.md has no place for figures: {BEGIN.strip()} and {END}")
    return f"{before}{begin}{short(results)}{end}{after}"


def short(results: Results) -> str:
    """Return a table of the figures that were measured on both."""
    lines = []
    for each in FIGURES:
        ours = results.find(each.workload, each.cell, Semel.name, each.metric)
        theirs = results.find(each.workload, each.cell, Kafka.name, each.metric)
        if ours is not None and theirs is not None:
            medians = [number(statistics.median(series.values)) for series in (ours, theirs)]
            ratio = number(ratio_of(ours.values, theirs.values).value)
            lines.append(f"| {each.what} | {' | '.join(medians)} | {ratio} |\n")
    if not lines:
        return ""
    head = "| | Semel | Apache Kafka | Semel over Kafka |\n| --- | --- | --- | --- |\n"
    return f"\n{head}{''.join(lines)}\n"
