"""The embedded store: a SQLite ledger and chunk files in a directory that one process owns. Or all in memory.

In the directory are ``ledger.db`` (with SQLite's ``-wal`` and ``-shm`` beside it), ``early.journal``,
``chunks/`` and ``lock``.

A commit is one hop to the writer's thread: chunk write, flush, ledger commit. What each crash leaves:

- after the chunk was written: bytes that no row points to; ignored, and gone with their chunk;
- after the ledger's commit: everything;
- before either: nothing.

An early commit is one hop too: chunk write, journal write. Its facts stay in memory as well, and the next
ordinary commit flushes the chunk and writes them together with its own: SQLite commits once per flush. What
each crash of the process leaves:

- after the chunk was written: as above;
- after the journal was written: everything, since the next start puts it into the ledger;
- after the ledger's commit: everything. The journal's frames name the commit before it, so they are history.

A crash of the operating system leaves nothing of it, and begins a new term (see ``early_journal``).

``sweep_orphans`` removes chunks that no row points to. Closing is a clean stop, and equal to kill -9 in what
is there afterwards.
"""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

from semel.config import Settings
from semel.core.types import Buffer, Fact
from semel.store.directory_lock import DirectoryLock
from semel.store.early_journal import EarlyJournal
from semel.store.files import Files
from semel.store.interface import Place, StoreBroken, StoreFull
from semel.store.local_chunks import LocalChunks
from semel.store.memory_chunks import MemoryChunks
from semel.store.sqlite_ledger import SqliteLedger
from semel.store.worker import Fuse, Worker

T = TypeVar("T")

LEDGER_ROOM_BYTES: Final = 1024 * 1024
"""Free disk with which a ledger that was full is given records again."""

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class EmbeddedStore:
    """A ledger and a chunk store that commit together. Made by ``open_store``."""

    def __init__(
        self,
        ledger: SqliteLedger,
        chunks: LocalChunks | MemoryChunks,
        worker: Worker,
        fuse: Fuse,
        lock: DirectoryLock | None = None,
        journal: EarlyJournal | None = None,
    ) -> None:
        self.ledger = ledger
        self.chunks = chunks
        self.cluster_id = ledger.identity.cluster_id
        self.term = ledger.identity.term
        self.stopped_cleanly = ledger.identity.stopped_cleanly
        self.flush_seconds = 0.0
        """How long the last commit waited for the disk: the chunk's append and the ledger's commit."""
        self.append_seconds = 0.0
        """The part of it that was the chunk's."""
        self.early_bytes = 0
        """What was committed early and is not in the ledger yet, records and facts together."""
        self._worker = worker
        self._fuse = fuse
        self._lock = lock
        self._journal = journal
        self._early_facts: list[Fact] = []
        self._early_places: list[Place] = []
        self._ledger_was_full = False
        self._closed = False

    @property
    def has_early(self) -> bool:
        """Whether something was committed early and is not in the ledger yet."""
        return bool(self._early_facts)

    async def commit(
        self, facts: Sequence[Fact], batches: Sequence[Buffer], *, is_early: bool = False
    ) -> int:
        """Bytes, then facts; the i-th batch among the facts owns batches[i]. See ``interface.Store``."""
        return await self._worker.run(lambda: self._fuse.guard(self._commit_now, facts, batches, is_early))

    async def drop_early(self) -> None:
        """Give up what was committed early. The next ordinary commit must fence whoever was answered."""
        await self._worker.run(lambda: self._fuse.guard(self._drop_early_now))

    async def make_room(self, length: int) -> None:
        """See to it that a commit finds room for so many bytes. StoreFull, StoreBroken."""
        # Nobody appends between two commits, so the answer holds until the next.
        if self._ledger_was_full or not self.chunks.has_room(length):
            await self._worker.run(lambda: self._fuse.guard(self._make_room_now, length))

    async def sweep_orphans(self) -> list[int]:
        """Delete the sealed chunks that no row points to; which those were."""
        listed = await self.chunks.list_chunks()
        # Asked on the writer's thread, between two commits: a sealed chunk without rows will never get any.
        chunk_ids = [chunk_id for chunk_id, _ in listed]
        orphans = await self._worker.run(lambda: self._fuse.guard(self._orphans_now, chunk_ids))
        for chunk_id in orphans:
            await self.chunks.delete(chunk_id)
        return orphans

    async def close(self) -> None:
        """Let go of everything. A clean stop, unless something broke before."""
        if self._closed:
            return
        self._closed = True
        try:
            await self._write_early()
        finally:
            await self._close_parts()

    async def _write_early(self) -> None:
        if not self._early_facts or self._fuse.blown:
            return
        try:
            await self.commit([], [])
        except (StoreFull, StoreBroken) as error:
            # It is in the journal. A stop that is not marked as clean keeps it, or ends the term.
            self._fuse.blow(f"what was committed early cannot be written: {error}")

    async def _close_parts(self) -> None:
        try:
            await self.ledger.close()
        finally:
            await self.chunks.close()
            if self._journal is not None:
                self._journal.close()
            if self._lock is not None:
                self._lock.release()

    # -- on the writer's thread ---------------------------------------------------------------------------

    def _commit_now(self, facts: Sequence[Fact], batches: Sequence[Buffer], is_early: bool) -> int:
        begun = time.perf_counter()
        places = self._bytes_written(self.chunks.append_now, batches)
        if is_early and self._keep_early(facts, places):
            self.append_seconds = self.flush_seconds = time.perf_counter() - begun
            return self.ledger.commit_number + 1
        self._bytes_written(self.chunks.flush_now)
        appended = time.perf_counter()
        try:
            number = self.ledger.commit_now([*self._early_facts, *facts], [*self._early_places, *places])
        except StoreFull:
            self._ledger_was_full = True
            raise
        self._forget_early()
        if self._journal is not None:
            self._journal.rewind()
        self.append_seconds = appended - begun
        self.flush_seconds = time.perf_counter() - begun
        return number

    def _bytes_written(self, write: Callable[..., T], *args: Any) -> T:
        try:
            return write(*args)
        except StoreBroken:
            # After a flush that failed nobody knows which bytes the operating system still has.
            if self._journal is not None and self._early_facts:
                self._journal.give_up()
            raise

    def _keep_early(self, facts: Sequence[Fact], places: Sequence[Place]) -> bool:
        """Whether the facts are where a kill does not reach them."""
        taken = 0
        if self._journal is not None:
            taken = self._journal.append(self.ledger.commit_number, facts, places)
            if not taken:
                return False
        self._early_facts += facts
        self._early_places += places
        self.early_bytes += taken + sum(place.length for place in places)
        return True

    def _drop_early_now(self) -> None:
        self._forget_early()
        if self._journal is not None:
            self._journal.give_up()

    def _forget_early(self) -> None:
        self._early_facts = []
        self._early_places = []
        self.early_bytes = 0

    def _make_room_now(self, length: int) -> None:
        if self._ledger_was_full:
            # Chunks have room for a while longer than the ledger. Without this their bytes would be written
            # over and over, each time for a commit that fails.
            self.chunks.check_free(LEDGER_ROOM_BYTES)
            self._ledger_was_full = False
        self.chunks.make_room_now(length)

    def _orphans_now(self, chunk_ids: Sequence[int]) -> list[int]:
        referenced = {*self.ledger.chunk_references_now(), *(place.chunk_id for place in self._early_places)}
        writing_id = self.chunks.writing_id
        return [each for each in chunk_ids if each < writing_id and each not in referenced]


