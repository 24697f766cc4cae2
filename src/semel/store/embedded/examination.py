"""Check that the parts of a data directory belong together, before a start changes anything.

Ledger, WAL, chunks and lock carry the same store id, and each records how far the others must be:

- the ledger: the last commit applied from the WAL, and how far each chunk is flushed;
- the frames of the WAL: their commit number, and which commits were flushed when they were written;
- the header of a chunk: the last commit at its last flush;
- the lock: the last commit that was flushed in ledger and chunks.

So the check finds a part that is missing, foreign, damaged, or older than the rest. The start then refuses,
and reports what was found and what to do. This module writes nothing.
"""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import apsw

from semel.store.contract import StoreBroken, StoreDamaged
from semel.store.embedded import swap
from semel.store.embedded.chunk_header import ChunkOnDisk, chunks_in
from semel.store.embedded.directory_lock import Witness
from semel.store.embedded.files import Files
from semel.store.embedded.files import boot_id as this_boot
from semel.store.embedded.ledger_opening import LedgerLook, is_damage, log_of, look_at, plain
from semel.store.embedded.ledger_pages import named, page_problems, was_written_elsewhere, wrong_pages
from semel.store.embedded.wal import paths_in
from semel.store.embedded.wal_reading import Frame, first_frame, read_wal, short_id

LEDGER = "ledger.db"
CHUNKS = "chunks"
LOST = "wal.lost"
"""This file marks a failed flush: unsynced work may be lost even if the system was not restarted."""
WAL_BYTES = "wal_bytes"
UNPROVEN = "unproven_chunks"
ROOM_TO_READ_BYTES = 64 * 1024
EMPTY = "empty"
"""The directory contains no part of a store."""
INTERRUPTED = "interrupted"
CHECKSUMS = "checksums"
"""Another program has written to the ledger."""
PAGES = "pages"
"""Damage in pages of the ledger that a start does not read."""


class Problem(NamedTuple):
    """Damage, or a part that does not belong to the rest."""

    text: str
    """What was found, in words."""
    kind: str = ""
    """One of the kinds above, ``ledger``, ``wal``; or, of a chunk, ``missing``, ``old``, ``foreign``."""
    chunk_id: int = 0


class Examined(NamedTuple):
    """The contents of a data directory."""

    ledger: LedgerLook | None
    """None if the directory is new, or the ledger is unreadable."""
    frames: list[Frame]
    """Commits that the ledger may lack, oldest first."""
    flushed: int
    """According to the WAL, commits up to this one were flushed."""
    last_seen: int
    """The largest commit number found anywhere. New commits need larger ones."""
    chunks: list[ChunkOnDisk]
    problems: list[Problem]
    is_accepted: bool = False
    """Whether an operator decided to continue despite the problems."""

    def accepted(self) -> "Examined":
        """Return a copy that continues despite the problems."""
        return self._replace(problems=[], is_accepted=True)

    @property
    def known(self) -> int:
        """The last commit in ledger or WAL."""
        number = 0 if self.ledger is None else self.ledger.commit_number
        return max(number, self.frames[-1].number) if self.frames else number

    def unproven(self) -> frozenset[int]:
        """Return the chunks that cannot be proven to be this store's."""
        if self.ledger is None:
            return frozenset()
        unproven = frozenset(json.loads(self.ledger.meta.get(UNPROVEN, "[]")))
        if self.is_accepted:
            unproven |= frozenset(each.chunk_id for each in self.chunks) - self.ledger.chunks.keys()
        return unproven

    def notes(self) -> dict[str, str]:
        """Return the findings that the ledger should record."""
        return {UNPROVEN: json.dumps(sorted(self.unproven()))}

    def refuse(self, directory: Path) -> None:
        """Raise StoreDamaged if there is a problem."""
        if self.problems:
            found = "; ".join(problem.text for problem in self.problems[:5])
            more = f"; and {len(self.problems) - 5} more" if len(self.problems) > 5 else ""
            raise StoreDamaged(f"the files in {directory} do not belong together: {found}{more}")


