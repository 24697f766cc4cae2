"""The embedded store on a disk that fails or is full, and the chunks that nobody points at."""

import asyncio
import errno
import os
import shutil
from pathlib import Path
from typing import Any

import apsw
import pytest
from support.stores.embedded import (
    LARGE,
    SETTINGS,
    Book,
    append,
    assert_dense,
    log_of,
    make_small,
    open_on,
    opened,
)

from semel.config import Settings
from semel.core.facts import BatchStaged, ProducerIdAllocated, StagedDropped, TopicDeleted
from semel.core.types import PartitionKey
from semel.store.contract import StoreBroken, StoreFull
from semel.store.embedded.chunk_header import HEADER_BYTES
from semel.store.opening import open_store

# -- faults -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("call", ["write", "flush"])
async def test_a_wal_that_cannot_be_written_breaks_the_store(
    tmp_path: Path, scribe: Any, failing_files: Any, call: str
) -> None:
    store = await open_store(tmp_path / "data", SETTINGS, files=failing_files)
    (key,) = await scribe.create(store)
    await append(store, scribe, key)
    failing_files.failures[call] = errno.EIO
    with pytest.raises(StoreBroken):
        await append(store, scribe, key)
    failing_files.failures.clear()
    for again in (
        store.commit([ProducerIdAllocated(1)], []),
        store.ledger.load([key]),
        store.chunks.list_chunks(),
        store.sweep_orphans(),
        store.ledger.sweep(limit=1),
    ):
        with pytest.raises(StoreBroken):
            await again
    await store.close()
    async with opened(tmp_path / "data") as store:
        log = await log_of(store, key)
        assert_dense(log)
        assert len(log) in (1, 2)
        assert not store.stopped_cleanly


