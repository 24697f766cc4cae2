"""Chunks in memory, for ``--memory``, ``semel.embedded()`` and tests: the same contract, without a disk.

Each batch is kept as bytes of its own, so that releasing it gives its memory back; what was released reads as
zeros, as it does on a disk. The total is bounded like a disk: what does not fit is ``StoreFull``.
"""

import os
import threading
from bisect import bisect_left, bisect_right
from collections.abc import Sequence

from semel.core.types import Buffer
from semel.store.interface import BatchLocation, StoreFull


def half_of_memory() -> int:
    """Half of the machine's memory, in bytes: the other half is everybody else's."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


class _Chunk:
    """Pieces by where they begin. They come in any order, and perhaps twice."""

    __slots__ = ("pieces", "positions", "reserved", "size")

    def __init__(self) -> None:
        self.positions: list[int] = []
        self.pieces: list[bytes] = []
        self.size = 0
        self.reserved = 0

    @property
    def held(self) -> int:
        return sum(map(len, self.pieces))

    def write(self, position: int, piece: bytes) -> None:
        index = bisect_left(self.positions, position)
        if index < len(self.positions) and self.positions[index] == position:
            self.pieces[index] = piece
            return
        self.positions.insert(index, position)
        self.pieces.insert(index, piece)
        self.size = max(self.size, position + len(piece))

    def read(self, position: int, length: int) -> bytearray:
        buffer = bytearray(length)
        index = max(bisect_right(self.positions, position) - 1, 0)
        while index < len(self.positions) and self.positions[index] < position + length:
            # A piece may begin before what is wanted, and end after it.
            at = self.positions[index] - position
            piece = memoryview(self.pieces[index])[max(-at, 0) : length - at]
            buffer[max(at, 0) : max(at, 0) + len(piece)] = piece
            index += 1
        return buffer

    def release(self, position: int, length: int) -> int:
        freed = 0
        index = bisect_right(self.positions, position - 1)
        while index < len(self.positions) and self.positions[index] < position + length:
            if self.positions[index] + len(self.pieces[index]) <= position + length:
                freed += len(self.pieces[index])
                self.pieces[index] = b""
            index += 1
        return freed


class MemoryChunks:
    """A chunk store that is gone with the process. All of its methods run where they are called."""

    def __init__(self, chunk_bytes_max: int, bytes_max: int | None = None) -> None:
        self._chunk_bytes_max = chunk_bytes_max
        self._bytes_max = half_of_memory() if bytes_max is None else bytes_max
        self._bytes = 0
        # Writing happens on the writer's thread, everything else on the event loop's.
        self._lock = threading.Lock()
        self._chunks: dict[int, _Chunk] = {}
        self._next_id = 1

    async def append(self, batches: Sequence[Buffer]) -> list[BatchLocation]:
        """Keep a copy of these, one after another. StoreFull."""
        self.make_room_now(sum(map(len, batches)))
        locations = self.reserve([len(batch) for batch in batches])
        self.write_now(locations, batches)
        return locations

    async def read(self, locations: Sequence[BatchLocation]) -> list[bytearray]:
        """The bytes at these places, each in a buffer of the caller's own. LookupError if one is gone."""
        buffers: list[bytearray] = []
        with self._lock:
            for chunk_id, position, length in locations:
                chunk = self._chunks.get(chunk_id)
                if chunk is None or position + length > chunk.size:
                    raise LookupError(f"chunk {chunk_id} has no {length} bytes at {position}")
                buffers.append(chunk.read(position, length))
        return buffers

    async def read_together(self, locations: Sequence[BatchLocation]) -> bytearray:
        """As `read`, one behind another in a single buffer."""
        return bytearray().join(await self.read(locations))

    async def release(self, locations: Sequence[BatchLocation]) -> None:
        """Nobody points at these ranges any more: give their space back."""
        with self._lock:
            for chunk_id, position, length in locations:
                chunk = self._chunks.get(chunk_id)
                if chunk is not None:
                    self._bytes -= chunk.release(position, length)

    async def delete(self, chunk_id: int) -> None:
        """Remove a chunk. Not an error if it is gone."""
        with self._lock:
            chunk = self._chunks.pop(chunk_id, None)
            if chunk is not None:
                self._bytes -= chunk.held

    async def list_chunks(self) -> list[tuple[int, int]]:
        """Every chunk with the space it takes."""
        with self._lock:
            return [(chunk_id, self._chunks[chunk_id].held) for chunk_id in sorted(self._chunks)]

    async def close(self) -> None:
        """Let go of everything."""
        with self._lock:
            self._chunks.clear()
            self._bytes = 0

    @property
    def writing_id(self) -> int:
        """The chunk that grows now, or the next one if none does. Those before it are sealed."""
        return max(self._next_id - 1, 1)

    def has_room(self, length: int) -> bool:
        """Whether so many bytes can be appended."""
        return self._bytes + length <= self._bytes_max

    def make_room_now(self, length: int, *, may_use_reserve: bool = False) -> None:
        """StoreFull if so many bytes cannot be appended; there is no reserve, and none is needed."""
        if not may_use_reserve and not self.has_room(length):
            raise StoreFull(f"{self._bytes_max} bytes are the most that is kept in memory")

    def check_free(self, length: int) -> None:
        """The same: here is nothing else that could fill the memory."""
        self.make_room_now(length)

    def reserve(self, lengths: Sequence[int]) -> list[BatchLocation]:
        """Where batches of these lengths will lie, also beyond the limit: that was asked before."""
        if not lengths:
            return []
        locations: list[BatchLocation] = []
        with self._lock:
            chunk_id, chunk = self._writing(sum(lengths))
            for length in lengths:
                locations.append(BatchLocation(chunk_id, chunk.reserved, length))
                chunk.reserved += length
            self._bytes += sum(lengths)
        return locations

    def write_now(self, locations: Sequence[BatchLocation], batches: Sequence[Buffer]) -> None:
        """Keep copies: the buffers belong to request frames that must not be kept alive."""
        with self._lock:
            for location, batch in zip(locations, batches, strict=True):
                chunk = self._chunks.get(location.chunk_id)
                if chunk is not None:
                    chunk.write(location.position, bytes(batch))

    def is_proven(self, chunk_id: int) -> bool:
        """Nobody else writes here."""
        return True

    def flush_now(self, number: int = 0) -> None:
        """There is nothing that could be more durable."""

    def _writing(self, length: int) -> tuple[int, _Chunk]:
        """The chunk to append to: the newest, unless it is full or was deleted."""
        chunk_id = self._next_id - 1
        chunk = self._chunks.get(chunk_id)
        if chunk is None or (chunk.reserved and chunk.reserved + length > self._chunk_bytes_max):
            chunk_id, self._next_id = self._next_id, self._next_id + 1
            chunk = self._chunks[chunk_id] = _Chunk()
        return chunk_id, chunk
