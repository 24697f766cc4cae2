"""The embedded store: a journal, a SQLite ledger and chunk files in one directory. Or all in memory.

In the directory are ``journal-0`` and ``journal-1``, ``ledger.db`` (with SQLite's ``-wal`` and ``-shm``
beside it), ``chunks/`` and ``lock``. A start first makes sure that they belong together (``examination``).

A commit is one frame in the journal and one flush (``journal``). Then it is durable, and whoever asked is
answered. The ledger and the chunks follow on the writer's thread, several commits at a time and without a
flush (``following``); whoever reads the ledger waits until it has what was committed before. Batches that
are too large for the journal are written to their chunk and flushed there, beside the flush of the journal;
a frame that is there without its batches counts for nothing at a start.

An *early* commit is written and not flushed; the next ordinary one flushes it too.

What the ledger will follow must find room there. So a ledger that may soon be full, and a commit with more
facts than the journal takes, go the direct way: the ledger first catches up, then it is given the commit, and
whoever asked is answered when it has it on the disk, or that there is no room.

What a crash leaves:

- of the process, after the frame was written: everything. The next start takes it over from the journal;
- of the operating system, after the flush: everything, in the same way. What was not flushed may be gone,
  and a new term begins (``LedgerWriter``);
- before that: nothing. Places in a chunk that were reserved belong to nobody.

Closing is a clean stop, and equal to kill -9 in what is there afterwards.
"""

import contextlib
import logging
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from semel.config import Settings
from semel.core.types import Buffer, Fact
from semel.store.directory_lock import DirectoryLock, Witness
from semel.store.examination import CHUNKS, JOURNAL_BYTES, LEDGER, LOST, Examined, examine
from semel.store.files import Files, tighten
from semel.store.files import boot_id as _boot_id
from semel.store.following import Commit, Following
from semel.store.interface import StoreBroken, StoreFull
from semel.store.journal import FRAME_BYTES_MAX, Journal
from semel.store.ledger_opening import log_of
from semel.store.local_chunks import LocalChunks
from semel.store.memory_chunks import MemoryChunks
from semel.store.recovery import recover, write_log_again
from semel.store.sqlite_ledger import SqliteLedger
from semel.store.worker import Fuse, Worker

log = logging.getLogger("semel.store")

JOURNALED_BYTES_MAX: Final = 256 * 1024
"""Batches of one commit that are written to the journal. More would be written twice for little gain."""


