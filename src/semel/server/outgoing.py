"""Writes responses to the transport, and measures how many bytes are unsent.

A plain transport gets everything at once; it keeps references and reports exactly how much is unsent. A TLS
transport encrypts its input into a buffer whose size is not visible, so it gets slices, and this module keeps
the rest until the transport asks for more. Either way `unsent` is exact to within a slice, which suffices for
budgets and timeouts.
"""

import asyncio
from collections import deque
from typing import Final

from semel.wire.schema import Buffer

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
