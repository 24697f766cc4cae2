"""Targets of the console: at most a tenth more of the broker's p99, and the load time of pages."""

from bench.console.load import LOADS, PAGES, TO_LOAD, Console, Page
from bench.console.subjects import Large, WithConsole
from bench.figures import median_of
from bench.results import Results
from bench.rows import Row
from bench.security.acls import P99
from bench.side_by_side.comparing import ratio_rows, row_of

P99_MAX = 1.1
PAGE_MS_MAX = 300.0


def rows(results: Results) -> list[Row]:
    """Return the targets that were measured."""
    pair = (WithConsole.name, Large.name)
    found: list[Row] = []
    for cell in LOADS:
        what = f"with a console and 50 browsers, {cell.label}: p99, over without"
        where = (Console.name, cell.label, P99)
        found += ratio_rows(results, what, where, pair, P99_MAX, higher_is_better=False)
    for path in PAGES:
        cell_label = Page(0, path).label
        series = results.find(Console.name, cell_label, WithConsole.name, TO_LOAD)
        if series is not None:
            what = f"console, {cell_label}: ms"
            found.append(row_of(what, median_of(series.values), PAGE_MS_MAX, higher_is_better=False))
    return found
