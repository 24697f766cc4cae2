"""What the chunk store asks of the operating system: a few calls, in one place, so that a test can fail each.

``Files`` is the only door to the disk for chunks. ``OpenFiles`` keeps a bounded number of files open for
reading and never closes one while somebody reads it: a file descriptor that is closed under a reader may
already be another file.
"""

import contextlib
import ctypes
import errno
import os
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from semel.core.types import Buffer

IOV_MAX: Final = os.sysconf("SC_IOV_MAX") if "SC_IOV_MAX" in os.sysconf_names else 16
FILE_MODE: Final = 0o600
DIRECTORY_MODE: Final = 0o700
"""What is in a data directory is for the user who runs the broker, and nobody else."""
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
_KEEP_SIZE: Final = 0x01
_PUNCH_HOLE: Final = 0x02
_UNSUPPORTED: Final = (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)


class Files:
    """The calls, each as thin as it can be."""

    def create(self, path: Path) -> int:
        """A new file, open for writing. It must not exist."""
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE)

    def allocate(self, descriptor: int, position: int, length: int) -> None:
        """Give a file room, so that writing there cannot fill the disk and flushing it is cheap."""
        try:
            os.posix_fallocate(descriptor, position, length)
        except OSError as error:
            # Without it the file grows as it is written: slower to flush, and no less safe.
            if error.errno not in _UNSUPPORTED:
                raise

    def resize(self, descriptor: int, length: int) -> None:
        """Give a file this length."""
        os.ftruncate(descriptor, length)

    def write(self, descriptor: int, buffers: Sequence[Buffer], position: int) -> int:
        """Write buffers one after another; how many bytes were taken."""
        return os.pwritev(descriptor, buffers, position)

    def flush(self, descriptor: int) -> None:
        """What was written is on the disk when this returns."""
        os.fdatasync(descriptor)

    def flush_directory(self, path: Path) -> None:
        """The names in a directory are on the disk when this returns."""
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def make_directory(self, path: Path) -> None:
        """Make a directory durably, if it is not there."""
        if not path.is_dir():
            if path.exists():
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))
            path.mkdir(parents=True, mode=DIRECTORY_MODE)
            self.flush_directory(path.parent)

    def remove(self, path: Path) -> None:
        """Remove a file, if it is there."""
        path.unlink(missing_ok=True)

    def rename(self, path: Path, target: Path) -> None:
        """Give a file another name. Durable when the directory is flushed."""
        path.rename(target)

    def free_bytes(self, path: Path) -> int:
        """How much may still be written to the disk that holds this."""
        status = os.statvfs(path)
        return status.f_bavail * status.f_frsize

    def punch(self, descriptor: int, position: int, length: int) -> None:
        """Give the space of a range back to the disk, where the file system can do that."""
        if _fallocate is None:
            return
        if _fallocate(descriptor, _PUNCH_HOLE | _KEEP_SIZE, position, length) != 0:
            code = ctypes.get_errno()
            if code not in _UNSUPPORTED:
                raise OSError(code, os.strerror(code))


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """Errors of the operating system name a file; this one if they name none."""
    try:
        yield
    except OSError as error:
        if error.filename is None and error.errno is not None:
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise


def write_all(files: Files, descriptor: int, buffers: Sequence[Buffer], position: int) -> None:
    """Write buffers one after another, all of them. OSError."""
    size = sum(map(len, buffers))
    if len(buffers) > IOV_MAX:
        buffers = [b"".join(buffers)]
    written = files.write(descriptor, buffers, position)
    while written < size:
        # A short write is legal for large ones; the rest follows from where it stopped.
        rest = memoryview(b"".join(buffers))[written:]
        more = files.write(descriptor, [rest], position + written)
        if more <= 0:
            raise OSError(errno.EIO, "the disk took no bytes")
        written += more


def end_of_data(descriptor: int) -> int:
    """Behind this a file was never written; its size where the system cannot tell."""
    end = 0
    if not hasattr(os, "SEEK_HOLE"):
        return os.fstat(descriptor).st_size
    try:
        while True:
            end = os.lseek(descriptor, os.lseek(descriptor, end, os.SEEK_DATA), os.SEEK_HOLE)
    except OSError as error:
        # This is how it says that there is no more data. Any other error: do not touch anything.
        return end if error.errno == errno.ENXIO else os.fstat(descriptor).st_size


def data_ranges(descriptor: int) -> Iterator[tuple[int, int]]:
    """Where a file has data, from its beginning; all of it where the system cannot tell."""
    size = os.fstat(descriptor).st_size
    at = 0
    while at < size:
        try:
            at = os.lseek(descriptor, at, os.SEEK_DATA)
            end = os.lseek(descriptor, at, os.SEEK_HOLE)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return
            end = size
        yield at, end
        at = end


def _find_fallocate() -> Any:
    try:
        function = ctypes.CDLL(None, use_errno=True).fallocate
    except (OSError, AttributeError):
        return None
    function.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
    function.restype = ctypes.c_int
    return function


_fallocate = _find_fallocate()


class _OpenFile:
    __slots__ = ("descriptor", "forgotten", "readers")

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.readers = 0
        self.forgotten = False


class OpenFiles:
    """Files open for reading, at most ``files_max`` beside those in use; the least recently used one goes."""

    def __init__(self, files_max: int = 64) -> None:
        self._files_max = files_max
        self._lock = threading.Lock()
        self._open: OrderedDict[Path, _OpenFile] = OrderedDict()

    def take(self, path: Path, *, if_open: bool = False) -> _OpenFile | None:
        """A file to read until it is given back; None if only open ones are wanted. FileNotFoundError."""
        with self._lock:
            file = self._open.get(path)
            if file is None:
                if if_open:
                    return None
                file = self._open[path] = _OpenFile(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
            else:
                self._open.move_to_end(path)
            file.readers += 1
            self._shrink(self._files_max)
            return file

    def give_back(self, file: _OpenFile) -> None:
        """The reader is done."""
        with self._lock:
            file.readers -= 1
            if file.forgotten and not file.readers:
                os.close(file.descriptor)

    def forget(self, path: Path) -> None:
        """Close a file, now or when its last reader is done."""
        with self._lock:
            file = self._open.pop(path, None)
            if file is not None:
                self._close(file)

    def close(self) -> None:
        """Close all of them."""
        with self._lock:
            self._shrink(0)

    def _shrink(self, files_max: int) -> None:
        while len(self._open) > files_max:
            self._close(self._open.popitem(last=False)[1])

    def _close(self, file: _OpenFile) -> None:
        file.forgotten = True
        if not file.readers:
            os.close(file.descriptor)


def boot_id() -> str:
    """What names this start of the operating system; empty where it does not say."""
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return ""


def tighten(directory: Path) -> list[Path]:
    """Take the rights of others from a data directory and the store's files; what could not be changed.

    Nothing else in the directory is touched. What belongs to another user cannot be changed.
    """
    left: list[Path] = []
    patterns = ("lock", "ledger.db*", "wal*", "chunks", "chunks/*.chunk")
    for path in [directory, *(path for pattern in patterns for path in directory.glob(pattern))]:
        wanted = DIRECTORY_MODE if path.is_dir() else FILE_MODE
        try:
            if path.is_symlink() or not path.stat().st_mode & 0o077:
                continue
            path.chmod(wanted)
        except OSError:
            left.append(path)
    return left
