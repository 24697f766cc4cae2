"""Records what a store writes and flushes, and computes what a power failure could have left of it.

A ``Recorder`` stands between a store and the operating system: as ``Files`` for the WAL and the chunks, and
as a VFS for SQLite. Every write, flush, and created or removed name becomes an event, and so does every
answer of the store. A ``Platter`` applies the events one by one and knows, at each of them, what is certainly
on disk and what may be. So one recording yields any number of states.

An unflushed sector holds its content at the last flush, or after any write since, or (mode ``torn``) the
first bytes of one and the rest of another. A created or removed name is certain once its directory was
flushed. A failed flush behaves as in operating systems: the unflushed content is still readable, but never
reaches the disk unless it is written again.
"""

import contextlib
import errno
import random
import secrets
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import apsw

from semel.core.types import Buffer
from semel.store.embedded.files import Files

SECTOR: Final = 512
ENDLESS: Final = 2**40
MODES: Final = ("nothing", "everything", "prefix", "prefix by file", "whole files", "subset", "torn")
"""Which unflushed writes reach the disk."""


class Event(NamedTuple):
    """One recorded event."""

    kind: str
    """write, size, cut, flush, failed flush, create, remove, directory, told"""
    name: str = ""
    position: int = 0
    data: bytes = b""
    told: Any = None