async def open_store(
    directory: Path | None, settings: Settings, *, files: Files | None = None
) -> EmbeddedStore:
    """Open the store in a directory, which is made if it is not there, or a new one in memory (None).

    StoreLocked if another process has the directory. ``files`` is the way to the disk, for tests.
    """
    files = files or Files()
    fuse = Fuse()
    if directory is None:
        worker = Worker("writer")
        ledger = await SqliteLedger.open(None, worker=worker, fuse=fuse, cluster_id=settings.cluster_id)
        return EmbeddedStore(ledger, MemoryChunks(settings.semel_chunk_bytes_max), worker, fuse)
    files.make_directory(directory)
    lock = DirectoryLock(directory)
    journal = EarlyJournal(directory / "early.journal", files)
    try:
        worker = Worker("writer")
        ledger = await SqliteLedger.open(
            directory / "ledger.db",
            worker=worker,
            fuse=fuse,
            cluster_id=settings.cluster_id,
            boot_id=_boot_id(),
            unflushed_is_lost=not journal.is_intact(),
        )
        files.flush_directory(directory)
        try:
            chunks = LocalChunks(
                directory / "chunks",
                settings.semel_chunk_bytes_max,
                settings.semel_disk_reserve_bytes,
                files=files,
                writer=worker,
                fuse=fuse,
            )
        except BaseException:
            await ledger.close()
            raise
    except BaseException:
        lock.release()
        raise
    store = EmbeddedStore(ledger, chunks, worker, fuse, lock, journal)
    try:
        await worker.run(lambda: fuse.guard(_replay, ledger, chunks, journal))
    except BaseException as error:
        # What could not be written stays in the journal: this is no clean stop.
        fuse.blow(f"what was committed early cannot be written: {error}")
        await store.close()
        raise
    return store


def _replay(ledger: SqliteLedger, chunks: LocalChunks, journal: EarlyJournal) -> None:
    """Put what the last process committed early, and could not put there itself, into the ledger."""
    term = ledger.identity.term
    facts, places = journal.read(term, ledger.commit_number)
    if facts:
        chunks.flush_sealed_now(sorted({place.chunk_id for place in places}))
        ledger.commit_now(facts, places)
    journal.start(term)


def _boot_id() -> str:
    """What names this start of the operating system; empty where it does not say."""
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return ""
