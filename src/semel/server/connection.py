"""One client: bytes in, requests in order, responses in order, bytes out.

`data_received` cuts frames and queues them in `_waiting`. `_advance` starts the requests that may start. A
finished request calls `InFlightRequest.done`. `_turn` runs once after each tick of the commit loop, sends all
its responses with one write, and lets the next requests start.

Order. Only Produce requests are pipelined. Any other request waits for the requests before it and holds up
those behind it, as Kafka's muted channel does: after Produce, ListOffsets must see the new end, and an EndTxn
must not overtake the batches of its transaction.

Limits. No request starts for a client that does not read its responses (`pause_writing`), and a client with
waiting requests is not read from. Budgets are in `budgets`, timeouts in `check`. After
bytes that are not the protocol, earlier requests are answered and the connection is closed (`_doom`).

Submitted requests of a client that disconnects are decided all the same; only their responses are dropped.
"""

import asyncio
import time
from collections import deque
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, Final, cast

from semel.broker.pending_commands import ASKER
from semel.broker.promise import Promise
from semel.core.names import CLIENT_ID_CHARS_MAX
from semel.handlers.context import RequestContext
from semel.server.budgets import FRAME_OVERHEAD_BYTES, ResponseCharge
from semel.server.dispatch import PRODUCE
from semel.server.in_flight import InFlightRequest, handle_long, respond
from semel.server.outgoing import Outgoing
from semel.server.pace import Pace
from semel.server.sockets import address_of, keep_alive
from semel.store.interface import StoreBroken
from semel.wire.errors import ProtocolError
from semel.wire.frames import encode_response
from semel.wire.schema import Buffer, Request

if TYPE_CHECKING:
    from semel.server.server_context import ServerContext

FRAME_COST: Final = 4 + FRAME_OVERHEAD_BYTES


