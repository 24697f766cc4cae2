"""Bytes of requests that all clients together may make the broker hold.

Every byte that arrives is charged to its connection, complete frame or not. A Produce request keeps
its charge until it is answered, because its records are held that long. Any other request gives its bytes
back when it is decoded, and is charged for what it became (`decoded_bytes`) until it is answered. A request
that waits for other clients is charged nothing meanwhile, because others need the bytes: a Fetch from the
beginning (what waits is bounded in `Reads`), JoinGroup and SyncGroup from the decision that they have to wait
(what a group keeps of them is bounded by `semel.group.bytes.max`).

Up to half of the limit everyone is read from. Above that, a connection that holds more than its share of the
half is not read from until it holds less, and the kernel makes its client wait. So the others always find
room, however much a few send. Above the limit nobody is read from. Frames that have not ended could then hold
all bytes for ever, so one connection at a time may go on to the end of its frame; when that was answered, the
next. The most that is held is therefore the limit, plus one frame, plus what one read of each connection
brings. `watch` closes a connection that is let through and dawdles.
"""

from typing import Final, Protocol

FRAME_OVERHEAD_BYTES: Final = 256
"""What a frame costs besides its bytes. Without it, a megabyte of tiny frames would be far more than that."""

DECODED_PER_BYTE: Final = 64
"""What a byte of a request becomes at most: an element takes a byte or more there, and an object here."""
ELEMENT_BYTES: Final = 512
"""What an element takes at most, with its strings and with its part of the response."""


class Paused(Protocol):
    """What a budget needs of a connection."""

    @property
    def has_half_frame(self) -> bool:
        """Whether bytes are held for a frame that has not ended."""

    def budget_allows(self) -> None:
        """There is room again, or it is this connection's turn."""


class Charged(Protocol):
    """What a budget needs of a request."""

    size: int


def decoded_bytes(frame_bytes: int, elements_max: int) -> int:
    """What a request that carries no records takes in memory, at most, once it is decoded."""
    return FRAME_OVERHEAD_BYTES + min(frame_bytes * DECODED_PER_BYTE, elements_max * ELEMENT_BYTES)


class RequestBudget:
    """Bytes of requests that arrived and are not answered, over all connections."""

    __slots__ = ("_chosen", "_half", "_held", "_is_chosen_reading", "_limit", "_paused", "in_flight", "used")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._half = limit // 2
        self._held: dict[Paused, int] = {}
        """What each connection holds, of those that hold something."""
        self._paused: dict[Paused, None] = {}
        self._chosen: Paused | None = None
        self._is_chosen_reading = False
        self.used = 0
        self.in_flight = 0
        """Requests that were begun and not answered."""

    @property
    def is_waited_for(self) -> bool:
        """Whether somebody is not read from because others hold too much."""
        return bool(self._paused)

    def held(self, connection: Paused) -> int:
        """What a connection holds."""
        return self._held.get(connection, 0)

    def charge(self, connection: Paused, size: int) -> bool:
        """Account for bytes that arrived. Whether the connection may go on reading."""
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
        """A request is under way. The one that was let through has its frame and must wait like others.

        The next has its turn when the bytes come back. Only Produce is waited for: it is what is large, and
        it ends by itself, while a Fetch may be parked for as long as its client likes.
        """
        self.in_flight += 1
        if connection is self._chosen:
            self._is_chosen_reading = False
            if not is_produce:
                self._chosen = None
                self._let_one_through()

    def end(self, connection: Paused, size: int) -> None:
        """A request is no longer under way."""
        self.in_flight -= 1
        if connection is self._chosen and not self._is_chosen_reading:
            self._chosen = None
        self.release(connection, size)

    def release(self, connection: Paused, size: int) -> None:
        """Bytes of a request that was decoded or answered, or that nobody waits for any more."""
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
        """Charge a request another size than before. Whether the connection may go on reading."""
        more, charged.size = size - charged.size, size
        if more > 0:
            return self.charge(connection, more)
        self.release(connection, -more)
        return True

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
