"""docs/benchmarks.md, its plots and the figures of README.md, from the results and from nothing else."""

import statistics
from collections.abc import Sequence
from pathlib import Path

from bench.figures import Estimate, number, ratio_of
from bench.plots import bar_plot, line_plot, ratio_plot
from bench.readme import readme
from bench.reasons import why
from bench.results import About, Metric, Results, by_reason
from bench.rows import Row, table
from bench.side_by_side import growth
from bench.side_by_side.bar import rows
from bench.side_by_side.catalogue import WORKLOADS
from bench.subjects import SUBJECTS, FlushingKafka, Kafka, Semel

SHARE = "share"
PLOTS = "plots"

HEAD = """# Benchmarks

Written by `make bench` from [the raw results](../results/benchmarks.json); do not edit. Each ratio compares
the same client doing the same work in the same run; absolute rates belong to the machine they were taken on
and are only shown to give them a size. Subjects take turns in every round. What is shown is the median of the
rounds, with the lowest and the highest; ratios are medians of the rounds' ratios, with an interval (bootstrap
over rounds). From six rounds on they are in it with 95 % confidence; with fewer it is the lowest to the
highest, which is less sure; a figure that stands alone is of one round. How to see where the time goes is in
[profiles.md](profiles.md).

{environment}

{seconds:,.0f} seconds in all. Each part says which run it is of; the line above is of the newest.

## Who is measured

- **Semel**: `semel serve` on a directory; it answers when what it says is on disk.
- **kafka**: Apache Kafka, one node in KRaft mode, as it comes: it answers before anything is flushed.
- **kafka-flush**: the same with `log.flush.interval.messages=1`, which is the promise that Semel makes.
- **mock**: librdkafka's in-memory mock cluster, which keeps nothing: the fastest broker that it can meet.

All run at the same time, each in a process of its own, and clients work with one at a time.
"""

BAR = """
## The bar

{count}

{table}
{reasons}"""

BARS = """
## Beside the client's floor

Targets of earlier work, each with a measurement of its own. {measured}

{table}
{reasons}"""


def write(results: Results, root: Path) -> None:
    """The page and its plots, and the figures of README.md."""
    docs = root / "docs"
    plots = docs / PLOTS
    plots.mkdir(exist_ok=True)
    for name, text in pictures(results).items():
        (plots / name).write_text(text, encoding="utf-8")
    (docs / "benchmarks.md").write_text(document(results), encoding="utf-8")
    front = root / "README.md"
    front.write_text(readme(front.read_text(encoding="utf-8"), results), encoding="utf-8")


def document(results: Results) -> str:
    where = ", ".join(f"{name} {value}" for name, value in results.environment.items())
    parts = [HEAD.format(environment=where, seconds=results.seconds)]
    if results.bars:
        measured = _measured(results.bars_measured)
        parts.append(
            BARS.format(measured=measured, table=table(results.bars), reasons=_reasons(results.bars))
        )
    targets = rows(results)
    if targets:
        met = sum(row.met for row in targets)
        count = f"{met} of {len(targets)} are reached."
        parts.append(BAR.format(count=count, table=table(targets), reasons=_reasons(targets)))
    for about in _in_order(results):
        parts.append(_section(results, about))
    left_out = results.left_out()
    if left_out:
        parts.append("\n## Not measured\n\n" + "".join(f"- {each}\n" for each in left_out))
    return "".join(parts)


def _reasons(targets: Sequence[Row]) -> str:
    """Why some are not reached."""
    lines = by_reason((row.what, why(row.what)) for row in targets if not row.met)
    return "\nWhat is not reached, and why:\n\n" + "".join(f"- {each}\n" for each in lines) if lines else ""


def pictures(results: Results) -> dict[str, str]:
    """The plots, by the names of their files."""
    found: dict[str, str] = {}
    for about in _in_order(results):
        if about.name == growth.Growth.name:
            for what in growth.FIRST:
                found[_growth_file(what)] = _growth_plot(results, what)
        else:
            found[f"{about.name}.svg"] = _plot(results, about)
    return found


def _in_order(results: Results) -> list[About]:
    """By the order in which the workloads are listed, whatever was measured last."""
    order = [each.name for each in WORKLOADS]
    return sorted(results.workloads, key=lambda about: order.index(about.name))


