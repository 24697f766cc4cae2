"""What crashes leave: of the process at every step, and of the power with any part of what was not flushed.

Whatever happens, what was answered as durable is there byte for byte, every commit is there whole or not at
all, and no later one without an earlier one.
"""

import contextlib
import random
import shutil
from pathlib import Path

import pytest
from support.faults.power_loss import Disk, nothing_more
from support.stores.embedded import LARGE, SETTINGS, Book, boot, make_small, opened

from semel.config import Settings
from semel.core.facts import ProducerIdAllocated
from semel.core.types import ClusterKey
from semel.store.contract import StoreBroken
from semel.store.embedded.store import EmbeddedStore
from semel.store.embedded.wal_applier import WalApplier

SMALL = Settings(semel_chunk_bytes_max=32 * 1024, semel_disk_reserve_bytes=0)


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Disk:
    """The disk of a small store, on a system that has just started."""
    make_small(monkeypatch)
    boot(monkeypatch)
    return Disk(tmp_path / "data")


async def _check(book: Book, directory: Path, least: int, most: int, term: int) -> int:
    """A start in this directory finds what it must, and goes on."""
    async with opened(directory, SMALL) as store:
        assert (store.term, store.stopped_cleanly) == (term, False)
        count = await book.check(store)
        assert least <= count <= most
        await store.commit([ProducerIdAllocated(count + 1)], [])
        assert (await store.ledger.load([ClusterKey()]))[0].next_producer_id == count + 2
    return count


# -- every step -------------------------------------------------------------------------------------------


async def test_the_end_of_the_process_at_every_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Frame, chunk, ledger, flushes, a switch of the WAL's files, large batches, early ones."""
    make_small(monkeypatch)
    disk, book = Disk(tmp_path / "data"), Book()
    images: list[tuple[str, Path, int, int]] = []

    def look(name: str) -> None:
        images.append((name, disk.killed(), book.answered, len(book.batches)))

    async with disk.opened(SMALL) as store:
        await book.begin(store)
        await book.commit(store)
        look("before the first step")
        disk.step = look
        await book.commit(store)
        await book.commit(store, defers_sync=True)
        await book.commit(store, LARGE)
        await store.ledger.topics()
        await store.checkpoint()
        for size in (1_500, 1_500, 1_500, 1_500, 1_500, 1_500):
            await book.commit(store, size)
        await book.commit(store, LARGE, defers_sync=True)
    names = {name for name, *_ in images}
    assert names >= {
        *(f"{call} wal-{number}" for call in ("write", "flush") for number in range(2)),
        *(f"{call} {1:016d}.chunk" for call in ("write", "flush")),
        *(f"{call} ledger.db-wal" for call in ("write", "flush")),
    }
    found: set[int] = set()
    for _, image, answered, asked in images:
        found.add(await _check(book, image, answered, asked, term=1))
    assert found == set(range(1, len(book.batches) + 1))


@pytest.mark.parametrize("large", [100, pytest.param(LARGE, marks=pytest.mark.slow)])
async def test_what_was_flushed_is_all_that_a_commit_needs(
    disk: Disk, monkeypatch: pytest.MonkeyPatch, large: int
) -> None:
    """A power loss at every step, after which the disk has nothing but what was flushed."""
    book = Book()
    images: list[tuple[Path, int]] = []
    async with disk.opened(SMALL) as store:
        await book.begin(store)
        disk.step = lambda name: images.append((disk.lost(nothing_more), book.durable))
        for number in range(8):
            await book.commit(store, large if number % 2 else 1_500)
        images.append((disk.lost(nothing_more), book.durable))
        await book.check(store)
        images.append((disk.lost(nothing_more), book.durable))
        await store.checkpoint()
        await book.commit(store, defers_sync=True)
        images.append((disk.lost(nothing_more), book.durable))
    boot(monkeypatch)
    for image, durable in images:
        # Flushed is what was answered, and perhaps the one that was about to be.
        await _check(book, image, durable, durable + 1, term=2)


