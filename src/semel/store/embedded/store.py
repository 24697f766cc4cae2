"""Join a write-ahead log, a SQLite ledger and chunk files to one store, in a directory or in memory.

The directory holds ``wal-0`` and ``wal-1``, ``ledger.db`` (with SQLite's ``-wal`` and ``-shm`` beside it),
``chunks/`` and ``lock``. Opening verifies that they belong together (``opening``, ``examination``).

A commit has three steps:

1. **Reserve**: batch locations in the current chunk, and the number of the commit.
2. **Append**: facts and batches as one frame of the WAL. If the batches are too large for the WAL, only their
   locations are in the frame; the bytes go to their chunk, which is flushed together with the WAL. Recovery
   ignores a frame whose large batches are missing.
3. **Sync**: one flush. The commit is durable. The WAL applier writes it to ledger and chunks later, on the
   writer's thread, many commits at a time and without a flush. Readers of the ledger wait until it is there.

Work inside open transactions may defer the sync; the next commit that syncs includes it.

There is one exception. A commit that the WAL cannot take, because it has too many facts or because the ledger
may soon be full, is written directly: the ledger first catches up, then writes and flushes the commit itself,
or reports that there is no room.

What a crash leaves:

- of the process, after step 2: everything. The next start applies the WAL.
- of the operating system, after step 3: everything, in the same way. Work that was not synced may be lost,
  and a new term begins (``LedgerWriter``).
- before that: nothing. Reserved locations are not used.

Closing is a clean stop, and leaves the same data as kill -9.
"""

import contextlib
import logging
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from semel.core.types import Buffer, Fact
from semel.store.contract import StoreBroken, StoreFull
from semel.store.embedded.directory_lock import DirectoryLock, Witness
from semel.store.embedded.examination import LOST
from semel.store.embedded.files import Files
from semel.store.embedded.ledger import SqliteLedger
from semel.store.embedded.local_chunks import LocalChunks
from semel.store.embedded.memory_chunks import MemoryChunks
from semel.store.embedded.wal import FRAME_BYTES_MAX, WriteAheadLog
from semel.store.embedded.wal_applier import Commit, WalApplier
from semel.store.fact_codec import pack_facts
from semel.store.worker import StoreHealth, Worker

log = logging.getLogger("semel.store")

WAL_BATCH_BYTES_MAX: Final = 256 * 1024
"""Batches of one commit that are written to the WAL. More would be written twice for little gain."""


