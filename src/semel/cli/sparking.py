"""Starts Spark for the commands that need it, and reports its errors."""

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from semel.cli.output import say_error

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WRONG_FILE = 2
FAILED = 1


@contextmanager
def sparking() -> Iterator[None]:
    """End the command with a sentence and an exit code on expected errors."""
    if find_spec("pyspark") is None:
        say_error("this needs Spark: pip install 'semel[spark]'.")
        raise typer.Exit(FAILED)
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    from semel.pipeline import DeclarationError
    from semel.spark import DataLoss, JavaNotFound, OptionError, PipelineError
    from semel.spark.pipeline.failures import explain

    try:
        yield
    except DeclarationError as error:
        say_error(f"{error}.")
        raise typer.Exit(WRONG_FILE) from error
    except (PipelineError, OptionError, DataLoss, JavaNotFound) as error:
        say_error(f"{str(error).rstrip('.')}.")
        raise typer.Exit(FAILED) from error
    except PySparkException as error:
        say_error(explain(error))
        raise typer.Exit(FAILED) from error
    except (Py4JError, ConnectionError) as error:
        say_error(f"Spark's Java process has ended ({type(error).__name__}); see its log.")
        raise typer.Exit(FAILED) from error


@dataclass(frozen=True, slots=True)
class SparkSettings:
    """Where Spark runs, and how."""

    master: str | None
    conf: Mapping[str, str]
    log: Path | None


@contextmanager
def running_spark(name: str, settings: SparkSettings) -> "Iterator[SparkSession]":
    """Provide a SparkSession for the duration of a command."""
    from semel.spark import session

    builder = session(name, master=settings.master)
    # `sparking` reports failures in a sentence; the log of Java is written only to a file.
    level = "OFF" if settings.log is None else "WARN"
    for setting, value in {"spark.log.level": level, **settings.conf}.items():
        builder.config(setting, value)
    with _java_writes_to(settings.log):
        spark = builder.getOrCreate()
    try:
        yield spark
    finally:
        spark.stop()


@contextmanager
def _java_writes_to(log: Path | None) -> Iterator[None]:
    """Redirect standard output and error while Java starts: it keeps the outputs that it starts with."""
    outputs = (sys.stdout.fileno(), sys.stderr.fileno())
    if log is not None:
        log.parent.mkdir(parents=True, exist_ok=True)
    to = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644) if log else os.dup(outputs[1])
    kept = [os.dup(each) for each in outputs]
    sys.stdout.flush()
    for each in outputs:
        os.dup2(to, each)
    try:
        yield
    finally:
        sys.stdout.flush()
        for each, original in zip(outputs, kept, strict=True):
            os.dup2(original, each)
            os.close(original)
        os.close(to)
