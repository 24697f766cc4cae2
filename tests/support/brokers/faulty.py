"""A real ``semel serve`` on a disk whose faults a test controls.

The test and the broker share a directory of switches. A file ``full`` there makes the disk full; a file with
the name of a call of ``semel.store.embedded.files.Files`` makes that call fail with the error number in the
file. So faults come and go while the broker runs, and the rest of it is the unmodified program.
"""

import errno
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from semel.store.embedded.files import Files
from support.brokers.process import BrokerProcess

T = TypeVar("T")


class FaultyBroker(BrokerProcess):
    """A broker whose disk faults a test controls."""

    kind = "faulty"

    def __init__(self, directory: Path, *options: str) -> None:
        super().__init__(directory, *options)
        self.switches = directory.parent / "switches"
        self.switches.mkdir()
        main = Path(__file__).with_name("faulty_main.py")
        self.program = (sys.executable, str(main), self.kind, str(self.switches))

    def fill(self) -> None:
        (self.switches / "full").touch()

    def make_room(self) -> None:
        (self.switches / "full").unlink()

    def fail(self, call: str, code: int) -> None:
        # Written to another file and renamed, so that the broker never reads half a number.
        half = self.switches / "half"
        half.write_text(str(code))
        half.rename(self.switches / call)

    def repair(self) -> None:
        for switch in self.switches.iterdir():
            switch.unlink()


class FaultyFiles(Files):
    """File operations with switches."""

    def __init__(self, switches: Path) -> None:
        self.switches = switches

    def allocate(self, descriptor: int, position: int, length: int) -> None:
        if (self.switches / "full").exists():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._or_fail("allocate", super().allocate, descriptor, position, length)

    def write(self, descriptor: int, buffers: Sequence[Any], position: int) -> int:
        return self._or_fail("write", super().write, descriptor, buffers, position)

    def flush(self, descriptor: int) -> None:
        # A disk that fails in a flush may still have written some of the data.
        super().flush(descriptor)
        self._or_fail("flush", lambda: None)

    def free_bytes(self, path: Path) -> int:
        return 0 if (self.switches / "full").exists() else super().free_bytes(path)

    def _or_fail(self, name: str, call: Callable[..., T], *args: Any) -> T:
        switch = self.switches / name
        if switch.exists():
            code = int(switch.read_text())
            raise OSError(code, os.strerror(code))
        return call(*args)
