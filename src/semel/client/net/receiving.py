"""Receives frames from a socket, the large ones in place.

Most of what a broker sends is fetched records, in frames of megabytes. Assembling a frame from pieces costs a
copy, and allocating its memory costs as much again. So the rest of a large frame is received directly into
the buffer of the previous one, if that is no longer in use.
"""

import socket
from typing import Final

from semel.wire.frames import FrameParser

PIECE_BYTES: Final = 1 << 18
"""How much is received at once while the frame size is unknown."""
LARGE_BYTES: Final = 1 << 18
"""If this much of a frame is missing, it is received in place."""
ROOM_BYTES_MAX: Final = 1 << 24
"""A buffer up to this size is allocated when the frame size is known; a larger frame grows as it arrives."""


class FrameReceiver:
    """Receives the frames of one connection from its socket."""

    __slots__ = ("_filled", "_kept", "_parser", "_room")

    def __init__(self, max_frame_bytes: int) -> None:
        self._parser = FrameParser(max_frame_bytes)
        #: The buffer of a large frame in progress, and how much of it has arrived.
        self._room: memoryview | None = None
        self._filled = 0
        #: The buffer of the previous large frame.
        self._kept = bytearray()

    def receive(self, source: socket.socket) -> list[memoryview] | None:
        """Read once; return the payloads that are now complete, or None if the other side has closed."""
        if self._room is None:
            piece = source.recv(PIECE_BYTES)
            frames = self._parser.feed(piece)
            if LARGE_BYTES <= self._parser.missing <= ROOM_BYTES_MAX:
                self._make_room(self._parser.missing)
            return frames if piece else None
        count = source.recv_into(self._room[self._filled :])
        self._filled += count
        if self._filled < len(self._room):
            return [] if count else None
        whole, self._room = self._room.toreadonly(), None
        return [whole]

    def _make_room(self, missing: int) -> None:
        begun = self._parser.take_over()
        size = len(begun) + missing
        try:
            # Resizing fails while the caller still uses the buffer.
            self._kept.append(0)
            self._kept.pop()
        except BufferError:
            self._kept = bytearray()
        if len(self._kept) < size:
            self._kept = bytearray(size)
        self._room, self._filled = memoryview(self._kept)[:size], len(begun)
        self._room[: len(begun)] = begun
