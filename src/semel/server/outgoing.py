"""The bytes that go to one client, and how fast clients send and receive.

A plain transport gets everything at once; it keeps references and reports exactly how much is unsent. A TLS
transport encrypts its input into a buffer whose size is not visible, so it gets slices, and this module keeps
the rest until the transport asks for more. Either way ``unsent`` is exact to within a slice, which suffices
for budgets and timeouts.
"""

import asyncio
from collections import deque
from typing import Final

from semel.wire.schema import Buffer

JOIN_BYTES_MAX: Final = 65_536
"""Up to this size, joining responses is cheaper than passing the kernel a list."""
SLICE_BYTES: Final = 65_536
SLOWEST_BYTES_PER_SECOND: Final = 16_384
SHORT_OF_MEMORY_BYTES_PER_SECOND: Final = 1_048_576
SHORT_OF_MEMORY_SECONDS: Final = 1.0


class Pace:
    """The last time at which a byte count had grown fast enough. It tells slow clients from dead ones.

    A deadline alone would close a client on a slow network in the middle of a large response. If any progress
    were enough, a client that reads a byte per second could stay for ever. So a client must keep a minimum
    rate: at least once per timeout, its average rate since the last success must reach the minimum. While
    other clients wait for the memory that it holds, the minimum is higher and the timeout shorter.
    """

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
