"""Slices: divides long work, so that other work runs between two slices.

A request with fifty thousand elements takes a tenth of a second to decode, to answer and to encode, during
which no other request is served. So long work is divided into slices of about a millisecond, and waits for a
turn before each. All requests share one queue: twenty such requests at once take twenty times as long, but
between two slices the event loop serves all other clients.

The slices of a request run in order. State may change between two slices just as between two requests.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Generator, Sequence
from typing import Final, TypeVar

T = TypeVar("T")

SLICE_ITEMS: Final = 500
"""Items of a request that a handler processes before it takes a turn."""


class Slices:
    """The queue of work that waits for its next turn."""

    __slots__ = ("_is_due", "_waiting")

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._is_due = False

    async def turn(self) -> None:
        """Wait in the queue, while other work runs."""
        loop = asyncio.get_running_loop()
        mine: asyncio.Future[None] = loop.create_future()
        self._waiting.append(mine)
        if not self._is_due:
            self._is_due = True
            loop.call_soon(self._next)
        await mine

    async def run(self, work: Generator[None, None, T]) -> T:
        """Run a generator to its end, with a turn at every yield; returns its result."""
        while True:
            try:
                next(work)
            except StopIteration as stop:
                result: T = stop.value
                return result
            await self.turn()

    async def over(self, items: Sequence[T], size: int = SLICE_ITEMS) -> AsyncIterator[Sequence[T]]:
        """The items in pieces of ``size``, with a turn between two pieces."""
        for start in range(0, len(items), size):
            if start:
                await self.turn()
            yield items[start : start + size]

    def steps(self) -> "Steps":
        """A counter for work on nested lists."""
        return Steps(self)

    def _next(self) -> None:
        """Wake one waiter; the next is woken in the next turn of the event loop."""
        while self._waiting:
            first = self._waiting.popleft()
            # A waiter may have been cancelled.
            if not first.done():
                first.set_result(None)
                break
        self._is_due = bool(self._waiting)
        if self._is_due:
            asyncio.get_running_loop().call_soon(self._next)


class Steps:
    """Counts processed items, and takes a turn after each slice."""

    __slots__ = ("_done", "_slices")

    def __init__(self, slices: Slices) -> None:
        self._slices = slices
        self._done = 0

    async def step(self, items: int = 1) -> None:
        """Count items that were processed."""
        self._done += items
        if self._done >= SLICE_ITEMS:
            self._done = 0
            await self._slices.turn()
