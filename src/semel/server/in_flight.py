"""Requests in flight: started and not yet answered. Long requests and responses are processed in slices.

The size of its frame decides whether a request is long. For a response, the number of elements in its arrays
does, counted two levels deep: topics and their partitions, groups and their members.
"""

import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final, Protocol

from semel.handlers.context import Handler, RequestContext
from semel.server.dispatch import Decoding, HandlerResult
from semel.server.timed import Timed
from semel.wire.api_key import ApiKey
from semel.wire.decoding import SLICE_ELEMENTS
from semel.wire.messages import (
    ConsumerGroupHeartbeatRequest,
    FetchRequest,
    LeaveGroupRequest,
    ShareGroupHeartbeatRequest,
)
from semel.wire.schema import Encoded, Request, Response

if TYPE_CHECKING:
    from semel.server.server_context import ServerContext

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


async def handle_long(
    server: "ServerContext",
    in_flight: InFlightRequest,
    decoding: Decoding,
    context: RequestContext,
    handler: Handler,
    decoded: Callable[[InFlightRequest], None],
) -> Response | Encoded | None:
    """Decode a long request in slices, then handle it. Calls ``decoded``, except for Produce."""
    request = await server.broker.slices.run(decoding)
    del decoding
    if in_flight.api_key != ApiKey.PRODUCE:
        decoded(in_flight)
    answer = handler(server.broker, request, context)
    return await respond(server, in_flight, request, answer)


async def respond(
    server: "ServerContext", in_flight: InFlightRequest, request: Request, answer: Awaitable[Any]
) -> Response | Encoded | None:
    """Await a handler's answer. A long response is encoded in slices."""
    if isinstance(request, FetchRequest):
        responses = server.responses
        request.max_bytes = min(request.max_bytes, responses.fetch_share())
        responses.fetches += 1
        try:
            response = await answer
        finally:
            responses.fetches -= 1
    else:
        response = await answer
    if is_long(response):
        parts = await server.broker.slices.run(response.encode_in_slices(in_flight.version))
        return Encoded(type(response), parts)
    return response  # type: ignore[no-any-return]


def is_long(response: Any) -> bool:
    """Whether encoding this response at once would block the event loop for too long."""
    if type(response) is Encoded:
        return False
    return isinstance(response, Response) and _elements(response, levels=2) > SLICE_ELEMENTS


def _elements(struct: Any, levels: int) -> int:
    """Return the number of elements in the arrays of a struct; stops counting above ``SLICE_ELEMENTS``."""
    count = 0
    for name, field in struct.declared.items():
        if field.kind != "array":
            continue
        items = getattr(struct, name)
        if not items:
            continue
        count += len(items)
        if levels > 1 and isinstance(field.element, type):
            for item in items:
                if count > SLICE_ELEMENTS:
                    break
                count += _elements(item, levels - 1)
    return count
