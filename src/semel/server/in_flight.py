"""The requests of one client: those that wait, and those in flight, which are started and not answered."""

import time
from collections import deque
from collections.abc import Coroutine, Iterator
from typing import Any, Final, Protocol, TypeAlias

from semel.handlers.context import CloseConnection
from semel.server.throttling import Timed
from semel.wire.api_key import ApiKey
from semel.wire.messages import (
    ConsumerGroupHeartbeatRequest,
    LeaveGroupRequest,
    ShareGroupHeartbeatRequest,
)
from semel.wire.schema import Response

HandlerResult: TypeAlias = Response | CloseConnection | None
"""The outcome of a request: a response, a reason to close, or None if no response is wanted."""

GOODBYES: Final = frozenset(
    {
        LeaveGroupRequest.api_key,
        ConsumerGroupHeartbeatRequest.api_key,
        ShareGroupHeartbeatRequest.api_key,
    }
)
"""APIs by which members leave their groups. A client may disconnect right after such a request. It must still
be processed, or the partitions of the member would stay unread until its session expires."""


class RequestOwner(Protocol):
    """The connection that sent a request."""

    def answered(self) -> None:
        """Respond to finished requests: called when a request of this connection has its outcome."""


class InFlightRequest:
    """A request that was started and not answered. Every request has such an object, so it is small."""

    __slots__ = (
        "api_key",
        "correlation_id",
        "is_done",
        "is_submitted",
        "outcome",
        "owner",
        "size",
        "spent",
        "started",
        "version",
        "work",
    )

    def __init__(
        self, owner: RequestOwner, api_key: int, version: int, correlation_id: int, size: int
    ) -> None:
        self.owner = owner
        self.api_key = api_key
        self.version = version
        """The version of the response."""
        self.correlation_id = correlation_id
        self.size = size
        """The bytes that are charged for the request."""
        self.started = time.monotonic()
        self.spent = 0.0
        """Seconds spent decoding the request and starting its handler, if that was measured."""
        self.is_done = False
        self.is_submitted = api_key in GOODBYES
        """Whether the request continues after its client has disconnected."""
        self.outcome: HandlerResult | BaseException = None
        self.work: Timed | None = None

    def timed(self, work: Coroutine[Any, Any, Any]) -> Timed:
        """Wrap the work of this request, to measure it."""
        self.work = Timed(work, time.perf_counter)
        return self.work

    @property
    def seconds(self) -> float:
        """The time for which the request has occupied the event loop, if that was measured."""
        return self.spent if self.work is None else self.spent + self.work.seconds

    def done(self, outcome: HandlerResult | BaseException) -> None:
        """Set the outcome. Called once, on the event loop."""
        self.outcome = outcome
        self.is_done = True
        self.owner.answered()


class RequestQueue:
    """The requests of one client, in order: frames that wait to start, and requests in flight.

    Only Produce requests are pipelined. Any other request waits for the requests before it and delays the
    requests after it, as Kafka's muted channel does: after Produce, ListOffsets must see the new end, and an
    EndTxn must not overtake the batches of its transaction.
    """

    __slots__ = ("_in_flight_max", "in_flight", "waiting")

    def __init__(self, in_flight_max: int) -> None:
        self._in_flight_max = in_flight_max
        self.waiting: deque[memoryview] = deque()
        self.in_flight: deque[InFlightRequest] = deque()

    @property
    def is_held(self) -> bool:
        """Whether a request other than Produce is in flight: no other starts before it is answered."""
        return bool(self.in_flight) and self.in_flight[0].api_key != ApiKey.PRODUCE

    def may_start(self) -> bool:
        """Whether the first waiting request may start beside those in flight."""
        if not self.waiting:
            return False
        if not self.in_flight:
            return True
        return is_produce(self.waiting[0]) and not self.is_held and len(self.in_flight) < self._in_flight_max

    def answered(self) -> "Iterator[InFlightRequest]":
        """Remove and yield the finished requests, in order, up to the first unfinished one."""
        while self.in_flight and self.in_flight[0].is_done:
            yield self.in_flight.popleft()


def is_produce(frame: memoryview) -> bool:
    """Whether the frame holds a Produce request."""
    return len(frame) >= 2 and frame[0] == 0 and frame[1] == ApiKey.PRODUCE
