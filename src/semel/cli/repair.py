"""`semel check-storage` and `semel repair`: check and repair a data directory that no broker has open."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from semel.cli.options import Json
from semel.cli.output import say, show, show_json

if TYPE_CHECKING:
    from semel.store.embedded.tools.repair import Plan

FOUND = 1

Directory = Annotated[
    Path,
    typer.Argument(
        metavar="DIR", help="A data directory that no broker has open.", exists=True, file_okay=False
    ),
]


def check_storage(directory: Directory, as_json: Json = False) -> None:
    """Read everything in a data directory and verify its checksums. Changes nothing.

    Reports whether ledger, wal and chunks belong together, and lists every damaged batch by topic, partition
    and offsets. A running broker does the same slowly in the background (the scrub).

    Try:  semel check-storage ./log

    Exit codes: 0 no damage; 1 something is damaged, or the directory is in use; 2 wrong usage.
    """
    from semel.store.embedded.tools.check_storage import check_storage as check

    checked = check(directory, lambda done, total: say(f"{done >> 20} of {max(total, done) >> 20} MiB"))
    if as_json:
        show_json(
            {
                "problems": checked.problems,
                "batches": checked.batches,
                "batch_bytes": checked.batch_bytes,
                "damaged": [
                    {
                        "topic": each.topic,
                        "partition": each.partition,
                        "base_offset": each.base_offset,
                        "last_offset": each.last_offset,
                        "reason": each.reason,
                    }
                    for each in checked.damaged
                ],
            }
        )
    else:
        for problem in checked.problems:
            show(problem)
        for each in checked.damaged:
            show(str(each))
        show(
            f"{checked.batches} batches, {checked.batch_bytes} bytes; {len(checked.damaged)} damaged batches,"
            f" {len(checked.problems)} other problems."
        )
    if not checked.is_sound:
        raise typer.Exit(FOUND)


def repair(
    directory: Directory,
    apply: Annotated[
        bool, typer.Option("--apply", help="Apply the repair. Without this, only show it.")
    ] = False,
    salvage: Annotated[
        bool,
        typer.Option(
            "--salvage",
            help="Discard the ledger and build one from the chunks. Topics, offsets and groups are lost.",
        ),
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
        for each in plan.leftovers:
            show(f"  {each} is left of an interrupted repair; --apply removes it")
        return
    _tell(plan)
    if plan.problems and not plan.actions:
        show("Nothing was changed: a broker that is started on this directory begins a new log.")
        raise typer.Exit(FOUND)
    if not apply:
        show(f"Nothing was changed. To do it: semel repair {directory} --apply{_flag(plan)}")
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


def _tell(plan: "Plan") -> None:
    for problem in plan.problems:
        show(f"Found: {problem}.")
    for action in plan.actions:
        show(f"  {action}")


def _flag(plan: "Plan") -> str:
    return " --salvage" if plan.needs_salvage else ""
