"""Lock a data directory for one process, and keep a witness of its contents.

The lock is the operating system's, so it is released when the process ends in any way. It is taken on the
directory itself, so that removing a file does not admit a second process, and on a file named ``lock``, for
file systems that cannot lock a directory. Semel never removes that file.

The file holds two lines. The first is the process id, for the error message that a second process gets. The
second is a *witness*: the store's id and the last commit known to be flushed in ledger and chunks. A ledger
that lacks this commit is an older copy, or belongs to another store.
"""

import fcntl
import os
from pathlib import Path
from typing import Final, NamedTuple

from crc32c import crc32c

from semel.store.contract import StoreLocked
from semel.store.embedded.files import FILE_MODE, Files, naming

LOCK: Final = "lock"
_OWNER_BYTES: Final = 12
"""Size of the first line. It is fixed, so the second line never moves."""
_FILE_BYTES_MAX: Final = 4096


class Witness(NamedTuple):
    """The store and the last commit that the previous process recorded."""

    store_id: bytes
    number: int
    """The last commit."""


class DirectoryLock:
    """Held from construction until ``release``.

    ``only_looks``: create and write no file.
    """

    def __init__(self, directory: Path, *, only_looks: bool = False) -> None:
        self._descriptor = -1
        self._directory = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        path = directory / LOCK
        try:
            self._lock(self._directory, path, may_fail=True)
            flags = os.O_RDONLY if only_looks else os.O_RDWR | os.O_CREAT
            try:
                self._descriptor = os.open(path, flags | os.O_CLOEXEC, FILE_MODE)
            except FileNotFoundError:
                self.witness = None
                return
            # Excludes a process that could not lock the directory.
            self._lock(self._descriptor, path, may_fail=only_looks)
            with naming(path):
                self.witness = _parse(os.pread(self._descriptor, _FILE_BYTES_MAX, 0)[_OWNER_BYTES:])
            """None if the file is new, or damaged."""
            if not only_looks:
                if self.witness is None:
                    os.ftruncate(self._descriptor, 0)
                owner = f"{os.getpid():<{_OWNER_BYTES - 1}}\n"
                with naming(path):
                    os.pwrite(self._descriptor, owner.encode("ascii"), 0)
        except BaseException:
            self.release()
            raise

    def _lock(self, descriptor: int, path: Path, *, may_fail: bool) -> None:
        """Take the operating system's lock. StoreLocked if another process has it.

        ``may_fail``: some network file systems lock only files that are open for writing.
        """
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StoreLocked(
                f"the data directory {path.parent} is in use by {_owner(path)}; "
                "stop it, or start with another directory"
            ) from None
        except OSError:
            if not may_fail:
                raise

    def testify(self, witness: Witness, files: Files, *, is_flushed: bool = True) -> None:
        """Record a witness. OSError."""
        text = f"store {witness.store_id.hex()} commit {witness.number:020d}"
        line = f"{text} {crc32c(text.encode('ascii')):08x}\n".encode("ascii")
        files.write(self._descriptor, [line], _OWNER_BYTES)
        if is_flushed:
            files.flush(self._descriptor)
        self.witness = witness

    def forget(self) -> None:
        """Erase the witness, because the ledger is being replaced."""
        os.ftruncate(self._descriptor, _OWNER_BYTES)
        self.witness = None

    def release(self) -> None:
        """Release the directory for another process."""
        for descriptor in (self._descriptor, self._directory):
            if descriptor >= 0:
                os.close(descriptor)
        self._descriptor = self._directory = -1


def _owner(path: Path) -> str:
    """Name the process that holds a lock, if it still runs."""
    try:
        number = int(path.read_bytes()[:_OWNER_BYTES])
    except (OSError, ValueError):
        return "another process"
    try:
        os.kill(number, 0)
    except (ProcessLookupError, OverflowError):
        return "another process"
    except PermissionError:
        # The process runs, as another user.
        pass
    return f"process {number}"


def _parse(line: bytes) -> Witness | None:
    try:
        text, _, checksum = line.decode("ascii").strip().rpartition(" ")
        if crc32c(text.encode("ascii")) != int(checksum, 16):
            return None
        kind, store_id, _, number = text.split(" ")
        return Witness(bytes.fromhex(store_id), int(number)) if kind == "store" else None
    except ValueError:
        return None
