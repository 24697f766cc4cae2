"""The embedded ledger: SQLite in one file, or in memory, behind the contract of ``interface.Ledger``.

One thread writes (``ledger_writer``), two read (``ledger_reader``), each with a connection of its own; a
database in memory has one connection, so there the writing thread does the reading too. Here is only what
goes where.

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

from semel.core.types import (
    CommittedOffset,
    Fact,
    Key,
    OffsetKey,
    PartitionKey,
    ProducerState,
    Topic,
    Transaction,
    TransactionState,
    Value,
)
from semel.store.interface import (
    BatchLocation,
    Counts,
    GroupSummary,
    LedgerDamaged,
    StoreBroken,
    StoreDamaged,
    StoredBatch,
)
from semel.store.ledger_opening import Identity, open_reader
from semel.store.ledger_reader import LedgerReader
from semel.store.ledger_writer import LedgerWriter
from semel.store.page_checksums import is_damage
from semel.store.worker import StoreHealth, Worker

log = logging.getLogger("semel.store")

T = TypeVar("T")

CatchUp = Callable[[], Awaitable[None]]

READERS: Final = 2
AGAIN_SECONDS: Final = 60.0
"""How long nothing more is logged of damaged pages."""
PRODUCERS_PAGE: Final = 4_096
TRANSACTIONS_PAGE: Final = 4_096


class SqliteLedger:
    """Made by ``SqliteLedger.open``."""

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
        """Waits until the ledger has what was committed, if it follows a WAL. Asked before every read."""
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
        """Open the ledger in a file, or a new one in memory. ``vfs`` is a way to the disk, for tests.

        ``unflushed_is_lost`` says that a stop which was not clean ended the term, whatever the boot id says.
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
        """What the ledger says of itself."""
        return self._writer.identity

    @property
    def commit_number(self) -> int:
        """The number of the last commit."""
        return self._writer.commit_number

    @property
    def is_tight(self) -> bool:
        """Whether it may soon be full."""
        return self._writer.is_tight

    async def load(self, keys: Sequence[Key]) -> list[Value | None]:
        """The entities with these keys, None for those that do not exist, in the same order."""
        return await self._read(LedgerReader.load, keys)

    async def commit(self, facts: Sequence[Fact], locations: Sequence[BatchLocation]) -> int:
        """Write the facts together and durably; the i-th batch in them lies at places[i]. Its number."""
        return await self._worker.run(lambda: self._health.guard(self._writer.commit, facts, locations))

    def apply_now(self, facts: Sequence[Fact], locations: Sequence[BatchLocation], number: int) -> None:
        """Take over commits up to this one, which the WAL has, on the calling thread: the writer's."""
        self._writer.commit(facts, locations, number=number, is_flushed=False)

    def commit_now(self, facts: Sequence[Fact], locations: Sequence[BatchLocation], number: int) -> None:
        """The same durably, without the WAL. The chunks must be flushed."""
        self._writer.commit(facts, locations, number=number, is_checkpoint=True)

    def checkpoint_now(self) -> None:
        """Everything that was committed is on the disk when this returns."""
        self._writer.checkpoint()

    def note_now(self, notes: Mapping[str, str]) -> None:
        """Keep what the ledger says of itself, durably."""
        self._writer.note(notes)

    def move_log_now(self) -> None:
        """Whatever became of the last flush of the process before, this one's do not depend on it."""
        self._writer.move_log()

    async def find_batches(
        self, partition: PartitionKey, offset: int, *, before: int, bytes_max: int, batches_max: int
    ) -> list[StoredBatch]:
        """Batches from the one that holds ``offset`` up to (not including) offset ``before``."""
        return await self._read(LedgerReader.find_batches, partition, offset, before, bytes_max, batches_max)

    async def first_batch_since(self, partition: PartitionKey, timestamp: int) -> StoredBatch | None:
        """The first batch whose largest timestamp is at or after this one."""
        return await self._read(LedgerReader.first_batch_since, partition, timestamp)

    async def offset_at_size(self, partition: PartitionKey, size_bytes: int) -> int:
        """The smallest offset from which the rest of the partition is no larger; at a batch edge."""
        return await self._read(LedgerReader.offset_at_size, partition, size_bytes)

    async def size_below(self, partition: PartitionKey, offset: int) -> tuple[int, int]:
        """The log start, and the bytes of the batches from there that lie wholly below this offset."""
        return await self._read(LedgerReader.size_below, partition, offset)

    async def topic_by_id(self, topic_id: bytes) -> Topic | None:
        """The topic with this id."""
        return await self._read(LedgerReader.topic_by_id, topic_id)

    async def topics(self, *, after: str = "", limit: int = 10_000) -> list[Topic]:
        """Topics in the order of their names."""
        return await self._read(LedgerReader.topics, after, limit)

    async def counts(self) -> Counts:
        """How many there are of what clients can make."""
        return await self._read(LedgerReader.counts)

    async def groups(self, *, after: str = "", limit: int = 10_000) -> list[GroupSummary]:
        """Groups in the order of their ids, also those that only have offsets (kind "")."""
        return await self._read(LedgerReader.groups, after, limit)

    async def group_offsets(self, group_id: str) -> list[tuple[OffsetKey, CommittedOffset]]:
        """Everything a group has committed."""
        return await self._read(LedgerReader.group_offsets, group_id)

    async def producers(self, partition: PartitionKey) -> list[tuple[int, ProducerState]]:
        """The producers that a partition remembers."""
        return await self._read(LedgerReader.producers, partition)

    async def producers_unseen_since(self, before_ms: int, *, limit: int) -> list[Key]:
        """Producers without an open transaction that were last seen before this moment."""
        found: list[Key] = []
        after: tuple[int, int] | None = (0, -1)
        while after is not None and len(found) < limit:
            # A page at a time, so that other readers get their turn between two.
            unseen, after = await self._read(LedgerReader.unseen_producers, after, before_ms, PRODUCERS_PAGE)
            found += unseen
        return found[:limit]

    async def aborted(self, partition: PartitionKey, first: int, before: int) -> list[tuple[int, int]]:
        """Producer and first offset of aborted transactions that touch this range, by first offset."""
        return await self._read(LedgerReader.aborted, partition, first, before)

    async def transactions(
        self, *, after: str = "", limit: int = 10_000, state: TransactionState | None = None
    ) -> list[Transaction]:
        """Transactional ids in their order, all or those in one state."""
        return await self._read(LedgerReader.transactions, after, limit, state)

    async def transactions_unused_since(self, before_ms: int, *, limit: int) -> list[str]:
        """Transactional ids without an open transaction that nobody used after this moment."""
        found: list[str] = []
        after: str | None = ""
        while after is not None and len(found) < limit:
            unused, after = await self._read(
                LedgerReader.unused_transactions, after, before_ms, TRANSACTIONS_PAGE
            )
            found += unused
        return found[:limit]

    async def leftovers(self, *, limit: int) -> list[BatchLocation]:
        """Places of up to ``limit`` rows that the next sweep deletes. Nobody can reach them any more."""
        await self._caught_up()
        return await self._worker.run(lambda: self._health.guard(self._looked, self._writer.leftovers, limit))

    async def sweep(self, *, limit: int) -> list[BatchLocation]:
        """Delete up to ``limit`` rows that nobody can reach any more; places they freed."""
        await self._caught_up()
        while True:
            locations: list[BatchLocation]
            locations, more = await self._worker.run(
                lambda: self._health.guard(self._looked, self._writer.sweep, limit)
            )
            if locations or not more:
                return locations

    async def chunk_references(self) -> dict[int, int]:
        """How many bytes of each chunk rows point at; chunks that are not in here are orphans."""
        await self._caught_up()
        return await self._worker.run(lambda: self._health.guard(self._looked, self._writer.chunk_references))

    async def forget_chunks(self, gone: Sequence[int], unsure: Sequence[int]) -> None:
        """Expect nothing any more of chunks that are gone, or of how far others are on the disk."""
        await self._worker.run(lambda: self._health.guard(self._writer.forget_chunks, gone, unsure))

    async def close(self) -> None:
        """Let go of files and threads. A stop, if nothing broke, is marked as clean."""
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
                # Other pages can be read: only what needs this one cannot be answered.
                raise self._damaged(error) from error
            self._health.fail(f"{self._path} cannot be read: {error}")
            raise StoreBroken(f"{self._path} cannot be read: {error}") from error

    def _looked(self, job: Callable[..., T], *args: Any) -> T:
        """Do what the writing thread may leave undone: a damaged page takes back what it has begun."""
        try:
            return job(*args)
        except apsw.Error as error:
            if not is_damage(error):
                raise
            self._writer.take_back()
            raise self._damaged(error) from error

    def _damaged(self, error: apsw.Error) -> LedgerDamaged:
        """What is told of a page that is not what was written. The log gets it at a bounded rate."""
        damaged = LedgerDamaged(f"a page of {self._path} is damaged: {error}; see 'semel check-storage'")
        now = time.monotonic()
        if now - self._told_at >= AGAIN_SECONDS:
            self._told_at = now
            log.error("%s", damaged)
        return damaged

    def _reader(self) -> LedgerReader:
        """The reader of this thread."""
        if self._memory_reader is not None:
            return self._memory_reader
        reader: LedgerReader | None = getattr(self._local, "reader", None)
        if reader is None:
            assert self._path is not None
            reader = self._local.reader = LedgerReader(open_reader(self._path, vfs=self._vfs))
            self._opened.append(reader)
        return reader

    def _rest(self, *, quiet: bool) -> None:
        """Between two jobs of the writing thread. A failure is told to the next who asks."""
        if self._closed or self._health.has_failed:
            return
        try:
            self._writer.rest(quiet=quiet)
        except apsw.Error as error:
            self._health.fail(f"moving the write-ahead log failed: {error}")
