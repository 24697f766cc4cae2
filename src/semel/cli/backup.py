"""`semel backup`: copies a data directory, even while a broker runs on it."""

import time
from pathlib import Path
from typing import Annotated

import typer

from semel.cli.options import Json
from semel.cli.output import say, show, show_json

FOUND = 1
SECONDS_BETWEEN = 1.0


def backup(
    directory: Annotated[
        Path,
        typer.Argument(
            metavar="DIR", help="A data directory; a broker may run on it.", exists=True, file_okay=False
        ),
    ],
    target: Annotated[
        Path, typer.Argument(metavar="TARGET", help="The copy; it must not exist, or be an empty directory.")
    ],
    as_json: Json = False,
) -> None:
    """Copy a data directory, and compare the checksum of every record batch in the copy.

    Works while a broker runs on DIR. The copy then has everything that was acknowledged before the command
    began. It is made in TARGET.partial and renamed when it is complete. To restore it, start a broker on it,
    or on a copy of it: semel serve --data TARGET

    Try:  semel backup ./log ./log-backup

    Exit codes: 0 done; 1 it could not be made, or batches are damaged in DIR and so in TARGET; 2 wrong usage.
    """
    from semel.store.embedded.tools.backup import back_up

    reported_at = time.monotonic()

    def progress(what: str, done: int, total: int) -> None:
        nonlocal reported_at
        if time.monotonic() - reported_at >= SECONDS_BETWEEN:
            reported_at = time.monotonic()
            say(f"{what} {done >> 20} of {max(total, done) >> 20} MiB")

    made = back_up(directory, target, progress)
    if as_json:
        show_json(
            {
                "target": str(target),
                "commit": made.commit_number,
                "batches": made.batches,
                "batch_bytes": made.batch_bytes,
                "damaged": [str(each) for each in made.damaged],
                "broker_was_running": made.was_running,
            }
        )
    else:
        for each in made.damaged:
            show(f"Damaged in {directory}, too: {each}")
        show(
            f"{target} holds everything up to commit {made.commit_number}: {made.batches} batches,"
            f" {made.batch_bytes} bytes. Restore it with: semel serve --data {target}"
        )
    if made.damaged:
        raise typer.Exit(FOUND)
