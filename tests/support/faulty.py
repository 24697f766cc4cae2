"""A real ``semel serve`` on a disk that does what a test says.

The test and the broker share a directory of switches. A file ``full`` there makes the disk full; a file with
the name of a call of ``semel.store.files.Files`` makes that call fail with the error number in the file. So a
fault comes and goes while the broker runs, and the rest of it is the program that everybody runs.
"""

import errno
import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from semel.store.files import Files


class FaultyFiles(Files):
    """The way to the disk, with switches."""

    def __init__(self, switches: Path) -> None:
        self.switches = switches

    def allocate(self, descriptor: int, position: int, length: int) -> None:
        if (self.switches / "full").exists():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._or_fail("allocate", super().allocate, descriptor, position, length)

    def write(self, descriptor: int, buffers: Sequence[Any], position: int) -> int:
        return self._or_fail("write", super().write, descriptor, buffers, position)

    def flush(self, descriptor: int) -> None:
        # What a disk does that fails in a flush: some of it may be there afterwards.
        super().flush(descriptor)
        self._or_fail("flush", lambda: None)

    def free_bytes(self, path: Path) -> int:
        return 0 if (self.switches / "full").exists() else super().free_bytes(path)

    def _or_fail(self, name: str, call: Callable[..., Any], *args: Any) -> Any:
        switch = self.switches / name
        if switch.exists():
            code = int(switch.read_text())
            raise OSError(code, os.strerror(code))
        return call(*args)


def main() -> None:
    """``python faulty.py SWITCHES serve ...``"""
    from semel.broker import broker
    from semel.cli.main import run
    from semel.store.embedded import open_store

    files = FaultyFiles(Path(sys.argv.pop(1)))
    broker.open_store = partial(open_store, files=files)  # type: ignore[assignment]
    run()


if __name__ == "__main__":
    main()
