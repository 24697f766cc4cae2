"""Early commits: what a kill keeps, what the end of the operating system ends, and what waits for a flush."""

import errno
from functools import partial
from pathlib import Path
from typing import Any

import apsw
import pytest
from support.stores.embedded import (
    LARGE,
    SETTINGS,
    append,
    assert_dense,
    boot,
    copy_killed,
    copy_killed_beside,
    log_of,
    make_small,
    open_on,
    opened,
    opened_with_book,
)

from semel.core.facts import ProducerIdAllocated
from semel.store import opening
from semel.store.contract import StoreBroken, StoreFull
from semel.store.embedded import wal_applier
from semel.store.embedded.ledger import SqliteLedger
from semel.store.embedded.wal import WriteAheadLog
from semel.store.opening import open_store

_unsynced = partial(append, defers_sync=True)


# -- together ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["memory", "disk"])
async def test_the_next_ordinary_commit_makes_everything_durable(
    tmp_path: Path, scribe: Any, kind: str
) -> None:
    async with opened(tmp_path / "data" if kind == "disk" else None) as store:
        (key,) = await scribe.create(store)
        number = await append(store, scribe, key)
        assert not store.has_unsynced
        assert await _unsynced(store, scribe, key, 3) == number + 1
        assert await _unsynced(store, scribe, key) == number + 2
        assert store.has_unsynced
        # The ledger does not know of it, so nobody can be given it.
        assert len(await log_of(store, key)) == 1
        assert await append(store, scribe, key) == number + 3
        assert not store.has_unsynced
        log = await log_of(store, key)
        assert_dense(log)
        assert len(log) == 6
        assert await store.ledger.load([key]) == [scribe.partitions[key]]


@pytest.mark.parametrize("kind", ["memory", "disk"])
async def test_a_commit_of_nothing_is_a_flush(tmp_path: Path, scribe: Any, kind: str) -> None:
    async with opened(tmp_path / "data" if kind == "disk" else None) as store:
        (key,) = await scribe.create(store)
        number = await _unsynced(store, scribe, key, 2)
        assert await store.commit([], []) == number
        assert not store.has_unsynced
        assert len(await log_of(store, key)) == 2


async def test_early_work_is_one_write_and_the_ordinary_commit_one_flush(
    tmp_path: Path, scribe: Any, failing_files: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wal_applier, "DELAY_SECONDS", 3_600)
    async with opened(tmp_path / "data", files=failing_files) as store:
        (key,) = await scribe.create(store)
        await append(store, scribe, key)
        await store.ledger.topics()
        failing_files.calls.clear()
        for _ in range(5):
            await _unsynced(store, scribe, key)
        assert failing_files.calls == ["write"] * 5
        failing_files.calls.clear()
        # It has no bytes of its own, and flushes those that wait.
        await store.commit([ProducerIdAllocated(1)], [])
        assert failing_files.calls == ["write", "flush"]
        failing_files.calls.clear()
        # Nothing waits, so there is nothing to do.
        await store.commit([], [])
        assert failing_files.calls == []


