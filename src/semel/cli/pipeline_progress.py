"""The progress of `semel pipeline run`: a live table at a terminal, else one line per batch."""

import sys
import time
from dataclasses import asdict
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from semel.cli.output import say
from semel.printable import as_json, printable, printable_lines
from semel.times import span_text

if TYPE_CHECKING:
    from rich.table import Table

    from semel.pipeline import Pipeline
    from semel.spark.pipeline.progress import Progress
    from semel.spark.pipeline.running import Restarted

BAR_WIDTH = 24


def view(pipeline: "Pipeline", *, with_json: bool) -> "Lines | Screen":
    """Return the view for what standard output is, or for programs."""
    if not with_json and sys.stdout.isatty():
        return Screen(pipeline.id, list(pipeline.sinks))
    return Lines(as_json=with_json)


class Lines:
    """One line for every batch that had rows, on standard output."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        sys.stdout.flush()

    def show(self, event: "Progress | Restarted | None") -> None:
        """Print the event."""
        from semel.spark.pipeline.progress import Progress

        if event is None or (isinstance(event, Progress) and event.rows == 0):
            return
        if self._as_json:
            kind = "batch" if isinstance(event, Progress) else "restart"
            text = as_json({"event": kind, **asdict(event)})
        elif isinstance(event, Progress):
            took = span_text(event.duration_ms)
            text = (
                f"{event.pipeline}  batch {event.batch}: {event.rows:,} rows in {took}, "
                f"{event.rows_per_second:,.0f} rows/s, {event.lag:,} behind"
            )
        else:
            text = f"{event.pipeline}  restarted: {event.why}"
        sys.stdout.write(printable_lines(text) + "\n")
        sys.stdout.flush()


class Screen:
    """A table on the terminal with a row for every query."""

    def __init__(self, pipeline_id: str, names: list[str]) -> None:
        from rich.console import Console
        from rich.live import Live

        self._title = pipeline_id
        self._rows: dict[str, dict[str, Any]] = {name: {"total": 0} for name in names}
        self._live = Live(console=Console(), get_renderable=self.table, refresh_per_second=4)

    def __enter__(self) -> Self:
        self._live.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.__exit__(kind, error, trace)

    def show(self, event: "Progress | Restarted | None") -> None:
        """Keep the progress for the next drawing of the table; report a restart at once."""
        from semel.spark.pipeline.progress import Progress

        if isinstance(event, Progress):
            row = self._rows[event.pipeline]
            row["total"] += event.rows
            row["last"], row["seen_at"] = event, time.monotonic()
        elif event is not None:
            say(f"{event.pipeline} was restarted: {event.why}")

    def table(self) -> "Table":
        """Return the current table of all queries."""
        from rich import box
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        table = Table(
            title=Text(printable(self._title)), title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False
        )
        table.add_column("query")
        for name in ("batch", "rows", "rows/s", "lag", "took", "age"):
            table.add_column(name, justify="right")
        table.add_column("read", width=BAR_WIDTH)
        for query, row in self._rows.items():
            shown = Text(printable(query))  # as a Text, so that rich finds no markup in it
            last: Progress | None = row.get("last")
            if last is None:
                table.add_row(shown, "-", "-", "-", "-", "-", "-", "starting")
                continue
            age_ms = int((time.monotonic() - row["seen_at"]) * 1000)
            bar = ProgressBar(
                total=max(1, row["total"] + last.lag), completed=max(row["total"], 1 - last.lag)
            )
            table.add_row(
                shown,
                str(last.batch),
                f"{row['total']:,}",
                f"{last.rows_per_second:,.0f}",
                f"{last.lag:,}",
                span_text(last.duration_ms),
                span_text(age_ms),
                bar,
            )
        return table