class EmbeddedStore:
    """A journal, a ledger and a chunk store that commit together. Made by ``open_store``."""

    def __init__(
        self,
        ledger: SqliteLedger,
        chunks: LocalChunks | MemoryChunks,
        worker: Worker,
        fuse: Fuse,
        lock: DirectoryLock | None = None,
        journal: Journal | None = None,
        directory: Path | None = None,
        files: Files | None = None,
    ) -> None:
        self.ledger = ledger
        self.chunks = chunks
        self.cluster_id = ledger.identity.cluster_id
        self.term = ledger.identity.term
        self.stopped_cleanly = ledger.identity.stopped_cleanly
        self.flush_seconds = 0.0
        """How long the last commit waited for the disk."""
        self._worker = worker
        self._flusher = Worker("flusher") if journal is not None else None
        self._fuse = fuse
        self._lock = lock
        self._journal = journal
        self._directory = directory
        self._files = files or Files()
        self._following = Following(ledger, chunks, worker, fuse)
        self._number = self._durable = ledger.commit_number
        self._closed = False
        self._following.witness = self._testify
        ledger.catch_up = self._following.catch_up

    @property
    def has_early(self) -> bool:
        """Whether something was committed early and is not flushed yet."""
        return self._number > self._durable

    async def commit(
        self, facts: Sequence[Fact], batches: Sequence[Buffer], *, is_early: bool = False
    ) -> int:
        """One frame, one flush; the i-th batch among the facts owns batches[i]. See ``interface.Store``."""
        self._check()
        begun = time.perf_counter()
        lengths = [len(batch) for batch in batches]
        total = sum(lengths)
        if total and not self.chunks.has_room(total):
            await self._worker.run(lambda: self._fuse.guard(self._take_room, total))
        if facts:
            if self._following.is_far_behind:
                await self._following.catch_up()
            places = self.chunks.reserve(lengths)
            commit = Commit(self._number + 1, facts, places, batches, total <= JOURNALED_BYTES_MAX)
            packed = b"" if self._journal is None else self._journal.pack(facts, places)
            if len(packed) > FRAME_BYTES_MAX or self.ledger.is_tight:
                await self._commit_directly(commit)
                self.flush_seconds = time.perf_counter() - begun
                return commit.number
            await self._write(commit, packed, total)
            if is_early and commit.is_journaled:
                return commit.number
        await self._flush()
        self.flush_seconds = time.perf_counter() - begun
        return self._number

    async def make_room(self, length: int) -> None:
        """See to it that a commit finds room for so many bytes. StoreFull, StoreBroken."""
        if self._following.is_full:
            await self._following.catch_up()
        if self.ledger.is_tight:
            # Otherwise batches that the ledger then refuses would use up the room in the chunk.
            await self._worker.run(lambda: self._fuse.guard(self.chunks.check_free, length))
        # Nobody appends between two commits, so the answer holds until the next.
        if not self.chunks.has_room(length):
            await self._worker.run(lambda: self._fuse.guard(self.chunks.make_room_now, length))

    async def synchronise(self) -> None:
        """Ledger and chunks have everything that was committed on the disk. StoreFull, StoreBroken.

        Space may be given back after this: nothing that was released is looked for in the chunks again.
        """
        if self.has_early:
            await self._flush()
        await self._following.synchronise()

    async def sweep_orphans(self) -> list[int]:
        """Delete the sealed chunks that no row points to; which those were.

        A chunk that is not this store's for certain stays, whatever the ledger knows of it.
        """
        # Chunks before this one are sealed: nobody reserves places in them any more.
        writing_id = self.chunks.writing_id
        awaited = self._following.chunk_ids()
        listed = await self.chunks.list_chunks()
        references = await self.ledger.chunk_references()
        unknown = [
            chunk_id
            for chunk_id, _ in listed
            if chunk_id < writing_id and chunk_id not in references and chunk_id not in awaited
        ]
        orphans = [chunk_id for chunk_id in unknown if self.chunks.is_proven(chunk_id)]
        if orphans:
            # A start must not look for what was in them.
            await self.synchronise()
        for chunk_id in orphans:
            await self.chunks.delete(chunk_id)
        return orphans

    async def close(self) -> None:
        """Let go of everything. A clean stop, unless something broke before."""
        if self._closed:
            return
        self._closed = True
        try:
            if not self._fuse.blown:
                await self.synchronise()
        except (StoreFull, StoreBroken) as error:
            # It is in the journal. A stop that is not marked as clean has it read at the next start.
            self._fuse.blow(f"what was committed cannot be written: {error}")
        finally:
            await self._close_parts()

    async def _close_parts(self) -> None:
        await self._following.stop()
        try:
            await self.ledger.close()
            if not self._fuse.blown:
                self._testify(self._number, is_flushed=True)
        finally:
            if self._flusher is not None:
                self._flusher.stop()
            await self.chunks.close()
            if self._journal is not None:
                self._journal.close()
            if self._lock is not None:
                self._lock.release()

    def _testify(self, number: int, *, is_flushed: bool = False) -> None:
        """Leave a witness of how far ledger and chunks are. Without it a start only knows less."""
        if self._lock is not None:
            witness = Witness(self.ledger.identity.store_id, number)
            with contextlib.suppress(OSError):
                self._lock.testify(witness, self._files, is_flushed=is_flushed)

    # -- inside -------------------------------------------------------------------------------------------

    def _check(self) -> None:
        self._fuse.check()
        if self._closed:
            raise StoreBroken("the store is closed")

    def _take_room(self, length: int) -> None:
        """Room was asked for before. What is missing now, such as for markers, comes from the reserve."""
        self.chunks.make_room_now(length, may_use_reserve=True)

    async def _write(self, commit: Commit, packed: bytes, total: int) -> None:
        """Hand the commit to the operating system."""
        journal = self._journal
        if journal is not None:
            batches = commit.batches if commit.is_journaled else ()
            length = len(packed) + (total if commit.is_journaled else 0)
            if not journal.has_room(length):
                await self._switch(journal)
            try:
                journal.append(
                    commit.number,
                    packed,
                    batches,
                    has_batches=commit.is_journaled,
                    flushed=self._durable,
                )
            except OSError as error:
                raise self._broken(f"writing the journal failed: {error}") from error
        self._number = commit.number
        self._following.add(commit)

    async def _flush(self) -> None:
        """What was written is durable, and the ledger may follow."""
        target = self._number
        # Beside the journal's flush: a frame whose large batches are missing is none for a start.
        large = self._following.begin_to_write_large() if self._following.has_unwritten else None
        try:
            if self._journal is not None and target > self._durable:
                await self._flush_journal(self._journal, may_wait_here=large is None)
        finally:
            if large is not None:
                await large
        if target > self._durable:
            # Otherwise somebody who began later was faster.
            self._durable = target
            self._following.follow(target)
            if large is not None and self._journal is not None:
                self._note_flushed(self._journal)

    def _note_flushed(self, journal: Journal) -> None:
        """Say that large batches are in their chunk, so that damaged ones are not taken for torn ones."""
        try:
            journal.note_flushed(self._durable)
        except OSError as error:
            raise self._broken(f"writing the journal failed: {error}") from error

    async def _flush_journal(self, journal: Journal, *, may_wait_here: bool) -> None:
        try:
            if may_wait_here and journal.is_quick:
                journal.flush()
            else:
                assert self._flusher is not None
                await self._flusher.run(journal.flush)
        except OSError as error:
            raise self._broken(f"flushing the journal failed: {error}") from error

    async def _switch(self, journal: Journal) -> None:
        """Go on in the journal's other file, when ledger and chunks have what is in it."""
        await self._flush()
        if not journal.may_switch(self._following.synchronised):
            await self._following.synchronise()
        journal.switch()
        # In its own time, so that the file that was left is free when this one is full.
        self._following.begin_to_synchronise()

    async def _commit_directly(self, commit: Commit) -> None:
        """A commit that is not in the journal: ledger and chunk are flushed themselves. StoreFull."""
        await self.synchronise()
        await self._following.commit_directly(commit)
        self._number = self._durable = commit.number
        if self._journal is not None:
            # Numbers in a file follow one another, and this one is in neither.
            self._journal.switch()

    def _broken(self, reason: str) -> StoreBroken:
        """After this nobody knows what the operating system still has: the next start begins a new term."""
        self._fuse.blow(reason)
        if self._directory is not None:
            # Where no file can be made any more, nothing is written before the system starts anew.
            with contextlib.suppress(OSError):
                (self._directory / LOST).touch()
        return StoreBroken(reason)


