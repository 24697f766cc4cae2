"""Measure how long an event loop is blocked, independently of a slow or busy machine.

A probe runs on the loop about every millisecond and reads the *processor time* of the loop's thread. The time
used between two probes was not available to other clients; time in which the machine ran other programs does
not count. Pauses are compared with the time of a fixed piece of Python on the same machine.
"""

import asyncio
import threading
import time
from typing import Final

PROBE_SECONDS: Final = 0.001
LOOP_TURNS: Final = 100_000
UNITS_MAX: Final = 50
"""The longest allowed pause: 250 ms if the calibration loop takes 5 ms, as on a machine of 2020."""


def calibrated_seconds() -> float:
    """Return the processor time of a fixed loop: the fastest of several, to exclude disturbances."""
    return min(_loop_seconds() for _ in range(5))


def _loop_seconds() -> float:
    began = time.thread_time()
    total = 0
    for number in range(LOOP_TURNS):
        total += number * number
    return time.thread_time() - began


class Probe:
    """Watches one event loop from inside. Created and read by another thread."""

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
        """Return the longest pause since the last call, after one more turn of the loop."""
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
        """Stop measuring."""
        self._is_over = True
