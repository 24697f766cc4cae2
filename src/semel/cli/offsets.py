"""`semel offsets`: the first and last offsets of a topic's partitions, or their offsets at a time."""

from typing import Annotated, Any

import typer

from semel.cli.options import (
    DEFAULT_BOOTSTRAP,
    Bootstrap,
    Isolation,
    IsolationName,
    Json,
    connected,
    moment_ms,
)
from semel.cli.output import show_json, show_rows
from semel.times import time_text


def offsets(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="The name of a topic.")],
    at: Annotated[
        str | None,
        typer.Option(
            "--at", metavar="TIME", help="Also the offset of the first record at or after this time."
        ),
    ] = None,
    isolation: Isolation = IsolationName.uncommitted,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: Json = False,
) -> None:
    """Show the earliest and the latest offset of each partition.

    The latest is the offset of the next record. With --isolation read_committed it is the last stable offset,
    where such a reader stops. TIME is ISO 8601, local unless it has a zone, or milliseconds since 1970.

    Try:  semel offsets orders --at 2026-01-31T18:00:00Z
    """
    from semel.client import EARLIEST, LATEST, Admin

    time_ms = moment_ms(at, "--at") if at is not None else None
    with connected(bootstrap) as client:
        topics = Admin(client).topics
        keys = [(topic, each.partition) for each in topics.describe(topic).partitions]
        first = topics.offsets(dict.fromkeys(keys, EARLIEST), isolation.wire)
        last = topics.offsets(dict.fromkeys(keys, LATEST), isolation.wire)
        found = topics.offsets(dict.fromkeys(keys, time_ms), isolation.wire) if time_ms is not None else {}
    rows: list[dict[str, Any]] = []
    for key in keys:
        row: dict[str, Any] = {"partition": key[1], "earliest": first[key].offset, "latest": last[key].offset}
        if time_ms is not None:
            there = found[key].offset >= 0
            row["at"] = found[key].offset if there else None
            row["at_time"] = time_text(found[key].timestamp) if there else None
        rows.append(row)
    if as_json:
        show_json({"topic": topic, "partitions": rows})
    else:
        show_rows(rows, empty="")
