"""Parts of a data directory that are missing, old, foreign or cut off: the start refuses."""

import asyncio
import shutil
from pathlib import Path
from typing import Any

import pytest
from support.stores.embedded import (
    LARGE,
    SETTINGS,
    append,
    assert_dense,
    bytes_of,
    log_of,
    make_small,
    opened,
)

from semel.core.facts import ProducerIdAllocated
from semel.core.types import Cluster, ClusterKey, PartitionKey
from semel.store.contract import StoreDamaged
from semel.store.embedded.chunk_header import HEADER_BYTES, newest, pack_slot, unpack_slot
from semel.store.embedded.ledger_writer import LedgerWriter
from semel.store.opening import open_store
from semel.wire.records import Record, encode_batch

STOPPED, KILLED = "stopped", "killed"


class Shelf:
    """One directory with records, stopped and killed, and an older copy of it."""

    def __init__(self, directory: Path, scribe: Any) -> None:
        self._directory = directory
        self._scribe = scribe
        self.key: PartitionKey | None = None

    async def fill(self) -> None:
        """Two lives; the copies are of the first and of the second."""
        data = self._directory / "data"
        async with opened(data) as store:
            created = self._scribe.created()
            self.key = PartitionKey(created.topic.topic_id, 0)
            await store.commit([created], [])
            await append(store, self._scribe, self.key, 100)
            await store.checkpoint()
            self._copy(data, f"older {KILLED}")
        self._copy(data, f"older {STOPPED}")
        async with opened(data) as store:
            for _ in range(3):
                await append(store, self._scribe, self.key, 60)
                await store.ledger.topics()
            await store.checkpoint()
            for _ in range(3):
                await append(store, self._scribe, self.key, 2)
                await store.ledger.topics()
            self._copy(data, KILLED)
        self._copy(data, STOPPED)

    def _copy(self, data: Path, name: str) -> None:
        shutil.copytree(data, self._directory / name)

    def __call__(self, name: str) -> Path:
        return self._directory / name

    async def check(self, directory: Path) -> None:
        """Everything that was acknowledged is there."""
        assert self.key is not None
        async with opened(directory) as store:
            log = await log_of(store, self.key)
            assert_dense(log)
            assert len(log) == 286
            await append_again(store)


async def append_again(store: Any) -> None:
    (cluster,) = await store.ledger.load([ClusterKey()])
    await store.commit([ProducerIdAllocated((cluster or Cluster()).next_producer_id)], [])


@pytest.fixture
def shelf(tmp_path: Path, scribe: Any) -> Shelf:
    made = Shelf(tmp_path, scribe)
    asyncio.run(made.fill())
    return made


def _contents(directory: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file() and path.name not in ("lock", "ledger.db-shm", "ledger.db-wal")
    }


async def _refused(directory: Path, match: str) -> None:
    before = _contents(directory)
    for _ in range(2):
        with pytest.raises(StoreDamaged, match=match):
            await open_store(directory, SETTINGS)
    assert _contents(directory) == before


def _swap(old: Path, new: Path, pattern: str) -> None:
    """Put the files of an older copy in the place of these."""
    for path in new.glob(pattern):
        path.unlink()
    for path in old.glob(pattern):
        shutil.copy(path, new / path.relative_to(old))


@pytest.mark.parametrize("state", [STOPPED, KILLED])
async def test_what_is_whole_is_opened(shelf: Shelf, state: str) -> None:
    await shelf.check(shelf(state))


@pytest.mark.parametrize("state", [STOPPED, KILLED])
async def test_a_directory_without_a_ledger_is_not_new(shelf: Shelf, state: str) -> None:
    for path in shelf(state).glob("ledger.db*"):
        path.unlink()
    await _refused(shelf(state), r"ledger\.db is missing, and there are \d chunks with records, wal-0")
    # Not even if only one of the others is left.
    shutil.rmtree(shelf(state) / "chunks")
    for name in ("wal-0", "wal-1"):
        (shelf(state) / name).unlink()
    await _refused(shelf(state), "a lock that knows of commit")


