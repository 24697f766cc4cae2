"""`semel pipeline run`: runs a pipeline in the foreground, shows its progress, and stops it.

Displays the progress of `semel pipeline run`: a live table at a terminal, else one line per batch.
"""

import signal
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self

from semel.cli.options import client_settings
from semel.cli.output import say
from semel.cli.sparking import SparkSettings, running_spark, sparking
from semel.printable import as_json, printable, printable_lines
from semel.times import span_text

if TYPE_CHECKING:
    from rich.table import Table

    from semel.pipeline import Pipeline
    from semel.spark.pipeline.progress import Progress
    from semel.spark.pipeline.running import Restarted

BAR_WIDTH = 24


class View(Protocol):
    """Shows the progress of a pipeline."""

    def __enter__(self) -> Self:
        """Start."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End."""

    def show(self, event: "Progress | Restarted | None") -> None:
        """Process an event; None if there was none since the last call."""


class Lines:
    """One line for every batch that had rows, on standard output."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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


@dataclass(frozen=True, slots=True)
class Settings:
    """The arguments of the command."""

    file: Path
    bootstrap: str
    checkpoint: str
    once: bool
    trigger: str
    spark: SparkSettings
    patience_seconds: float
    as_json: bool
    is_new: bool = False


def run(settings: Settings) -> None:
    """Run until everything is read, a stop is requested, or a query fails."""
    with sparking():
        from semel.spark.pipeline import running
        from semel.spark.pipeline.file import load

        pipeline = load(settings.file)
        with running_spark(pipeline.id, settings.spark) as spark:
            stop = _Stop()
            checkpoint = _absolute(settings.checkpoint)
            place = running.Place(
                settings.bootstrap,
                checkpoint,
                settings.once,
                settings.trigger,
                client_settings(),
                settings.is_new,
            )
            watched = running.Run(spark, pipeline, place, settings.patience_seconds)
            with _view(settings, pipeline) as view:
                for event in watched.watch(lambda: stop.is_asked):
                    view.show(event)
            if stop.is_asked:
                say(f"{pipeline} has stopped. After a restart it continues where it was.")


class _Stop:
    """Notes a requested stop (SIGINT or SIGTERM). A second signal stops at once."""

    def __init__(self) -> None:
        self.is_asked = False
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._ask)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if self.is_asked:
            raise KeyboardInterrupt
        self.is_asked = True


def _absolute(checkpoint: str) -> str:
    """Make a path absolute, because Spark's working directory may be another one; a URL stays as it is."""
    return checkpoint if "://" in checkpoint else str(Path(checkpoint).absolute())


def _view(settings: Settings, pipeline: "Pipeline") -> View:
    if not settings.as_json and sys.stdout.isatty():
        return Screen(pipeline.id, list(pipeline.sinks))
    return Lines(as_json=settings.as_json)