def _section(results: Results, about: About) -> str:
    parts = [f"\n## {about.title}\n\n{about.text}\n\n{_measured(about.measured)}\n"]
    if about.name == growth.Growth.name:
        parts.append(_growth_table(results))
        parts += [f"\n![{what}]({PLOTS}/{_growth_file(what)})\n" for what in growth.FIRST]
        return "".join(parts)
    parts.append(f"\n![{about.title}]({PLOTS}/{about.name}.svg)\n")
    tables = [_table(results, about, each) for each in about.metrics if _cells(results, about, each)]
    parts += tables[:1]
    if tables[1:]:
        more = "".join(tables[1:])
        parts.append(f"\n<details><summary>More figures</summary>\n{more}\n</details>\n")
    return "".join(parts)


def _measured(run: str) -> str:
    return f"(Measured: {run}.)"


def _table(results: Results, about: About, metric: Metric) -> str:
    names = _subjects(results, about.name)
    better = "more is better" if metric.higher_is_better else "less is better"
    others = [each.name for each in (Kafka, FlushingKafka) if each.name in names]
    head = [f"{metric.name}, {metric.unit}", *names, *(f"Semel over {each}" for each in others)]
    lines = [f"\n| {' | '.join(head)} |", f"|{' --- |' * len(head)}"]
    for cell in _cells(results, about, metric):
        values = {
            name: found.values
            for name in names
            if (found := results.find(about.name, cell, name, metric.name)) is not None
        }
        shown = [_spread(values[name]) if name in values else "–" for name in names]
        shown += [_beside(values, each) for each in others]
        lines.append(f"| {cell} | {' | '.join(shown)} |")
    return "\n".join(lines) + f"\n\n({better})\n"


def _beside(values: dict[str, list[float]], other: str) -> str:
    if Semel.name not in values or other not in values or not all(values[other]):
        return "–"
    each = ratio_of(values[Semel.name], values[other])
    if each.rounds == 1:
        return number(each.value)
    return f"{number(each.value)} ({number(each.low)} to {number(each.high)})"


def _spread(values: Sequence[float]) -> str:
    middle = number(statistics.median(values))
    return f"{middle} ({number(min(values))} to {number(max(values))})" if len(values) > 1 else middle


def _subjects(results: Results, workload: str) -> list[str]:
    found = {series.subject for series in results.of(workload)}
    return [each.name for each in SUBJECTS if each.name in found]


def _cells(results: Results, about: About, metric: Metric) -> list[str]:
    return list(dict.fromkeys(each.cell for each in results.of(about.name) if each.metric == metric.name))


def _plot(results: Results, about: About) -> str:
    """The first metric: shares as they are, all else beside Apache Kafka."""
    metric = about.metrics[0]
    names = _subjects(results, about.name)
    cells = _cells(results, about, metric)
    better = "more is better" if metric.higher_is_better else "less is better"
    if metric.unit == SHARE or Kafka.name not in names:
        amounts = {
            cell: {
                name: statistics.median(found.values)
                for name in names
                if (found := results.find(about.name, cell, name, metric.name)) is not None
            }
            for cell in cells
        }
        return bar_plot(f"{about.title}: {metric.name}, {metric.unit} ({better})", amounts)
    ratios: dict[str, dict[str, Estimate]] = {}
    for cell in cells:
        floor = results.find(about.name, cell, Kafka.name, metric.name)
        if floor is not None and all(floor.values):
            ratios[cell] = {
                name: ratio_of(found.values, floor.values)
                for name in names
                if (found := results.find(about.name, cell, name, metric.name)) is not None
            }
    return ratio_plot(f"{about.title}: {metric.name}, as a multiple of kafka's ({better})", ratios)


def _growth_file(what: str) -> str:
    return f"growth-{what.replace(' ', '-')}.svg"


def _growth_plot(results: Results, what: str) -> str:
    series = {
        name: growth.points(results, what, name, growth.SECONDS)
        for name in _subjects(results, growth.Growth.name)
    }
    return line_plot(f"How cost grows: {what}", what, "seconds", {k: v for k, v in series.items() if v})


def _growth_table(results: Results) -> str:
    lines = ["\n| work | subject | cost | slope | |", "| --- | --- | --- | --- | --- |"]
    for each in growth.slopes(results):
        flag = "**faster than the work**" if each.is_faster_than_work else ""
        lines.append(f"| {each.what} | {each.subject} | {each.metric} | {each.exponent:.2f} | {flag} |")
    return "\n".join(lines) + "\n"
