"""`semel migrate`: copies a data directory to a new cluster."""

import time
from pathlib import Path
from typing import Annotated

import typer

from semel.cli.options import Json, RequiredChunks, RequiredLedger
from semel.cli.output import say, show, show_json

SECONDS_BETWEEN = 1.0


def migrate(
    directory: Annotated[
        Path,
        typer.Argument(
            metavar="DIR", help="A data directory that no broker has open.", exists=True, file_okay=False
        ),
    ],
    ledger: RequiredLedger,
    chunks: RequiredChunks,
    as_json: Json = False,
) -> None:
    """Copy the data directory of a stopped broker to a PostgreSQL database and an object store.

    The cluster has the same id, topics, offsets, records, producers, groups and transactions, even open ones.
    Everything is read back and compared. The database must not have a cluster yet. The last step creates it:
    if anything fails before, there is no cluster, and the command can be repeated. DIR is not changed; do
    not start a broker on it again. Start brokers on the cluster instead: semel serve --ledger … --chunks …

    Try:  semel migrate ./log --ledger postgresql://semel@localhost/semel --chunks s3://bucket/semel

    Exit codes: 0 done; 1 not done; 2 wrong usage.
    """
    import asyncio

    from semel.store.opening import Remote, check_packages

    check_packages()
    from semel.store.cluster.migration import migrate

    reported_at = time.monotonic()

    def progress(what: str, done: int, total: int) -> None:
        nonlocal reported_at
        if time.monotonic() - reported_at >= SECONDS_BETWEEN:
            reported_at = time.monotonic()
            say(f"{what} {done >> 20} of {max(total, done) >> 20} MiB")

    made = asyncio.run(migrate(directory, Remote(ledger, chunks), progress, say))
    copied = made.copied
    if as_json:
        show_json({"cluster_id": made.cluster_id, **copied._asdict()})
        return
    show(
        f"Cluster {made.cluster_id}: {copied.topics} topics with {copied.partitions} partitions,"
        f" {copied.batches} batches ({copied.batch_bytes} bytes), {copied.producers} producers,"
        f" {copied.transactional_ids} transactional ids ({copied.open_transactions} open transactions),"
        f" {copied.groups} groups with {copied.offsets} offsets. All of it was compared."
    )
    show(f"Start brokers with --ledger and --chunks, and none on {directory} again.")
