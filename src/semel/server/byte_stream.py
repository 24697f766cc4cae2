"""Receives and sends the bytes of one client, and closes its connection.

Limits. A client is not read from while it has waiting requests, or exceeds a budget or a quota. Budgets are
in `budgets`, timeouts in `check`. After malformed bytes, earlier requests are answered and the connection is
closed (`_close_gracefully`).

Writes responses to the transport, and measures how many bytes are unsent.

A plain transport gets everything at once; it keeps references and reports exactly how much is unsent. A TLS
transport encrypts its input into a buffer whose size is not visible, so it gets slices, and this module keeps
the rest until the transport asks for more. Either way `unsent` is exact to within a slice, which suffices for
budgets and timeouts.

Measures how fast a client sends or receives, to distinguish slow clients from dead ones.

A deadline alone would close a client on a slow network in the middle of a large response. If any progress
were enough, a client that reads a byte per second could stay for ever. So a client must keep a minimum rate:
at least once per timeout, its average rate since the last success must reach the minimum. While other clients
wait for the memory that it holds, the minimum is higher and the timeout shorter.
"""

import asyncio
import time
from collections import deque
from typing import TYPE_CHECKING, ClassVar, Final, cast

from semel.handlers.context import RequestContext
from semel.server.budgets import FRAME_OVERHEAD_BYTES, ResponseCharge
from semel.server.sockets import keep_alive
from semel.wire.errors import ProtocolError
from semel.wire.schema import Buffer

if TYPE_CHECKING:
    from semel.server.server_context import ServerContext

SLOWEST_BYTES_PER_SECOND: Final = 16_384

SHORT_OF_MEMORY_BYTES_PER_SECOND: Final = 1_048_576
SHORT_OF_MEMORY_SECONDS: Final = 1.0


class Pace:
    """The last time at which a byte count had grown fast enough."""

    __slots__ = ("_bytes", "_since")

    def __init__(self) -> None:
        self._bytes = 0
        self._since = 0.0

    def restart(self, total_bytes: int, now: float) -> None:
        """Measure from this moment on."""
        self._bytes = total_bytes
        self._since = now

    def stalled_seconds(self, total_bytes: int, now: float, patience: float, *, is_waited_for: bool) -> float:
        """Return for how long the client was too slow, or zero if that is within its timeout.

        The timeout is ``patience``, or `SHORT_OF_MEMORY_SECONDS` while other clients wait.
        """
        slowest = SHORT_OF_MEMORY_BYTES_PER_SECOND if is_waited_for else SLOWEST_BYTES_PER_SECOND
        elapsed = now - self._since
        if total_bytes - self._bytes >= elapsed * slowest:
            self.restart(total_bytes, now)
            return 0.0
        return elapsed if elapsed > (SHORT_OF_MEMORY_SECONDS if is_waited_for else patience) else 0.0


JOIN_BYTES_MAX: Final = 65_536
"""Up to this size, joining responses is cheaper than passing the kernel a list."""

SLICE_BYTES: Final = 65_536


class Outgoing:
    """The outgoing bytes of one connection."""

    __slots__ = ("_held", "_is_asyncio", "_is_full", "_slices", "_transport", "handed_over", "is_tls")

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self.is_tls = transport.get_extra_info("sslcontext") is not None
        # uvloop's transports have the methods of asyncio's, but are not subclasses.
        self._is_asyncio = asyncio.Transport in type(transport).__mro__
        self._slices: deque[memoryview] = deque()
        self._held = 0
        self._is_full = False
        self.handed_over = 0
        """Bytes of all responses so far."""
        # The transport must call back whenever its buffer becomes nonempty, and when it becomes empty. A
        # plain transport calls back above the mark, one with TLS at the mark.
        transport.set_write_buffer_limits(high=1 if self.is_tls else 0, low=0)

    @property
    def is_blocked(self) -> bool:
        """Whether the client must read responses before its next request starts."""
        return self._is_full or self._held > 0

    @property
    def taken(self) -> int:
        """The number of bytes that have left this process."""
        return self.handed_over - self.unsent()

    def unsent(self) -> int:
        """Return the number of bytes that are still in this process."""
        return self._held + self._transport.get_write_buffer_size()

    def send(self, parts: list[Buffer]) -> int:
        """Send the parts in order; returns their size."""
        size = sum(map(len, parts))
        self.handed_over += size
        if self.is_tls:
            self._send_slices(parts, size)
        elif len(parts) == 1:
            self._transport.write(parts[0])
        elif size <= JOIN_BYTES_MAX:
            self._transport.write(b"".join(parts))
        elif self._is_asyncio:
            # In some Python versions its `writelines` never pauses the protocol (CVE-2024-12254).
            for part in parts:
                self._transport.write(part)
        else:
            self._transport.writelines(parts)
        return size

    def full(self) -> None:
        """Note that the transport has bytes that it could not send."""
        self._is_full = True

    def drained(self) -> None:
        """Continue after the transport has sent everything."""
        self._is_full = False
        self._pump()

    def _send_slices(self, parts: list[Buffer], size: int) -> None:
        views = [memoryview(b"".join(parts))] if size <= SLICE_BYTES else [memoryview(part) for part in parts]
        for view in views:
            for at in range(0, len(view), SLICE_BYTES):
                self._slices.append(view[at : at + SLICE_BYTES])
        self._held += size
        self._pump()

    def _pump(self) -> None:
        while self._slices and not self._is_full:
            piece = self._slices.popleft()
            self._held -= len(piece)
            self._transport.write(piece)


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
        self._is_closing = False
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
        if self._is_closing:
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
            self._has_waiting or self._is_over_budget or self._is_closing or self._has_ended or self._is_muted
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

    def _close_gracefully(self, reason: str, error: object) -> None:
        """Start no more requests; close when those in flight are answered."""
        if self._is_closing:
            return
        self._server.closing(self._context, reason, error)
        self.finish()

    def finish(self) -> None:
        """Start no more requests, answer those in flight, close. Also called when the server stops."""
        self._is_closing = True
        self._drop_waiting()
        self._read_or_not()
        self._schedule_turn()

    def _close_when_answered(self) -> None:
        is_sent = not self._out and (self._outgoing is None or not self._outgoing.is_blocked)
        if is_sent and not self._has_begun and self._transport is not None:
            self._transport.close()

    def _close(self, reason: str, error: object) -> None:
        """Close now, and drop unsent responses."""
        self._is_closing = True
        self._server.closing(self._context, reason, error)
        self.abort()

    def abort(self) -> None:
        """Close now."""
        self._is_closing = True
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
        elif self._has_begun or self._has_waiting or self._is_closing or not self._is_reading:
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
