"""Backup: a copy of a stopped, a killed or a running store is complete, and starts without a repair."""

import asyncio
import os
import shutil
import threading
from pathlib import Path

import pytest
from support.stores.embedded import SETTINGS, Book, opened

from semel.store.contract import StoreBroken, StoreDamaged, StoreFull
from semel.store.embedded import ledger_opening, wal_applier
from semel.store.embedded.ledger_writer import LedgerWriter
from semel.store.embedded.store import EmbeddedStore
from semel.store.embedded.tools import backup
from semel.store.embedded.tools.backup import back_up
from semel.store.embedded.tools.check_storage import check_storage
from semel.store.embedded.tools.repair import plan
from semel.store.opening import open_store

COMMITS = 30


async def _restored(target: Path, book: Book) -> int:
    """How many commits a store that is opened on a backup has; it goes on, and can be opened again."""
    assert plan(target).problems == []
    assert check_storage(target).is_sound
    async with opened(target) as store:
        count = await book.check(store)
        del book.batches[count:]
        await book.commit(store, 3_000)
        await store.sweep_orphans()
    async with opened(target) as store:
        assert await book.check(store) == count + 1
    del book.batches[count:]
    return count


async def _filled(store: EmbeddedStore) -> Book:
    book = Book()
    await book.begin(store)
    for _ in range(COMMITS):
        await book.commit(store, 3_000)
    return book


async def test_a_stopped_directory(tmp_path: Path) -> None:
    async with opened(tmp_path / "data") as store:
        book = await _filled(store)
    made = back_up(tmp_path / "data", tmp_path / "copy")
    assert (made.batches, made.damaged, made.was_running) == (2 * COMMITS, [], False)
    assert await _restored(tmp_path / "copy", book) == COMMITS


async def test_a_killed_directory_is_copied_with_its_wal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wal_applier, "DELAY_SECONDS", 3_600)
    async with opened(tmp_path / "data") as store:
        book = await _filled(store)
        shutil.copytree(tmp_path / "data", tmp_path / "killed")
    back_up(tmp_path / "killed", tmp_path / "copy")
    assert await _restored(tmp_path / "copy", book) == COMMITS


async def test_a_running_broker_s_directory(tmp_path: Path) -> None:
    async with opened(tmp_path / "data") as store:
        term = store.term
        book = await _filled(store)
        for name in ("first", "second"):
            made = await asyncio.to_thread(back_up, tmp_path / "data", tmp_path / name)
            assert (made.batches, made.damaged) == (2 * COMMITS, [])
            assert made.was_running
        assert await book.check(store) == COMMITS
    assert _names(tmp_path / "first") == ["chunks", "ledger.db"]
    async with opened(tmp_path / "first") as store:
        assert store.term == term + 1
    assert await _restored(tmp_path / "second", book) == COMMITS


async def test_while_the_broker_writes_and_deletes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks are begun and deleted between every two steps of the backup."""
    monkeypatch.setattr(backup, "PAGES_AT_ONCE", 2)
    loop = asyncio.get_running_loop()
    async with opened(tmp_path / "data") as store:
        book = await _filled(store)
        steps = 0

        async def step() -> None:
            nonlocal steps
            steps += 1
            if steps < 25:
                for _ in range(3):
                    await book.commit(store, 4_000)
                await book.trim(store, len(book.batches) - 20)
                await store.checkpoint()
                while locations := await store.ledger.sweep(limit=1_000):
                    await store.chunks.release(locations)
                await store.sweep_orphans()

        def progress(what: str, done: int, total: int) -> None:
            if threading.current_thread() is not threading.main_thread():
                asyncio.run_coroutine_threadsafe(step(), loop).result()

        made = await asyncio.to_thread(back_up, tmp_path / "data", tmp_path / "copy", progress)
        assert made.damaged == []
    assert steps > 20
    assert plan(tmp_path / "copy").problems == []
    checked = check_storage(tmp_path / "copy")
    assert checked.is_sound
    assert checked.batches == 40
    async with opened(tmp_path / "copy") as store:
        assert await store.sweep_orphans() == []
        await store.commit([], [])


async def test_what_is_damaged_is_named_and_the_rest_is_copied(tmp_path: Path) -> None:
    async with opened(tmp_path / "data") as store:
        book = await _filled(store)
        await store.checkpoint()
        chunk = min((tmp_path / "data" / "chunks").iterdir())
        data = bytearray(chunk.read_bytes())
        data[data.index(bytes(book.batches[3][0])) + 100] ^= 1
        chunk.write_bytes(data)
        made = await asyncio.to_thread(back_up, tmp_path / "data", tmp_path / "copy")
    assert len(made.damaged) == 1
    assert "offsets 3 to 3" in str(made.damaged[0])
    assert plan(tmp_path / "copy").problems == []


async def test_what_is_refused_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, target = tmp_path / "data", tmp_path / "copy"
    async with opened(data) as store:
        await _filled(store)
    before = _names(tmp_path)
    with pytest.raises(StoreBroken, match="is inside"):
        back_up(data, data / "copy")
    with pytest.raises(StoreBroken, match="exists and is not an empty directory"):
        back_up(data, data)
    (tmp_path / "empty").mkdir()
    with pytest.raises(StoreBroken, match=r"ledger\.db"):
        back_up(tmp_path / "empty", target)
    back_up(data, tmp_path / "empty")
    shutil.rmtree(tmp_path / "empty")
    (tmp_path / "copy.partial").mkdir()
    with pytest.raises(StoreBroken, match="one was interrupted; remove it"):
        back_up(data, target)
    (tmp_path / "copy.partial").rmdir()
    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", _full)
        with pytest.raises(OSError, match="No space left"):
            back_up(data, target)
    (data / "wal-0").write_bytes(b"")
    (min((data / "chunks").iterdir())).unlink()
    with pytest.raises(StoreDamaged, match="chunk 1 "):
        back_up(data, target)
    assert _names(tmp_path) == before


async def test_no_room_for_a_running_broker_s_ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened(tmp_path / "data") as store:
        await _filled(store)
        monkeypatch.setattr(LedgerWriter, "close", lambda self, *, cleanly: self.connection.close(True))
        with pytest.raises(StoreFull):
            await asyncio.to_thread(back_up, tmp_path / "data", tmp_path / "copy")
        monkeypatch.undo()
    assert _names(tmp_path) == ["data"]


@pytest.mark.skipif(not ledger_opening.available(), reason="there are no page checksums")
async def test_an_interrupted_backup_is_no_data_directory(tmp_path: Path) -> None:
    async with opened(tmp_path / "data") as store:
        await _filled(store)
        states: list[Path] = []

        def progress(what: str, done: int, total: int) -> None:
            if len(states) < 40:
                states.append(tmp_path / f"state-{len(states)}")
                shutil.copytree(tmp_path / "copy.partial", states[-1])

        await asyncio.to_thread(back_up, tmp_path / "data", tmp_path / "copy", progress)
    for state in states:
        with pytest.raises(StoreDamaged, match=r"ledger\.db"):
            await open_store(state, SETTINGS)


def _full(*_: object) -> int:
    raise OSError(28, "No space left on device")


def _names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())
