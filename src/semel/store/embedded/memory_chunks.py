"""Chunks in memory, for ``--memory``, ``semel.embedded()`` and tests: the same contract, without a disk.

Each batch is kept as a separate bytes object, so releasing it frees its memory; released ranges read as
zeros, as on disk. The total is bounded like a disk: beyond it, appends raise ``StoreFull``.
"""

import os
import threading
from bisect import bisect_left, bisect_right
from collections.abc import Sequence

from semel.core.types import Buffer
from semel.store.contract import BatchLocation, StoreFull


def half_of_memory() -> int:
    """Half of the machine's memory, in bytes. The rest is for everything else."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


class _Chunk:
    """Pieces, sorted by position. They may arrive in any order, and more than once."""

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
            # A piece may begin before the requested range, and end after it.
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
    """A chunk store that ends with the process. All methods run on the calling thread."""

    def __init__(self, chunk_bytes_max: int, bytes_max: int | None = None) -> None:
        self._chunk_bytes_max = chunk_bytes_max
        self._bytes_max = half_of_memory() if bytes_max is None else bytes_max
        self._bytes = 0
        # Writing happens on the writer's thread, everything else on the event loop.
        self._lock = threading.Lock()
        self._chunks: dict[int, _Chunk] = {}
        self._next_id = 1

    async def append(self, batches: Sequence[Buffer]) -> list[BatchLocation]:
        """Keep copies of these batches, one after another. StoreFull."""
        self.make_room_now(sum(map(len, batches)))
        locations = self.reserve([len(batch) for batch in batches])
        self.write_now(locations, batches)
        return locations

    async def read(self, locations: Sequence[BatchLocation]) -> list[bytearray]:
        """Return the bytes at these locations, each in a new buffer. LookupError if one is gone."""
        buffers: list[bytearray] = []
        with self._lock:
            for chunk_id, position, length in locations:
                chunk = self._chunks.get(chunk_id)
                if chunk is None or position + length > chunk.size:
                    raise LookupError(f"chunk {chunk_id} has no {length} bytes at {position}")
                buffers.append(chunk.read(position, length))
        return buffers

    async def read_together(self, locations: Sequence[BatchLocation]) -> bytearray:
        """Like `read`, but return a single buffer."""
        return bytearray().join(await self.read(locations))

    def forget(self, location: BatchLocation) -> None:
        """Do nothing: there are no copies."""

    async def release(self, locations: Sequence[BatchLocation]) -> None:
        """Release the space of ranges that are no longer referenced."""
        with self._lock:
            for chunk_id, position, length in locations:
                chunk = self._chunks.get(chunk_id)
                if chunk is not None:
                    self._bytes -= chunk.release(position, length)

    async def delete(self, chunk_id: int) -> None:
        """Remove a chunk. It is no error if the chunk does not exist."""
        with self._lock:
            chunk = self._chunks.pop(chunk_id, None)
            if chunk is not None:
                self._bytes -= chunk.held

    async def list_chunks(self) -> list[tuple[int, int]]:
        """Return every chunk and the space that it uses."""
        with self._lock:
            return [(chunk_id, self._chunks[chunk_id].held) for chunk_id in sorted(self._chunks)]

    async def close(self) -> None:
        """Free all memory."""
        with self._lock:
            self._chunks.clear()
            self._bytes = 0

    @property
    def writing_id(self) -> int:
        """The chunk that is being written, or the next one. All before it are sealed."""
        return max(self._next_id - 1, 1)

    def has_room(self, length: int) -> bool:
        """Whether this many bytes can be appended."""
        return self._bytes + length <= self._bytes_max

    def make_room_now(self, length: int, *, may_use_reserve: bool = False) -> None:
        """Raise StoreFull if this many bytes cannot be appended. No reserve is needed."""
        if not may_use_reserve and not self.has_room(length):
            raise StoreFull(f"the broker keeps at most {self._bytes_max} bytes in memory")

    def check_free(self, length: int) -> None:
        """Like ``make_room_now``: nothing else can fill this memory."""
        self.make_room_now(length)

    def reserve(self, lengths: Sequence[int]) -> list[BatchLocation]:
        """Reserve locations for batches of these lengths, even beyond the limit, which is checked before."""
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
        """Always true: only this process writes here."""
        return True

    def flush_now(self, number: int = 0) -> None:
        """Do nothing: memory cannot be flushed."""

    def _writing(self, length: int) -> tuple[int, _Chunk]:
        """Return the chunk to append to: the newest, unless it is full or was deleted."""
        chunk_id = self._next_id - 1
        chunk = self._chunks.get(chunk_id)
        if chunk is None or (chunk.reserved and chunk.reserved + length > self._chunk_bytes_max):
            chunk_id, self._next_id = self._next_id, self._next_id + 1
            chunk = self._chunks[chunk_id] = _Chunk()
        return chunk_id, chunk
