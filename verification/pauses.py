"""How long an event loop is held up, measured so that a slow or busy machine does not matter.

A probe runs on the loop about every millisecond and reads the *processor time* of the loop's thread. What the
thread used between two probes it used without serving anybody else; time in which the machine ran other
programs does not count. Pauses are compared with what a fixed piece of Python takes on the same machine.
"""

import asyncio
import threading
import time
from typing import Final

PROBE_SECONDS: Final = 0.001
LOOP_TURNS: Final = 100_000
UNITS_MAX: Final = 50
"""What a pause may take: 250 ms where a calibrated loop takes 5, which a machine of 2020 does."""


def calibrated_seconds() -> float:
    """The processor time of a fixed loop: the fastest of some, because others disturb and nobody helps."""
    return min(_loop_seconds() for _ in range(5))


def _loop_seconds() -> float:
    began = time.thread_time()
    total = 0
    for number in range(LOOP_TURNS):
        total += number * number
    return time.thread_time() - began


class Probe:
    """Watches one event loop from inside. Made and read from another thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._last = 0.0
        self._longest = 0.0
        self._is_over = False
        self._loop.call_soon_threadsafe(self._begin)

    def _begin(self) -> None:
        self._last = time.thread_time()
        self._look()

    def _look(self) -> None:
        now = time.thread_time()
        self._longest = max(self._longest, now - self._last)
        self._last = now
        if not self._is_over:
            self._loop.call_later(PROBE_SECONDS, self._look)

    def longest_seconds(self) -> float:
        """The longest pause since this was last asked, when the loop has come round once more."""
        turned = threading.Event()
        found: list[float] = []

        def read() -> None:
            self._look_now()
            found.append(self._longest)
            self._longest = 0.0
            turned.set()

        self._loop.call_soon_threadsafe(read)
        turned.wait()
        return found[0]

    def _look_now(self) -> None:
        now = time.thread_time()
        self._longest = max(self._longest, now - self._last)
        self._last = now

    def end(self) -> None:
        """Look no more."""
        self._is_over = True
