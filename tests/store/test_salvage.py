"""Salvage: it is done whole or not at all, and it brings back what only the WAL has."""

import asyncio
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from support.stores.embedded import EVERYTHING, SETTINGS, Book, opened

from semel.core.types import Buffer, PartitionKey
from semel.store.contract import StoreDamaged, StoreFull
from semel.store.embedded import swap, wal, wal_applier
from semel.store.embedded.files import Files
from semel.store.embedded.ledger_writer import LedgerWriter
from semel.store.embedded.tools.check_storage import check_storage
from semel.store.embedded.tools.repair import carry_out, plan
from semel.store.embedded.tools.salvage import salvage
from semel.store.opening import open_store

COMMITS = 8


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Book:
    """What a killed broker left: the last four commits are in the WAL alone. The ledger is lost."""
    monkeypatch.setattr(wal_applier, "DELAY_SECONDS", 3_600)
    monkeypatch.setattr(wal, "FILE_BYTES", 64 * 1024)

    async def fill() -> Book:
        book = Book()
        async with opened(tmp_path / "running") as store:
            await book.fill(store, COMMITS)
            shutil.copytree(tmp_path / "running", tmp_path / "data")
        return book

    book = asyncio.run(fill())
    for path in (tmp_path / "data").glob("ledger.db*"):
        path.unlink()
    return book


class Watched(Files):
    """Calls a function before everything that changes the disk."""

    def __init__(self, before: Callable[[], None]) -> None:
        self._before = before

    def create(self, path: Path) -> int:
        self._before()
        return super().create(path)

    def write(self, descriptor: int, buffers: Sequence[Buffer], position: int) -> int:
        self._before()
        return super().write(descriptor, buffers, position)

    def flush(self, descriptor: int) -> None:
        self._before()
        super().flush(descriptor)

    def flush_directory(self, path: Path) -> None:
        self._before()
        super().flush_directory(path)

    def remove(self, path: Path) -> None:
        self._before()
        super().remove(path)

    def rename(self, path: Path, target: Path) -> None:
        self._before()
        super().rename(path, target)


def _watch_ledger(monkeypatch: pytest.MonkeyPatch, before: Callable[[], None]) -> None:
    for name in ("commit", "note", "forget_chunks", "close"):
        original = getattr(LedgerWriter, name)

        def watched(self: Any, *args: Any, _original: Any = original, **options: Any) -> Any:
            before()
            result = _original(self, *args, **options)
            before()
            return result

        monkeypatch.setattr(LedgerWriter, name, watched)


def _wanted(book: Book) -> list[bytes]:
    return sorted(bytes(each) for commit in book.batches for each in commit)


async def _records(directory: Path) -> list[bytes]:
    """What a broker serves, after its sweep."""
    found: list[bytes] = []
    async with opened(directory) as store:
        assert await store.sweep_orphans() == []
        (topic,) = await store.ledger.topics()
        assert topic.name == "salvaged"
        for index in range(topic.partitions):
            rows = await store.ledger.find_batches(PartitionKey(topic.topic_id, index), 0, **EVERYTHING)
            found += map(bytes, await store.chunks.read([row.location for row in rows]))
    return sorted(found)


async def test_what_only_the_wal_has_is_salvaged(tmp_path: Path, made: Book) -> None:
    planned = plan(tmp_path / "data")
    assert any("write 8 batches that only the WAL has" in action for action in planned.actions)
    found = salvage(tmp_path / "data")
    assert (found.chunks, found.batches, found.records) == (2, 2 * COMMITS, 2 * COMMITS)
    assert check_storage(tmp_path / "data").is_sound
    assert await _records(tmp_path / "data") == _wanted(made)


async def test_acknowledged_commits_that_cannot_be_salvaged_are_named(tmp_path: Path, made: Book) -> None:
    path = tmp_path / "data" / "wal-0"
    data = bytearray(path.read_bytes())
    data[data.index(made.batches[COMMITS - 2][0][:50])] ^= 1
    path.write_bytes(data)
    planned = plan(tmp_path / "data")
    number = COMMITS  # The topic was commit 1.
    lost = f"lost as well: 1 commits that are damaged in the WAL, or not in it, between {number} and {number}"
    assert lost in planned.actions
    salvage(tmp_path / "data")
    del made.batches[COMMITS - 2]
    assert await _records(tmp_path / "data") == _wanted(made)


async def test_a_salvage_may_be_killed_at_any_step(
    tmp_path: Path, made: Book, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy from before each step is what a kill at this step leaves."""
    directory = tmp_path / "data"
    states: list[Path] = []

    def keep() -> None:
        states.append(tmp_path / f"state-{len(states)}")
        shutil.copytree(directory, states[-1])

    with monkeypatch.context() as patched:
        _watch_ledger(patched, keep)
        salvage(directory, Watched(keep))
    assert len(states) > 30
    pending = 0
    for state in states:
        chunks = sorted(path.name for path in (state / "chunks").glob("*.chunk"))
        try:
            async with opened(state):
                pass
        except StoreDamaged as error:
            pending += "a repair was interrupted" in str(error)
            planned = plan(state)
            assert planned.problems
            if not planned.needs_salvage:
                await carry_out(state)
            else:
                salvage(state)
        assert set(chunks) <= {path.name for path in (state / "chunks").iterdir()}
        assert await _records(state) == _wanted(made), state
        assert swap.leftovers(state) == []
        shutil.rmtree(state)
    assert pending > 5


@pytest.mark.parametrize("room", range(6))
async def test_a_salvage_without_room_changes_nothing(
    tmp_path: Path, made: Book, monkeypatch: pytest.MonkeyPatch, room: int
) -> None:
    directory = tmp_path / "data"
    before = {path.name: path.read_bytes() for path in directory.rglob("*") if path.is_file()}
    steps = 0

    def fill_up() -> None:
        nonlocal steps
        steps += 1
        if steps > room:
            raise StoreFull("there is no room for the ledger")

    with monkeypatch.context() as patched:
        for name in ("commit", "note", "forget_chunks"):
            original = getattr(LedgerWriter, name)

            def limited(self: Any, *args: Any, _original: Any = original, **options: Any) -> Any:
                fill_up()
                return _original(self, *args, **options)

            patched.setattr(LedgerWriter, name, limited)
        if room >= 5:
            # The last one: the mark of a clean stop finds no room.
            patched.setattr(LedgerWriter, "close", lambda self, *, cleanly: self.connection.close(True))
        with pytest.raises(StoreFull):
            salvage(directory)
    after = {path.name: path.read_bytes() for path in directory.rglob("*") if path.is_file()}
    assert {name: data for name, data in after.items() if name != "lock"} == {
        name: data for name, data in before.items() if name != "lock"
    }
    with pytest.raises(StoreDamaged, match=r"ledger\.db"):
        await open_store(directory, SETTINGS)
    salvage(directory)
    assert await _records(directory) == _wanted(made)
