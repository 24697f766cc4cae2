"""Chunks in memory, for ``--memory``, ``semel.embedded()`` and tests: the same contract, without a disk.

Each batch is kept as bytes of its own, so that releasing it gives its memory back. The total is bounded like
a disk: what does not fit is ``StoreFull``.
"""

import os
import threading
from collections.abc import Sequence

from semel.core.types import Buffer
from semel.store.interface import Place, StoreFull


def half_of_memory() -> int:
    """Half of the machine's memory, in bytes: the other half is everybody else's."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


class MemoryChunks:
    """A chunk store that is gone with the process. All of its methods run where they are called."""

    def __init__(self, chunk_bytes_max: int, bytes_max: int | None = None) -> None:
        self._chunk_bytes_max = chunk_bytes_max
        self._bytes_max = half_of_memory() if bytes_max is None else bytes_max
        self._bytes = 0
        # Appending happens on the writer's thread, everything else on the event loop's.
        self._lock = threading.Lock()
        self._chunks: dict[int, dict[int, bytes]] = {}
        self._writing_id = 1
        self._position = 0

    async def append(self, batches: Sequence[Buffer]) -> list[Place]:
        """Keep a copy of these, one after another. StoreFull."""
        return self.append_now(batches)

    async def read(self, places: Sequence[Place]) -> list[bytearray]:
        """The bytes at these places, each in a buffer of the caller's own. LookupError if one is gone."""
        buffers: list[bytearray] = []
        for place in places:
            kept = self._chunks.get(place.chunk_id, {}).get(place.position)
            if kept is None or len(kept) < place.length:
                raise LookupError(f"chunk {place.chunk_id} has nothing at {place.position}")
            buffers.append(bytearray(memoryview(kept)[: place.length]))
        return buffers

    async def release(self, places: Sequence[Place]) -> None:
        """Nobody points at these ranges any more: give their space back."""
        with self._lock:
            for place in places:
                self._bytes -= len(self._chunks.get(place.chunk_id, {}).pop(place.position, b""))

    async def delete(self, chunk_id: int) -> None:
        """Remove a chunk. Not an error if it is gone."""
        self.delete_now(chunk_id)

    async def list_chunks(self) -> list[tuple[int, int]]:
        """Every chunk with the bytes it holds."""
        with self._lock:
            return [
                (chunk_id, sum(map(len, self._chunks[chunk_id].values())))
                for chunk_id in sorted(self._chunks)
            ]

    async def close(self) -> None:
        """Let go of everything."""
        self.close_now()

    @property
    def writing_id(self) -> int:
        """The chunk that grows now. Those before it are sealed."""
        return self._writing_id

    def append_now(self, batches: Sequence[Buffer]) -> list[Place]:
        """Append without waiting."""
        total = sum(map(len, batches))
        places: list[Place] = []
        with self._lock:
            if self._bytes + total > self._bytes_max:
                raise StoreFull(f"{self._bytes_max} bytes are the most that is kept in memory")
            if self._position and self._position + total > self._chunk_bytes_max:
                self._begin()
            for batch in batches:
                place = Place(self._writing_id, self._position, len(batch))
                # A copy: the buffer belongs to a request frame that must not be kept alive.
                self._chunks.setdefault(place.chunk_id, {})[place.position] = bytes(batch)
                self._position += place.length
                places.append(place)
            self._bytes += total
        return places

    def delete_now(self, chunk_id: int) -> None:
        """Remove a chunk without waiting."""
        with self._lock:
            self._bytes -= sum(map(len, self._chunks.pop(chunk_id, {}).values()))
            if chunk_id == self._writing_id:
                self._begin()

    def close_now(self) -> None:
        """Let go of everything without waiting."""
        self._chunks.clear()
        self._bytes = 0

    def _begin(self) -> None:
        self._writing_id += 1
        self._position = 0
