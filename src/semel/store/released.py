"""What was released of a chunk, put together until it is whole blocks.

A file system gives space back in blocks, and batches do not end where blocks do. Two neighbours that are
released one after the other would leave the block they share, and small batches that are released one by one
would leave everything. So what was released is remembered, and a block goes when the last byte in it does.

It is a memory of this process: after a restart, blocks that were partly released stay until their chunk goes.
It is bounded: beyond ``RANGES_MAX`` ranges the chunk that was released from longest ago is forgotten, with
the same effect.
"""

import threading
from bisect import bisect_left, bisect_right
from typing import Final

RANGES_MAX: Final = 100_000
"""About 20 MB."""


class Released:
    """Ranges that are released, by chunk: in order, apart from each other."""

    def __init__(self, ranges_max: int = RANGES_MAX) -> None:
        self._ranges_max = ranges_max
        self._chunks: dict[int, tuple[list[int], list[int]]] = {}
        self._count = 0
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return self._count

    def add(self, chunk_id: int, start: int, end: int, block: int) -> tuple[int, int]:
        """Remember a range; from where to where blocks are free now that were not before. Maybe none."""
        with self._lock:
            whole_start, whole_end = self._unite(chunk_id, start, end)
            self._shrink()
        free_from = max(-(-whole_start // block), start // block) * block
        free_to = min(whole_end // block, -(-end // block)) * block
        return free_from, max(free_from, free_to)

    def forget(self, chunk_id: int) -> None:
        """The chunk is gone."""
        with self._lock:
            self._drop(chunk_id)

    def _unite(self, chunk_id: int, start: int, end: int) -> tuple[int, int]:
        starts, ends = self._chunks.pop(chunk_id, ([], []))
        # Those that touch the new one, and become one with it.
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