def examine(
    directory: Path,
    witness: Witness | None,
    *,
    boot_id: str | None = None,
    vfs: str = "",
) -> Examined:
    """Examine a data directory. StoreBroken if another version of Semel wrote it."""
    chunks = list(chunks_in(directory / CHUNKS))
    if swap.is_pending(directory):
        found = "a repair was interrupted while it replaced files; 'semel repair --apply' finishes it"
        return Examined(None, [], 0, 0, chunks, [Problem(found, INTERRUPTED)])
    path = directory / LEDGER
    ledger, problems = _look(path, vfs)
    if ledger is None:
        return Examined(None, [], 0, 0, chunks, problems or _without_ledger(directory, witness, chunks))
    problems += [Problem(text, "ledger") for text in ledger.problems]
    problems += _foreign_wal(directory, ledger.store_id)
    frames, flushed, last_seen = [], ledger.checkpointed, ledger.commit_number
    if ledger.stopped_cleanly:
        problems += _newer_wal(directory, ledger)
    else:
        survived = ledger.has_survived(
            this_boot() if boot_id is None else boot_id, unflushed_is_lost=(directory / LOST).exists()
        )
        read = read_wal(paths_in(directory), ledger.store_id, ledger.checkpointed, has_survived=survived)
        frames, flushed = read.frames, read.flushed
        last_seen = max(last_seen, read.last_seen)
        problems += [Problem(text, "wal") for text in _incomplete(directory, ledger)]
        problems += [Problem(text, "wal") for text in read.problems]
        problems += _behind(ledger, frames)
    known = max(ledger.commit_number, frames[-1].number if frames else 0)
    problems += _older_ledger(ledger, known, witness, chunks)
    problems += _missing(ledger, chunks)
    last_seen = max(
        last_seen,
        *(chunk.header.number for chunk in chunks if chunk.header is not None),
        witness.number if witness is not None else 0,
        0,
    )
    return Examined(ledger, frames, flushed, last_seen, chunks, problems)


def examine_all(directory: Path, witness: Witness | None) -> Examined:
    """Like ``examine``, but also read every page of the ledger, which is too slow for a start."""
    examined = examine(directory, witness)
    if examined.ledger is None and not examined.problems:
        return examined._replace(problems=[Problem(f"there is no {LEDGER} in {directory}", EMPTY)])
    if examined.ledger is None or any(problem.kind == CHECKSUMS for problem in examined.problems):
        return examined
    try:
        found = [Problem(text, PAGES) for text in page_problems(directory / LEDGER)]
    except apsw.Error as error:
        raise StoreBroken(f"{directory / LEDGER} cannot be read: {error}") from error
    return examined._replace(problems=[*examined.problems, *found])


def _look(path: Path, vfs: str) -> tuple[LedgerLook | None, list[Problem]]:
    """Return what the ledger records of itself, or why it cannot be read. StoreBroken."""
    try:
        return look_at(path, vfs=vfs), []
    except apsw.Error as error:
        if not is_damage(error):
            # SQLite needs some free space to read a log, but its error does not say so.
            is_full = Files().free_bytes(path.parent) < ROOM_TO_READ_BYTES
            hint = "; the disk is full" if is_full else ""
            raise StoreBroken(f"{path} cannot be read: {error}{hint}") from error
        if path.with_name(f"{path.name}-journal").exists():
            # SQLite keeps a rollback journal only while a new ledger is created: it rolls that back.
            return None, []
        damaged = Problem(f"{path} is damaged: {error}", "ledger")
    pages = wrong_pages(path)
    if not pages:
        return None, [damaged]
    wrong = f"the checksum of {named(pages)} in {path} is wrong"
    if was_written_elsewhere(path, pages):
        with contextlib.suppress(apsw.Error, StoreBroken):
            text = (
                f"{wrong}, and SQLite finds the database sound: a page was written by a program without"
                " Semel's page checksums (sqlite3 without -readonly, SQLite's backup, VACUUM INTO)"
            )
            return look_at(path, vfs=plain()), [Problem(text, CHECKSUMS)]
    return None, [Problem(f"{wrong}: it is damaged", "ledger")]