@pytest.mark.parametrize("state", [STOPPED, KILLED])
@pytest.mark.parametrize("length", [0, 100, 4096, 20_000])
async def test_a_ledger_that_is_cut_off(shelf: Shelf, state: str, length: int) -> None:
    data = (shelf(state) / "ledger.db").read_bytes()
    (shelf(state) / "ledger.db").write_bytes(data[:length])
    (shelf(state) / "ledger.db-wal").unlink()
    await _refused(shelf(state), r"ledger\.db")


@pytest.mark.parametrize("state", [STOPPED, KILLED])
@pytest.mark.parametrize("old", [STOPPED, KILLED])
async def test_an_older_ledger_is_recognised(shelf: Shelf, state: str, old: str) -> None:
    _swap(shelf(f"older {old}"), shelf(state), "ledger.db*")
    if old == STOPPED:
        await _refused(shelf(state), "older cop")
    else:
        # The WAL still has everything that came after it.
        await shelf.check(shelf(state))


@pytest.mark.parametrize("witnesses", [["wal-*"], ["chunks/*.chunk"], ["lock"]])
async def test_an_older_copy_of_all_but_one_is_recognised(shelf: Shelf, witnesses: list[str]) -> None:
    """Each of the others proves by itself that the ledger is not the last."""
    older = shelf(f"older {STOPPED}")
    for pattern in witnesses:
        _swap(shelf(STOPPED), older, pattern)
    await _refused(older, "older cop")


@pytest.mark.parametrize("state", [STOPPED, KILLED])
async def test_a_ledger_of_another_store(shelf: Shelf, state: str, tmp_path: Path) -> None:
    async with opened(tmp_path / "another") as store:
        await append_again(store)
    _swap(tmp_path / "another", shelf(state), "ledger.db*")
    await _refused(shelf(state), "belongs to another store")


@pytest.mark.parametrize("state", [STOPPED, KILLED])
async def test_a_chunk_of_another_store_or_with_another_number(shelf: Shelf, state: str) -> None:
    first, second = sorted((shelf(state) / "chunks").iterdir())[:2]
    shutil.copy(first, second)
    await _refused(shelf(state), r"0002\.chunk belongs to another store")


@pytest.mark.parametrize("state", [STOPPED, KILLED])
@pytest.mark.parametrize("spoil", ["unlink", "cut", "older"])
async def test_a_chunk_that_is_missing_or_older(shelf: Shelf, state: str, spoil: str) -> None:
    # The last one that both lives wrote to the disk, and the last one of the second life.
    chunk = sorted((shelf(state) / "chunks").iterdir())[-1]
    if spoil == "unlink":
        chunk.unlink()
        await _refused(shelf(state), r"chunk \d is missing")
    elif spoil == "cut":
        chunk.write_bytes(chunk.read_bytes()[:1_500])
        await _refused(shelf(state), "is known to end at byte 1500")
    else:
        data = chunk.read_bytes()
        header = newest([unpack_slot(data[at : at + 512]) for at in (0, 512)])
        assert header is not None
        # As it was before its first flush: a header, and room.
        first = pack_slot(header._replace(number=0, end=HEADER_BYTES))
        chunk.write_bytes(first.ljust(len(data), b"\0"))
        await _refused(shelf(state), "an older copy")


@pytest.mark.parametrize("name", ["wal-0", "wal-1"])
async def test_a_wal_that_is_missing_or_cut_off_after_a_kill(shelf: Shelf, name: str) -> None:
    path = shelf(KILLED) / name
    data = path.read_bytes()
    path.write_bytes(data[:-1])
    await _refused(shelf(KILLED), f"{name} has {len(data) - 1} bytes instead of {len(data)}")
    path.unlink()
    await _refused(shelf(KILLED), f"{name} is missing, and the last process did not stop cleanly")
    # After a clean stop it is not needed.
    (shelf(STOPPED) / name).unlink()
    await shelf.check(shelf(STOPPED))


