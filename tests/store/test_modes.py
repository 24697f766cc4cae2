"""What is in a data directory is for the user who runs the broker, and nobody else."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.stores.embedded import Book, opened, opened_with_book


@pytest.fixture
def open_umask() -> Iterator[None]:
    """Whatever the process would give to everybody."""
    before = os.umask(0)
    yield
    os.umask(before)


def _modes(directory: Path) -> dict[str, int]:
    found = {str(path.relative_to(directory)): path for path in directory.rglob("*")}
    return {name: stat.S_IMODE(path.stat().st_mode) for name, path in {".": directory, **found}.items()}


@pytest.mark.usefixtures("open_umask")
async def test_a_new_directory_is_for_its_owner_alone(tmp_path: Path) -> None:
    book = Book()
    for _ in range(2):
        async with opened(tmp_path / "data") as store:
            if not book.batches:
                await book.begin(store)
            await book.commit(store)
            modes = _modes(tmp_path / "data")
        assert {"ledger.db", "ledger.db-wal", "wal-0", "lock", "chunks"} <= modes.keys()
        for name, mode in modes.items():
            assert mode == (0o700 if name in (".", "chunks") else 0o600), name


@pytest.mark.usefixtures("open_umask")
async def test_wider_modes_are_narrowed_and_nothing_else_is_touched(tmp_path: Path) -> None:
    async with opened_with_book(tmp_path / "data") as (store, book):
        await book.commit(store)
    (tmp_path / "data" / "notes.txt").write_text("somebody else's")
    for path in [tmp_path / "data", *(tmp_path / "data").rglob("*")]:
        path.chmod(0o777 if path.is_dir() else 0o644)
    async with opened(tmp_path / "data"):
        modes = _modes(tmp_path / "data")
    assert modes.pop("notes.txt") == 0o644
    for name, mode in modes.items():
        assert mode == (0o700 if name in (".", "chunks") else 0o600), name