class Recorder:
    """Records everything that happens in one directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.events: list[Event] = []
        self.files = _Files(self)
        self.fails: Callable[[str], bool] = lambda name: False
        """Returns whether a flush of the file with this name fails."""
        self._vfs = _Vfs(self)
        self._is_on = True

    @property
    def vfs(self) -> str:
        """The name of the recording VFS, for SQLite."""
        return self._vfs.name

    @property
    def has_failed(self) -> bool:
        """Whether a flush failed."""
        return any(event.kind == "failed flush" for event in self.events)

    def stop(self) -> None:
        """Stop recording."""
        self._is_on = False

    def unregister(self) -> None:
        """Remove the VFS; it must not be used any more."""
        self._vfs.unregister()

    def name_of(self, path: Path | str) -> str:
        """Return the name of a file in the recording."""
        return str(Path(path).relative_to(self.directory))

    def note(self, kind: str, name: str = "", position: int = 0, data: bytes = b"", told: Any = None) -> None:
        """Record an event."""
        if self._is_on:
            self.events.append(Event(kind, name, position, data, told))

    def flush(self, name: str) -> None:
        """Record a flush of a file, or let it fail. OSError."""
        if self._is_on and self.fails(name):
            self.note("failed flush", name)
            raise OSError(errno.EIO, f"flushing {name} failed")
        self.note("flush", name)


class _Files(Files):
    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def create(self, path: Path) -> int:
        descriptor = super().create(path)
        self._recorder.note("create", self._recorder.name_of(path))
        return descriptor

    def allocate(self, descriptor: int, position: int, length: int) -> None:
        super().allocate(descriptor, position, length)
        self._recorder.note("size", self._name(descriptor), position + length)

    def resize(self, descriptor: int, length: int) -> None:
        super().resize(descriptor, length)
        self._recorder.note("cut", self._name(descriptor), length)

    def write(self, descriptor: int, buffers: Sequence[Any], position: int) -> int:
        taken = super().write(descriptor, buffers, position)
        self._recorder.note("write", self._name(descriptor), position, b"".join(buffers)[:taken])
        return taken

    def flush(self, descriptor: int) -> None:
        self._recorder.flush(self._name(descriptor))

    def flush_directory(self, path: Path) -> None:
        self._recorder.note("directory", str(path.relative_to(self._recorder.directory.parent)))

    def make_directory(self, path: Path) -> None:
        path.mkdir(parents=True, exist_ok=True)

    def free_bytes(self, path: Path) -> int:
        return ENDLESS

    def punch(self, descriptor: int, position: int, length: int) -> None:
        super().punch(descriptor, position, length)
        self._recorder.note("write", self._name(descriptor), position, bytes(length))

    def remove(self, path: Path) -> None:
        super().remove(path)
        self._recorder.note("remove", self._recorder.name_of(path))

    def _name(self, descriptor: int) -> str:
        return self._recorder.name_of(Path(f"/proc/self/fd/{descriptor}").readlink())


class _Vfs(apsw.VFS):
    def __init__(self, recorder: Recorder) -> None:
        self.name = f"recorded-{secrets.token_hex(4)}"
        self._recorder = recorder
        super().__init__(self.name, base="")

    def xOpen(self, name: Any, flags: list[int]) -> "_VfsFile":  # noqa: N802 - SQLite's name
        return _VfsFile(self._recorder, name, flags)

    def xDelete(self, filename: str, syncdir: bool) -> None:  # noqa: N802 - SQLite's name
        super().xDelete(filename, syncdir)
        self._recorder.note("remove", self._recorder.name_of(filename))
        if syncdir:
            self._recorder.note("directory", self._recorder.directory.name)


class _VfsFile(apsw.VFSFile):
    def __init__(self, recorder: Recorder, name: Any, flags: list[int]) -> None:
        path = name.filename() if isinstance(name, apsw.URIFilename) else str(name)
        is_new = not Path(path).exists()
        super().__init__("", name, flags)
        self._recorder = recorder
        self._name = recorder.name_of(path)
        if is_new:
            recorder.note("create", self._name)

    def xWrite(self, data: bytes, offset: int) -> None:  # noqa: N802 - SQLite's name
        super().xWrite(data, offset)
        self._recorder.note("write", self._name, offset, bytes(data))

    def xTruncate(self, newsize: int) -> None:  # noqa: N802 - SQLite's name
        super().xTruncate(newsize)
        self._recorder.note("cut", self._name, newsize)

    def xSync(self, flags: int) -> None:  # noqa: N802 - SQLite's name
        try:
            self._recorder.flush(self._name)
        except OSError as error:
            raise apsw.IOError(str(error)) from error
        if not self._name.endswith(".db"):
            # SQLite flushes the directory with the first flush of a journal or a log.
            self._recorder.note("directory", self._recorder.directory.name)


class _Content:
    """One file: its durable content, its readable content, and the versions in between."""

    __slots__ = ("certain", "current", "pending", "sizes")

    def __init__(self) -> None:
        self.certain = bytearray()
        self.current = bytearray()
        self.pending: dict[int, list[tuple[int, bytes]]] = {}
        """The contents of each sector after each write since the last flush, with the event's number."""
        self.sizes: list[int] = []
        """The lengths that the file has had since the last flush, without the current one."""

    def write(self, number: int, position: int, data: bytes) -> None:
        """Write bytes, which are readable at once."""
        end = position + len(data)
        self.resize(max(end, len(self.current)))
        self.current[position:end] = data
        for sector in range(position // SECTOR, -(-end // SECTOR)):
            held = bytes(self.current[sector * SECTOR : (sector + 1) * SECTOR])
            self.pending.setdefault(sector, []).append((number, held))

    def resize(self, size: int) -> None:
        """Set the length of the file."""
        if size == len(self.current):
            return
        self.sizes.append(len(self.current))
        if size > len(self.current):
            self.current.extend(bytes(size - len(self.current)))
        else:
            del self.current[size:]
            # Unflushed writes to truncated sectors never reach the disk.
            for sector in [each for each in self.pending if each * SECTOR >= size]:
                del self.pending[sector]

    def flush(self) -> None:
        """Make all of it durable."""
        size = len(self.current)
        del self.certain[self._least() :]
        _fit(self.certain, size)
        for sector in self.pending:
            at = slice(sector * SECTOR, min((sector + 1) * SECTOR, size))
            self.certain[at] = self.current[at]
        self.forget()

    def _least(self) -> int:
        """Return the smallest length since the last flush."""
        return min(*self.sizes, len(self.current)) if self.sizes else len(self.current)

    def forget(self) -> None:
        """Drop unflushed writes, which will never be flushed."""
        self.pending.clear()
        self.sizes.clear()

    def left(self, choose: "Choice", chance: random.Random) -> bytearray:
        """Return what a power failure leaves."""
        data = self.certain[: self._least()] if choose.is_everything else bytearray(self.certain)
        sizes = [len(self.certain), *self.sizes, len(self.current)]
        _fit(data, choose.size(sizes, chance))
        for sector, versions in self.pending.items():
            start = sector * SECTOR
            held = bytes(self.certain[start : start + SECTOR]).ljust(SECTOR, b"\0")
            found = choose.sector(held, versions, chance)
            if found is not None:
                end = start + len(found)
                _fit(data, max(len(data), end))
                data[start:end] = found
        return data


def _fit(data: bytearray, size: int) -> None:
    if size > len(data):
        data.extend(bytes(size - len(data)))
    else:
        del data[size:]


class Choice:
    """Chooses which unflushed changes reach the disk."""

    def __init__(self, mode: str, last: int, first: int, chance: random.Random) -> None:
        self._mode = mode
        self.is_everything = mode == "everything"
        self._limit = {"nothing": -1, "prefix": chance.randint(first - 1, last)}.get(mode, last)
        self._bounds = (first - 1, last)
        self._is_torn = mode == "torn"
        self._each = mode in ("subset", "torn")

    def of_file(self, chance: random.Random) -> "Choice":
        """Return the choice for one file."""
        if self._mode == "prefix by file":
            self._limit = chance.randint(*self._bounds)
        elif self._mode == "whole files":
            self._limit = chance.choice(self._bounds)
        return self

    def size(self, sizes: list[int], chance: random.Random) -> int:
        """Choose the length of a file."""
        if self._mode in ("nothing", "everything"):
            return sizes[0] if self._mode == "nothing" else sizes[-1]
        return chance.choice(sizes)

    def name(self, chance: random.Random) -> bool:
        """Whether a name that was created or removed since the last flush of its directory is durable."""
        if self._mode in ("nothing", "everything"):
            return self._mode == "everything"
        return chance.random() < 0.5

    def sector(self, held: bytes, versions: list[tuple[int, bytes]], chance: random.Random) -> bytes | None:
        """Choose the content of a sector; None for the flushed one."""
        found = [data for number, data in versions if number <= self._limit]
        if not self._each:
            return found[-1] if found else None
        kept = chance.randint(0, len(found))
        if self._is_torn and chance.random() < 0.3:
            at = chance.randrange(1, SECTOR)
            both = [held, *found]
            new, old = both[kept], both[chance.randint(0, len(found))]
            return new[:at] + old[at:]
        return found[kept - 1] if kept else None


class Platter:
    """The state of the disk after some of the events."""

    def __init__(self, files: Mapping[str, Buffer] | None = None) -> None:
        """``files`` are certainly on disk."""
        self.told: Any = None
        self._number = 0
        self._flushed = 0
        self._contents: dict[str, _Content] = {}
        for name, data in (files or {}).items():
            content = self._contents[name] = _Content()
            content.certain[:] = content.current[:] = data
        self._certain = dict(self._contents)
        """The names that are certainly on disk."""

    def take(self, event: Event) -> None:
        """Apply the next event."""
        self._number += 1
        kind, name = event.kind, event.name
        if kind == "told":
            self.told = event.told
        elif kind == "directory":
            self._flush_names(name)
        elif kind == "remove":
            self._contents.pop(name, None)
        elif kind == "create":
            self._contents[name] = _Content()
        else:
            content = self._contents.get(name)
            if content is None:
                content = self._contents[name] = _Content()
            self._change(content, event)

    def _change(self, content: _Content, event: Event) -> None:
        kind = event.kind
        if kind == "write":
            content.write(self._number, event.position, event.data)
        elif kind == "size":
            content.resize(max(event.position, len(content.current)))
        elif kind == "cut":
            content.resize(event.position)
        elif kind == "flush":
            content.flush()
        elif kind == "failed flush":
            content.forget()
        else:
            raise ValueError(f"an event of kind {kind}")

    def _flush_names(self, directory: str) -> None:
        is_top = "/" not in directory
        for name in {*self._contents, *self._certain}:
            if is_top != ("/" in name):
                if name in self._contents:
                    self._certain[name] = self._contents[name]
                else:
                    del self._certain[name]

    def killed(self) -> dict[str, bytes]:
        """Return the readable content, which survives the end of a process."""
        return {name: bytes(content.current) for name, content in self._contents.items()}

    def lost(self, mode: str, chance: random.Random) -> dict[str, bytearray]:
        """Return what a power failure leaves."""
        numbers = [
            versions[0][0] for content in self._contents.values() for versions in content.pending.values()
        ]
        choice = Choice(mode, self._number, min(numbers, default=self._number), chance)
        left: dict[str, bytearray] = {}
        for name in sorted({*self._contents, *self._certain}):
            now, before = self._contents.get(name), self._certain.get(name)
            content = now if now is before or choice.name(chance) else before
            if content is not None:
                left[name] = content.left(choice.of_file(chance), chance)
        return left


def lay_out(files: Mapping[str, Buffer], directory: Path) -> None:
    """Create these files, and nothing else."""
    directory.mkdir()
    with contextlib.suppress(FileExistsError):
        (directory / "chunks").mkdir()
    for name, data in files.items():
        (directory / name).write_bytes(data)
