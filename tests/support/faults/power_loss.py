"""A disk that remembers what was not flushed, so that a test can see what a crash leaves of it.

A ``Disk`` stands between a store and the operating system on both ways: as ``Files`` for the WAL and the
chunks, as a VFS for SQLite. Everything is written, and remembered sector by sector until its file is flushed.

``killed`` is what the end of the process leaves: all of it. ``lost`` is what the end of the power leaves: of
every sector that was not flushed, what it held at the last flush or after any write since. Both may be asked
for at every step, which is after each write and each flush.

A flush that fails does what operating systems do: what it was about to write is still read by everyone, and
never reaches the disk unless it is written again.
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
from semel.store.files import Files
from support.stores.embedded import open_on

SECTOR = 512
Choose = Callable[[list[bytes]], bytes]


def nothing_more(versions: list[bytes]) -> bytes:
    """The disk has what was flushed and nothing else."""
    return versions[0]


class Disk:
    """One directory, and what was not flushed in it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.step: Callable[[str], None] = lambda name: None
        self.lock = threading.RLock()
        self.failing: set[str] = set()
        """Names of files that cannot be flushed."""
        self._versions: dict[Path, dict[int, list[bytes]]] = {}
        self._forgotten: dict[Path, dict[int, bytes]] = {}
        """What the disk holds where a flush failed."""
        self._images = 0

    @contextlib.asynccontextmanager
    async def opened(self, settings: Settings) -> Any:
        """The store in the directory, on this disk."""
        vfs = _Vfs(self)
        store = await open_on(vfs.name, self.directory, settings, files=_Files(self))
        try:
            yield store
        finally:
            self.step = lambda name: None
            await store.close()
            vfs.unregister()

    def killed(self) -> Path:
        """What is there if the process ends now."""
        with self.lock:
            self._images += 1
            target = self.directory.with_name(f"{self.directory.name}-{self._images}")
            shutil.copytree(self.directory, target, ignore=shutil.ignore_patterns("*-shm", "lock"))
            return target

    def lost(self, choose: Choose) -> Path:
        """What is there if the power ends now."""
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
        """The same, by chance: everything, nothing, or each sector for itself."""
        ways: list[Choose] = [nothing_more, chance.choice, chance.choice, lambda versions: versions[-1]]
        return self.lost(chance.choice(ways))

    @contextlib.contextmanager
    def writing(self, path: Path, position: int, length: int) -> Iterator[None]:
        """Remember what a write does."""
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
        """Everything in this file is on the disk, unless the flush failed. OSError."""
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
        """Names are on the disk at once: nobody relies on their being lost."""

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
