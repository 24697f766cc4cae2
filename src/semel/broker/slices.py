"""Long work in slices: one slice per turn of the event loop, whoever it is for.

A request with fifty thousand elements takes a tenth of a second to read, to answer and to write, and nobody
else is served meanwhile. So work that may be long is cut into slices of about a millisecond, and asks for a
turn before each. There is one queue for all of them: twenty such requests at once take twenty times as long,
but between two slices the loop serves everyone else.

The slices of a request come in order; what may change between two of them is the same that may change
between two requests.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Generator, Sequence
from typing import Final, TypeVar

T = TypeVar("T")

SLICE_ITEMS: Final = 500
"""Items of a request that a handler works through without a turn."""


class Slices:
    """The queue of those who have more to do."""

    __slots__ = ("_is_due", "_waiting")

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._is_due = False

    async def turn(self) -> None:
        """Let everyone else work, and come back."""
        loop = asyncio.get_running_loop()
        mine: asyncio.Future[None] = loop.create_future()
        self._waiting.append(mine)
        if not self._is_due:
            self._is_due = True
            loop.call_soon(self._next)
        await mine

    async def run(self, work: Generator[None, None, T]) -> T:
        """Run a generator to its end, with a turn at every yield; what it returns."""
        while True:
            try:
                next(work)
            except StopIteration as stop:
                result: T = stop.value
                return result
            await self.turn()

    async def over(self, items: Sequence[T], size: int = SLICE_ITEMS) -> AsyncIterator[Sequence[T]]:
        """The items in pieces, with a turn between two pieces. Few items are one piece."""
        for start in range(0, len(items), size):
            if start:
                await self.turn()
            yield items[start : start + size]

    def steps(self) -> "Steps":
        """For work that goes over lists in lists."""
        return Steps(self)

    def _next(self) -> None:
        """Wake one; the next is woken in the next turn of the event loop."""
        while self._waiting:
            first = self._waiting.popleft()
            # Whoever asked may be cancelled.
            if not first.done():
                first.set_result(None)
                break
        self._is_due = bool(self._waiting)
        if self._is_due:
            asyncio.get_running_loop().call_soon(self._next)


def finished(work: Generator[None, None, T]) -> T:
    """What a generator returns, at once."""
    while True:
        try:
            next(work)
        except StopIteration as stop:
            result: T = stop.value
            return result


class Steps:
    """Counts what is done, and takes a turn when it is a slice."""

    __slots__ = ("_done", "_slices")

    def __init__(self, slices: Slices) -> None:
        self._slices = slices
        self._done = 0

    async def step(self, items: int = 1) -> None:
        """So many items were worked on."""
        self._done += items
        if self._done >= SLICE_ITEMS:
            self._done = 0
            await self._slices.turn()
