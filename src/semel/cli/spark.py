"""`semel spark-submit`. For the commands that need Spark: its options, its start, and its errors."""

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, NamedTuple

import typer

from semel.cli.options import Option, pairs
from semel.cli.output import say_error

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WRONG_FILE = 2
FAILED = 1
#: All arguments are Spark's, including --help.
ALL_ARGUMENTS: Final = {
    "allow_extra_args": True,
    "ignore_unknown_options": True,
    "help_option_names": [],
}
LogFile = Annotated[Path | None, Option("Where Spark's own log goes. [default: standard error]", "FILE")]
Master = Annotated[str | None, Option("Where Spark runs. [default: this machine, local[*]]", "URL")]


@contextmanager
def spark_errors() -> Iterator[None]:
    """End the command with a sentence and an exit code on expected errors."""
    if find_spec("pyspark") is None:
        say_error("this needs Spark: pip install 'semel[spark]'.")
        raise typer.Exit(FAILED)
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    from semel.pipeline import DeclarationError
    from semel.spark import DataLoss, JavaNotFound, OptionError, PipelineError
    from semel.spark.pipeline.running import explain

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


class SparkOptions(NamedTuple):
    """Where Spark runs, and how."""

    master: Master = None
    conf: Annotated[list[str] | None, Option("A setting of Spark; may be repeated.", "NAME=VALUE")] = None
    log: LogFile = None

    def check(self) -> None:
        """Refuse settings that are not NAME=VALUE."""
        self.settings()

    def settings(self) -> Mapping[str, str]:
        """Return the settings of Spark."""
        return pairs(self.conf or (), "--conf")


@contextmanager
def running_spark(name: str, options: SparkOptions) -> "Iterator[SparkSession]":
    """Provide a SparkSession for the duration of a command."""
    from semel.spark import session

    builder = session(name, master=options.master)
    # `spark_errors` reports failures in a sentence; the log of Java is written only to a file.
    level = "OFF" if options.log is None else "WARN"
    for setting, value in {"spark.log.level": level, **options.settings()}.items():
        builder.config(setting, value)
    with _java_writes_to(options.log):
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


def spark_submit(context: typer.Context) -> None:
    """Run Spark's own spark-submit, with a Java that can run it and with this Python.

    All arguments are those of spark-submit. JAVA_HOME and PYSPARK_PYTHON are used if they are set; otherwise
    it uses the Java that it finds, or the one of 'semel[spark]', and the Python that runs this command, which
    has Semel installed. Executors on other machines need Semel too: see docs/spark-clusters.md.

    Try:  semel spark-submit --master local[2] job.py
    """
    with spark_errors():
        import pyspark

        from semel.spark.driver import java

        java.prepare()
    home = Path(pyspark.__file__).parent
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    program = Path(os.environ.setdefault("SPARK_HOME", str(home)), "bin/spark-submit")
    os.execv(program, [str(program), *context.args])
