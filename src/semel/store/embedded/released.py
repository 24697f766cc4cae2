"""Collect released ranges of a chunk until they cover whole blocks.

A file system releases space in blocks, and batches do not end at block boundaries. Two adjacent batches that
are released one after the other would leave the block they share, and small batches that are released one by
one would leave everything. So released ranges are remembered, and a block is released with its last byte.

The ranges are only in memory: after a restart, partly released blocks stay until their chunk is deleted.
Beyond ``RANGES_MAX`` ranges the chunk least recently released from is forgotten, with the same effect.
"""

import threading
from bisect import bisect_left, bisect_right
from typing import Final

RANGES_MAX: Final = 100_000
"""About 20 MB."""


class Released:
    """Released ranges by chunk, sorted and disjoint."""

    def __init__(self, ranges_max: int = RANGES_MAX) -> None:
        self._ranges_max = ranges_max
        self._chunks: dict[int, tuple[list[int], list[int]]] = {}
        self._count = 0
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return self._count

    def add(self, chunk_id: int, start: int, end: int, block: int) -> tuple[int, int]:
        """Add a range. Return the range of blocks that became free, possibly empty."""
        with self._lock:
            whole_start, whole_end = self._unite(chunk_id, start, end)
            self._shrink()
        free_from = max(-(-whole_start // block), start // block) * block
        free_to = min(whole_end // block, -(-end // block)) * block
        return free_from, max(free_from, free_to)

    def forget(self, chunk_id: int) -> None:
        """Forget a deleted chunk."""
        with self._lock:
            self._drop(chunk_id)

    def _unite(self, chunk_id: int, start: int, end: int) -> tuple[int, int]:
        starts, ends = self._chunks.pop(chunk_id, ([], []))
        # The ranges that touch the new one are merged with it.
        first, last = bisect_left(ends, start), bisect_right(starts, end)
        whole_start = min(start, starts[first]) if first < last else start
        whole_end = max(end, ends[last - 1]) if first < last else end
        starts[first:last] = [whole_start]
        ends[first:last] = [whole_end]
        self._chunks[chunk_id] = starts, ends
        self._count += 1 - (last - first)
        return whole_start, whole_end

    def _drop(self, chunk_id: int) -> None:
        self._count -= len(self._chunks.pop(chunk_id, ([], []))[0])

    def _shrink(self) -> None:
        while self._count > self._ranges_max:
            self._drop(next(iter(self._chunks)))
