"""A real ``semel serve`` that kills itself at a named point, or whose disk is slow, full or broken.

It adds two switches to those of ``faulty``. The file ``kill`` holds a count and the name of a point: the
process sends itself SIGKILL when it reaches that point for the count-th time. The file ``slow`` holds the
number of milliseconds by which every flush is delayed.

The WAL's files are small here, so that the WAL often switches between them.
"""

import os
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import wraps
from pathlib import Path
from typing import Any

from semel.store import opening
from semel.store.embedded import wal
from semel.store.embedded.ledger import SqliteLedger
from semel.store.embedded.wal import WriteAheadLog
from semel.store.opening import recover
from support.brokers.faulty import FaultyBroker, FaultyFiles
from support.waiting import LIMIT_SECONDS

WAL_BYTES = 512 * 1024

RUNNING = (
    "before write",
    "after write",
    "before flush",
    "after flush",
    "before switch",
    "after switch",
    "before apply",
    "after apply",
    "before checkpoint",
    "after checkpoint",
)
"""Points that a broker under load reaches. After a flush no client has been answered yet."""
RARE = ("before switch", "after switch", "before checkpoint", "after checkpoint")
"""Points that a broker under load reaches only once in several seconds."""
STARTING = (
    "before recovery",
    "before write",
    "after write",
    "before flush",
    "before checkpoint",
    "after checkpoint",
    "after recovery",
)
"""Points that the broker reaches when it starts after a kill, before it is ready."""


class ChaosBroker(FaultyBroker):
    """A broker that kills itself at a chosen point."""

    kind = "chaos"

    def arm(self, point: str, count: int = 1) -> None:
        """From now on, kill the process when it reaches the point for the count-th time."""
        self._switch("kill", f"{count} {point}")

    def slow_down(self, milliseconds: int) -> None:
        self._switch("slow", str(milliseconds))

    def has_ended(self) -> bool:
        return self.process is None or self.process.poll() is not None

    def revive(self) -> int:
        """Start again, even if the start itself is killed; return the number of killed starts."""
        deadline = time.monotonic() + LIMIT_SECONDS
        killed = 0
        while True:
            if self.process is not None:
                self.wait()
            try:
                self.start()
                return killed
            except AssertionError:
                assert self.process is not None
                assert self.wait() == -signal.SIGKILL, self.log.read_text()
                assert time.monotonic() < deadline, "it never starts"
                killed += 1
                self.repair()

    def _switch(self, name: str, text: str) -> None:
        half = self.switches / "half"
        half.write_text(text)
        half.rename(self.switches / name)


class Points:
    """Where the process may be killed. Counting begins when it first sees the switch."""

    def __init__(self, switches: Path) -> None:
        self._switch = switches / "kill"
        self._armed = ""
        self._left = 0

    def reach(self, point: str) -> None:
        # exists() needs no file descriptor; read_text() would fail while none are available.
        if not self._switch.exists():
            return
        try:
            text = self._switch.read_text()
        except FileNotFoundError:
            return  # The test removed the switch in between.
        if text != self._armed:
            self._armed, self._left = text, int(text.split(" ", 1)[0])
        if text.split(" ", 1)[1] == point:
            self._left -= 1
            if self._left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    def around(self, call: Callable[..., Any], name: str) -> Callable[..., Any]:
        """Wrap the call, with a point before it and one after it."""

        @wraps(call)
        def wrapped(*args: Any, **options: Any) -> Any:
            self.reach(f"before {name}")
            answer = call(*args, **options)
            self.reach(f"after {name}")
            return answer

        return wrapped


class ChaosFiles(FaultyFiles):
    """File operations with switches and points."""

    def __init__(self, switches: Path, points: Points) -> None:
        super().__init__(switches)
        self._points = points

    def write(self, descriptor: int, buffers: Sequence[Any], position: int) -> int:
        self._points.reach("before write")
        written = super().write(descriptor, buffers, position)
        self._points.reach("after write")
        return written

    def flush(self, descriptor: int) -> None:
        self._points.reach("before flush")
        if (self.switches / "slow").exists():
            time.sleep(self._slowness())
        super().flush(descriptor)
        self._points.reach("after flush")

    def _slowness(self) -> float:
        with suppress(FileNotFoundError):
            return int((self.switches / "slow").read_text()) / 1000
        return 0.0  # The test removed the switch in between.


def install(switches: Path) -> ChaosFiles:
    """Put the points into this process; return the file operations that its store must use."""
    points = Points(switches)
    wal.FILE_BYTES = WAL_BYTES  # type: ignore[misc]
    WriteAheadLog.switch = points.around(WriteAheadLog.switch, "switch")  # type: ignore[method-assign]
    SqliteLedger.apply_now = points.around(SqliteLedger.apply_now, "apply")  # type: ignore[method-assign]
    SqliteLedger.checkpoint_now = points.around(  # type: ignore[method-assign]
        SqliteLedger.checkpoint_now, "checkpoint"
    )
    opening.recover = points.around(recover, "recovery")  # patched where it is called
    return ChaosFiles(switches, points)
