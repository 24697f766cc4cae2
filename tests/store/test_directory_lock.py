"""One process per data directory, whatever happens to the lock file."""

import fcntl
import os
import stat
from pathlib import Path
from typing import Any

import pytest
from support.stores.embedded import SETTINGS, opened

from semel.store.contract import StoreLocked
from semel.store.embedded.directory_lock import DirectoryLock, Witness
from semel.store.embedded.files import Files
from semel.store.embedded.tools.check_storage import check_storage
from semel.store.embedded.tools.repair import carry_out, plan
from semel.store.embedded.tools.salvage import salvage
from semel.store.opening import open_store


async def test_removing_the_lock_file_lets_nobody_in(tmp_path: Path) -> None:
    async with opened(tmp_path):
        for _ in range(2):
            for use in (plan, check_storage, salvage):
                with pytest.raises(StoreLocked):
                    use(tmp_path)
            with pytest.raises(StoreLocked):
                await carry_out(tmp_path)
            with pytest.raises(StoreLocked):
                await open_store(tmp_path, SETTINGS)
            (tmp_path / "lock").unlink(missing_ok=True)
    async with opened(tmp_path):
        pass


def test_the_owner_is_named_while_it_runs(tmp_path: Path) -> None:
    lock = DirectoryLock(tmp_path)
    with pytest.raises(StoreLocked, match=f"process {os.getpid()};"):
        DirectoryLock(tmp_path)
    (tmp_path / "lock").unlink()
    with pytest.raises(StoreLocked, match="in use by another process;"):
        DirectoryLock(tmp_path)
    assert not (tmp_path / "lock").exists()
    lock.release()


def test_where_a_directory_cannot_be_locked_the_file_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = fcntl.flock

    def flock(descriptor: int, operation: int) -> Any:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(9, "Bad file descriptor")
        return original(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", flock)
    lock = DirectoryLock(tmp_path)
    with pytest.raises(StoreLocked):
        DirectoryLock(tmp_path, only_looks=True)
    lock.release()
    DirectoryLock(tmp_path).release()


def test_looking_changes_nothing(tmp_path: Path) -> None:
    looking = DirectoryLock(tmp_path, only_looks=True)
    assert looking.witness is None
    with pytest.raises(StoreLocked):
        DirectoryLock(tmp_path)
    looking.release()
    assert list(tmp_path.iterdir()) == []
    lock = DirectoryLock(tmp_path)
    lock.testify(Witness(bytes(16), 7), Files())
    lock.release()
    before = (tmp_path / "lock").stat()
    looking = DirectoryLock(tmp_path, only_looks=True)
    assert looking.witness == Witness(bytes(16), 7)
    looking.release()
    after = (tmp_path / "lock").stat()
    assert (before.st_mtime_ns, before.st_size) == (after.st_mtime_ns, after.st_size)
