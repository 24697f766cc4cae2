"""Looking at a directory changes nothing in it, and what is wrong is told with its path."""

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.stores.embedded import SETTINGS, Book, opened

from semel.printable import explained
from semel.store.contract import StoreBroken
from semel.store.embedded.files import Files
from semel.store.embedded.tools.check_storage import check_storage
from semel.store.embedded.tools.repair import carry_out, plan
from semel.store.opening import open_store


def _state(directory: Path) -> dict[str, tuple[int, int]]:
    return {
        str(path.relative_to(directory)): (path.stat().st_mtime_ns, path.stat().st_size)
        for path in directory.rglob("*")
    }


@pytest.mark.parametrize("name", ["", "letters.txt"])
async def test_a_directory_that_is_no_store_s_stays_as_it_is(tmp_path: Path, name: str) -> None:
    if name:
        (tmp_path / name).write_text("dear reader")
    before = _state(tmp_path)
    told = [f"there is no ledger.db in {tmp_path}"]
    assert plan(tmp_path).problems == told
    assert check_storage(tmp_path).problems == told
    assert _state(tmp_path) == before
    assert (await carry_out(tmp_path)).problems == told
    async with opened(tmp_path):
        pass


async def test_looking_at_a_stopped_store_touches_nothing(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        book = Book()
        await book.begin(store)
        await book.commit(store)
    for name in ("ledger.db-wal", "ledger.db-shm"):
        (tmp_path / name).unlink(missing_ok=True)
    before = _state(tmp_path)
    assert plan(tmp_path).problems == []
    assert check_storage(tmp_path).is_sound
    assert _state(tmp_path) == before


@pytest.mark.parametrize("name", ["chunks/0000000000000001.chunk", "ledger.db", "lock"])
async def test_a_directory_in_the_place_of_a_file_is_named(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir(parents=True)
    uses: list[Callable[[Path], Any]] = [plan, check_storage]
    for use in uses:
        with pytest.raises((OSError, StoreBroken)) as caught:
            use(tmp_path)
        assert f"{tmp_path / name}" in explained(caught.value)
    with pytest.raises((OSError, StoreBroken)) as caught:
        await open_store(tmp_path, SETTINGS)
    assert f"{tmp_path / name}" in explained(caught.value)
    assert "s a directory" in explained(caught.value)


async def test_a_file_in_the_place_of_the_directory_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(NotADirectoryError) as caught:
        await open_store(tmp_path / "file", SETTINGS)
    assert explained(caught.value) == f"{tmp_path / 'file'}: Not a directory"


async def test_a_full_disk_at_the_start_is_named(tmp_path: Path) -> None:
    class Full(Files):
        def allocate(self, descriptor: int, position: int, length: int) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(OSError, match="No space left") as caught:
        await open_store(tmp_path, SETTINGS, files=Full())
    assert explained(caught.value) == f"{tmp_path / 'wal-0'}: No space left on device"
