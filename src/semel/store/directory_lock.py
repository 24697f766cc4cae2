"""One process per data directory.

The lock is the operating system's, on a file named ``lock``, and goes away with the process that holds it,
however it ends. The file also holds that process's number, for the message that a second one gets. It is
never removed: between removing it and making it anew two processes could each hold a lock of that name.
"""

import fcntl
import os
from pathlib import Path

from semel.store.interface import StoreLocked


class DirectoryLock:
    """Held from the moment it is made until it is released."""

    def __init__(self, directory: Path) -> None:
        self._descriptor = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.pread(self._descriptor, 32, 0).decode("ascii", "replace").strip() or "unknown"
            os.close(self._descriptor)
            raise StoreLocked(
                f"the data directory {directory} is in use by process {owner}; "
                "stop it, or start with another directory"
            ) from None
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, f"{os.getpid()}\n".encode("ascii"), 0)

    def release(self) -> None:
        """Let another process have the directory."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
