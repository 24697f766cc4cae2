"""How ledger and chunks follow the WAL: who waits, how much may gather, and what a full ledger does."""

import asyncio
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest
from support.stores.embedded import LARGE, Book, make_small, opened, opened_with_book

from semel.core.facts import ProducerIdAllocated, Put
from semel.core.types import Cluster, ClusterKey, Transaction
from semel.store.contract import StoreFull
from semel.store.embedded import wal_applier


async def _fill(book: Book, store: Any) -> None:
    while True:
        await book.commit(store, 1_500)


async def _until_it_has(store: Any, number: int) -> None:
    """Until the ledger has this commit."""
    for _ in range(30_000):
        if store.ledger.commit_number >= number:
            return
        await asyncio.sleep(0.001)
    raise AssertionError("the ledger does not follow")


def _killed(directory: Path, name: str) -> Path:
    return Path(shutil.copytree(directory, directory.parent / name))


async def test_the_ledger_follows_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wal_applier, "DELAY_SECONDS", 0.001)
    async with opened_with_book(tmp_path / "data") as (store, book):
        for number in range(20):
            await book.commit(store, defers_sync=number == 19)
        assert store.has_unsynced
        await _until_it_has(store, 20)
        # What is not durable it does not have.
        assert store.ledger.commit_number == 20


async def test_many_commits_are_one_in_the_ledger_and_readers_wait_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_small(monkeypatch)
    async with opened_with_book(tmp_path / "data") as (store, book):
        await store.ledger.topics()
        applied: list[int] = []
        apply_now = store.ledger.apply_now

        def count(facts: Any, locations: Any, number: int) -> None:
            applied.append(number)
            apply_now(facts, locations, number)

        monkeypatch.setattr(store.ledger, "apply_now", count)
        for _ in range(5):
            await book.commit(store)
        assert applied == []
        readers = [book.check(store), *(store.ledger.topics() for _ in range(5)), store.sweep_orphans()]
        assert (await asyncio.gather(*readers))[0] == 5
        assert applied == [6]


async def test_a_reader_that_comes_when_the_ledger_has_just_followed(tmp_path: Path) -> None:
    """The thread is done, and what it did is not known on the event loop yet."""
    async with opened(tmp_path / "data") as store:
        await store.commit([ProducerIdAllocated(1)], [])
        first = asyncio.create_task(store.ledger.load([ClusterKey()]))
        await asyncio.sleep(0)
        done = threading.Event()
        store._worker.begin(done.set)
        done.wait()
        async with asyncio.timeout(30):
            second = asyncio.create_task(store.ledger.load([ClusterKey()]))
            assert await first == await second == [Cluster(2)]


@pytest.mark.parametrize("limit", ["COMMITS_MAX", "BYTES_MAX"])
async def test_commits_wait_when_too_much_has_gathered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    make_small(monkeypatch)
    monkeypatch.setattr(wal_applier, limit, 3 if limit == "COMMITS_MAX" else 1_000)
    book, most = Book(), 0
    async with opened(tmp_path / "data") as store:
        await book.begin(store)
        for _ in range(30):
            await book.commit(store)
            most = max(most, len(book.batches) + 1 - store.ledger.commit_number)
        assert 1 < most <= 6
        # Early ones cannot go on before they are durable, and nobody waits for that in vain.
        for _ in range(10):
            await book.commit(store, defers_sync=True)
        assert store.has_unsynced
        await store.commit([], [])
        assert await book.check(store) == 40


