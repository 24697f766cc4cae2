"""An event loop whose time passes only when nobody has anything to do.

Work takes no time, and a wait takes exactly as long as was asked for. Tasks run in the order in which they
became ready, so a program without randomness of its own does the same every time.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class Standstill(Exception):
    """Everyone waits, and nothing will ever happen."""


class _Waits:
    """Stands where a loop has its selector: nothing ever comes from outside."""

    def __init__(self, loop: "VirtualLoop") -> None:
        self._loop = loop

    def select(self, timeout: float | None) -> list[Any]:
        if timeout is None:
            raise Standstill("everyone waits, and nothing will ever happen")
        self._loop.now += timeout
        return []


class VirtualLoop(asyncio.BaseEventLoop):
    """One history's time."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self._selector = _Waits(self)

    def time(self) -> float:
        """Seconds since the beginning of the history."""
        return self.now

    def _process_events(self, event_list: list[Any]) -> None:
        """There are none."""

    def _write_to_self(self) -> None:
        """Nobody calls from another thread."""


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run to the end in virtual time."""
    loop = VirtualLoop()
    try:
        return loop.run_until_complete(main)
    finally:
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        if left:
            loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()