async def open_store(
    directory: Path | None, settings: Settings, *, files: Files | None = None, accepts: bool = False
) -> EmbeddedStore:
    """Open the store in a directory, which is made if it is not there, or a new one in memory (None).

    StoreLocked if another process has the directory. StoreDamaged if its parts do not belong together, or
    one is damaged; ``accepts`` goes on with what there is (``repair``). ``files`` is the way to the disk.
    """
    files = files or Files()
    fuse = Fuse()
    worker = Worker("writer")
    if directory is None:
        ledger = await SqliteLedger.open(None, worker=worker, fuse=fuse, cluster_id=settings.cluster_id)
        return EmbeddedStore(ledger, MemoryChunks(settings.semel_chunk_bytes_max), worker, fuse)
    try:
        files.make_directory(directory)
        lock = DirectoryLock(directory)
        if left := tighten(directory):
            log.warning("others may read %s, and its mode cannot be changed", left[0])
    except BaseException:
        worker.stop()
        raise
    try:
        return await _open_in(directory, settings, files, worker, fuse, lock, accepts)
    except BaseException:
        lock.release()
        raise


async def _open_in(
    directory: Path,
    settings: Settings,
    files: Files,
    worker: Worker,
    fuse: Fuse,
    lock: DirectoryLock,
    accepts: bool,
) -> EmbeddedStore:
    try:
        examined = _examined(directory, files, lock, accepts=accepts)
    except BaseException:
        worker.stop()
        raise
    ledger = await SqliteLedger.open(
        directory / LEDGER,
        worker=worker,
        fuse=fuse,
        cluster_id=settings.cluster_id,
        boot_id=_boot_id(),
        unflushed_is_lost=(directory / LOST).exists(),
    )
    store_id = ledger.identity.store_id
    journal = Journal(directory, files, store_id)
    try:
        files.flush_directory(directory)
        chunks = LocalChunks(
            directory / CHUNKS,
            settings.semel_chunk_bytes_max,
            settings.semel_disk_reserve_bytes,
            files=files,
            writer=worker,
            fuse=fuse,
            store_id=store_id,
            old=examined.old_chunks(),
        )
    except BaseException as error:
        # The journal was not looked at: this is no clean stop.
        fuse.blow(f"the chunks cannot be opened: {error}")
        await ledger.close()
        raise
    try:
        await worker.run(lambda: fuse.guard(recover, ledger, chunks, examined))
        journal.start()
        files.flush_directory(directory)
        notes = {**examined.notes(), JOURNAL_BYTES: str(journal.file_bytes)}
        await worker.run(lambda: fuse.guard(ledger.note_now, notes))
        lock.testify(Witness(store_id, ledger.commit_number), files)
        (directory / LOST).unlink(missing_ok=True)
    except BaseException as error:
        # What could not be taken over stays in the journal: this is no clean stop.
        fuse.blow(f"the journal cannot be taken over: {error}")
        journal.close()
        await ledger.close()
        await chunks.close()
        raise
    return EmbeddedStore(ledger, chunks, worker, fuse, lock, journal, directory, files)


def _examined(directory: Path, files: Files, lock: DirectoryLock, *, accepts: bool) -> Examined:
    """What is there, if it may be relied on. StoreDamaged, StoreBroken."""
    try:
        examined = examine(directory, lock.witness, boot_id=_boot_id())
    except OSError as error:
        raise StoreBroken(f"{directory} cannot be read: {error}") from error
    if accepts:
        examined = examined.accepted()
    examined.refuse(directory)
    try:
        write_log_again(log_of(directory / LEDGER), files)
    except OSError as error:
        raise StoreBroken(f"the log of the ledger cannot be written: {error}") from error
    return examined
