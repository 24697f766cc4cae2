"""Repair: the plan changes nothing, carrying it out gives up what it says, salvage brings records back."""

import asyncio
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from support.stores.embedded import EVERYTHING, SETTINGS, Book, opened, opened_with_book

from semel.core.types import PartitionKey
from semel.store.contract import StoreDamaged, StoreLocked
from semel.store.embedded.chunk_header import chunks_in
from semel.store.embedded.tools.check_storage import check_storage
from semel.store.embedded.tools.repair import carry_out, plan
from semel.store.embedded.tools.salvage import batches_in, salvage
from semel.store.opening import open_store

COMMITS = 12
COPY = """
import sqlite3, sys
source, target = (sqlite3.connect(f"{each}/ledger.db") for each in sys.argv[1:])
source.backup(target)
"""


@pytest.fixture
def made(tmp_path: Path) -> Book:
    """A directory that was stopped, and one that was killed after its last four commits."""

    async def fill() -> Book:
        book = Book()
        async with opened(tmp_path / "stopped") as store:
            await book.fill(store, COMMITS)
            await store.ledger.topics()
            shutil.copytree(tmp_path / "stopped", tmp_path / "killed")
        return book

    return asyncio.run(fill())


def _files(directory: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file() and path.stat().st_size and path.name not in ("lock", "ledger.db-shm")
    }


async def _planned(directory: Path) -> Any:
    """What would be done; and nothing was."""
    before = _files(directory)
    with pytest.raises(StoreDamaged):
        await open_store(directory, SETTINGS)
    planned = plan(directory)
    assert planned.problems
    assert _files(directory) == before
    return planned


async def test_nothing_is_done_where_nothing_is_wrong(tmp_path: Path, made: Book) -> None:
    for name in ("stopped", "killed"):
        assert plan(tmp_path / name).problems == []
        assert (await carry_out(tmp_path / name)).problems == []
        checked = check_storage(tmp_path / name)
        assert checked.is_sound, checked
        assert checked.batches == 2 * COMMITS
        async with opened(tmp_path / name) as store:
            with pytest.raises(StoreLocked):
                plan(tmp_path / name)
            with pytest.raises(StoreLocked):
                check_storage(tmp_path / name)
            assert await made.check(store) == COMMITS


async def test_a_damaged_wal_is_left_at_the_last_good_frame(tmp_path: Path, made: Book) -> None:
    directory = tmp_path / "killed"
    # The ledger as it was before it followed, so that only the WAL knows the last commits.
    path = directory / "wal-0"
    data = bytearray(path.read_bytes())
    at = data.index(made.batches[COMMITS - 2][0][:50])
    data[at] ^= 1
    path.write_bytes(data)
    (directory / "ledger.db-wal").unlink()
    planned = await _planned(directory)
    assert not planned.needs_salvage
    assert any("the WAL lacks commit" in problem for problem in planned.problems)
    assert any("lost by that: at least" in action for action in planned.actions)
    await carry_out(directory)
    async with opened(directory) as store:
        assert await made.check(store) == COMMITS - 2
        del made.batches[COMMITS - 2 :]
        await made.commit(store)
        assert await made.check(store) == COMMITS - 1
    async with opened(directory) as store:
        assert await made.check(store) == COMMITS - 1


async def test_without_a_wal_the_ledger_goes_on(tmp_path: Path, made: Book) -> None:
    directory = tmp_path / "killed"
    for path in directory.glob("wal-*"):
        path.unlink()
    await _planned(directory)
    await carry_out(directory)
    async with opened(directory) as store:
        # It had followed all of it.
        assert await made.check(store) == COMMITS


async def test_an_older_ledger_goes_on_and_unknown_chunks_are_kept(tmp_path: Path, made: Book) -> None:
    older, directory = tmp_path / "older", tmp_path / "stopped"
    shutil.copytree(directory, older)
    async with opened(directory) as store:
        await made.commit(store)
    for path in directory.glob("ledger.db*"):
        path.unlink()
    for path in older.glob("ledger.db*"):
        shutil.copy(path, directory)
    planned = await _planned(directory)
    assert any("never delete" in action for action in planned.actions)
    chunks = sorted((directory / "chunks").iterdir())
    await carry_out(directory)
    del made.batches[COMMITS:]
    async with opened(directory) as store:
        assert await made.check(store) == COMMITS
        await made.commit(store)
        await store.sweep_orphans()
        assert set(chunks) <= set((directory / "chunks").iterdir())
    async with opened(directory) as store:
        assert await made.check(store) == COMMITS + 1


@pytest.mark.parametrize("name", ["stopped", "killed"])
@pytest.mark.parametrize("spoil", ["missing", "cut off", "foreign"])
async def test_without_a_chunk_the_rest_goes_on(tmp_path: Path, made: Book, name: str, spoil: str) -> None:
    directory = tmp_path / name
    (chunk,) = (directory / "chunks").iterdir()
    if spoil == "missing":
        chunk.unlink()
    elif spoil == "cut off":
        chunk.write_bytes(chunk.read_bytes()[:2_000])
    else:
        shutil.copy(chunk, chunk.with_name(f"{2:016d}.chunk"))
    planned = await _planned(directory)
    assert not planned.needs_salvage
    await carry_out(directory)
    for _ in range(2):
        async with opened(directory) as store:
            (topic,) = await store.ledger.topics()
            rows = await store.ledger.find_batches(PartitionKey(topic.topic_id, 0), 0, **EVERYTHING)
            assert len(rows) == COMMITS
    checked = check_storage(directory)
    assert not checked.problems
    if spoil == "foreign":
        assert not checked.damaged
        assert chunk.with_name(f"{2:016d}.chunk.aside-1").exists()
    else:
        assert 0 < len(checked.damaged) <= 2 * COMMITS
        assert "offsets" in str(checked.damaged[0])


