"""One client of one listener: its bytes, its requests in order, and the end of its connection.

Requests arrive as frames, which wait in ``_requests``. ``_advance`` starts the requests that may start. The
handler's outcome is passed to ``InFlightRequest.done``. ``_turn`` runs once after each tick of the commit
loop, sends all responses of the tick with one write, and starts the next requests.

Limits. A client is not read from while it has waiting requests, or exceeds a budget or a quota. No request
starts for a client that does not read its responses (``pause_writing``) or has exceeded a quota (``_mute``).
Budgets are in ``budgets``, timeouts in ``check``.

Submitted requests are decided even if their client disconnects; only their responses are dropped.
"""

import asyncio
import time
from collections.abc import Coroutine, Mapping
from enum import IntEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Final, cast

from semel.broker.commit.pending_commands import CLIENT, Promise
from semel.core.names import CLIENT_ID_CHARS_MAX
from semel.handlers.context import Handler, RequestContext
from semel.server.budgets import FRAME_OVERHEAD_BYTES, ResponseCharge
from semel.server.dispatch import handle_long, respond
from semel.server.in_flight import InFlightRequest, RequestQueue, is_produce
from semel.server.outgoing import Outgoing, Pace
from semel.server.sockets import keep_alive
from semel.server.throttling import EXEMPT, ClientThrottle, with_throttle_time
from semel.store.contract import StoreBroken
from semel.wire.api_key import ApiKey
from semel.wire.errors import ProtocolError
from semel.wire.frames import encode_response
from semel.wire.schema import Buffer, Request, Response

if TYPE_CHECKING:
    from semel.server.server_context import ServerContext
    from semel.server.throttling import Timed

FRAME_COST: Final = 4 + FRAME_OVERHEAD_BYTES


class Phase(IntEnum):
    """How far the life of a connection has come. It never goes back.

    | phase    | reads | starts requests | sends responses | then |
    | -------- | ----- | --------------- | --------------- | ---- |
    | OPEN     | yes   | yes             | yes             | DRAINING after a protocol error or a stop |
    | ENDED    | no    | those that wait | yes             | DRAINING when none waits |
    | DRAINING | no    | no              | yes             | CLOSED when every request in flight is answered |
    | CLOSED   | no    | no              | no              |      |
    """

    OPEN = 0
    ENDED = 1
    """The client has sent all of its requests."""
    DRAINING = 2
    CLOSED = 3


