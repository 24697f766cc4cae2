"""Helpers for tests of the embedded store: open it, append batches that contain their offset, read them."""

import contextlib
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from semel.config import Settings
from semel.core.facts import BatchAppended, LogStartAdvanced, Put, TopicCreated
from semel.core.types import Fact, Partition, PartitionKey, Topic
from semel.store import opening
from semel.store.contract import Ledger, StoredBatch
from semel.store.embedded import ledger_writer, wal, wal_applier
from semel.store.embedded import store as embedded
from semel.store.embedded.ledger import SqliteLedger
from semel.store.embedded.store import EmbeddedStore
from semel.store.opening import open_store
from semel.wire.records import Record, encode_batch

SETTINGS = Settings(semel_chunk_bytes_max=64 * 1024, semel_disk_reserve_bytes=0)
EVERYTHING = {"before": 2**62, "bytes_max": 2**40, "batches_max": 100_000}


@contextlib.asynccontextmanager
async def opened(directory: Path | None, settings: Settings = SETTINGS, **options: Any) -> Any:
    store = await open_store(directory, settings, **options)
    try:
        yield store
    finally:
        await store.close()


async def open_on(vfs: str, directory: Path, settings: Settings = SETTINGS, **options: Any) -> EmbeddedStore:
    """Open a store whose ledger uses this VFS."""
    open_ledger = SqliteLedger.open
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SqliteLedger, "open", lambda *args, **options: open_ledger(*args, **options, vfs=vfs))
        return await open_store(directory, settings, **options)


async def all_batches(ledger: Ledger, key: PartitionKey) -> list[StoredBatch]:
    return list(await ledger.find_batches(key, 0, **EVERYTHING))


async def log_of(store: EmbeddedStore, key: PartitionKey) -> list[tuple[StoredBatch, bytes]]:
    """Return every batch of a partition with its bytes."""
    batches = await all_batches(store.ledger, key)
    data = await store.chunks.read([batch.location for batch in batches])
    return [(batch, bytes(each)) for batch, each in zip(batches, data, strict=True)]


def bytes_of(offset: int) -> bytes:
    return f"batch {offset} ".encode() * (1 + offset % 50)


async def append(
    store: EmbeddedStore, scribe: Any, key: PartitionKey, count: int = 1, *, defers_sync: bool = False
) -> int:
    """Append batches whose bytes contain their offset, in one commit."""
    facts, data = [], []
    for _ in range(count):
        each = bytes_of(scribe.partitions[key].high_watermark)
        facts.append(scribe.append(key, size=len(each))[0])
        data.append(each)
    return await store.commit([*facts, *scribe.changed()], data, defers_sync=defers_sync)


def assert_dense(log: list[tuple[StoredBatch, bytes]]) -> None:
    for offset, (batch, data) in enumerate(log):
        assert batch.base_offset == offset
        assert data == bytes_of(offset)


LARGE = 9_000
"""The size of a batch that is too large for the WAL of a small store."""


def make_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make every limit small, so that switching, moving and sealing happen soon.

    The ledger is brought up to date only when it is read.
    """
    monkeypatch.setattr(wal, "FILE_BYTES", 16 * 1024)
    monkeypatch.setattr(wal, "ZEROED_BYTES", 1024)
    monkeypatch.setattr(embedded, "FRAME_BYTES_MAX", 8 * 1024)
    monkeypatch.setattr(embedded, "WAL_BATCH_BYTES_MAX", 4 * 1024)
    monkeypatch.setattr(wal_applier, "DELAY_SECONDS", 3_600)
    monkeypatch.setattr(ledger_writer, "LOG_FRAMES_MAX", 60)
    monkeypatch.setattr(ledger_writer, "LOG_FRAMES_BUSY", 40)
    monkeypatch.setattr(ledger_writer, "LOG_FRAMES_QUIET", 20)
    monkeypatch.setattr(ledger_writer, "LOOK_EVERY", 16)


def boot(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulate a reboot of the operating system."""
    name = os.urandom(8).hex()
    monkeypatch.setattr(opening, "_boot_id", lambda: name)


class Book:
    """Commits to two partitions at once, and knows what the store must contain afterwards.

    Each commit appends a real batch to both, so that half a commit is detected.
    """

    def __init__(self) -> None:
        self.topic = Topic("book", os.urandom(16), 2, {})
        self.keys = [PartitionKey(self.topic.topic_id, index) for index in range(2)]
        self._log_start = 0
        self.batches: list[list[bytes]] = []
        """The batches of each requested commit, one for each partition."""
        self.durable = 0
        """How many commits were acknowledged as durable."""
        self.answered = 0
        """How many commits were acknowledged, durable or not."""

    async def begin(self, store: EmbeddedStore) -> None:
        await store.commit([TopicCreated(self.topic)], [])

    async def commit(self, store: EmbeddedStore, size: int = 100, *, defers_sync: bool = False) -> None:
        offset = len(self.batches)
        both = [encode_batch([Record(0, offset, None, os.urandom(size))]) for _ in self.keys]
        self.batches.append(both)
        facts = [
            BatchAppended(key, offset, offset, offset, offset, len(each), -1, False, False)
            for key, each in zip(self.keys, both, strict=True)
        ]
        await store.commit([*facts, *self._changed()], both, defers_sync=defers_sync)
        self.answered = offset + 1
        if not store.has_unsynced:
            self.durable = self.answered

    async def fill(self, store: EmbeddedStore, commits: int) -> None:
        """Begin and commit; a checkpoint precedes the last four commits."""
        await self.begin(store)
        for number in range(commits):
            if number == commits - 4:
                await store.checkpoint()
            await self.commit(store)

    async def trim(self, store: EmbeddedStore, offset: int) -> None:
        """Delete what is below an offset."""
        self._log_start = offset
        facts: list[Fact] = [LogStartAdvanced(key, offset) for key in self.keys]
        await store.commit([*facts, *self._changed()], [])

    def _changed(self) -> list[Put]:
        end, kept = len(self.batches), self.batches[self._log_start :]
        return [
            Put(key, Partition(self._log_start, end, end - 1, sum(len(both[index]) for both in kept)))
            for index, key in enumerate(self.keys)
        ]

    async def check(self, store: EmbeddedStore) -> int:
        """Check that every commit is whole or absent, without a gap; return how many exist."""
        if not await store.ledger.topics():
            return 0
        logs = [await log_of(store, key) for key in self.keys]
        count = len(logs[0])
        for index, (key, log) in enumerate(zip(self.keys, logs, strict=True)):
            assert [batch.base_offset for batch, _ in log] == list(range(count))
            assert [data for _, data in log] == [both[index] for both in self.batches[:count]]
            (partition,) = await store.ledger.load([key])
            assert partition is not None
            assert partition.high_watermark == count
            assert partition.size_bytes == sum(batch.location.length for batch, _ in log)
        return count


@contextlib.asynccontextmanager
async def opened_with_book(directory: Path | None) -> Any:
    """Open a new store, and begin a book in it."""
    book = Book()
    async with opened(directory) as store:
        await book.begin(store)
        yield store, book


def copy_killed(directory: Path) -> Path:
    """Return a copy of the files that a kill at this moment would leave."""
    copy = directory.parent / f"killed-{os.urandom(4).hex()}"
    shutil.copytree(directory, copy)
    return copy


async def copy_killed_beside(store: EmbeddedStore, directory: Path) -> Path:
    """Copy as `copy_killed`, from an open store.

    The copy is made on the thread that writes chunks and ledger, so they are of the same moment.
    """
    return await store._worker.run(copy_killed, directory)