@pytest.mark.parametrize("name", ["stopped", "killed"])
async def test_without_a_ledger_records_are_salvaged(tmp_path: Path, made: Book, name: str) -> None:
    directory = tmp_path / name
    for path in directory.glob("ledger.db*"):
        path.unlink()
    planned = await _planned(directory)
    assert planned.needs_salvage
    await carry_out(directory)
    assert not (directory / "ledger.db").exists()
    found = salvage(directory)
    assert (found.chunks, found.batches) == (1, 2 * COMMITS)
    for _ in range(2):
        async with opened(directory) as store:
            (topic,) = await store.ledger.topics()
            assert (topic.name, topic.partitions) == ("salvaged", 1)
            rows = await store.ledger.find_batches(PartitionKey(topic.topic_id, 0), 0, **EVERYTHING)
            data = await store.chunks.read([row.location for row in rows])
            wanted = [bytes(each) for commit in made.batches for each in commit]
            assert sorted(map(bytes, data)) == sorted(wanted)
            assert await store.sweep_orphans() == []
    assert check_storage(directory).is_sound


async def test_a_damaged_batch_is_named_and_stepped_over(tmp_path: Path, made: Book) -> None:
    directory = tmp_path / "stopped"
    (chunk,) = chunks_in(directory / "chunks")
    data = bytearray(chunk.path.read_bytes())
    at = data.index(bytes(made.batches[3][1])[61:])
    data[at] ^= 4
    chunk.path.write_bytes(data)
    checked = check_storage(directory)
    assert (len(checked.damaged), checked.problems) == (1, [])
    assert "offsets 3 to 3: its checksum is wrong (chunk 1, byte" in str(checked.damaged[0])
    assert sum(1 for _ in batches_in(chunk)) == 2 * COMMITS - 1


async def test_a_flipped_bit_in_the_ledger_is_found(tmp_path: Path, made: Book) -> None:
    """A changed offset in a row would be served as if it were the truth."""
    path = tmp_path / "stopped" / "ledger.db"
    data = bytearray(path.read_bytes())
    for at in range(4_096 + 50, len(data), 4_096):
        changed = bytearray(data)
        changed[at] ^= 2
        path.write_bytes(changed)
        assert not check_storage(tmp_path / "stopped").is_sound, at


# -- page checksums -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["backup", "vacuum", "select"])
async def test_a_ledger_that_another_program_wrote_gets_its_checksums_back(
    tmp_path: Path, made: Book, how: str
) -> None:
    directory = tmp_path / ("killed" if how == "select" else "stopped")
    path = directory / "ledger.db"
    with closing(sqlite3.connect(path)) as source:
        if how == "backup":
            with closing(sqlite3.connect(tmp_path / "copy.db")) as target:
                source.backup(target)
        elif how == "vacuum":
            source.execute(f"VACUUM INTO '{tmp_path / 'copy.db'}'")
        else:
            source.execute("SELECT count(*) FROM batches").fetchall()
    if how != "select":
        shutil.copy(tmp_path / "copy.db", path)
    with pytest.raises(StoreDamaged, match="written by a program without Semel's page checksums"):
        await open_store(directory, SETTINGS)
    planned = await _planned(directory)
    assert not planned.needs_salvage
    assert "renew the checksums of all pages" in planned.actions[0]
    assert "written by a program" in check_storage(directory).problems[0]
    assert check_storage(directory).batches == 2 * COMMITS
    await carry_out(directory)
    assert check_storage(directory).is_sound
    assert (directory / "ledger.db.aside-1").exists()
    async with opened(directory) as store:
        assert await made.check(store) == COMMITS


async def test_an_sqlite_backup_of_a_running_store_can_be_repaired(tmp_path: Path) -> None:
    async with opened_with_book(tmp_path / "data") as (store, book):
        for _ in range(COMMITS):
            await book.commit(store)
        await store.ledger.topics()
        (tmp_path / "copy").mkdir()
        # Another process, as two copies of SQLite in one process take each other's locks away.
        command = [sys.executable, "-c", COPY, "data", "copy"]
        await asyncio.to_thread(subprocess.run, command, cwd=tmp_path, check=True)
        await book.commit(store)
        await store.checkpoint()
        shutil.copytree(tmp_path / "data" / "chunks", tmp_path / "copy" / "chunks")
    await _planned(tmp_path / "copy")
    await carry_out(tmp_path / "copy")
    async with opened(tmp_path / "copy") as store:
        assert await book.check(store) == COMMITS


async def test_a_damaged_page_is_found_by_repair_as_by_check_storage(tmp_path: Path, made: Book) -> None:
    """The start does not read it. What the other pages say is checked all the same."""
    directory = tmp_path / "stopped"
    path = directory / "ledger.db"
    data = path.read_bytes()
    found = 0
    for at in range(4_096, len(data), 4_096):
        changed = bytearray(data)
        changed[at + 4_000] ^= 2
        path.write_bytes(changed)
        planned = plan(directory)
        checked = check_storage(directory)
        assert planned.problems
        assert planned.problems == checked.problems
        assert f"page {at // 4_096 + 1} " in planned.problems[0], planned.problems
        assert planned.needs_salvage
        found += checked.batches == 2 * COMMITS
    assert found > 3
