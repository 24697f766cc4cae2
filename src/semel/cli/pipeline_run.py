"""`semel pipeline run`: runs a pipeline in the foreground, shows its progress, and stops it."""

import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from semel.cli.options import client_settings
from semel.cli.output import say
from semel.cli.pipeline_screen import Lines, Screen, View
from semel.cli.sparking import SparkSettings, running_spark, sparking

if TYPE_CHECKING:
    from semel.pipeline import Pipeline


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
