"""One client: its requests in order, and their responses in order. The bytes are in `byte_stream`.

Requests arrive as frames, which wait in `_waiting`. `_advance` starts the requests that may start. The
handler's outcome is passed to `InFlightRequest.done`. `_turn` runs once after each tick of the commit loop,
sends all responses of the tick with one write, and starts the next requests.

Order. Only Produce requests are pipelined. Any other request waits for the requests before it and delays the
requests after it, as Kafka's muted channel does: after Produce, ListOffsets must see the new end, and an
EndTxn must not overtake the batches of its transaction.

Limits. No request starts for a client that does not read its responses (`pause_writing`) or has exceeded a
quota (`_mute`).

Submitted requests are decided even if their client disconnects; only their responses are dropped.
"""

import asyncio
import time
from collections import deque
from collections.abc import Coroutine, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from semel.broker.commit.pending_commands import CLIENT
from semel.broker.commit.promise import Promise
from semel.core.names import CLIENT_ID_CHARS_MAX
from semel.handlers.context import Handler
from semel.server.budgets import FRAME_OVERHEAD_BYTES
from semel.server.byte_stream import ByteStream
from semel.server.in_flight import InFlightRequest, handle_long, respond
from semel.server.throttling import EXEMPT, ClientThrottle, with_throttle_time
from semel.store.contract import StoreBroken
from semel.wire.api_key import ApiKey
from semel.wire.errors import ProtocolError
from semel.wire.frames import encode_response
from semel.wire.schema import Request, Response

if TYPE_CHECKING:
    from semel.server.server_context import ServerContext
    from semel.server.timed import Timed

FRAME_COST: Final = 4 + FRAME_OVERHEAD_BYTES


