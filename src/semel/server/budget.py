"""Bytes that all clients together may make the broker hold.

Requests. Every byte that arrives is charged, complete frame or not, until the request it belongs to was
answered. Over the limit, connections are no longer read from, and the kernel makes their clients wait.
Frames that have not ended could then hold all bytes for ever, so one connection at a time may go on to the
end of its frame; when that was answered, the next. The most that is held is therefore the limit, plus one
frame, plus what one read of each connection brings. Who is let through and dawdles is closed by `watch`.

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

    @property
    def has_half_frame(self) -> bool:
        """Whether bytes are held for a frame that has not ended."""

    def budget_allows(self) -> None:
        """There is room again, or it is this connection's turn."""


class RequestBudget:
    """Bytes of requests that arrived and are not answered, over all connections."""

    __slots__ = ("_chosen", "_is_chosen_reading", "_limit", "_paused", "under_way", "used")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._paused: dict[Paused, None] = {}
        self._chosen: Paused | None = None
        self._is_chosen_reading = False
        self.used = 0
        self.under_way = 0
        """Requests that were begun and not answered."""

    @property
    def is_waited_for(self) -> bool:
        """Whether somebody is not read from because others hold too much."""
        return bool(self._paused)

    def charge(self, connection: Paused, size: int) -> bool:
        """Account for bytes that arrived. Whether the connection may go on reading."""
        self.used += size
        if self.used <= self._limit or (connection is self._chosen and self._is_chosen_reading):
            return True
        self._paused[connection] = None
        self._let_one_through()
        return connection not in self._paused

    def begin(self, connection: Paused, *, is_produce: bool) -> None:
        """A request is under way. The one that was let through has its frame and must wait like others.

        The next has its turn when the bytes come back. Only Produce is waited for: it is what is large, and
        it ends by itself, while a Fetch may be parked for as long as its client likes.
        """
        self.under_way += 1
        if connection is self._chosen:
            self._is_chosen_reading = False
            if not is_produce:
                self._chosen = None
                self._let_one_through()

    def end(self, connection: Paused, size: int) -> None:
        """A request is no longer under way."""
        self.under_way -= 1
        if connection is self._chosen and not self._is_chosen_reading:
            self._chosen = None
        self.release(size)

    def release(self, size: int) -> None:
        """Bytes of a request that was answered, or that nobody waits for any more."""
        self.used -= size
        if not self._paused:
            return
        if self.used > self._limit:
            self._let_one_through()
            return
        self._chosen = None
        paused, self._paused = self._paused, {}
        for connection in paused:
            connection.budget_allows()

    def forget(self, connection: Paused) -> None:
        """The connection is gone; what it has under way is not, and is still waited for."""
        self._paused.pop(connection, None)
        if connection is self._chosen and self._is_chosen_reading:
            self._chosen = None
            self._let_one_through()

    def _let_one_through(self) -> None:
        """If only frames that have not ended hold the bytes, nothing gives them back: let one of them end."""
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