class EmbeddedStore:
    """A WAL, a ledger and a chunk store that commit together. Made by ``open_store``."""

    def __init__(
        self,
        ledger: SqliteLedger,
        chunks: LocalChunks | MemoryChunks,
        worker: Worker,
        health: StoreHealth,
        lock: DirectoryLock | None = None,
        wal: WriteAheadLog | None = None,
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
        self._flusher = Worker("flusher") if wal is not None else None
        self._health = health
        self._lock = lock
        self._wal = wal
        self._directory = directory
        self._files = files or Files()
        self._applier = WalApplier(ledger, chunks, worker, health)
        self._number = self._durable = ledger.commit_number
        self._closed = False
        self._applier.witness = self._testify
        ledger.catch_up = self._applier.catch_up

    @property
    def has_unsynced(self) -> bool:
        """Whether unsynced work was committed and is not flushed yet."""
        return self._number > self._durable

    async def commit(
        self, facts: Sequence[Fact], batches: Sequence[Buffer], *, defers_sync: bool = False
    ) -> int:
        """Reserve, append, sync; the i-th batch among the facts owns batches[i]. See ``contract.Store``."""
        self._check()
        begun = time.perf_counter()
        if facts:
            lengths = list(map(len, batches))
            if self._applier.is_far_behind or not self.chunks.has_room(sum(lengths)):
                await self._wait_for_room(sum(lengths))
            commit = self._reserve(facts, batches, lengths)
            packed = b"" if self._wal is None else pack_facts(facts, commit.locations)
            if len(packed) > FRAME_BYTES_MAX or self.ledger.is_tight:
                await self._write_directly(commit)
            else:
                in_frame = len(packed) + (commit.size_bytes if commit.has_batches else 0)
                if self._wal is not None and not self._wal.has_room(in_frame):
                    await self._switch(self._wal)
                self._append(commit, packed)
                if defers_sync and commit.has_batches:
                    return commit.number
        await self._sync()
        self.flush_seconds = time.perf_counter() - begun
        return self._number

    async def make_room(self, length: int) -> None:
        """Ensure room for a commit of this many bytes. StoreFull, StoreBroken."""
        if self._applier.is_full:
            await self._applier.catch_up()
        if self.ledger.is_tight:
            # The ledger may refuse batches after they have used up room in the chunk. So check first.
            await self._worker.run(lambda: self._health.guard(self.chunks.check_free, length))
        # Nothing is appended between two commits, so the room is still there for the next.
        if not self.chunks.has_room(length):
            await self._worker.run(lambda: self._health.guard(self.chunks.make_room_now, length))

    async def checkpoint(self) -> None:
        """Flush everything committed to ledger and chunks. StoreFull, StoreBroken.

        Space may be released afterwards: recovery no longer looks for released batches in the chunks.
        """
        if self.has_unsynced:
            await self._sync()
        await self._applier.checkpoint()

    async def sweep_orphans(self) -> list[int]:
        """Delete the sealed chunks that no row references. Return their ids.

        A chunk that is not certainly this store's is kept, even if the ledger does not know it.
        """
        # Earlier chunks are sealed: no locations are reserved in them any more.
        writing_id = self.chunks.writing_id
        awaited = self._applier.chunk_ids()
        listed = await self.chunks.list_chunks()
        references = await self.ledger.chunk_references()
        unknown = [
            chunk_id
            for chunk_id, _ in listed
            if chunk_id < writing_id and chunk_id not in references and chunk_id not in awaited
        ]
        orphans = [chunk_id for chunk_id in unknown if self.chunks.is_proven(chunk_id)]
        if orphans:
            # Recovery must not look for their contents.
            await self.checkpoint()
        for chunk_id in orphans:
            await self.chunks.delete(chunk_id)
        return orphans

    async def close(self) -> None:
        """Release all resources. This is a clean stop, unless the store has failed."""
        if self._closed:
            return
        self._closed = True
        try:
            if not self._health.has_failed:
                await self.checkpoint()
        except (StoreFull, StoreBroken) as error:
            # The commits are in the WAL. Without a clean stop, the next start reads them from there.
            self._health.fail(f"what was committed cannot be written: {error}")
        finally:
            await self._close_parts()

    async def _close_parts(self) -> None:
        await self._applier.stop()
        try:
            await self.ledger.close()
            if not self._health.has_failed:
                self._testify(self._number, is_flushed=True)
        finally:
            if self._flusher is not None:
                self._flusher.stop()
            await self.chunks.close()
            if self._wal is not None:
                self._wal.close()
            if self._lock is not None:
                self._lock.release()

    def _testify(self, number: int, *, is_flushed: bool = False) -> None:
        """Record how far ledger and chunks are. Without the witness a start detects fewer mistakes."""
        if self._lock is not None:
            witness = Witness(self.ledger.identity.store_id, number)
            with contextlib.suppress(OSError):
                self._lock.testify(witness, self._files, is_flushed=is_flushed)

    # -- inside -------------------------------------------------------------------------------------------

    def _check(self) -> None:
        self._health.check()
        if self._closed:
            raise StoreBroken("the store is closed")

    async def _wait_for_room(self, length: int) -> None:
        """Allocate room in the chunk, and let the ledger catch up if it is far behind. StoreFull."""
        if length and not self.chunks.has_room(length):
            await self._worker.run(lambda: self._health.guard(self._take_room, length))
        if self._applier.is_far_behind:
            await self._applier.catch_up()

    def _reserve(self, facts: Sequence[Fact], batches: Sequence[Buffer], lengths: list[int]) -> Commit:
        """Reserve a number and batch locations."""
        size = sum(lengths)
        locations = self.chunks.reserve(lengths)
        return Commit(self._number + 1, facts, locations, batches, size, size <= WAL_BATCH_BYTES_MAX)

    def _take_room(self, length: int) -> None:
        """Allocate room that ``make_room`` did not count, such as that for markers. May use the reserve."""
        self.chunks.make_room_now(length, may_use_reserve=True)

    def _append(self, commit: Commit, packed: bytes) -> None:
        """Write the commit to the operating system, as one frame. The WAL must have room."""
        if self._wal is not None:
            batches = commit.batches if commit.has_batches else ()
            try:
                self._wal.append(
                    commit.number,
                    packed,
                    batches,
                    has_batches=commit.has_batches,
                    flushed=self._durable,
                )
            except OSError as error:
                raise self._broken(f"writing the WAL failed: {error}") from error
        self._number = commit.number
        self._applier.add(commit)

    async def _sync(self) -> None:
        """Flush what was appended, and release it to the WAL applier."""
        target = self._number
        # In parallel with the WAL's flush, because recovery ignores a frame whose large batches are missing.
        large = self._applier.begin_to_write_large() if self._applier.has_unwritten else None
        try:
            if self._wal is not None and target > self._durable:
                await self._flush_wal(self._wal, may_wait_here=large is None)
        finally:
            if large is not None:
                await large
        if target > self._durable:
            # Otherwise a sync that began later has finished first.
            self._durable = target
            self._applier.follow(target)
            if large is not None and self._wal is not None:
                self._note_flushed(self._wal)

    def _note_flushed(self, wal: WriteAheadLog) -> None:
        """Note that large batches are flushed. If they are missing later, a start takes that for damage."""
        try:
            wal.note_flushed(self._durable)
        except OSError as error:
            raise self._broken(f"writing the WAL failed: {error}") from error

    async def _flush_wal(self, wal: WriteAheadLog, *, may_wait_here: bool) -> None:
        try:
            if may_wait_here and wal.is_quick:
                wal.flush()
            else:
                assert self._flusher is not None
                await self._flusher.run(wal.flush)
        except OSError as error:
            raise self._broken(f"flushing the WAL failed: {error}") from error

    async def _switch(self, wal: WriteAheadLog) -> None:
        """Continue in the WAL's other file, once its contents are checkpointed."""
        await self._sync()
        if not wal.may_switch(self._applier.checkpointed):
            await self._applier.checkpoint()
        wal.switch()
        # In the background, so that the previous file is free when this one is full.
        self._applier.begin_checkpoint()

    async def _write_directly(self, commit: Commit) -> None:
        """Write a commit without the WAL, and flush ledger and chunk. StoreFull."""
        await self.checkpoint()
        await self._applier.write_directly(commit)
        self._number = self._durable = commit.number

    def _broken(self, reason: str) -> StoreBroken:
        """Fail the store. The state of unflushed writes is unknown, so the next start begins a new term."""
        self._health.fail(reason)
        if self._directory is not None:
            # A disk that cannot create this file cannot write anything else before the system restarts.
            with contextlib.suppress(OSError):
                (self._directory / LOST).touch()
        return StoreBroken(reason)
