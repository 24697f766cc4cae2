"""`semel check`: search a recorded history for anomalies."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from semel.cli.command import command
from semel.cli.options import Option, argument
from semel.cli.output import Answer, say_error
from semel.cli.spark import Master, SparkOptions, running_spark, spark_errors

if TYPE_CHECKING:
    from semel.check import Verdict

FOUND = 1
BAD_FILE = 2


@command()
def check(
    histories: Annotated[
        list[Path], argument("HISTORY…", "Files of one history, one operation in a line of JSON.")
    ],
    spark: Annotated[
        bool, Option("Check on Spark: for histories that are too large for one process.")
    ] = False,
    master: Master = None,
) -> Answer:
    """Search a recorded history for anomalies: lost, duplicated, torn, aborted or early records and more.

    Prints what was checked and, for every anomaly, its definition, how often it occurs, and the few
    operations that prove it. docs/checker.md describes the format, and how to record your own pipeline.

    Try:  semel check history-*.jsonl

    Exit codes: 0 no anomalies; 1 anomalies were found; 2 wrong usage, or a file is not a history.
    """
    from semel.check import HistoryError, read_history
    from semel.check import check as check_history

    try:
        verdict = _on_spark(histories, master) if spark else check_history(read_history(histories))
    except (HistoryError, OSError) as error:
        say_error(str(error))
        raise typer.Exit(BAD_FILE) from None
    return Answer(verdict.as_json(), str(verdict), code=0 if verdict.is_clean else FOUND)


def _on_spark(histories: list[Path], master: str | None) -> "Verdict":
    for path in histories:
        path.stat()  # Report a missing file here: the error of Spark would be long.
    with spark_errors(), running_spark("semel check", SparkOptions(master)) as session:
        from semel.spark.pipeline.check import check_files

        return check_files(session, [path.absolute() for path in histories])
