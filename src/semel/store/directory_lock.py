"""One process per data directory, and a witness of what was in it.

The lock is the operating system's, on a file named ``lock``, and goes away with the process that holds it,
however it ends. It is never removed: between removing it and making it anew two processes could each hold a
lock of that name.

The file holds two lines. The first is the number of the process, for the message that a second one gets. The
second is a *witness*: the store's id and the last commit that ledger and chunks were known to have on the
disk. A ledger that lacks this commit is an older copy, or another store's.
"""

import fcntl
import os
from pathlib import Path
from typing import Final, NamedTuple

from crc32c import crc32c

from semel.store.files import FILE_MODE, Files
from semel.store.interface import StoreLocked

_OWNER_BYTES: Final = 12
"""Of the first line, so that the second stays where it is."""
_FILE_BYTES_MAX: Final = 4096


class Witness(NamedTuple):
    """What the last process here knew."""

    store_id: bytes
    number: int
    """The last commit."""


class DirectoryLock:
    """Held from the moment it is made until it is released."""

    def __init__(self, directory: Path) -> None:
        self._descriptor = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
        text = os.pread(self._descriptor, _FILE_BYTES_MAX, 0)
        owner, rest = text.partition(b"\n")[0], text[_OWNER_BYTES:]
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            shown = owner[:32].decode("ascii", "replace").strip() or "unknown"
            os.close(self._descriptor)
            raise StoreLocked(
                f"the data directory {directory} is in use by process {shown}; "
                "stop it, or start with another directory"
            ) from None
        self.witness = _parse(rest)
        """None if the file is new, or damaged."""
        if self.witness is None:
            os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, f"{os.getpid():<{_OWNER_BYTES - 1}}\n".encode("ascii"), 0)

    def testify(self, witness: Witness, files: Files, *, is_flushed: bool = True) -> None:
        """Keep what is known now. OSError."""
        text = f"store {witness.store_id.hex()} commit {witness.number:020d}"
        line = f"{text} {crc32c(text.encode('ascii')):08x}\n".encode("ascii")
        files.write(self._descriptor, [line], _OWNER_BYTES)
        if is_flushed:
            files.flush(self._descriptor)
        self.witness = witness

    def forget(self) -> None:
        """Keep no witness any more: the ledger is another one from now on."""
        os.ftruncate(self._descriptor, _OWNER_BYTES)
        self.witness = None

    def release(self) -> None:
        """Let another process have the directory."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def _parse(line: bytes) -> Witness | None:
    try:
        text, _, checksum = line.decode("ascii").strip().rpartition(" ")
        if crc32c(text.encode("ascii")) != int(checksum, 16):
            return None
        kind, store_id, _, number = text.split(" ")
        return Witness(bytes.fromhex(store_id), int(number)) if kind == "store" else None
    except ValueError:
        return None
