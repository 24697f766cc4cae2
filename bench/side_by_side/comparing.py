"""Rows of a table of targets, from the figures of a run."""

import statistics

from bench.figures import Estimate, ratio_of
from bench.results import Results
from bench.rows import Row


def ratio_rows(
    results: Results,
    what: str,
    where: tuple[str, str, str],
    pair: tuple[str, str],
    target: float,
    *,
    higher_is_better: bool = True,
) -> list[Row]:
    """Return the ratio of one subject's figure to another's, if both were measured.

    `where` is workload, cell and metric.
    """
    workload, cell, metric = where
    mine, other = (results.find(workload, cell, name, metric) for name in pair)
    if mine is None or other is None:
        return []
    both = f"{statistics.median(mine.values):,.4g} and {statistics.median(other.values):,.4g}"
    ratio = ratio_of(mine.values, other.values)
    return [row_of(what, ratio, target, both, higher_is_better=higher_is_better)]


def row_of(
    what: str, estimate: Estimate, target: float, more: str = "", *, higher_is_better: bool = True
) -> Row:
    """Return an estimate beside its target."""
    seen = "one round" if estimate.rounds == 1 else f"{estimate.low:,.2f} to {estimate.high:,.2f}"
    return Row(what, seen + (f"; {more}" if more else ""), estimate.value, target, higher_is_better)
