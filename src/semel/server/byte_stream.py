"""Receives and sends the bytes of one client, and closes its connection.

Limits. A client is not read from while it has waiting requests, or exceeds a budget or a quota. Budgets are
in `budgets`, timeouts in `check`. After malformed bytes, earlier requests are answered and the connection is
closed (`_doom`).
"""

import asyncio
import time
from typing import TYPE_CHECKING, ClassVar, cast

from semel.handlers.context import RequestContext
from semel.server.budgets import FRAME_OVERHEAD_BYTES, ResponseCharge
from semel.server.outgoing import Outgoing
from semel.server.pace import Pace
from semel.server.sockets import keep_alive
from semel.wire.errors import ProtocolError
from semel.wire.schema import Buffer

if TYPE_CHECKING:
    from semel.server.server_context import ServerContext


class ByteStream(asyncio.Protocol):
    """One client of one listener. `Connection` answers its requests."""

    has_sasl: ClassVar = False
    """Whether the client has to authenticate by SASL."""

    def __init__(self, server: "ServerContext", listener: str) -> None:
        self._server = server
        self._loop = asyncio.get_running_loop()
        self._parser = server.new_parser()
        self._transport: asyncio.Transport | None = None
        self._outgoing: Outgoing | None = None
        self._out: list[Buffer] = []
        self._received = 0
        self._receive_pace = Pace()
        self._charge = ResponseCharge(server.responses)
        self._context = RequestContext(-1, None, "", listener, 0)
        self._send_pace = Pace()
        self._active_at = time.monotonic()
        self._is_over_budget = False
        self._unmuting: asyncio.TimerHandle | None = None
        """Set while the client is muted because it exceeded a quota."""
        self._is_turn_due = False
        self._is_reading = True
        self._has_ended = False
        self._is_doomed = False
        self._is_lost = False

    # -- for Connection -----------------------------------------------------------------------------------

    def _arrived(self, frames: list[memoryview]) -> None:
        """Accept the frames of complete requests."""
        raise NotImplementedError

    def _turn(self) -> None:
        """Send the responses, then start more requests."""
        raise NotImplementedError

    @property
    def _has_waiting(self) -> bool:
        """Whether there are requests that have not started."""
        raise NotImplementedError

    @property
    def _has_begun(self) -> bool:
        """Whether there are requests that have started and are not answered."""
        raise NotImplementedError

    def _drop_waiting(self) -> None:
        """Start no more requests."""
        raise NotImplementedError

    # -- reading ------------------------------------------------------------------------------------------

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
            self._arrived(frames)
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
        wanted = not (
            self._has_waiting or self._is_over_budget or self._is_doomed or self._has_ended or self._is_muted
        )
        if wanted == self._is_reading or self._transport is None or self._is_lost:
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

    @property
    def _is_muted(self) -> bool:
        return self._unmuting is not None

    # -- writing ------------------------------------------------------------------------------------------

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
        if not self._is_turn_due and not self._is_lost:
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
        unsent = 0 if self._outgoing is None or self._is_lost else self._outgoing.unsent()
        self._charge.measured(unsent)
        return unsent

    # -- the end ------------------------------------------------------------------------------------------

    def _doom(self, reason: str, error: object) -> None:
        """Start no more requests; close when those in flight are answered."""
        if self._is_doomed:
            return
        self._server.closing(self._context, reason, error)
        self.finish()

    def finish(self) -> None:
        """Start no more requests, answer those in flight, close. Also called when the server stops."""
        self._is_doomed = True
        self._drop_waiting()
        self._read_or_not()
        self._schedule_turn()

    def _close_when_answered(self) -> None:
        is_sent = not self._out and (self._outgoing is None or not self._outgoing.is_blocked)
        if is_sent and not self._has_begun and self._transport is not None:
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
        elif self._has_begun or self._has_waiting or self._is_doomed or not self._is_reading:
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
