"""Implement ``contract.Ledger`` with SQLite, in one file or in memory.

One thread writes (``ledger_writer``), two read (``ledger_reader``), each with a connection of its own. A
database in memory has a single connection, so its writing thread also reads. This module only dispatches
calls to the threads.

A ledger that failed while writing is broken: every later call raises ``StoreBroken``.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

import apsw

from semel.core import types
from semel.store.contract import (
    BatchLocation,
    Counts,
    GroupSummary,
    LedgerDamaged,
    StoreBroken,
    StoreDamaged,
    StoredBatch,
)
from semel.store.embedded.ledger_opening import Identity, is_damage, open_reader
from semel.store.embedded.ledger_reader import LedgerReader
from semel.store.embedded.ledger_writer import LedgerWriter
from semel.store.worker import StoreHealth, Worker

log = logging.getLogger("semel.store")

T = TypeVar("T")

CatchUp = Callable[[], Awaitable[None]]

READERS: Final = 2
AGAIN_SECONDS: Final = 60.0
"""Minimum time between two log messages about damaged pages."""
PRODUCERS_PAGE: Final = 4_096
TRANSACTIONS_PAGE: Final = 4_096


class SqliteLedger:
    """Created by ``SqliteLedger.open``."""

    def __init__(
        self, path: Path | None, writer: LedgerWriter, worker: Worker, health: StoreHealth, vfs: str
    ) -> None:
        self._path = path
        self._vfs = vfs
        self._writer = writer
        self._worker = worker
        self._health = health
        self._closed = False
        self.catch_up: CatchUp | None = None
        """Called before every read: waits until the WAL applier has applied everything committed."""
        self._local = threading.local()
        self._opened: list[LedgerReader] = []
        self._told_at = -AGAIN_SECONDS
        self._readers = worker if path is None else Worker("ledger-reader", threads=READERS)
        self._memory_reader = LedgerReader(writer.connection) if path is None else None

    @classmethod
    async def open(
        cls,
        path: Path | None,
        *,
        worker: Worker | None = None,
        health: StoreHealth | None = None,
        cluster_id: str = "",
        boot_id: str = "",
        unflushed_is_lost: bool = False,
        vfs: str = "",
    ) -> "SqliteLedger":
        """Open the ledger in a file, or a new one in memory. ``vfs`` is SQLite's VFS, for tests.

        ``unflushed_is_lost``: a stop that was not clean ended the term, whatever the boot id says.
        """
        worker = worker or Worker("ledger-writer")
        health = health or StoreHealth()
        try:
            writer = await worker.run(
                lambda: LedgerWriter(
                    path,
                    cluster_id=cluster_id,
                    boot_id=boot_id,
                    unflushed_is_lost=unflushed_is_lost,
                    vfs=vfs,
                )
            )
        except BaseException as error:
            worker.stop()
            if isinstance(error, apsw.Error):
                kind = StoreDamaged if is_damage(error) else StoreBroken
                raise kind(f"{path} cannot be opened: {error}") from error
            raise
        ledger = cls(path, writer, worker, health, vfs)
        worker.rest = ledger._rest
        return ledger

    @property
    def identity(self) -> Identity:
        """What the ledger records of itself."""
        return self._writer.identity

    @property
    def commit_number(self) -> int:
        """The number of the last commit."""
        return self._writer.commit_number

    @property
    def is_tight(self) -> bool:
        """Whether the ledger may soon be full."""
        return self._writer.is_tight

    async def load(self, keys: Sequence[types.EntityKey[types.V]]) -> list[types.V | None]:
        """Return the entities with these keys in the same order, None for those that do not exist."""
        return await self._read(LedgerReader.load, keys)

    async def commit(self, facts: Sequence[types.Fact], locations: Sequence[BatchLocation]) -> int:
        """Write the facts together and durably; their i-th batch is at locations[i]. Return the number."""
        return await self._worker.run(lambda: self._health.guard(self._writer.commit, facts, locations))

    def apply_now(self, facts: Sequence[types.Fact], locations: Sequence[BatchLocation], number: int) -> None:
        """Apply commits of the WAL up to this one. Runs on the writer's thread."""
        self._writer.commit(facts, locations, number=number, is_flushed=False)

    def commit_now(
        self, facts: Sequence[types.Fact], locations: Sequence[BatchLocation], number: int
    ) -> None:
        """Write a commit durably, without the WAL. The chunks must be flushed."""
        self._writer.commit(facts, locations, number=number, is_checkpoint=True)

    def checkpoint_now(self) -> None:
        """Flush everything committed."""
        self._writer.checkpoint()

    def note_now(self, notes: Mapping[str, str]) -> None:
        """Record something about the ledger, durably."""
        self._writer.note(notes)

    def move_log_now(self) -> None:
        """Start a new SQLite log, so that flushes do not depend on the last one of the previous process."""
        self._writer.move_log()

    async def find_batches(
        self, partition: types.PartitionKey, offset: int, *, before: int, bytes_max: int, batches_max: int
    ) -> list[StoredBatch]:
        """Return batches from the one that holds ``offset``, or the next, that end below ``before``."""
        return await self._read(LedgerReader.find_batches, partition, offset, before, bytes_max, batches_max)

    async def first_batch_since(self, partition: types.PartitionKey, timestamp: int) -> StoredBatch | None:
        """Return the first batch whose largest timestamp is at or after this one."""
        return await self._read(LedgerReader.first_batch_since, partition, timestamp)

    async def offset_at_size(self, partition: types.PartitionKey, size_bytes: int) -> int:
        """Return the smallest batch boundary from which the partition has at most this size."""
        return await self._read(LedgerReader.offset_at_size, partition, size_bytes)

    async def size_below(self, partition: types.PartitionKey, offset: int) -> tuple[int, int]:
        """Return the log start, and the size of the batches from there that end below this offset."""
        return await self._read(LedgerReader.size_below, partition, offset)

    async def topic_by_id(self, topic_id: bytes) -> types.Topic | None:
        """Return the topic with this id."""
        return await self._read(LedgerReader.topic_by_id, topic_id)

    async def topics(self, *, after: str = "", limit: int = 10_000) -> list[types.Topic]:
        """Return topics, ordered by name."""
        return await self._read(LedgerReader.topics, after, limit)

    async def policies(
        self, *, after: types.PolicyKey | None = None, limit: int = 10_000
    ) -> list[tuple[types.PolicyKey, str]]:
        """Return policies and their values, ordered by key."""
        return await self._read(LedgerReader.policies, after, limit)

    async def counts(self) -> Counts:
        """Return the counts of what clients can create."""
        return await self._read(LedgerReader.counts)

    async def groups(self, *, after: str = "", limit: int = 10_000) -> list[GroupSummary]:
        """Return groups, ordered by id, including those that only have offsets (kind "")."""
        return await self._read(LedgerReader.groups, after, limit)

    async def group_offsets(self, group_id: str) -> list[tuple[types.OffsetKey, types.CommittedOffset]]:
        """Return everything a group has committed."""
        return await self._read(LedgerReader.group_offsets, group_id)

    async def producers(self, partition: types.PartitionKey) -> list[tuple[int, types.ProducerState]]:
        """Return the producers that a partition remembers."""
        return await self._read(LedgerReader.producers, partition)

    async def producers_unseen_since(
        self, before_ms: int, *, after: types.ProducerKey | None = None, limit: int
    ) -> list[types.ProducerKey]:
        """Return producers without an open transaction that were last seen before this time."""
        found: list[types.ProducerKey] = []
        place: tuple[int, int] | None = await self._read(LedgerReader.place_of, after)
        while place is not None and len(found) < limit:
            # One page at a time, so that other reads can run in between.
            unseen, place = await self._read(LedgerReader.unseen_producers, place, before_ms, PRODUCERS_PAGE)
            found += unseen
        return found[:limit]

    async def aborted(self, partition: types.PartitionKey, first: int, before: int) -> list[tuple[int, int]]:
        """Return producer and first offset of aborted transactions in this range, by first offset."""
        return await self._read(LedgerReader.aborted, partition, first, before)

    async def transactions(self, *, after: str = "", limit: int = 10_000) -> list[types.Transaction]:
        """Return transactions ordered by transactional id, in any state."""
        return await self._read(LedgerReader.transactions, after, limit)

    async def open_transactions(self, *, after: str = "", limit: int) -> list[types.Transaction]:
        """Return open transactions."""
        return await self._read(LedgerReader.open_transactions, after, limit)

    async def transactions_unused_since(self, before_ms: int, *, after: str = "", limit: int) -> list[str]:
        """Return transactional ids without an open transaction and not used after this time."""
        found: list[str] = []
        place: str | None = after
        while place is not None and len(found) < limit:
            unused, place = await self._read(
                LedgerReader.unused_transactions, place, before_ms, TRANSACTIONS_PAGE
            )
            found += unused
        return found[:limit]

    async def leftovers(self, *, limit: int) -> list[BatchLocation]:
        """Return the locations of up to ``limit`` unreachable rows, which the next sweep deletes."""
        await self._caught_up()
        return await self._worker.run(lambda: self._health.guard(self._looked, self._writer.leftovers, limit))

    async def sweep(self, *, limit: int) -> list[BatchLocation]:
        """Delete up to ``limit`` unreachable rows. Return the locations that they freed."""
        await self._caught_up()
        while True:
            locations: list[BatchLocation]
            locations, more = await self._worker.run(
                lambda: self._health.guard(self._looked, self._writer.sweep, limit)
            )
            if locations or not more:
                return locations

    async def chunk_references(self) -> dict[int, int]:
        """Return how many bytes of each chunk are referenced. Chunks that are not listed are orphans."""
        await self._caught_up()
        return await self._worker.run(lambda: self._health.guard(self._looked, self._writer.chunk_references))

    async def forget_chunks(self, gone: Sequence[int], unsure: Sequence[int]) -> None:
        """Forget missing chunks, and how far the unsure ones are flushed."""
        await self._worker.run(lambda: self._health.guard(self._writer.forget_chunks, gone, unsure))

    async def close(self) -> None:
        """Release files and threads. Unless something broke, this is marked as a clean stop."""
        if self._closed:
            return
        self._closed = True
        if self._readers is not self._worker:
            self._readers.stop()
        for reader in self._opened:
            reader.close()
        try:
            await asyncio.shield(
                self._worker.run(lambda: self._writer.close(cleanly=not self._health.has_failed))
            )
        finally:
            self._worker.stop()

    async def _caught_up(self) -> None:
        if self.catch_up is not None:
            await self.catch_up()

    async def _read(self, question: Callable[..., T], *args: Any) -> T:
        await self._caught_up()
        return await self._readers.run(self._ask, question, args)

    def _ask(self, question: Callable[..., T], args: tuple[Any, ...]) -> T:
        self._health.check()
        try:
            return question(self._reader(), *args)
        except apsw.Error as error:
            if is_damage(error):
                # Other pages are readable: only queries that need this one fail.
                raise self._damaged(error) from error
            self._health.fail(f"{self._path} cannot be read: {error}")
            raise StoreBroken(f"{self._path} cannot be read: {error}") from error

    def _looked(self, job: Callable[..., T], *args: Any) -> T:
        """Run a job of the writing thread. A damaged page rolls it back, and does not fail the store."""
        try:
            return job(*args)
        except apsw.Error as error:
            if not is_damage(error):
                raise
            self._writer.take_back()
            raise self._damaged(error) from error

    def _damaged(self, error: apsw.Error) -> LedgerDamaged:
        """Return the error for a damaged page, and log it at a bounded rate."""
        damaged = LedgerDamaged(f"a page of {self._path} is damaged: {error}; see 'semel check-storage'")
        now = time.monotonic()
        if now - self._told_at >= AGAIN_SECONDS:
            self._told_at = now
            log.error("%s", damaged)
        return damaged

    def _reader(self) -> LedgerReader:
        """Return the reader of this thread."""
        if self._memory_reader is not None:
            return self._memory_reader
        reader: LedgerReader | None = getattr(self._local, "reader", None)
        if reader is None:
            assert self._path is not None
            reader = self._local.reader = LedgerReader(open_reader(self._path, vfs=self._vfs))
            self._opened.append(reader)
        return reader

    def _rest(self, *, quiet: bool) -> None:
        """Run between two jobs of the writing thread. A failure is raised by the next call."""
        if self._closed or self._health.has_failed:
            return
        try:
            self._writer.rest(quiet=quiet)
        except apsw.Error as error:
            self._health.fail(f"moving the write-ahead log failed: {error}")
