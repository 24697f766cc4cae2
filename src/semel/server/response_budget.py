"""The response budget: limits the bytes of responses that the broker holds for all clients.

Bytes that the kernel has not accepted are charged to the connection. Over the limit, requests that may have a
large response (all but Produce) do not start until clients have caught up. `watch` closes clients that do not
(within seconds, not after the whole write timeout, because other clients wait for them).

A Fetch is charged before its records are read, when the fetch plan has their size. Over the limit it waits
for its turn. So the most that is held is the limit and one response, however many fetches run at once. Its
max_bytes is also reduced to a share of the remaining budget, so that a few slow readers cannot use all of it.
"""

import asyncio
from collections import deque
from typing import Final

from semel.server.budget import Paused

FETCH_SHARE_MIN_BYTES: Final = 65_536


class ResponseBudget:
    """Bytes of responses that the kernel has not accepted, over all connections."""

    __slots__ = ("_limit", "_reserving", "_waiting", "fetches", "used")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._waiting: dict[Paused, None] = {}
        self._reserving: deque[tuple[asyncio.Future[None], int]] = deque()
        self.used = 0
        self.fetches = 0
        """Fetches in flight, each of which may have a large response."""

    @property
    def exceeded(self) -> bool:
        """Whether requests that may have a large response have to wait."""
        return self.used > self._limit

    @property
    def is_waited_for(self) -> bool:
        """Whether a request waits because other clients do not read their responses."""
        return bool(self._waiting or self._reserving)

    def wait(self, connection: Paused) -> None:
        """Notify this connection when there is room."""
        self._waiting[connection] = None

    def fetch_share(self) -> int:
        """The largest response of one more Fetch."""
        return max(FETCH_SHARE_MIN_BYTES, (self._limit - self.used) // (self.fetches + 1))

    async def reserve(self, size: int) -> None:
        """Wait for room and for one's turn, then charge bytes that are about to be read for a response."""
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
        """Add to the charged bytes, or subtract from them, and let waiting requests start."""
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
        """Remove a closed connection."""
        self._waiting.pop(connection, None)


class ResponseCharge:
    """The charge of one connection: unsent bytes, and bytes reserved for the next response."""

    __slots__ = ("_budget", "reserved", "unsent")

    def __init__(self, budget: ResponseBudget) -> None:
        self._budget = budget
        self.reserved = 0
        self.unsent = 0

    async def reserve(self, size: int) -> None:
        """Wait until ``size`` bytes may be read for a response."""
        await self._budget.reserve(size)
        self.reserved += size

    def measured(self, unsent: int) -> None:
        """Set the number of unsent bytes."""
        self._budget.change(unsent - self.unsent)
        self.unsent = unsent

    def handed_over(self) -> None:
        """Release the reserved bytes: their response was passed to the transport, or there is none."""
        if self.reserved:
            reserved, self.reserved = self.reserved, 0
            self._budget.change(-reserved)