@pytest.mark.parametrize("call", ["write", "flush"])
async def test_a_chunk_that_cannot_be_written_breaks_the_store_and_loses_nothing(
    tmp_path: Path, failing_files: Any, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_small(monkeypatch)
    book = Book()
    store = await open_store(tmp_path / "data", SETTINGS, files=failing_files)
    await book.begin(store)
    await book.commit(store)
    failing_files.failures[call] = errno.EIO
    with pytest.raises(StoreBroken):
        await store.checkpoint()
    failing_files.failures.clear()
    with pytest.raises(StoreBroken):
        await book.commit(store)
    await store.close()
    del book.batches[1:]
    # The WAL has it, and the term goes on: what it has was flushed.
    async with opened(tmp_path / "data", files=failing_files) as store:
        assert (await book.check(store), store.term) == (1, 1)
        await book.commit(store)
        failing_files.failures[call] = errno.EIO
        with pytest.raises(StoreBroken):
            await book.commit(store, LARGE)
        failing_files.failures.clear()
    async with opened(tmp_path / "data") as store:
        assert await book.check(store) in (2, 3)
        assert not store.stopped_cleanly


async def test_a_ledger_that_cannot_be_written_breaks_the_store(
    tmp_path: Path, scribe: Any, failing_disk: Any
) -> None:
    store = await open_on(failing_disk.name, tmp_path / "data")
    (key,) = await scribe.create(store)
    failing_disk.failing["sync"] = apsw.IOError
    # A commit needs the WAL and nothing else.
    await append(store, scribe, key)
    with pytest.raises(StoreBroken):
        await store.checkpoint()
    failing_disk.failing.clear()
    with pytest.raises(StoreBroken):
        await store.commit([ProducerIdAllocated(1)], [])
    with pytest.raises(StoreBroken):
        await store.chunks.append([b"x"])
    await store.close()
    async with opened(tmp_path / "data") as store:
        assert not store.stopped_cleanly
        assert len(await log_of(store, key)) == 1


async def test_a_full_disk_refuses_batches_and_lets_everything_else_go_on(
    tmp_path: Path, scribe: Any, failing_files: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Settings(semel_chunk_bytes_max=64 * 1024, semel_disk_reserve_bytes=10_000_000)
    async with opened(tmp_path / "data", settings, files=failing_files) as store:
        (key,) = await scribe.create(store)
        await append(store, scribe, key, 3)
        monkeypatch.setattr(failing_files, "free_bytes", lambda path: 1_000_000)
        for _ in range(2):
            with pytest.raises(StoreFull):
                await store.make_room(100_000)
        # Reading, committing facts, deleting and sweeping go on: that is how a disk gets room again.
        assert len(await log_of(store, key)) == 3
        await store.commit([ProducerIdAllocated(1), scribe.trim(key, 2), *scribe.changed()], [])
        await store.checkpoint()
        locations = await store.ledger.sweep(limit=10)
        assert len(locations) == 2
        await store.chunks.release(locations)
        await store.sweep_orphans()
        monkeypatch.undo()
        await append(store, scribe, key)
        assert [batch.base_offset for batch, _ in await log_of(store, key)] == [2, 3]


async def test_what_must_be_written_digs_into_the_reserve_and_ends_at_a_full_disk(
    tmp_path: Path, scribe: Any, failing_files: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Markers are not asked for beforehand: the end of a transaction must find room for them."""
    settings = Settings(semel_chunk_bytes_max=64 * 1024, semel_disk_reserve_bytes=10_000_000)
    async with opened(tmp_path / "data", settings, files=failing_files) as store:
        (key,) = await scribe.create(store)
        free = 50_000 + HEADER_BYTES
        taken: list[int] = []

        def allocate(descriptor: int, position: int, length: int) -> None:
            nonlocal free
            taken.append(length)
            free -= length

        monkeypatch.setattr(failing_files, "free_bytes", lambda path: free)
        monkeypatch.setattr(failing_files, "allocate", allocate)
        marker: Any = None
        for _ in range(50):
            marker, _ = scribe.append(key, size=1_000)
            with pytest.raises(StoreFull):
                await store.make_room(1)
            await store.commit([marker, *scribe.changed()], [bytes(1_000)])
        assert taken == [HEADER_BYTES + 1_000] + [1_000] * 49
        with pytest.raises(StoreFull):
            await store.commit([marker.but(base_offset=50, last_offset=50)], [b"x"])
        assert len(await log_of(store, key)) == 50


# -- orphans ----------------------------------------------------------------------------------------------


async def test_orphans_are_removed_and_nothing_else(tmp_path: Path, scribe: Any, failing_files: Any) -> None:
    data = tmp_path / "data"
    crashed = tmp_path / "crashed"
    async with opened(data, files=failing_files) as store:
        keep, gone = scribe.created("keep"), scribe.created("gone")
        await store.commit([keep, gone], [])
        keys = [PartitionKey(each.topic.topic_id, 0) for each in (keep, gone)]
        for _ in range(3):
            await append(store, scribe, keys[0], 50)
        await store.chunks.append([os.urandom(60_000)])
        for _ in range(10):
            await append(store, scribe, keys[1], 100)
        await store.chunks.append([os.urandom(60_000)])
        await append(store, scribe, keys[0])
        assert await store.sweep_orphans() != []
        assert await store.sweep_orphans() == []

        referenced = await store.ledger.chunk_references()
        await store.commit([TopicDeleted(gone.topic)], [])
        # Rows that nobody can reach still point; their chunks go when the rows are swept.
        assert await store.sweep_orphans() == []
        while locations := await store.ledger.sweep(limit=100):
            await store.chunks.release(locations)
        orphans = await store.sweep_orphans()
        assert orphans
        assert set(orphans) < set(referenced)
        assert_dense(await log_of(store, keys[0]))
        left = {chunk_id for chunk_id, _ in await store.chunks.list_chunks()}
        assert left >= set(await store.ledger.chunk_references())

        # A crash after bytes were written and before their facts were.
        def copy_after_a_flush(call: str) -> None:
            if call == "flush":
                shutil.copytree(data, crashed)

        failing_files.after = copy_after_a_flush
        await append(store, scribe, keys[0])
        failing_files.after = lambda call: None

    async with opened(crashed) as store:
        await store.chunks.append([b"begin a chunk, so that the one before is sealed"])
        await store.sweep_orphans()
        assert_dense(await log_of(store, keys[0]))


async def test_orphan_sweeps_and_commits_at_the_same_time(tmp_path: Path, scribe: Any) -> None:
    async with opened(tmp_path / "data") as store:
        (key,) = await scribe.create(store)

        async def write() -> None:
            for _ in range(60):
                await append(store, scribe, key, 20)

        async def sweep() -> None:
            for _ in range(60):
                await store.sweep_orphans()

        await asyncio.gather(write(), sweep())
        log = await log_of(store, key)
        assert_dense(log)
        assert len(log) == 1_200


async def test_what_was_staged_and_dropped_gives_its_space_back(tmp_path: Path, scribe: Any) -> None:
    async with opened(tmp_path / "data", Settings(semel_disk_reserve_bytes=0)) as store:
        (key,) = await scribe.create(store)
        staged = BatchStaged(key, 7, 1, 0, 100_000)
        for defers_sync in (False, True):
            await store.commit([staged] * 20, [os.urandom(100_000)] * 20, defers_sync=defers_sync)
        await append(store, scribe, key)
        ((_, before),) = await store.chunks.list_chunks()
        await store.commit([StagedDropped(key, 7)], [])
        while locations := await store.ledger.leftovers(limit=16):
            await store.chunks.release(locations)
            assert await store.ledger.sweep(limit=16) == locations
        ((_, after),) = await store.chunks.list_chunks()
        assert before - after > 3_900_000
        assert len(await log_of(store, key)) == 1
