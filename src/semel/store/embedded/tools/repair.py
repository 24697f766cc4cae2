"""Repair a data directory that the broker refuses, when an operator decides so.

``plan`` changes nothing. ``carry_out`` continues with the usable parts, and reports what is given up:

- with a damaged or missing WAL: continue from the last good commit. Later commits are lost;
- with an older ledger: continue from its last commit. Chunks that it does not know are kept, never deleted;
- without a chunk, or with an older copy of one: reading its missing batches is an error.

Without a readable ledger, only ``salvage`` is possible. A repair that was interrupted while it replaced files
is finished before anything else (``swap``).
"""

from pathlib import Path
from typing import NamedTuple

from semel.config import Settings
from semel.store.embedded import swap
from semel.store.embedded.chunk_header import ChunkOnDisk
from semel.store.embedded.directory_lock import DirectoryLock, Witness
from semel.store.embedded.examination import (
    CHECKSUMS,
    EMPTY,
    INTERRUPTED,
    LEDGER,
    PAGES,
    Examined,
    examine_all,
)
from semel.store.embedded.files import Files, naming
from semel.store.embedded.ledger_opening import log_of
from semel.store.embedded.ledger_pages import write_renewed
from semel.store.embedded.tools.salvage import TOPIC, finish_interrupted, outlook, remove_leftovers
from semel.store.opening import open_store


class RepairPlan(NamedTuple):
    """What is wrong with a directory, and what a repair would do."""

    problems: list[str]
    actions: list[str]
    needs_salvage: bool
    """Whether there is no usable ledger."""
    leftovers: list[str]
    """Unused files of an interrupted repair."""


def plan(directory: Path) -> RepairPlan:
    """Plan a repair. Changes nothing. StoreLocked, StoreBroken."""
    lock = DirectoryLock(directory, only_looks=True)
    try:
        with naming(directory):
            return _plan(directory, examine_all(directory, lock.witness), lock.witness)
    finally:
        lock.release()


async def carry_out(directory: Path) -> RepairPlan:
    """Continue with the usable parts. Return the plan that was followed. StoreLocked, StoreBroken."""
    if finish_interrupted(directory):
        return plan(directory)
    lock = DirectoryLock(directory)
    try:
        remove_leftovers(directory, Files())
        examined = examine_all(directory, lock.witness)
        planned = _plan(directory, examined, lock.witness)
        if any(problem.kind == CHECKSUMS for problem in examined.problems):
            _renew(directory)
            examined = examine_all(directory, lock.witness)
            if not examined.problems:
                return planned
    finally:
        lock.release()
    if not planned.actions or planned.needs_salvage:
        return planned
    assert examined.ledger is not None
    # Any chunk may lack batches that the WAL would have written to it.
    gone, unsure = set[int](), set(examined.ledger.chunks)
    paths = {chunk.chunk_id: chunk.path for chunk in examined.chunks}
    for problem in examined.problems:
        if problem.kind == "foreign":
            swap.put_aside(paths[problem.chunk_id], Files())
        if problem.kind in ("foreign", "missing"):
            gone.add(problem.chunk_id)
    store = await open_store(directory, Settings(semel_disk_reserve_bytes=0), accepts=True)
    try:
        await store.ledger.forget_chunks(sorted(gone), sorted(unsure))
    finally:
        await store.close()
    return planned


def _plan(directory: Path, examined: Examined, witness: Witness | None) -> RepairPlan:
    problems = [problem.text for problem in examined.problems]
    leftovers = [str(path) for path in swap.leftovers(directory)]
    ledger = examined.ledger
    if not problems:
        return RepairPlan([], [], needs_salvage=False, leftovers=leftovers)
    if any(problem.kind == EMPTY for problem in examined.problems):
        return RepairPlan(problems, [], needs_salvage=False, leftovers=leftovers)
    if any(problem.kind == INTERRUPTED for problem in examined.problems):
        return RepairPlan(problems, ["finish it"], needs_salvage=False, leftovers=leftovers)
    owned = [chunk for chunk in examined.chunks if chunk.header is not None]
    is_foreign = ledger is not None and owned and all(_is_foreign(each, ledger.store_id) for each in owned)
    kinds = {problem.kind for problem in examined.problems}
    if ledger is None or ledger.problems or is_foreign or kinds == {PAGES}:
        actions = _by_salvage(directory, examined, witness)
        return RepairPlan(problems, actions, needs_salvage=True, leftovers=leftovers)
    return RepairPlan(problems, _by_going_on(examined), needs_salvage=False, leftovers=leftovers)


def _renew(directory: Path) -> None:
    """Replace a ledger that another program wrote with a copy that has correct page checksums."""
    ledger = directory / LEDGER
    write_renewed(ledger, swap.staged(ledger), Files())
    aside = [ledger, log_of(ledger), ledger.with_name(f"{LEDGER}-shm")]
    swap.begin(directory, [path for path in aside if path.exists()], [ledger], {}, Files())
    swap.finish(directory, Files())


def _by_salvage(directory: Path, examined: Examined, witness: Witness | None) -> list[str]:
    found = outlook(directory, examined, witness)
    actions = [f"put the right {LEDGER} back, with {LEDGER}-wal beside it, if there is a copy; or salvage:"]
    if examined.ledger is not None and all(problem.kind == PAGES for problem in examined.problems):
        actions.insert(
            0,
            "start the broker all the same: requests that need a damaged page are answered with the error"
            " KAFKA_STORAGE_ERROR; or restore a backup; or",
        )
    actions += [
        f"put {LEDGER} and the WAL aside, and make a new ledger over {len(found.kept)} chunks: one topic,"
        f" {TOPIC!r}, with a partition for each chunk, which holds its records in the order in which they"
        " were written",
    ]
    if found.only_in_wal:
        actions.append(
            f"write {len(found.only_in_wal)} batches that only the WAL has to one more chunk and partition"
        )
    if found.foreign:
        actions.append(f"put {len(found.foreign)} chunks of another store aside")
    actions.append(
        "lost by that: names of topics, offsets, groups, transactions, configs; records of aborted"
        " transactions are among the rest"
    )
    return actions + [f"lost as well: {each}" for each in found.lost]


def _by_going_on(examined: Examined) -> list[str]:
    kinds = {problem.kind for problem in examined.problems}
    actions: list[str] = []
    if CHECKSUMS in kinds:
        actions += [
            f"renew the checksums of all pages, and keep the old file as {LEDGER}{swap.ASIDE}-1;"
            f" if no other program has written {LEDGER}, put a backup back instead: pages are damaged",
        ]
    if kinds == {CHECKSUMS}:
        return actions
    actions += [f"go on after commit {examined.known}, the last that ledger and wal have"]
    if kinds & {"wal", "ledger"}:
        missing = max(examined.last_seen - examined.known, 0)
        actions.append(
            f"lost by that: at least {missing} commits that were made later, with their records"
            if missing
            else "lost by that: whatever was committed later; how much that is nobody knows"
        )
        actions.append("keep the chunks that the ledger does not know, and never delete them")
    for kind, sentence in (
        ("missing", "answer an error for the batches in chunks that are missing: {}"),
        ("old", "answer an error for the batches that are gone from chunks that are cut off or old: {}"),
        ("foreign", "put the chunks of another store aside, and answer an error for what was in: {}"),
    ):
        if kind in kinds:
            named = [str(problem.chunk_id) for problem in examined.problems if problem.kind == kind]
            actions.append(sentence.format(", ".join(named)))
    return actions


def _is_foreign(chunk: ChunkOnDisk, store_id: bytes) -> bool:
    return chunk.header is not None and chunk.header.store_id != store_id
