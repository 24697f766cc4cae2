"""The embedded store: a SQLite ledger and chunk files in a directory that one process owns. Or all in memory.

In the directory are ``ledger.db`` (with SQLite's ``-wal`` and ``-shm`` beside it), ``chunks/`` and ``lock``.

A commit is one hop to the writer's thread: chunk write, flush, ledger commit. What each crash leaves:

- after the chunk was written: bytes that no row points to; ignored, and gone with their chunk;
- after the ledger's commit: everything;
- before either: nothing.

``sweep_orphans`` removes chunks that no row points to. Closing is a clean stop, and equal to kill -9 in what
is there afterwards.
"""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from semel.config import Settings
from semel.core.types import Buffer, Fact
from semel.store.directory_lock import DirectoryLock
from semel.store.files import Files
from semel.store.interface import StoreFull
from semel.store.local_chunks import LocalChunks
from semel.store.memory_chunks import MemoryChunks
from semel.store.sqlite_ledger import SqliteLedger
from semel.store.worker import Fuse, Worker

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
        lock: DirectoryLock | None,
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
        self._worker = worker
        self._fuse = fuse
        self._lock = lock
        self._ledger_was_full = False
        self._closed = False

    async def commit(self, facts: Sequence[Fact], batches: Sequence[Buffer]) -> int:
        """Bytes, then facts; durable when it returns. The i-th BatchAppended owns batches[i]."""
        return await self._worker.run(lambda: self._fuse.guard(self._commit_now, facts, batches))

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
            await self.ledger.close()
        finally:
            await self.chunks.close()
            if self._lock is not None:
                self._lock.release()

    def _commit_now(self, facts: Sequence[Fact], batches: Sequence[Buffer]) -> int:
        begun = time.perf_counter()
        places = self.chunks.append_now(batches)
        appended = time.perf_counter()
        try:
            number = self.ledger.commit_now(facts, places)
        except StoreFull:
            self._ledger_was_full = True
            raise
        self.append_seconds = appended - begun
        self.flush_seconds = time.perf_counter() - begun
        return number

    def _make_room_now(self, length: int) -> None:
        if self._ledger_was_full:
            # Chunks have room for a while longer than the ledger. Without this their bytes would be written
            # over and over, each time for a commit that fails.
            self.chunks.check_free(LEDGER_ROOM_BYTES)
            self._ledger_was_full = False
        self.chunks.make_room_now(length)

    def _orphans_now(self, chunk_ids: Sequence[int]) -> list[int]:
        referenced = self.ledger.chunk_references_now()
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
        return EmbeddedStore(ledger, MemoryChunks(settings.semel_chunk_bytes_max), worker, fuse, None)
    files.make_directory(directory)
    lock = DirectoryLock(directory)
    try:
        worker = Worker("writer")
        ledger = await SqliteLedger.open(
            directory / "ledger.db",
            worker=worker,
            fuse=fuse,
            cluster_id=settings.cluster_id,
            boot_id=_boot_id(),
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
    return EmbeddedStore(ledger, chunks, worker, fuse, lock)


def _boot_id() -> str:
    """What names this start of the operating system; empty where it does not say."""
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return ""