@pytest.mark.parametrize("kind", ["memory", "disk"])
async def test_a_large_early_commit_is_an_ordinary_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Its bytes lie behind those of commits that the ledger does not have yet."""
    make_small(monkeypatch)
    async with opened_with_book(tmp_path / "data" if kind == "disk" else None) as (store, book):
        await book.commit(store, defers_sync=True)
        assert store.has_unsynced
        await book.commit(store, LARGE, defers_sync=True)
        assert not store.has_unsynced
        assert await book.check(store) == 2
        await book.commit(store)
        await book.commit(store, LARGE)
        assert await book.check(store) == 4


async def test_chunks_that_are_sealed_between_are_no_orphans(
    tmp_path: Path, scribe: Any, failing_files: Any
) -> None:
    async with opened(tmp_path / "data", files=failing_files) as store:
        (key,) = await scribe.create(store)
        await append(store, scribe, key)
        failing_files.calls.clear()
        while failing_files.calls.count("create") < 2:
            await _unsynced(store, scribe, key, 20)
            assert await store.sweep_orphans() == []
        killed = await copy_killed_beside(store, tmp_path / "data")
        assert len(await log_of(store, key)) == 1
    for directory in (tmp_path / "data", killed):
        async with opened(directory) as store:
            log = await log_of(store, key)
            assert_dense(log)
            assert len(log) == scribe.partitions[key].high_watermark
            assert len({batch.location.chunk_id for batch, _ in log}) == 3


async def test_more_early_work_than_a_file_of_the_wal_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_small(monkeypatch)
    async with opened_with_book(tmp_path / "data") as (store, book):
        for _ in range(40):
            await book.commit(store, 700, defers_sync=True)
            assert store.has_unsynced
        killed = await copy_killed_beside(store, tmp_path / "data")
        # Each switch made durable what was before it.
        assert 30 < await book.check(store) < 40
    async with opened(killed) as store:
        assert await book.check(store) == 40


# -- a kill -----------------------------------------------------------------------------------------------


async def test_a_kill_keeps_early_work_and_the_term(tmp_path: Path, scribe: Any) -> None:
    async with opened(tmp_path / "data") as store:
        (key,) = await scribe.create(store)
        await _unsynced(store, scribe, key, 2)
        directory = await copy_killed_beside(store, tmp_path / "data")
    # A second kill, and a third, find nothing to do twice.
    for _ in range(3):
        async with opened(directory) as store:
            assert (store.term, store.has_unsynced) == (1, False)
            log = await log_of(store, key)
            assert_dense(log)
            assert len(log) == 2
            directory = copy_killed(directory)


async def test_what_a_kill_left_is_flushed_before_the_ledger_points_at_it(
    tmp_path: Path, scribe: Any, failing_files: Any
) -> None:
    async with opened(tmp_path / "data") as store:
        (key,) = await scribe.create(store)
        await _unsynced(store, scribe, key, 2)
        killed = await copy_killed_beside(store, tmp_path / "data")
    failing_files.failures["flush"] = errno.EIO
    for _ in range(2):
        with pytest.raises(StoreBroken):
            await open_store(killed, SETTINGS, files=failing_files)
    failing_files.failures.clear()
    failing_files.calls.clear()
    async with opened(killed, files=failing_files) as store:
        # The log of the ledger as it was found, what the WAL brought into the chunk, and the lock.
        assert failing_files.calls.count("flush") == 3
        assert len(await log_of(store, key)) == 2


async def test_a_start_without_room_is_tried_again(
    tmp_path: Path, scribe: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(tmp_path / "data") as store:
        (key,) = await scribe.create(store)
        await _unsynced(store, scribe, key, 3)
        killed = await copy_killed_beside(store, tmp_path / "data")

    def refuse(*args: Any) -> int:
        raise StoreFull("no room")

    with monkeypatch.context() as patch:
        patch.setattr(SqliteLedger, "commit_now", refuse)
        for _ in range(2):
            with pytest.raises(StoreFull):
                await open_store(killed, SETTINGS)
    async with opened(killed) as store:
        assert len(await log_of(store, key)) == 3
        assert (store.term, store.stopped_cleanly) == (1, False)


@pytest.mark.parametrize("part", ["LocalChunks", "WriteAheadLog"])
async def test_a_start_that_fails_is_no_clean_stop(
    tmp_path: Path, scribe: Any, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    """Otherwise the next one would not look into the WAL."""
    async with opened(tmp_path / "data") as store:
        (key,) = await scribe.create(store)
        await append(store, scribe, key, 2)
        killed = await copy_killed_beside(store, tmp_path / "data")

    def fail(*args: Any, **options: Any) -> None:
        raise OSError(errno.EMFILE, "too many open files")

    with monkeypatch.context() as patch:
        if part == "LocalChunks":
            patch.setattr(opening, "LocalChunks", fail)
        else:
            patch.setattr(WriteAheadLog, "start", fail)
        with pytest.raises(OSError, match="too many"):
            await open_store(killed, SETTINGS)
    async with opened(killed) as store:
        assert not store.stopped_cleanly
        assert len(await log_of(store, key)) == 2


# -- the end of a term ------------------------------------------------------------------------------------


async def test_another_boot_begins_a_term(
    tmp_path: Path, scribe: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    boot(monkeypatch)
    async with opened(tmp_path / "data") as store:
        (key,) = await scribe.create(store)
        await append(store, scribe, key)
        await _unsynced(store, scribe, key, 3)
        killed = await copy_killed_beside(store, tmp_path / "data")
    boot(monkeypatch)
    async with opened(killed) as store:
        assert (store.term, store.stopped_cleanly) == (2, False)
        # What is still there is as good as ever; that some of it may not be, the term says.
        assert len(await log_of(store, key)) == 4
        killed = copy_killed(killed)
    # A kill is no end of the system.
    async with opened(killed) as store:
        assert store.term == 2
    # A clean stop had written everything, so nothing was lost.
    async with opened(tmp_path / "data") as store:
        assert (store.term, store.stopped_cleanly) == (1, True)
        assert len(await log_of(store, key)) == 4


@pytest.mark.parametrize("call", ["flush", "write"])
async def test_frames_that_may_be_gone_end_the_term(
    tmp_path: Path, scribe: Any, failing_files: Any, call: str
) -> None:
    """After a flush that failed the operating system may have forgotten what it was given."""
    store = await open_store(tmp_path / "data", SETTINGS, files=failing_files)
    (key,) = await scribe.create(store)
    await append(store, scribe, key)
    await store.ledger.topics()
    await _unsynced(store, scribe, key)
    failing_files.failures[call] = errno.EIO
    with pytest.raises(StoreBroken):
        await append(store, scribe, key)
    await store.close()
    assert (tmp_path / "data" / "wal.lost").exists()
    async with opened(tmp_path / "data") as store:
        assert store.term == 2
        log = await log_of(store, key)
        assert_dense(log)
        # The ordinary one has an unknown outcome.
        assert len(log) in (1, 2, 3)
    # It is said once.
    assert not (tmp_path / "data" / "wal.lost").exists()
    async with opened(tmp_path / "data") as store:
        assert (store.term, store.stopped_cleanly) == (2, True)


async def test_a_ledger_that_fails_loses_nothing_that_was_acknowledged(
    tmp_path: Path, scribe: Any, failing_disk: Any
) -> None:
    store = await open_on(failing_disk.name, tmp_path / "data")
    (key,) = await scribe.create(store)
    await append(store, scribe, key)
    await _unsynced(store, scribe, key, 2)
    await store.ledger.topics()
    failing_disk.failing["write"] = apsw.IOError
    await append(store, scribe, key)
    # It is durable, and the ledger cannot have it.
    with pytest.raises(StoreBroken):
        await store.ledger.topics()
    with pytest.raises(StoreBroken):
        await store.commit([ProducerIdAllocated(1)], [])
    await store.close()
    async with opened(tmp_path / "data") as store:
        assert store.term == 1
        log = await log_of(store, key)
        assert_dense(log)
        assert len(log) == 4


async def test_a_stop_without_room_for_the_ledger_is_not_clean(
    tmp_path: Path, scribe: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    boot(monkeypatch)
    store = await open_store(tmp_path / "data", SETTINGS)
    (key,) = await scribe.create(store)
    await _unsynced(store, scribe, key)
    with monkeypatch.context() as patch:

        def refuse(*args: Any) -> int:
            raise StoreFull("no room")

        patch.setattr(store.ledger, "apply_now", refuse)
        await store.close()
    killed = copy_killed(tmp_path / "data")
    async with opened(tmp_path / "data") as store:
        assert (store.term, store.stopped_cleanly) == (1, False)
        assert len(await log_of(store, key)) == 1
    boot(monkeypatch)
    async with opened(killed) as store:
        assert store.term == 2
        # It was flushed before it was tried.
        assert len(await log_of(store, key)) == 1
