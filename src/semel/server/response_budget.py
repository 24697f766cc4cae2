"""Bytes of responses that all clients together may make the broker hold.

What the kernel did not take is charged to the connection. Over the limit nothing that may have a large answer
is begun, which means everything but Produce, until readers have caught up; `watch` closes those that do not
(within seconds, not after the whole write timeout, because others wait for them).

A Fetch is charged before its records are read: it knows then how many bytes it found. Over the limit it waits
for its turn. So the most that is held is the limit and one response, however many fetch at once. It is also
told to ask for no more than its share of what is left, so that few slow readers cannot take everything.
"""

import asyncio
from collections import deque
from typing import Final

from semel.server.budget import Paused

FETCH_SHARE_MIN_BYTES: Final = 65_536


class ResponseBudget:
    """Bytes of responses that the kernel did not take yet, over all connections."""

    __slots__ = ("_limit", "_reserving", "_waiting", "fetches", "used")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._waiting: dict[Paused, None] = {}
        self._reserving: deque[tuple[asyncio.Future[None], int]] = deque()
        self.used = 0
        self.fetches = 0
        """Fetches under way, each of which may end in a large response."""

    @property
    def exceeded(self) -> bool:
        """Whether what may have a large answer has to wait."""
        return self.used > self._limit

    @property
    def is_waited_for(self) -> bool:
        """Whether somebody cannot begin because others do not read."""
        return bool(self._waiting or self._reserving)

    def wait(self, connection: Paused) -> None:
        """Call this connection when there is room."""
        self._waiting[connection] = None

    def fetch_share(self) -> int:
        """The most that one more Fetch may answer with."""
        return max(FETCH_SHARE_MIN_BYTES, (self._limit - self.used) // (self.fetches + 1))

    async def reserve(self, size: int) -> None:
        """Charge bytes that are about to be read for a response, when there is room and it is our turn."""
        if not self.exceeded and not self._reserving:
            self.used += size
            return
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        mine = (granted, size)
        self._reserving.append(mine)
        try:
            await granted
        except asyncio.CancelledError:
            if mine in self._reserving:
                self._reserving.remove(mine)
            elif not granted.cancelled():
                self.change(-size)
            raise

    def change(self, difference: int) -> None:
        """A connection has so many more, or fewer, bytes that wait to be sent."""
        self.used += difference
        while self._reserving and not self.exceeded:
            granted, size = self._reserving.popleft()
            if not granted.done():
                self.used += size
                granted.set_result(None)
        if self._waiting and not self.exceeded:
            waiting, self._waiting = self._waiting, {}
            for connection in waiting:
                connection.budget_allows()

    def forget(self, connection: Paused) -> None:
        """The connection is gone."""
        self._waiting.pop(connection, None)


class ResponseCharge:
    """What one connection is charged: bytes that were not sent, and bytes reserved for the next response."""

    __slots__ = ("_budget", "_reserved", "unsent")

    def __init__(self, budget: ResponseBudget) -> None:
        self._budget = budget
        self._reserved = 0
        self.unsent = 0

    async def reserve(self, size: int) -> None:
        """Wait until so many bytes may be read for a response."""
        await self._budget.reserve(size)
        self._reserved += size

    def measured(self, unsent: int) -> None:
        """So many bytes are not sent now."""
        self._budget.change(unsent - self.unsent)
        self.unsent = unsent

    def handed_over(self) -> None:
        """The response for which bytes were reserved was handed over, or there is none."""
        if self._reserved:
            reserved, self._reserved = self._reserved, 0
            self._budget.change(-reserved)