class Connection(asyncio.Protocol):
    """One client of one listener."""

    def __init__(self, server: "ServerContext", listener: str) -> None:
        self._server = server
        self._listener = listener
        self._loop = asyncio.get_running_loop()
        self._requests_max = server.settings.semel_requests_in_flight_max
        self._parser = server.new_parser()
        self._transport: asyncio.Transport | None = None
        self._outgoing: Outgoing | None = None
        self._waiting: deque[memoryview] = deque()
        self._in_flight: deque[InFlightRequest] = deque()
        self._task: asyncio.Task[None] | None = None
        self._out: list[Buffer] = []
        self._received = 0
        self._receive_pace = Pace()
        self._charge = ResponseCharge(server.responses)
        self._context = RequestContext(-1, None, "", listener, 0, self._parked, self._charge.reserve)
        self._send_pace = Pace()
        self._active_at = time.monotonic()
        self._is_over_budget = False
        self._is_turn_due = False
        self._is_reading = True
        self._has_ended = False
        self._is_doomed = False
        self._is_lost = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Register the connection. In Kafka's protocol the client sends first."""
        # uvloop's transports have the methods of asyncio's, but are not subclasses.
        transport = self._transport = cast(asyncio.Transport, transport)
        host = address_of(transport)
        connection_id, refused = self._server.admit(self, host)
        self._context = self._context._replace(client_host=host, connection_id=connection_id)
        if refused:
            self._close("refused", refused)
            return
        keep_alive(transport)
        self._outgoing = Outgoing(transport)

    def data_received(self, data: bytes) -> None:
        """Start the requests that are complete, keep the rest of the bytes."""
        if self._is_doomed:
            return
        was_between_frames = not self._parser.buffered
        try:
            frames = self._parser.feed(data)
        except ProtocolError as error:
            self._doom("malformed frame", error)
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
            self._waiting.extend(frames)
            self._advance()
        self._read_or_not()

    def pause_writing(self) -> None:
        """The kernel did not accept all of a response."""
        if self._outgoing is not None:
            self._outgoing.full()

    def resume_writing(self) -> None:
        """The kernel has accepted all bytes."""
        if self._outgoing is not None:
            self._outgoing.drained()
            self._measure_unsent()
            self._schedule_turn()

    def eof_received(self) -> bool:
        """The client sends nothing more. Returns whether to stay open for the requests it has sent.

        Waiting Produce requests are processed: a client with acks=0 may close right after sending them.
        """
        if not self._waiting or self._is_held() or self._outgoing is None or self._outgoing.is_tls:
            return False
        self._has_ended = True
        self._schedule_turn()
        return True

    def connection_lost(self, error: Exception | None) -> None:
        """The connection is closed. Submitted requests continue, and release their bytes when they end."""
        self._is_lost = self._is_doomed = True
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
        return bool(self._in_flight) and self._in_flight[0].api_key != PRODUCE

    def _advance(self) -> None:
        """Start the waiting requests that may start."""
        waiting = self._waiting
        outgoing = self._outgoing
        if outgoing is None or outgoing.is_blocked:
            return
        while waiting and not self._is_doomed and self._task is None:
            frame = waiting[0]
            if len(frame) >= 2 and frame[0] == 0 and frame[1] == PRODUCE:
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
        elements_max = server.settings.semel_request_elements_max
        try:
            header, message = server.dispatch.read(frame, elements_max)
        except ProtocolError as error:
            self._doom("malformed request", error)
            return
        context = self._context
        if context.version != header.api_version or context.client_id != header.client_id:
            client_id = header.client_id and header.client_id[:CLIENT_ID_CHARS_MAX]
            context = self._context = context._replace(version=header.api_version, client_id=client_id)
        api_key = header.api_key
        is_produce = api_key == PRODUCE
        in_flight = InFlightRequest(
            self, api_key, header.response_version, header.correlation_id, len(frame) + FRAME_COST
        )
        self._in_flight.append(in_flight)
        ASKER.set(context.connection_id)
        server.requests.begin(self, is_produce=is_produce)
        if not isinstance(message, Request):
            in_flight.is_submitted = is_produce
            self._run(handle_long(server, in_flight, message, context, self._decoded), in_flight)
            return
        if not is_produce:
            self._decoded(in_flight)
        try:
            answer = server.dispatch.handlers[api_key](server.broker, message, context)
        except Exception as error:  # noqa: BLE001  a bug must affect this client only
            in_flight.done(error)
            return
        if not isinstance(answer, Promise):
            self._run(respond(server, in_flight, message, answer), in_flight, answer)
            return
        in_flight.is_submitted = True
        answer.then(in_flight.done)
        if answer.first is not None:
            self._task = self._loop.create_task(self._submit(answer.first, in_flight))

    def _decoded(self, in_flight: InFlightRequest) -> None:
        """Charge the decoded message instead of the frame. Not for Produce, whose frame has the records."""
        size = self._server.decoded_bytes(in_flight.api_key, in_flight.size - FRAME_COST)
        if not self._server.requests.recharge(self, in_flight, size):
            self._is_over_budget = True

    def _parked(self) -> None:
        """Release the charge of a parked request. What it holds is bounded where it waits."""
        if self._is_held():
            self._server.requests.recharge(self, self._in_flight[0], FRAME_OVERHEAD_BYTES)

    def _run(self, work: Coroutine[Any, Any, Any], in_flight: InFlightRequest, *inner: Any) -> None:
        def abandon(task: asyncio.Task[None]) -> None:
            # Cancelled before it started: its bytes must be released all the same.
            if not in_flight.is_done:
                for each in (work, *inner):
                    each.close()
                self._task = None
                in_flight.done(None)

        self._task = self._loop.create_task(self._finish(work, in_flight))
        self._task.add_done_callback(abandon)

    async def _submit(self, first: Coroutine[Any, Any, None], in_flight: InFlightRequest) -> None:
        """Do the work that precedes submitting a request; later requests must not overtake it."""
        try:
            await first
        except Exception as error:  # noqa: BLE001  a bug must affect this client only
            in_flight.done(error)
        finally:
            self._task = None
            self._schedule_turn()

    async def _finish(self, work: Coroutine[Any, Any, Any], in_flight: InFlightRequest) -> None:
        outcome: Any = None
        try:
            outcome = await work
        except Exception as error:  # noqa: BLE001  a bug must affect this client only
            outcome = error
        finally:  # also when it is cancelled
            self._task = None
            in_flight.done(outcome)

    def answered(self) -> None:
        """Answer the finished requests that have no unfinished one before them."""
        queue = self._in_flight
        while queue and queue[0].is_done:
            self._answer(queue.popleft())
        self._schedule_turn()

    def _answer(self, in_flight: InFlightRequest) -> None:
        server = self._server
        server.requests.end(self, in_flight.size)
        # An error refers to the frames that it passed through, and one of them to the request: end the cycle.
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
        if outcome is None:
            return
        try:
            self._out += encode_response(outcome, in_flight.version, in_flight.correlation_id)
        except Exception as error:  # noqa: BLE001  a response that cannot be encoded is a bug
            counters.errors += 1
            self._doom_for(error, in_flight)

    def _schedule_turn(self) -> None:
        if not self._is_turn_due and not self._is_lost:
            self._is_turn_due = True
            self._server.broker.soon(self._turn)

    def _turn(self) -> None:
        """Send the responses, then start more requests. Runs once after a tick, or per event loop turn."""
        self._is_turn_due = False
        if self._is_lost:
            return
        if self._out and self._outgoing is not None:
            self._send(self._outgoing)
        if self._charge.reserved and not self._is_held():
            self._charge.handed_over()
        if self._is_doomed:
            return self._close_when_answered()
        if self._waiting:
            self._advance()
        if self._has_ended and not self._waiting:
            self.finish()
        self._read_or_not()

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
        unsent = 0 if self._outgoing is None or self._is_lost else self._outgoing.unsent()
        self._charge.measured(unsent)
        return unsent

    @property
    def has_half_frame(self) -> bool:
        """Whether bytes are held for an incomplete frame."""
        return self._parser.buffered > 0

    def budget_allows(self) -> None:
        """A budget has room again for this connection."""
        self._is_over_budget = False
        self._schedule_turn()

    def _read_or_not(self) -> None:
        wanted = not (self._waiting or self._is_over_budget or self._is_doomed or self._has_ended)
        if wanted == self._is_reading or self._transport is None or self._is_lost:
            return
        self._is_reading = wanted
        if wanted:
            # The time in which the connection was paused does not count against the client.
            self._active_at = time.monotonic()
            self._receive_pace.restart(self._received, self._active_at)
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()

    def _doom_for(self, error: BaseException, in_flight: InFlightRequest) -> None:
        self._doom(*self._server.blamed(in_flight.api_key, in_flight.version, error))

    def _doom(self, reason: str, error: object) -> None:
        """Start no more requests; close when those in flight are answered."""
        if self._is_doomed:
            return
        self._server.closing(self._context, reason, error)
        self.finish()

    def finish(self) -> None:
        """Start no more requests, answer those in flight, close. Also how a server stops gracefully."""
        self._is_doomed = True
        self._waiting.clear()
        self._read_or_not()
        self._schedule_turn()

    def _close_when_answered(self) -> None:
        is_sent = not self._out and (self._outgoing is None or not self._outgoing.is_blocked)
        if is_sent and not self._in_flight and self._transport is not None:
            self._transport.close()

    def _close(self, reason: str, error: object) -> None:
        """Close now, and drop unsent responses."""
        self._is_doomed = True
        self._server.closing(self._context, reason, error)
        self.abort()

    def abort(self) -> None:
        """Close now."""
        self._is_doomed = True
        if self._transport is not None:
            self._transport.abort()

    def check(self, now: float) -> None:
        """Close a client that has been idle or slow for too long. Called about once a second."""
        server = self._server
        patience = server.settings.semel_write_timeout_ms / 1000
        outgoing = self._outgoing
        if outgoing is not None and outgoing.is_blocked and self._measure_unsent():
            waited_for = server.responses.is_waited_for
            stalled = self._send_pace.stalled_seconds(outgoing.taken, now, patience, is_waited_for=waited_for)
            if stalled:
                self._close("slow reader", f"{self._charge.unsent} bytes not taken for {stalled:.1f} s")
        elif self._in_flight or self._waiting or self._is_doomed or not self._is_reading:
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
