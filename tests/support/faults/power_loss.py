"""A disk that remembers what was not flushed, so that a test can see what a crash leaves on it.

A ``Disk`` stands between a store and the operating system in two roles: as ``Files`` for the WAL and the
chunks, and as a VFS for SQLite. It passes every write on, and remembers each written sector until its file is
flushed.

``killed`` copies what a killed process leaves: everything. ``lost`` copies what a power loss leaves: for each
sector that was not flushed, its content at the last flush or after any write since. A test may call both at
every step, which is after each write and each flush.

A failed flush behaves as in real operating systems: every process still reads what it was about to write, and
that never reaches the disk unless it is written again.
"""

import contextlib
import errno
import os
import random
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import apsw

from semel.config import Settings
from semel.store.embedded.files import Files
from support.stores.embedded import open_on

SECTOR = 512
Choose = Callable[[list[bytes]], bytes]


def nothing_more(versions: list[bytes]) -> bytes:
    """Choose the flushed version: the disk has nothing newer."""
    return versions[0]


class Disk:
    """One directory, and the unflushed versions of its sectors."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.step: Callable[[str], None] = lambda name: None
        self.lock = threading.RLock()
        self.failing: set[str] = set()
        """Names of files whose flush fails."""
        self._versions: dict[Path, dict[int, list[bytes]]] = {}
        self._forgotten: dict[Path, dict[int, bytes]] = {}
        """The content of the disk where a flush failed."""
        self._images = 0

    @contextlib.asynccontextmanager
    async def opened(self, settings: Settings) -> Any:
        """Open the store in the directory, on this disk."""
        vfs = _Vfs(self)
        store = await open_on(vfs.name, self.directory, settings, files=_Files(self))
        try:
            yield store
        finally:
            self.step = lambda name: None
            await store.close()
            vfs.unregister()

    def killed(self) -> Path:
        """Copy what is left if the process is killed now."""
        with self.lock:
            self._images += 1
            target = self.directory.with_name(f"{self.directory.name}-{self._images}")
            shutil.copytree(self.directory, target, ignore=shutil.ignore_patterns("*-shm", "lock"))
            return target

    def lost(self, choose: Choose) -> Path:
        """Copy what is left if the power fails now."""
        with self.lock:
            target = self.killed()
            for path in {*self._versions, *self._forgotten}:
                sectors = {at: [data] for at, data in self._forgotten.get(path, {}).items()}
                sectors |= self._versions.get(path, {})
                copy = target / path.relative_to(self.directory)
                if not copy.exists():
                    continue
                with copy.open("r+b") as file:
                    for at, versions in sectors.items():
                        file.seek(at)
                        file.write(choose(versions))
            return target

    def lost_at_random(self, chance: random.Random) -> Path:
        """Copy what is left if the power fails now: all writes, none, or a random version of each sector."""
        ways: list[Choose] = [nothing_more, chance.choice, chance.choice, lambda versions: versions[-1]]
        return self.lost(chance.choice(ways))

    @contextlib.contextmanager
    def writing(self, path: Path, position: int, length: int) -> Iterator[None]:
        """Remember the sectors before and after a write."""
        start, end = position // SECTOR * SECTOR, -(-(position + length) // SECTOR) * SECTOR
        with self.lock:
            before = _content(path, start, end)
            yield
            after = _content(path, start, end)
            sectors = self._versions.setdefault(path, {})
            forgotten = self._forgotten.get(path, {})
            for at in range(0, end - start, SECTOR):
                held = forgotten.pop(start + at, before[at : at + SECTOR])
                versions = sectors.setdefault(start + at, [held])
                versions.append(after[at : at + SECTOR])
            self.step(f"write {path.name}")

    def flushed(self, path: Path) -> None:
        """Mark everything in this file as flushed, unless the flush fails. OSError."""
        with self.lock:
            sectors = self._versions.pop(path, {})
            if path.name in self.failing:
                forgotten = self._forgotten.setdefault(path, {})
                forgotten |= {at: versions[0] for at, versions in sectors.items()}
                raise OSError(errno.EIO, f"flushing {path.name} failed")
            self.step(f"flush {path.name}")


class _Files(Files):
    def __init__(self, disk: Disk) -> None:
        self._disk = disk

    def write(self, descriptor: int, buffers: Sequence[Any], position: int) -> int:
        with self._disk.writing(_path(descriptor), position, sum(map(len, buffers))):
            return super().write(descriptor, buffers, position)

    def flush(self, descriptor: int) -> None:
        self._disk.flushed(_path(descriptor))

    def flush_directory(self, path: Path) -> None:
        """Treat names as durable at once: no test relies on losing them."""

    def punch(self, descriptor: int, position: int, length: int) -> None:
        with self._disk.writing(_path(descriptor), position, length):
            super().punch(descriptor, position, length)


class _Vfs(apsw.VFS):
    def __init__(self, disk: Disk) -> None:
        self.name = f"disk-{os.urandom(4).hex()}"
        self._disk = disk
        super().__init__(self.name, base="")

    def xOpen(self, name: Any, flags: list[int]) -> "_VfsFile":  # noqa: N802 - SQLite's name
        return _VfsFile(self._disk, name, flags)


class _VfsFile(apsw.VFSFile):
    def __init__(self, disk: Disk, name: Any, flags: list[int]) -> None:
        super().__init__("", name, flags)
        self._disk = disk
        self._path = Path(name.filename() if isinstance(name, apsw.URIFilename) else str(name))

    def xWrite(self, data: bytes, offset: int) -> None:  # noqa: N802 - SQLite's name
        with self._disk.writing(self._path, offset, len(data)):
            super().xWrite(data, offset)

    def xSync(self, flags: int) -> None:  # noqa: N802 - SQLite's name
        try:
            self._disk.flushed(self._path)
        except OSError as error:
            raise apsw.IOError(str(error)) from error


def _path(descriptor: int) -> Path:
    return Path(f"/proc/self/fd/{descriptor}").readlink()


def _content(path: Path, start: int, end: int) -> bytes:
    with path.open("rb") as file:
        file.seek(start)
        return file.read(end - start).ljust(end - start, b"\0")