async def test_the_power_goes_again_right_after_a_start(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a start takes over is on the disk before it answers anybody, since it gives up the WAL."""
    book = Book()
    async with disk.opened(SMALL) as store:
        await book.begin(store)
        await store.checkpoint()
        for size in (100, LARGE, 1_500):
            await book.commit(store, size)
        image = disk.lost(nothing_more)
    for term in (2, 3):
        boot(monkeypatch)
        disk = Disk(image)
        async with disk.opened(SMALL) as store:
            assert store.term == term
            image = disk.lost(nothing_more)
    boot(monkeypatch)
    await _check(book, image, 3, 3, term=4)


async def test_a_file_of_the_wal_is_not_used_again_before_it_may_be(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Nobody sees to it in time, so whoever needs the file must.
    monkeypatch.setattr(WalApplier, "begin_checkpoint", lambda wal_applier: None)
    book = Book()
    images: list[Path] = []
    async with disk.opened(SMALL) as store:
        await book.begin(store)
        for _ in range(20):
            await book.commit(store, 1_500)
            images.append(disk.lost(nothing_more))
    boot(monkeypatch)
    for count, image in enumerate(images, start=1):
        await _check(book, image, count, count, term=2)


@pytest.mark.parametrize("name", ["wal-0", f"{1:016d}.chunk", "ledger.db-wal"])
@pytest.mark.parametrize("size", [100, LARGE])
async def test_what_a_failed_flush_forgot(
    disk: Disk, monkeypatch: pytest.MonkeyPatch, name: str, size: int
) -> None:
    """The next start still reads it. What it shows to anybody is there for good."""
    book = Book()
    async with disk.opened(SMALL) as store:
        await book.begin(store)
        await store.checkpoint()
        await book.commit(store)
        await book.commit(store, defers_sync=True)
        disk.failing = {name}
        with contextlib.suppress(StoreBroken):
            await book.commit(store, size)
        with pytest.raises(StoreBroken):
            await store.checkpoint()
        durable = book.durable
    disk.failing = set()
    async with disk.opened(SMALL) as store:
        term = store.term
        assert term == 2 if name == "wal-0" else 1
        shown = await book.check(store)
        assert shown >= durable
        del book.batches[shown:]
        await book.commit(store)
        image = disk.lost(nothing_more)
    boot(monkeypatch)
    await _check(book, image, shown + 1, shown + 1, term=term + 1)


# -- any part ---------------------------------------------------------------------------------------------


class _Life:
    """A store that does this and that, while the power may go at any moment."""

    def __init__(self, disk: Disk, book: Book, chance: random.Random) -> None:
        self.disk = disk
        self.book = book
        self.chance = chance
        self.images: list[tuple[Path, int, int]] = []

    def step(self, name: str) -> None:
        if self.chance.random() < 0.03:
            image = self.disk.lost_at_random(self.chance)
            self.images.append((image, self.book.durable, len(self.book.batches)))

    async def go(self, store: EmbeddedStore, steps: int) -> None:
        self.disk.step = self.step
        for _ in range(steps):
            what = self.chance.choice(["small", "small", "early", "early", "large", "read", "rest", "facts"])
            if what == "read":
                await self.book.check(store)
            elif what == "rest":
                await store.checkpoint()
            elif what == "facts":
                # More than a frame takes.
                await store.commit([ProducerIdAllocated(number) for number in range(2_000)], [])
                self.book.durable = self.book.answered
            else:
                size = LARGE if what == "large" else self.chance.choice([10, 700, 1_500])
                await self.book.commit(store, size, defers_sync=what == "early")


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(each, marks=pytest.mark.slow) for each in (2, 3))])
async def test_the_end_of_the_power_at_any_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    make_small(monkeypatch)
    if seed % 2:
        # Then whoever needs the other file of the WAL has to wait for what is in it.
        monkeypatch.setattr(WalApplier, "begin_checkpoint", lambda wal_applier: None)
    chance = random.Random(seed)
    book, directory = Book(), tmp_path / "data"
    boot(monkeypatch)
    for term in range(1, 4):
        disk = Disk(directory)
        life = _Life(disk, book, chance)
        async with disk.opened(SMALL) as store:
            assert store.term == term
            if term == 1:
                await book.begin(store)
            await life.go(store, 25)
            life.images.append((disk.lost_at_random(chance), book.durable, len(book.batches)))
        boot(monkeypatch)
        for image, durable, asked in life.images[:-1]:
            await _check(book, image, durable, asked, term + 1)
        # And life goes on from the last, and from what that one found.
        directory, durable, asked = life.images[-1]
        async with opened(_copy_of(directory), SMALL) as store:
            count = await book.check(store)
            assert durable <= count <= asked
        del book.batches[count:]
        book.answered = book.durable = count


def _copy_of(directory: Path) -> Path:
    return Path(shutil.copytree(directory, directory.with_name(f"{directory.name}-looked-at")))


@pytest.mark.parametrize("is_released", [True, False])
async def test_bytes_that_were_given_back_are_not_looked_for(
    disk: Disk, monkeypatch: pytest.MonkeyPatch, is_released: bool
) -> None:
    """Large batches that are punched out are in neither place: the ledger must know that for certain."""
    book = Book()
    async with disk.opened(SMALL) as store:
        await book.begin(store)
        for _ in range(4):
            await book.commit(store, LARGE)
        await book.trim(store, 4)
        locations = await store.ledger.leftovers(limit=100)
        assert len(locations) == 8
        if is_released:
            await store.checkpoint()
            await store.chunks.release(locations)
        assert len(await store.ledger.sweep(limit=100)) == 8
        # What is chunk by chunk unused goes with its file.
        await book.commit(store)
        assert await store.sweep_orphans()
        await book.commit(store)
        images = [disk.lost(nothing_more), disk.lost(lambda versions: versions[-1])]
    boot(monkeypatch)
    for image in images:
        async with opened(image, SMALL) as store:
            for key in book.keys:
                found = await store.ledger.find_batches(key, 0, before=99, bytes_max=2**30, batches_max=99)
                assert [batch.base_offset for batch in found] == [4, 5]


async def test_a_number_that_was_seen_is_not_given_again(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Frames behind one that was lost stay in the WAL. They are not new."""
    book = Book()
    async with disk.opened(SMALL) as store:
        await book.begin(store)
        await book.commit(store)
        kept = len(book.batches)
        for _ in range(3):
            await book.commit(store, defers_sync=True)
        image = disk.killed()
    # Nobody flushed these three, and of the first there is nothing.
    path = image / "wal-0"
    data = bytearray(path.read_bytes())
    at = data.index(book.batches[kept][0][:50])
    data[at : at + 50] = bytes(50)
    path.write_bytes(data)
    del book.batches[kept:]
    book.answered = book.durable = kept
    boot(monkeypatch)
    disk = Disk(image)
    async with disk.opened(SMALL) as store:
        assert await book.check(store) == kept
        await book.commit(store)
        await book.commit(store)
        image = disk.lost(nothing_more)
    boot(monkeypatch)
    async with opened(image, SETTINGS) as store:
        assert await book.check(store) == kept + 2