class Connection(asyncio.Protocol):
    """One client of one listener."""

    has_sasl: ClassVar = False
    """Whether the client has to authenticate by SASL."""
    _own_handlers: Mapping[int, Handler] = MappingProxyType({})
    """Requests that the connection answers itself."""

    def __init__(self, server: "ServerContext", listener: str) -> None:
        self._server = server
        self._loop = asyncio.get_running_loop()
        self._phase = Phase.OPEN
        # Receiving.
        self._transport: asyncio.Transport | None = None
        self._parser = server.new_parser()
        self._received = 0
        self._receive_pace = Pace()
        self._is_reading = True
        self._is_over_budget = False
        self._unmuting: asyncio.TimerHandle | None = None
        """Set while the client is muted because it exceeded a quota."""
        # Requests.
        self._requests = RequestQueue(server.settings.semel_requests_in_flight_max)
        self._task: asyncio.Task[None] | None = None
        self._throttle = ClientThrottle(server.throttling, time.monotonic)
        # Sending.
        self._outgoing: Outgoing | None = None
        self._out: list[Buffer] = []
        self._charge = ResponseCharge(server.responses)
        self._send_pace = Pace()
        self._active_at = time.monotonic()
        self._is_turn_due = False
        self._context = RequestContext(
            -1,
            None,
            "",
            listener,
            0,
            parked=self._parked,
            reserve=self._charge.reserve,
            throttle=self._throttle,
        )

    def _enter(self, phase: Phase) -> None:
        self._phase = max(self._phase, phase)

    # -- receiving ----------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Register the connection. In Kafka's protocol the client sends first."""
        # uvloop's transports have the methods of asyncio's, but are not subclasses.
        transport = self._transport = cast(asyncio.Transport, transport)
        admitted = self._server.admit(self, transport, has_sasl=self.has_sasl)
        self._context = self._context._replace(
            client_host=admitted.host, connection_id=admitted.connection_id, principal=admitted.principal
        )
        if admitted.refused:
            self._close("refused", admitted.refused)
            return
        keep_alive(transport)
        self._outgoing = Outgoing(transport)
        if admitted.wait_seconds:
            self._mute(admitted.wait_seconds + 1)
            self._loop.call_later(
                admitted.wait_seconds, self._close, "refused", "too many connections in a short time (quota)"
            )

    def data_received(self, data: bytes) -> None:
        """Start the requests that are complete, keep the rest of the bytes."""
        if self._phase >= Phase.DRAINING:
            return
        was_between_frames = not self._parser.buffered
        try:
            frames = self._parser.feed(data)
        except ProtocolError as error:
            self._close_gracefully("malformed frame", error)
            return
        size = len(data)
        self._received += size
        self._server.metrics.bytes_in += size
        self._active_at = time.monotonic()
        if self._parser.buffered and (frames or was_between_frames):
            self._receive_pace.restart(self._received, self._active_at)
        size += FRAME_OVERHEAD_BYTES * len(frames)
        if not self._server.requests.charge(self, size):
            self._is_over_budget = True
        if frames:
            self._requests.waiting.extend(frames)
            self._advance()
        self._read_or_not()

    @property
    def has_half_frame(self) -> bool:
        """Whether bytes are held for an incomplete frame."""
        return self._parser.buffered > 0

    def budget_allows(self) -> None:
        """Resume: a budget has room again for this connection."""
        self._is_over_budget = False
        self._schedule_turn()

    def _read_or_not(self) -> None:
        wanted = (
            self._phase is Phase.OPEN
            and not self._requests.waiting
            and not self._is_over_budget
            and self._unmuting is None
        )
        if wanted == self._is_reading or self._transport is None or self._phase is Phase.CLOSED:
            return
        self._is_reading = wanted
        if wanted:
            # The time for which reading was paused does not count against the client.
            self._active_at = time.monotonic()
            self._receive_pace.restart(self._received, self._active_at)
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()

    def _mute(self, seconds: float) -> None:
        """Read nothing and start no requests for a while (KIP-219). The latest end of all calls applies."""
        if seconds <= 0:
            return
        until = self._loop.time() + seconds
        if self._unmuting is not None:
            if self._unmuting.when() >= until:
                return
            self._unmuting.cancel()
        self._unmuting = self._loop.call_at(until, self._unmute)
        self._read_or_not()

    def _unmute(self) -> None:
        self._unmuting = None
        self._schedule_turn()

    def eof_received(self) -> bool:
        """Handle the end of the client's stream. Returns whether to stay open for waiting requests.

        Waiting Produce requests are processed: a client with acks=0 may close right after sending them.
        """
        requests, outgoing = self._requests, self._outgoing
        if not requests.waiting or requests.is_held or outgoing is None or outgoing.is_tls:
            return False
        self._enter(Phase.ENDED)
        self._schedule_turn()
        return True

    # -- requests -----------------------------------------------------------------------------------------

    def _advance(self) -> None:
        """Start the waiting requests that may start."""
        requests, outgoing = self._requests, self._outgoing
        if outgoing is None or outgoing.is_blocked:
            return
        while self._may_start() and requests.may_start():
            if self._server.responses.exceeded and not is_produce(requests.waiting[0]):
                self._server.responses.wait(self)
                break
            self._begin(requests.waiting.popleft())

    def _may_start(self) -> bool:
        return self._phase < Phase.DRAINING and self._task is None and self._unmuting is None

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
        pipelined = api_key == ApiKey.PRODUCE
        in_flight = InFlightRequest(
            self, api_key, header.response_version, header.correlation_id, len(frame) + FRAME_COST
        )
        self._requests.in_flight.append(in_flight)
        if pipelined and not self._throttle.is_idle:
            # Counted at its start, so that a client that does not wait for responses is muted in time.
            self._throttle.produced(len(frame))
            self._mute(self._throttle.answered(0.0) / 1000)
        CLIENT.set(context.connection_id)
        server.requests.begin(self, is_produce=pipelined)
        if not isinstance(message, Request):
            in_flight.is_submitted |= pipelined
            handler = self._handler(api_key)
            work = handle_long(server, in_flight, message, context, handler, self._decoded)
            self._run(in_flight.timed(work) if counts_time else work, in_flight)
            return
        if not pipelined:
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
        if self._requests.is_held:
            self._server.requests.recharge(self, self._requests.in_flight[0], FRAME_OVERHEAD_BYTES)

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
        for in_flight in self._requests.answered():
            self._answer(in_flight)
        self._schedule_turn()

    def _answer(self, in_flight: InFlightRequest) -> None:
        server = self._server
        server.requests.end(self, in_flight.size)
        # Break a reference cycle: an error refers to the stack frames that it passed, one of which refers to
        # the request.
        outcome, in_flight.outcome = in_flight.outcome, None
        if isinstance(outcome, StoreBroken):
            server.broker.fatal(outcome)
        if self._phase is Phase.CLOSED:
            return
        counters = server.metrics.apis[in_flight.api_key]
        if isinstance(outcome, BaseException):
            counters.errors += 1
            self._close_after(outcome, in_flight)
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
            self._close_after(error, in_flight)

    def _throttled(self, in_flight: InFlightRequest, outcome: Response | None) -> Response | None:
        """Count the time of a request. Over a quota, mute the client and add the wait to the response."""
        wait_ms = self._throttle.answered(0.0 if in_flight.api_key in EXEMPT else in_flight.seconds)
        if wait_ms:
            self._mute(wait_ms / 1000)
            if isinstance(outcome, Response):
                return with_throttle_time(outcome, in_flight.version, wait_ms)
        return outcome

    # -- sending ------------------------------------------------------------------------------------------

    def pause_writing(self) -> None:
        """Note that the kernel did not accept all of a response."""
        if self._outgoing is not None:
            self._outgoing.full()

    def resume_writing(self) -> None:
        """Continue after the kernel has accepted all bytes."""
        if self._outgoing is not None:
            self._outgoing.drained()
            self._measure_unsent()
            self._schedule_turn()

    def _schedule_turn(self) -> None:
        if not self._is_turn_due and self._phase is not Phase.CLOSED:
            self._is_turn_due = True
            self._server.broker.soon(self._turn)

    def _send(self, outgoing: Outgoing) -> None:
        parts, self._out = self._out, []
        was_blocked = outgoing.is_blocked
        self._server.metrics.bytes_out += outgoing.send(parts)
        self._active_at = time.monotonic()
        if outgoing.is_blocked:
            if not was_blocked:
                self._send_pace.restart(outgoing.taken, self._active_at)
            self._measure_unsent()

    def _measure_unsent(self) -> int:
        """Charge the bytes that the kernel has not accepted."""
        unsent = 0
        if self._outgoing is not None and self._phase is not Phase.CLOSED:
            unsent = self._outgoing.unsent()
        self._charge.measured(unsent)
        return unsent

    def _turn(self) -> None:
        """Send the responses, then start more requests. Runs once per tick, or per turn of the event loop."""
        self._is_turn_due = False
        if self._phase is Phase.CLOSED:
            return
        if self._out and self._outgoing is not None:
            self._send(self._outgoing)
        if self._charge.reserved and not self._requests.is_held:
            self._charge.handed_over()
        if self._phase is Phase.DRAINING:
            self._close_when_answered()
            return
        if self._requests.waiting:
            self._advance()
        if self._phase is Phase.ENDED and not self._requests.waiting:
            self.finish()
        self._read_or_not()

    # -- the end ------------------------------------------------------------------------------------------

    def _close_after(self, error: BaseException, in_flight: InFlightRequest) -> None:
        self._close_gracefully(*self._server.blamed(in_flight.api_key, in_flight.version, error))

    def _close_gracefully(self, reason: str, error: object) -> None:
        """Start no more requests; close when those in flight are answered."""
        if self._phase >= Phase.DRAINING:
            return
        self._server.closing(self._context, reason, error)
        self.finish()

    def finish(self) -> None:
        """Start no more requests, answer those in flight, close. Also called when the server stops."""
        self._enter(Phase.DRAINING)
        self._requests.waiting.clear()
        self._read_or_not()
        self._schedule_turn()

    def _close_when_answered(self) -> None:
        is_sent = not self._out and (self._outgoing is None or not self._outgoing.is_blocked)
        if is_sent and not self._requests.in_flight and self._transport is not None:
            self._transport.close()

    def _close(self, reason: str, error: object) -> None:
        """Close now, and drop unsent responses."""
        self._server.closing(self._context, reason, error)
        self.abort()

    def abort(self) -> None:
        """Close now."""
        self._enter(Phase.DRAINING)
        if self._transport is not None:
            self._transport.abort()

    def connection_lost(self, error: Exception | None) -> None:
        """Clean up a closed connection. Submitted requests continue, and release their bytes at the end."""
        self._enter(Phase.CLOSED)
        if self._unmuting is not None:
            self._unmuting.cancel()
        server = self._server
        server.dismiss(self, self._context.client_host)
        self._charge.measured(0)
        self._charge.handed_over()
        if self._task is not None and not self._requests.in_flight[0].is_submitted:
            self._task.cancel()
        still_held = sum(each.size for each in self._requests.in_flight)
        server.requests.forget(self)
        server.responses.forget(self)
        server.requests.release(self, server.requests.held(self) - still_held)
        self._requests.waiting.clear()
        self._out.clear()

    def revoke(self, user: str, mechanism: str) -> None:
        """Handle the removal of a user's credential: does nothing, only SASL clients have a credential."""

    def check(self, now: float) -> None:
        """Close a client that was idle or slow for too long. Called about once a second."""
        server = self._server
        patience = server.settings.semel_write_timeout_ms / 1000
        outgoing = self._outgoing
        if outgoing is not None and outgoing.is_blocked and self._measure_unsent():
            waited_for = server.responses.is_waited_for
            stalled = self._send_pace.stalled_seconds(outgoing.taken, now, patience, is_waited_for=waited_for)
            if stalled:
                self._close("slow reader", f"{self._charge.unsent} bytes not taken for {stalled:.1f} s")
        elif self._requests.in_flight or self._phase >= Phase.DRAINING or not self._is_reading:
            return
        elif self._parser.buffered:
            waited_for = server.requests.is_waited_for
            stalled = self._receive_pace.stalled_seconds(
                self._received, now, patience, is_waited_for=waited_for
            )
            if stalled:
                self._close("slow sender", f"a frame has not ended for {stalled:.1f} s")
        elif now - self._active_at > server.settings.connections_max_idle_ms / 1000:
            self._close("idle", f"silent for {now - self._active_at:.1f} s")