class Connection(ByteStream):
    """One client of one listener."""

    _own_handlers: Mapping[int, Handler] = MappingProxyType({})
    """Requests that the connection answers itself."""

    def __init__(self, server: "ServerContext", listener: str) -> None:
        super().__init__(server, listener)
        self._requests_max = server.settings.semel_requests_in_flight_max
        self._waiting: deque[memoryview] = deque()
        self._in_flight: deque[InFlightRequest] = deque()
        self._task: asyncio.Task[None] | None = None
        self._throttle = ClientThrottle(server.throttling, time.monotonic)
        self._context = self._context._replace(
            parked=self._parked, reserve=self._charge.reserve, throttle=self._throttle
        )

    def _arrived(self, frames: list[memoryview]) -> None:
        self._waiting.extend(frames)
        self._advance()

    @property
    def _has_waiting(self) -> bool:
        return bool(self._waiting)

    @property
    def _has_begun(self) -> bool:
        return bool(self._in_flight)

    def _drop_waiting(self) -> None:
        self._waiting.clear()

    def eof_received(self) -> bool:
        """Handle the end of the client's stream. Returns whether to stay open for waiting requests.

        Waiting Produce requests are processed: a client with acks=0 may close right after sending them.
        """
        if not self._waiting or self._is_held() or self._outgoing is None or self._outgoing.is_tls:
            return False
        self._has_ended = True
        self._schedule_turn()
        return True

    def connection_lost(self, error: Exception | None) -> None:
        """Clean up a closed connection. Submitted requests continue, and release their bytes at the end."""
        self._is_lost = self._is_closing = True
        if self._unmuting is not None:
            self._unmuting.cancel()
        server = self._server
        server.dismiss(self, self._context.client_host)
        self._charge.measured(0)
        self._charge.handed_over()
        if self._task is not None and not self._in_flight[0].is_submitted:
            self._task.cancel()
        still_held = sum(each.size for each in self._in_flight)
        server.requests.forget(self)
        server.responses.forget(self)
        server.requests.release(self, server.requests.held(self) - still_held)
        self._waiting.clear()
        self._out.clear()

    def _is_held(self) -> bool:
        """Whether a request other than Produce is in flight: no other starts before it is answered."""
        return bool(self._in_flight) and self._in_flight[0].api_key != ApiKey.PRODUCE

    def _advance(self) -> None:
        """Start the waiting requests that may start."""
        waiting = self._waiting
        outgoing = self._outgoing
        if outgoing is None or outgoing.is_blocked:
            return
        while waiting and not self._is_closing and self._task is None and self._unmuting is None:
            frame = waiting[0]
            if len(frame) >= 2 and frame[0] == 0 and frame[1] == ApiKey.PRODUCE:
                if len(self._in_flight) >= self._requests_max or self._is_held():
                    break
            elif self._in_flight:
                break
            elif self._server.responses.exceeded:
                self._server.responses.wait(self)
                break
            waiting.popleft()
            self._begin(frame)

    def _begin(self, frame: memoryview) -> None:
        server = self._server
        if server.needs_lease and not server.broker.is_serving:
            self._close_gracefully("the lease is over", "ACLs and users may have changed")
            return
        elements_max = server.settings.semel_request_elements_max
        counts_time = self._throttle.counts_time
        began = time.perf_counter() if counts_time else 0.0
        try:
            header, message = server.dispatch.read(frame, elements_max)
        except ProtocolError as error:
            self._close_gracefully("malformed request", error)
            return
        context = self._context
        if context.version != header.api_version or context.client_id != header.client_id:
            client_id = header.client_id and header.client_id[:CLIENT_ID_CHARS_MAX]
            context = self._context = context._replace(version=header.api_version, client_id=client_id)
            self._throttle.client_id = client_id
            self._throttle.principal = context.principal
        api_key = header.api_key
        is_produce = api_key == ApiKey.PRODUCE
        in_flight = InFlightRequest(
            self, api_key, header.response_version, header.correlation_id, len(frame) + FRAME_COST
        )
        self._in_flight.append(in_flight)
        if is_produce and not self._throttle.is_idle:
            # Counted at its start, so that a client that does not wait for responses is muted in time.
            self._throttle.produced(len(frame))
            self._mute(self._throttle.answered(0.0) / 1000)
        CLIENT.set(context.connection_id)
        server.requests.begin(self, is_produce=is_produce)
        if not isinstance(message, Request):
            in_flight.is_submitted |= is_produce
            handler = self._handler(api_key)
            work = handle_long(server, in_flight, message, context, handler, self._decoded)
            self._run(in_flight.timed(work) if counts_time else work, in_flight)
            return
        if not is_produce:
            self._decoded(in_flight)
        try:
            answer = self._handler(api_key)(server.broker, message, context)
        except Exception as error:  # noqa: BLE001  a bug must affect this client only
            in_flight.done(error)
            return
        if counts_time:
            in_flight.spent = time.perf_counter() - began
        if not isinstance(answer, Promise):
            work = respond(server, in_flight, message, answer)
            self._run(in_flight.timed(work) if counts_time else work, in_flight, answer)
            return
        in_flight.is_submitted = True
        answer.then(in_flight.done)
        if (first := answer.first) is not None:
            self._task = self._loop.create_task(
                self._submit(in_flight.timed(first) if counts_time else first, in_flight)
            )

    def _handler(self, api_key: int) -> Handler:
        return self._own_handlers.get(api_key) or self._server.dispatch.handlers[api_key]

    def _decoded(self, in_flight: InFlightRequest) -> None:
        """Charge the decoded message instead of the frame. Not for Produce: its records are in the frame."""
        size = self._server.decoded_bytes(in_flight.api_key, in_flight.size - FRAME_COST)
        if not self._server.requests.recharge(self, in_flight, size):
            self._is_over_budget = True

    def _parked(self) -> None:
        """Reduce the charge of a parked request to the minimum. Its memory is bounded where it waits."""
        if self._is_held():
            self._server.requests.recharge(self, self._in_flight[0], FRAME_OVERHEAD_BYTES)

    def _run(self, work: "Coroutine[Any, Any, Any] | Timed", in_flight: InFlightRequest, *inner: Any) -> None:
        def abandon(task: asyncio.Task[None]) -> None:
            # The task was cancelled before it started; the bytes of its request must still be released.
            if not in_flight.is_done:
                for each in (work, *inner):
                    each.close()
                self._task = None
                in_flight.done(None)

        self._task = self._loop.create_task(self._finish(work, in_flight))
        self._task.add_done_callback(abandon)

    async def _submit(self, first: "Coroutine[Any, Any, None] | Timed", in_flight: InFlightRequest) -> None:
        """Do the work that precedes submitting a request; later requests must not overtake it."""
        try:
            await first
        except Exception as error:  # noqa: BLE001  a bug must affect this client only
            in_flight.done(error)
        finally:
            self._task = None
            self._schedule_turn()

    async def _finish(self, work: "Coroutine[Any, Any, Any] | Timed", in_flight: InFlightRequest) -> None:
        outcome: Any = None
        try:
            outcome = await work
        except Exception as error:  # noqa: BLE001  a bug must affect this client only
            outcome = error
        finally:  # also when it is cancelled
            self._task = None
            in_flight.done(outcome)

    def answered(self) -> None:
        """Respond to the finished requests, in order, up to the first unfinished one."""
        queue = self._in_flight
        while queue and queue[0].is_done:
            self._answer(queue.popleft())
        self._schedule_turn()

    def _answer(self, in_flight: InFlightRequest) -> None:
        server = self._server
        server.requests.end(self, in_flight.size)
        # Break a reference cycle: an error refers to the stack frames that it passed, one of which refers to
        # the request.
        outcome, in_flight.outcome = in_flight.outcome, None
        if isinstance(outcome, StoreBroken):
            server.broker.fatal(outcome)
        if self._is_lost:
            return
        counters = server.metrics.apis[in_flight.api_key]
        if isinstance(outcome, BaseException):
            counters.errors += 1
            self._doom_for(outcome, in_flight)
            return
        counters.requests += 1
        counters.seconds.observe(time.monotonic() - in_flight.started)
        if not self._throttle.is_idle:
            outcome = self._throttled(in_flight, outcome)
        if outcome is None:
            return
        counts_time = self._throttle.counts_time and in_flight.api_key not in EXEMPT
        began = time.perf_counter() if counts_time else 0.0
        try:
            self._out += encode_response(outcome, in_flight.version, in_flight.correlation_id)
            if counts_time:
                # A wait for this time is reported in the next response.
                self._throttle.answered(time.perf_counter() - began)
        except Exception as error:  # noqa: BLE001  a response that cannot be encoded is a bug
            counters.errors += 1
            self._doom_for(error, in_flight)

    def _throttled(self, in_flight: InFlightRequest, outcome: Response | None) -> Response | None:
        """Count the time of a request. Over a quota, mute the client and add the wait to the response."""
        wait_ms = self._throttle.answered(0.0 if in_flight.api_key in EXEMPT else in_flight.seconds)
        if wait_ms:
            self._mute(wait_ms / 1000)
            if isinstance(outcome, Response):
                return with_throttle_time(outcome, in_flight.version, wait_ms)
        return outcome

    def _turn(self) -> None:
        """Send the responses, then start more requests. Runs once per tick, or per turn of the event loop."""
        self._is_turn_due = False
        if self._is_lost:
            return
        if self._out and self._outgoing is not None:
            self._send(self._outgoing)
        if self._charge.reserved and not self._is_held():
            self._charge.handed_over()
        if self._is_closing:
            return self._close_when_answered()
        if self._waiting:
            self._advance()
        if self._has_ended and not self._waiting:
            self.finish()
        self._read_or_not()

    def _doom_for(self, error: BaseException, in_flight: InFlightRequest) -> None:
        self._close_gracefully(*self._server.blamed(in_flight.api_key, in_flight.version, error))
