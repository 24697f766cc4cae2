"""Budgets: limit the bytes of requests and of responses that the broker holds for all clients.

**Requests.** Every byte that arrives is charged to its connection, even before its frame is complete. A
Produce request keeps its charge until it is answered, because its records are held that long. Any other
request releases its frame when it is decoded, and is charged for the decoded message (`decoded_bytes`) until
it is answered. A request that waits for other clients is charged only `FRAME_OVERHEAD_BYTES` while it waits,
because those clients need the bytes: a Fetch from its decoding on (`Reads` bounds waiting fetches), JoinGroup
and SyncGroup once they are parked (`semel.group.bytes.max` bounds what a group keeps of them).

Up to half of the limit, all connections are read. Above that, a connection that holds more than its share of
the half is paused until it holds less, and the kernel makes its client wait. So a few busy clients never use
up the room of the others. Above the limit no connection is read. Incomplete frames could then hold all bytes
for ever, so one connection at a time may read to the end of its frame. The next connection follows when that
request is answered, or when it starts if it is not Produce. So the budget holds at most the limit, plus one
frame, plus one read of each connection. `server` closes a connection that is let through and is too slow.

**Responses.** Bytes that the kernel has not accepted are charged to the connection. Over the limit, requests
that may have a large response (all but Produce) do not start until clients have caught up. `server` closes
clients that do not catch up (within seconds, not after the whole write timeout, because other clients wait).

A Fetch is charged before its records are read, when the fetch plan has their size. Over the limit it waits
for its turn. So the budget holds at most the limit and one response, however many fetches run at once. The
max_bytes of a Fetch is also reduced to a share of the remaining budget, so that a few slow readers cannot use
all of it.
"""

import asyncio
from collections import deque
from typing import Final, Protocol

FRAME_OVERHEAD_BYTES: Final = 256
"""The overhead of a frame. Without it, a megabyte of tiny frames would take far more memory than charged."""

DECODED_PER_BYTE: Final = 64
"""The most memory per byte of a request: an element takes at least one byte, and becomes an object."""
ELEMENT_BYTES: Final = 512
"""The most memory per element, with its strings and its part of the response."""
FETCH_SHARE_MIN_BYTES: Final = 65_536


class Paused(Protocol):
    """The part of a connection that a budget uses."""

    @property
    def has_half_frame(self) -> bool:
        """Whether bytes are held for an incomplete frame."""

    def budget_allows(self) -> None:
        """Resume: there is room again, or it is this connection's turn."""


class Charged(Protocol):
    """The part of a request that a budget uses."""

    size: int


def decoded_bytes(frame_bytes: int, elements_max: int) -> int:
    """The most memory that a decoded request without records takes."""
    return FRAME_OVERHEAD_BYTES + min(frame_bytes * DECODED_PER_BYTE, elements_max * ELEMENT_BYTES)


class RequestBudget:
    """Bytes of unanswered requests, over all connections."""

    __slots__ = ("_chosen", "_half", "_held", "_is_chosen_reading", "_limit", "_paused", "in_flight", "used")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._half = limit // 2
        self._held: dict[Paused, int] = {}
        """Bytes by connection, without connections that hold none."""
        self._paused: dict[Paused, None] = {}
        self._chosen: Paused | None = None
        self._is_chosen_reading = False
        self.used = 0
        self.in_flight = 0
        """Requests that were started and not answered."""

    @property
    def is_waited_for(self) -> bool:
        """Whether a connection is paused because too many bytes are held."""
        return bool(self._paused)

    def held(self, connection: Paused) -> int:
        """The bytes that a connection holds."""
        return self._held.get(connection, 0)

    def charge(self, connection: Paused, size: int) -> bool:
        """Charge bytes that arrived. Returns whether the connection may continue to read."""
        self.used += size
        self._held[connection] = self._held.get(connection, 0) + size
        if self.used <= self._half or self._may_read(connection):
            return True
        self._paused[connection] = None
        self._let_one_through()
        return connection not in self._paused

    def _may_read(self, connection: Paused) -> bool:
        if connection is self._chosen and self._is_chosen_reading:
            return True
        return self.used <= self._limit and self.held(connection) <= self._half // max(1, len(self._held))

    def begin(self, connection: Paused, *, is_produce: bool) -> None:
        """Note that a request was started. A connection that was let through may no longer read.

        After Produce, which is large and ends soon, the next connection waits for its turn until the bytes
        are released. After any other request it does not: a Fetch may wait for as long as its client likes.
        """
        self.in_flight += 1
        if connection is self._chosen:
            self._is_chosen_reading = False
            if not is_produce:
                self._chosen = None
                self._let_one_through()

    def end(self, connection: Paused, size: int) -> None:
        """Note that a request has ended, and release its bytes."""
        self.in_flight -= 1
        if connection is self._chosen and not self._is_chosen_reading:
            self._chosen = None
        self.release(connection, size)

    def release(self, connection: Paused, size: int) -> None:
        """Release bytes of a request that was decoded, answered or dropped."""
        self.used -= size
        left = self._held.get(connection, 0) - size
        if left > 0:
            self._held[connection] = left
        else:
            self._held.pop(connection, None)
        if not self._paused:
            return
        if self.used > self._half:
            if connection in self._paused and self._may_read(connection):
                del self._paused[connection]
                connection.budget_allows()
            self._let_one_through()
            return
        self._chosen = None
        paused, self._paused = self._paused, {}
        for each in paused:
            each.budget_allows()

    def recharge(self, connection: Paused, charged: Charged, size: int) -> bool:
        """Change the charge of a request. Returns whether the connection may continue to read."""
        more, charged.size = size - charged.size, size
        if more > 0:
            return self.charge(connection, more)
        self.release(connection, -more)
        return True

    def forget(self, connection: Paused) -> None:
        """Remove a closed connection. Its requests in flight keep their charge until they end."""
        self._paused.pop(connection, None)
        if connection is self._chosen and self._is_chosen_reading:
            self._chosen = None
            self._let_one_through()

    def _let_one_through(self) -> None:
        """Let one incomplete frame be read to its end: incomplete frames never release their bytes."""
        if self._chosen is not None:
            return
        for connection in self._paused:
            if connection.has_half_frame:
                self._chosen = connection
                self._is_chosen_reading = True
                del self._paused[connection]
                connection.budget_allows()
                return


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
        """Call `budget_allows` of this connection when there is room."""
        self._waiting[connection] = None

    def fetch_share(self) -> int:
        """Return the size limit for the response of one more Fetch."""
        return max(FETCH_SHARE_MIN_BYTES, (self._limit - self.used) // (self.fetches + 1))

    async def reserve(self, size: int) -> None:
        """Wait for room, in order of arrival, then charge bytes that are about to be read for a response."""
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
        """Add to the charged bytes, or subtract from them, and start waiting requests if there is room."""
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
        """Release the reserved bytes: the transport has the response, or there is no response."""
        if self.reserved:
            reserved, self.reserved = self.reserved, 0
            self._budget.change(-reserved)