async def test_flushes_at_the_same_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody checkpoints while commits, also large ones, are on their way."""
    make_small(monkeypatch)
    async with opened_with_book(tmp_path / "data") as (store, book):

        async def disturb() -> None:
            while len(book.batches) < 60:
                await store.checkpoint()
                await asyncio.sleep(0)

        disturbing = [asyncio.create_task(disturb()) for _ in range(3)]
        for number in range(60):
            await book.commit(store, (10, 700, LARGE)[number % 3], defers_sync=number % 4 == 0)
        await asyncio.gather(*disturbing)
        await store.commit([], [])
        assert not store.has_unsynced
        assert await book.check(store) == 60


# -- a ledger without room --------------------------------------------------------------------------------


async def test_what_finds_no_room_in_the_ledger_is_kept_and_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_small(monkeypatch)
    monkeypatch.setattr(wal_applier, "AGAIN_SECONDS", 0.01)
    async with opened_with_book(tmp_path / "data") as (store, book):
        await book.commit(store)
        assert await book.check(store) == 1
        full = True
        apply_now = store.ledger.apply_now

        def refuse(*args: Any) -> None:
            if full:
                raise StoreFull("no room")
            apply_now(*args)

        monkeypatch.setattr(store.ledger, "apply_now", refuse)
        await book.commit(store)
        await book.commit(store, LARGE)
        for _ in range(2):
            # The ledger cannot say what is true, so nobody is told anything.
            for asked in (
                store.ledger.topics(),
                store.make_room(1),
                store.checkpoint(),
                store.sweep_orphans(),
                store.commit([ProducerIdAllocated(1)], []),
                store.commit([ProducerIdAllocated(1)], [], defers_sync=True),
            ):
                with pytest.raises(StoreFull):
                    await asked
        # Bytes are still read, and a flush has nothing to do with it.
        assert len(await store.chunks.list_chunks()) == 1
        await store.commit([], [])
        killed = _killed(tmp_path / "data", "killed")
        full = False
        # Nobody asks.
        await _until_it_has(store, 4)
        await store.make_room(1)
        await book.commit(store)
        assert await book.check(store) == 4
        assert await store.ledger.load([ClusterKey()]) == [Cluster(0)]
    async with opened(killed) as store:
        assert await book.check(store) == 3


async def test_a_switch_of_the_wal_without_room_refuses_the_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_small(monkeypatch)
    async with opened_with_book(tmp_path / "data") as (store, book):

        def refuse(*args: Any) -> None:
            raise StoreFull("no room")

        with monkeypatch.context() as patch:
            patch.setattr(store.ledger, "checkpoint_now", refuse)
            with pytest.raises(StoreFull):
                await _fill(book, store)
            # Both files are full of what the ledger has, and not for certain.
            assert 8 <= book.answered == len(book.batches) - 1
            with pytest.raises(StoreFull):
                await book.commit(store, 1_500)
            del book.batches[book.answered :]
            assert await book.check(store) == book.answered
            killed = _killed(tmp_path / "data", "killed")
        await book.commit(store)
        assert await book.check(store) == book.answered
    async with opened(killed) as store:
        assert await book.check(store) == book.answered - 1


async def test_a_ledger_that_may_soon_be_full_is_given_commits_directly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_small(monkeypatch)
    async with opened_with_book(tmp_path / "data") as (store, book):
        await book.commit(store)
        await book.commit(store, defers_sync=True)
        writer = store.ledger._writer
        monkeypatch.setattr(writer, "rest", lambda *, quiet: None)
        writer.is_tight = True
        images = []
        for defers_sync in (False, True):
            await book.commit(store, defers_sync=defers_sync)
            assert not store.has_unsynced
            assert store.ledger.commit_number == len(book.batches) + 1
            images.append((_killed(tmp_path / "data", f"killed-{defers_sync}"), len(book.batches)))
        connection = writer.connection
        connection.pragma("max_page_count", connection.pragma("page_count"))
        facts = [Put.of(Transaction(f"{number}", 1, 0, 1)) for number in range(500)]
        for defers_sync in (False, True):
            with pytest.raises(StoreFull):
                await store.commit(facts, [], defers_sync=defers_sync)
        # Reads go on, and so does what needs no room.
        assert await book.check(store) == 4
        await store.commit([ProducerIdAllocated(1)], [])
        # Records are refused if the disk is full, though the chunk has room.
        with monkeypatch.context() as patch:
            patch.setattr(store.chunks._files, "free_bytes", lambda path: 10)
            with pytest.raises(StoreFull):
                await store.make_room(11)
            await store.make_room(10)
        connection.pragma("max_page_count", 2**30)
        await store.commit(facts, [])
        assert len(await store.ledger.transactions()) == 500
        writer.is_tight = False
        await book.commit(store)
        await book.commit(store, defers_sync=True)
        images.append((_killed(tmp_path / "data", "killed"), len(book.batches)))
    for image, count in images:
        async with opened(image) as store:
            assert await book.check(store) == count
