"""Bytes that all clients together may make the broker hold.

Requests. Every byte that arrives is charged, complete frame or not, until the request it belongs to was
answered. Over the limit, connections are no longer read from, and the kernel makes their clients wait. So
that this cannot become a standstill, one connection may always go on: when nothing is under way, nothing
will ever be given back, and the connection that has waited longest is let through to the end of its
frame. The most that is held is therefore the limit, plus one frame, plus what one read of each connection
brings.

Responses. What the kernel did not take is charged to the connection. Over the limit nothing that may have
a large answer is begun, which means everything but Produce, until readers have caught up; `watch` closes
those that do not (within seconds, not after the whole write timeout, because others wait for them). A
Fetch is told to ask for no more than its share of what is left, so that many at once cannot overshoot by
their number times the largest Fetch.
"""

from typing import Final, Protocol

FRAME_OVERHEAD_BYTES: Final = 256
"""What a frame costs besides its bytes. Without it, a megabyte of tiny frames would be far more than that."""

FETCH_SHARE_MIN_BYTES: Final = 65_536


class Paused(Protocol):
    """What a budget needs of a connection."""

    def budget_allows(self) -> None:
        """There is room again, or it is this connection's turn."""


class RequestBudget:
    """Bytes of requests that arrived and are not answered, over all connections."""

    __slots__ = ("_chosen", "_limit", "_paused", "under_way", "used")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._paused: dict[Paused, None] = {}
        self._chosen: Paused | None = None
        self.used = 0
        self.under_way = 0
        """Requests that were begun and will give bytes back by themselves."""

    def charge(self, connection: Paused, size: int) -> bool:
        """Account for bytes that arrived. Whether the connection may go on reading."""
        self.used += size
        if self.used <= self._limit or connection is self._chosen:
            return True
        self._paused[connection] = None
        self._let_one_through()
        return connection not in self._paused

    @property
    def is_waited_for(self) -> bool:
        """Whether somebody is not read from because others hold too much."""
        return bool(self._paused)

    def begin(self, connection: Paused) -> None:
        """A request is under way. If it was let through, it has had its turn."""
        self.under_way += 1
        if connection is self._chosen:
            self._chosen = None

    def end(self, size: int) -> None:
        """A request is no longer under way."""
        self.under_way -= 1
        self.release(size)

    def release(self, size: int) -> None:
        """Bytes of a request that was answered, or that nobody waits for any more."""
        self.used -= size
        if not self._paused:
            return
        if self.used <= self._limit:
            self._chosen = None
            paused, self._paused = self._paused, {}
            for connection in paused:
                connection.budget_allows()
        else:
            self._let_one_through()

    def forget(self, connection: Paused) -> None:
        """The connection is gone."""
        self._paused.pop(connection, None)
        if connection is self._chosen:
            self._chosen = None
            self._let_one_through()

    def _let_one_through(self) -> None:
        if self.under_way or self._chosen is not None or not self._paused:
            return
        connection = self._chosen = next(iter(self._paused))
        del self._paused[connection]
        connection.budget_allows()


class ResponseBudget:
    """Bytes of responses that the kernel did not take yet, over all connections."""

    __slots__ = ("_limit", "_waiting", "fetches", "used")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._waiting: dict[Paused, None] = {}
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
        return bool(self._waiting)

    def wait(self, connection: Paused) -> None:
        """Call this connection when there is room."""
        self._waiting[connection] = None

    def fetch_share(self) -> int:
        """The most that one more Fetch may answer with."""
        return max(FETCH_SHARE_MIN_BYTES, (self._limit - self.used) // (self.fetches + 1))

    def change(self, difference: int) -> None:
        """A connection has so many more, or fewer, bytes that wait to be sent."""
        self.used += difference
        if self._waiting and not self.exceeded:
            waiting, self._waiting = self._waiting, {}
            for connection in waiting:
                connection.budget_allows()

    def forget(self, connection: Paused) -> None:
        """The connection is gone."""
        self._waiting.pop(connection, None)
