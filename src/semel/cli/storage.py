"""The commands for data directories: `semel backup`, `migrate`, `check-storage` and `repair`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from semel.cli.command import command
from semel.cli.options import Option, RequiredChunks, RequiredLedger, argument, existing_directory
from semel.cli.output import Answer, ByteProgress, Columns, say, show

if TYPE_CHECKING:
    from semel.store.embedded.tools.check_storage import DamagedBatch
    from semel.store.embedded.tools.repair import RepairPlan

FOUND = 1

Directory = Annotated[Path, existing_directory("A data directory that no broker has open.")]
DAMAGED: "Columns[DamagedBatch]" = Columns("topic", "partition", "base_offset", "last_offset", "reason")


@command()
def backup(
    directory: Annotated[Path, existing_directory("A data directory; a broker may run on it.")],
    target: Annotated[Path, argument("TARGET", "The copy; it must not exist, or be an empty directory.")],
) -> Answer:
    """Copy a data directory, and compare the checksum of every record batch in the copy.

    Works while a broker runs on DIR. The copy then has everything that was acknowledged before the command
    began. It is made in TARGET.partial and renamed when it is complete. To restore it, start a broker on it,
    or on a copy of it: semel serve --data TARGET

    Try:  semel backup ./log ./log-backup

    Exit codes: 0 done; 1 it could not be made, or batches are damaged in DIR and so in TARGET; 2 wrong usage.
    """
    from semel.store.embedded.tools.backup import back_up

    made = back_up(directory, target, ByteProgress())
    data = {
        "target": str(target),
        "commit": made.commit_number,
        "batches": made.batches,
        "batch_bytes": made.batch_bytes,
        "damaged": [str(batch) for batch in made.damaged],
        "broker_was_running": made.was_running,
    }
    return Answer(
        data,
        *(f"Damaged in {directory}, too: {batch}" for batch in made.damaged),
        f"{target} holds everything up to commit {made.commit_number}: {made.batches} batches,"
        f" {made.batch_bytes} bytes. Restore it with: semel serve --data {target}",
        code=FOUND if made.damaged else 0,
    )


@command()
def migrate(directory: Directory, ledger: RequiredLedger, chunks: RequiredChunks) -> Answer:
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

    made = asyncio.run(migrate(directory, Remote(ledger, chunks), ByteProgress(), say))
    copied = made.copied
    return Answer(
        {"cluster_id": made.cluster_id, **copied._asdict()},
        f"Cluster {made.cluster_id}: {copied.topics} topics with {copied.partitions} partitions,"
        f" {copied.batches} batches ({copied.batch_bytes} bytes), {copied.producers} producers,"
        f" {copied.transactional_ids} transactional ids ({copied.open_transactions} open transactions),"
        f" {copied.groups} groups with {copied.offsets} offsets. All of it was compared.",
        f"Start brokers with --ledger and --chunks, and none on {directory} again.",
    )


@command()
def check_storage(directory: Directory) -> Answer:
    """Read everything in a data directory and verify its checksums. Changes nothing.

    Reports whether ledger, wal and chunks belong together, and lists every damaged batch by topic, partition
    and offsets. A running broker does the same slowly in the background (the scrub).

    Try:  semel check-storage ./log

    Exit codes: 0 no damage; 1 something is damaged, or the directory is in use; 2 wrong usage.
    """
    from semel.store.embedded.tools.check_storage import check_storage as check

    checked = check(directory, lambda done, total: say(f"{done >> 20} of {max(total, done) >> 20} MiB"))
    data = {
        "problems": checked.problems,
        "batches": checked.batches,
        "batch_bytes": checked.batch_bytes,
        "damaged": DAMAGED.rows(checked.damaged),
    }
    return Answer(
        data,
        *checked.problems,
        *map(str, checked.damaged),
        f"{checked.batches} batches, {checked.batch_bytes} bytes; {len(checked.damaged)} damaged batches,"
        f" {len(checked.problems)} other problems.",
        code=0 if checked.is_sound else FOUND,
    )


@command()
def repair(
    directory: Directory,
    apply: Annotated[bool, Option("Apply the repair. Without this, only show it.")] = False,
    salvage: Annotated[
        bool, Option("Discard the ledger and build one from the chunks. Topics, offsets and groups are lost.")
    ] = False,
) -> None:
    """Repair a data directory that the broker refuses to start with, and report what the repair loses.

    First try to restore the missing files: a backup of the whole directory is better than any repair. Without
    --apply nothing is changed. Files that are no longer used are renamed, never deleted.

    Try:  semel repair ./log

    Exit codes: 0 nothing is wrong, or it was repaired; 1 something is wrong, or the directory is in use; 2
    wrong usage.
    """
    import asyncio

    from semel.store.embedded.tools import repair as repairing
    from semel.store.embedded.tools import salvage as salvaging

    plan = repairing.plan(directory)
    if not plan.problems and not salvage and not (plan.leftovers and apply):
        show("Nothing is wrong: ledger, wal and chunks belong together.")
        for leftover in plan.leftovers:
            show(f"  {leftover} is left of an interrupted repair; --apply removes it")
        return
    _show(plan)
    if plan.problems and not plan.actions:
        show("Nothing was changed: a broker that is started on this directory begins a new log.")
        raise typer.Exit(FOUND)
    if not apply:
        flag = " --salvage" if plan.needs_salvage else ""
        show(f"Nothing was changed. To do it: semel repair {directory} --apply{flag}")
        raise typer.Exit(FOUND)
    if salvaging.finish_interrupted(directory):
        show("The repair that was interrupted is finished.")
        return
    if salvage:
        found = salvaging.salvage(directory)
        show(f"Salvaged {found.records} records in {found.batches} batches of {found.chunks} chunks.")
        return
    if plan.needs_salvage:
        show("Nothing was changed: the ledger cannot be repaired, and only --salvage is left.")
        raise typer.Exit(FOUND)
    asyncio.run(repairing.carry_out(directory))
    show("Repaired. Start the broker, and see 'semel check-storage' for batches that are damaged.")


def _show(plan: "RepairPlan") -> None:
    for problem in plan.problems:
        show(f"Found: {problem}.")
    for action in plan.actions:
        show(f"  {action}")