def _without_ledger(directory: Path, witness: Witness | None, chunks: list[ChunkOnDisk]) -> list[Problem]:
    """Report what a store wrote into a directory without a ledger. A new directory has nothing."""
    signs = [f"{len(chunks)} chunks with records"] if chunks else []
    signs += [path.name for path in paths_in(directory) if path.exists()]
    if witness is not None:
        signs.append(f"a lock that knows of commit {witness.number}")
    problems: list[Problem] = []
    if signs:
        state = "is empty" if (directory / LEDGER).exists() else "is missing"
        if log_of(directory / LEDGER).exists():
            signs.append(log_of(directory / LEDGER).name)
        problems.append(Problem(f"{directory / LEDGER} {state}, and there are {', '.join(signs)}", "ledger"))
    return problems


def _foreign_wal(directory: Path, store_id: bytes) -> Iterator[Problem]:
    for path in paths_in(directory):
        first = first_frame(path)
        if first is not None and first.owner != short_id(store_id):
            yield Problem(f"{path} belongs to another store than {LEDGER}", "wal")


def _newer_wal(directory: Path, ledger: LedgerLook) -> Iterator[Problem]:
    """Report frames newer than a cleanly stopped ledger, which has every commit of its WAL."""
    for path in paths_in(directory):
        first = first_frame(path)
        if (
            first is not None
            and first.owner == short_id(ledger.store_id)
            and first.number > ledger.commit_number
        ):
            yield Problem(
                f"{LEDGER} ends with commit {ledger.commit_number}, and {path.name} has commit"
                f" {first.number}: the ledger is an older copy",
                "ledger",
            )


def _incomplete(directory: Path, ledger: LedgerLook) -> Iterator[str]:
    """Yield the WAL files that the ledger expects and that are missing or too short."""
    wanted = int(ledger.meta.get(WAL_BYTES, "0"))
    for path in paths_in(directory) if wanted else ():
        if not path.exists():
            yield f"{path} is missing, and the last process did not stop cleanly"
        elif path.stat().st_size < wanted:
            yield f"{path} has {path.stat().st_size} bytes instead of {wanted}"


def _behind(ledger: LedgerLook, frames: list[Frame]) -> Iterator[Problem]:
    """Report a ledger that is ahead of the WAL from which it is applied."""
    end = frames[-1].number if frames else ledger.checkpointed
    if end < ledger.commit_number:
        yield Problem(
            f"{LEDGER} has followed the WAL up to commit {ledger.commit_number}, and the WAL ends"
            f" with commit {end}: it is an older copy, or damaged",
            "wal",
        )


def _older_ledger(
    ledger: LedgerLook, known: int, witness: Witness | None, chunks: list[ChunkOnDisk]
) -> Iterator[Problem]:
    """Report traces of commits that are in neither ledger nor WAL, and parts of another store."""
    if witness is not None and witness.store_id != ledger.store_id:
        yield Problem(f"{LEDGER} belongs to another store than the lock", "ledger")
    elif witness is not None and witness.number > known:
        yield Problem(
            f"the lock knows of commit {witness.number}, {LEDGER} and wal end with commit {known}:"
            " they are older copies",
            "ledger",
        )
    for chunk in chunks:
        header = chunk.header
        if header is None:
            continue
        if header.store_id != ledger.store_id or header.chunk_id != chunk.chunk_id:
            yield Problem(f"{chunk.path} belongs to another store", "foreign", chunk.chunk_id)
        elif header.number > known:
            yield Problem(
                f"{chunk.path} knows of commit {header.number}, {LEDGER} and wal end with commit {known}:"
                " they are older copies",
                "ledger",
            )


def _missing(ledger: LedgerLook, chunks: list[ChunkOnDisk]) -> Iterator[Problem]:
    """Find chunks that the ledger references and that are missing or shorter than they were."""
    there = {chunk.chunk_id: chunk for chunk in chunks}
    for chunk_id, end in sorted(ledger.chunks.items()):
        chunk = there.get(chunk_id)
        if chunk is None:
            yield Problem(f"chunk {chunk_id} is missing", "missing", chunk_id)
            continue
        reached = 0 if chunk.header is None else min(chunk.header.end, chunk.size)
        if reached < end:
            yield Problem(
                f"{chunk.path} is known to end at byte {reached}, and held {end} bytes: it is cut off,"
                " an older copy, or its header is damaged",
                "old",
                chunk_id,
            )