async def test_an_older_wal_after_a_kill(shelf: Shelf) -> None:
    _swap(shelf(f"older {KILLED}"), shelf(KILLED), "wal-*")
    await _refused(shelf(KILLED), "the WAL ends with commit")


async def test_a_log_of_sqlite_that_is_older_than_its_database(shelf: Shelf) -> None:
    shutil.copy(shelf(f"older {KILLED}") / "ledger.db-wal", shelf(STOPPED) / "ledger.db-wal")
    await _refused(shelf(STOPPED), r"the log is an older copy, or damaged|ledger\.db is damaged")


async def test_a_database_that_is_older_than_its_log(shelf: Shelf) -> None:
    shutil.copy(shelf(f"older {KILLED}") / "ledger.db", shelf(KILLED) / "ledger.db")
    await _refused(shelf(KILLED), r"the database is an older copy|ledger\.db is damaged")


async def test_a_log_of_sqlite_that_was_lost_after_a_kill(
    tmp_path: Path, scribe: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The WAL brings back what it still has. If it was used again since, the start refuses."""
    make_small(monkeypatch)
    # The log is not moved into the database meanwhile.
    monkeypatch.setattr(LedgerWriter, "rest", lambda self, *, quiet: None)
    data = tmp_path / "data"
    async with opened(data) as store:
        (key,) = await scribe.create(store)
        await append(store, scribe, key, 5)
        await store.ledger.topics()
        shutil.copytree(data, tmp_path / "covered")
        for _ in range(400):
            await append(store, scribe, key, 1)
        await store.ledger.topics()
        shutil.copytree(data, tmp_path / "overtaken")
    for name in ("covered", "overtaken"):
        (tmp_path / name / "ledger.db-wal").unlink()
    async with opened(tmp_path / "covered") as store:
        assert len(await log_of(store, key)) == 5
    await _refused(tmp_path / "overtaken", "lacks commit")


async def test_a_flipped_bit_in_the_middle_of_the_wal(shelf: Shelf) -> None:
    """A torn end is normal. A bad frame with good ones behind it is not."""
    path = shelf(KILLED) / "wal-0"
    data = bytearray(path.read_bytes())
    at = data.index(bytes_of(281))
    data[at] ^= 0x40
    path.write_bytes(data)
    await _refused(shelf(KILLED), r"WAL lacks commit 6; 2 good frames behind the gap, from byte \d+")


async def test_large_batches_that_were_acknowledged_and_are_damaged(
    tmp_path: Path, scribe: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are in their chunk alone. If they are the last, only a note says that they were flushed."""
    make_small(monkeypatch)
    data = tmp_path / "data"
    async with opened(data) as store:
        (key,) = await scribe.create(store)
        batch = encode_batch([Record(0, 1, None, bytes(LARGE))])
        fact, _ = scribe.append(key, size=len(batch))
        await store.commit([fact, *scribe.changed()], [batch])
        shutil.copytree(data, tmp_path / KILLED)
    chunk = next((tmp_path / KILLED / "chunks").iterdir())
    image = bytearray(chunk.read_bytes())
    image[5_000] ^= 1
    chunk.write_bytes(image)
    with pytest.raises(StoreDamaged, match=r"commit 2 was acknowledged, and its batches in chunk 1"):
        await open_store(tmp_path / KILLED, SETTINGS)


# -- nothing is deleted that is not proven ------------------------------------------------------------------


async def test_only_chunks_of_this_store_are_swept(shelf: Shelf, tmp_path: Path) -> None:
    async with opened(shelf(STOPPED)) as store:
        chunks = shelf(STOPPED) / "chunks"
        ours = max(chunks.iterdir())
        # No row points at any of these: a copy of ours under a number that was never given, one without a
        # header, and one that was made and never written to.
        shutil.copy(ours, chunks / f"{90:016d}.chunk")
        (chunks / f"{91:016d}.chunk").write_bytes(b"who knows" * 1_000)
        (chunks / f"{92:016d}.chunk").write_bytes(b"")
        store.chunks._next_id = 100
        assert await store.sweep_orphans() == [90, 92]
        assert (chunks / f"{91:016d}.chunk").exists()
