"""Make the system calls of chunk store and WAL in one place, so that tests can make each of them fail.

Both write to disk only through ``Files``. ``OpenFiles`` keeps a bounded number of files open for reading.
It never closes a file that is being read, because the descriptor could by then refer to another file.
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
"""A data directory is accessible only to the user who runs the broker."""
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
_KEEP_SIZE: Final = 0x01
_PUNCH_HOLE: Final = 0x02
_UNSUPPORTED: Final = (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)


class Files:
    """Thin wrappers around system calls."""

    def create(self, path: Path) -> int:
        """Create a file and open it for writing. It must not exist."""
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE)

    def allocate(self, descriptor: int, position: int, length: int) -> None:
        """Allocate space, so that writing there cannot fill the disk and flushing is cheap."""
        try:
            os.posix_fallocate(descriptor, position, length)
        except OSError as error:
            # The file then grows as it is written: slower to flush, but just as safe.
            if error.errno not in _UNSUPPORTED:
                raise

    def resize(self, descriptor: int, length: int) -> None:
        """Set the length of a file."""
        os.ftruncate(descriptor, length)

    def write(self, descriptor: int, buffers: Sequence[Buffer], position: int) -> int:
        """Write buffers one after another. Return how many bytes were written."""
        return os.pwritev(descriptor, buffers, position)

    def flush(self, descriptor: int) -> None:
        """Flush a file to disk."""
        os.fdatasync(descriptor)

    def flush_directory(self, path: Path) -> None:
        """Flush the names in a directory to disk."""
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def make_directory(self, path: Path) -> None:
        """Create a directory durably, unless it exists."""
        if not path.is_dir():
            if path.exists():
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))
            path.mkdir(parents=True, mode=DIRECTORY_MODE)
            self.flush_directory(path.parent)

    def remove(self, path: Path) -> None:
        """Remove a file, if it exists."""
        path.unlink(missing_ok=True)

    def rename(self, path: Path, target: Path) -> None:
        """Rename a file. Durable once the directory is flushed."""
        path.rename(target)

    def free_bytes(self, path: Path) -> int:
        """Return the free space of the disk that holds this path."""
        status = os.statvfs(path)
        return status.f_bavail * status.f_frsize

    def punch(self, descriptor: int, position: int, length: int) -> None:
        """Release the space of a range, if the file system supports that."""
        if _fallocate is None:
            return
        if _fallocate(descriptor, _PUNCH_HOLE | _KEEP_SIZE, position, length) != 0:
            code = ctypes.get_errno()
            if code not in _UNSUPPORTED:
                raise OSError(code, os.strerror(code))


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """Add this path to operating system errors that name no file."""
    try:
        yield
    except OSError as error:
        if error.filename is None and error.errno is not None:
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise


def write_all(files: Files, descriptor: int, buffers: Sequence[Buffer], position: int) -> None:
    """Write all of the buffers, one after another. OSError."""
    size = sum(map(len, buffers))
    if len(buffers) > IOV_MAX:
        buffers = [b"".join(buffers)]
    written = files.write(descriptor, buffers, position)
    while written < size:
        # Large writes may be short. Continue where this one stopped.
        rest = memoryview(b"".join(buffers))[written:]
        more = files.write(descriptor, [rest], position + written)
        if more <= 0:
            raise OSError(errno.EIO, "the disk took no bytes")
        written += more


def end_of_data(descriptor: int) -> int:
    """Return where the data of a file ends; its size if the system cannot tell."""
    end = 0
    if not hasattr(os, "SEEK_HOLE"):
        return os.fstat(descriptor).st_size
    try:
        while True:
            end = os.lseek(descriptor, os.lseek(descriptor, end, os.SEEK_DATA), os.SEEK_HOLE)
    except OSError as error:
        # ENXIO means that there is no more data. After any other error, assume that all of it is data.
        return end if error.errno == errno.ENXIO else os.fstat(descriptor).st_size


def data_ranges(descriptor: int) -> Iterator[tuple[int, int]]:
    """Yield the ranges of a file that hold data; all of it if the system cannot tell."""
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
    """Files open for reading: at most ``files_max`` besides those in use. Evicts the least recently used."""

    def __init__(self, files_max: int = 64) -> None:
        self._files_max = files_max
        self._lock = threading.Lock()
        self._open: OrderedDict[Path, _OpenFile] = OrderedDict()

    def take(self, path: Path, *, if_open: bool = False) -> _OpenFile | None:
        """Take a file for reading. None if ``if_open`` and it is not open yet. FileNotFoundError."""
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
        """Return a file after reading."""
        with self._lock:
            file.readers -= 1
            if file.forgotten and not file.readers:
                os.close(file.descriptor)

    def forget(self, path: Path) -> None:
        """Close a file, now or after its last reader."""
        with self._lock:
            file = self._open.pop(path, None)
            if file is not None:
                self._close(file)

    def close(self) -> None:
        """Close all files."""
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
    """Return the id of this boot of the operating system; empty if unknown."""
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return ""


def tighten(directory: Path) -> list[Path]:
    """Remove other users' access to a data directory and the store's files. Return those that failed.

    Other files in the directory are left alone. Files of another user cannot be changed.
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
