"""Cache blocks of objects, and other immutable bytes, in memory.

Objects are read in blocks of 1 MiB, because an object store answers a request for a large range almost as
fast as one for a small range, and this reader of a partition, or another, needs the bytes around it next.
Adjacent blocks share a request, and so do readers of the same block. If an object is read sequentially, its
next blocks are requested ahead.

Memory: the cache is bounded in bytes. A read holds at most ``BLOCKS_HELD_MAX`` more blocks at a time.
"""

import asyncio
from collections import OrderedDict, deque
from collections.abc import Hashable, Iterable, Sequence
from typing import Final, NamedTuple

from semel.store.cluster.bytes.objects import Objects
from semel.store.contract import BatchLocation

BLOCK_BYTES: Final = 1024 * 1024
BLOCKS_AT_ONCE: Final = 8
"""Blocks per request at most."""
BLOCKS_HELD_MAX: Final = 32
"""Blocks that one read holds beside the cache."""
BLOCKS_AHEAD: Final = 4
ENDS_MAX: Final = 10_000
"""Objects whose last block read is remembered, to detect sequential reads."""


class Range(NamedTuple):
    """A range of an object whose size is known."""

    object_id: int
    position: int
    length: int
    object_size: int


_Block = tuple[int, int]
"""An object and the number of a block in it."""


class BlockCache:
    """Blocks of objects, and other bytes that never change, up to a number of bytes."""

    def __init__(self, objects: Objects, bytes_max: int) -> None:
        self._objects = objects
        self._bytes_max = bytes_max
        self._kept: OrderedDict[Hashable, bytes] = OrderedDict()
        self._under_way: dict[_Block, asyncio.Task[dict[_Block, bytes]]] = {}
        self._ends: OrderedDict[int, int] = OrderedDict()
        self.size_bytes = 0
        self.requests = 0
        """Requests to the object store."""

    def get(self, key: Hashable) -> bytes | None:
        """Return the bytes cached under a key."""
        data = self._kept.get(key)
        if data is not None:
            self._kept.move_to_end(key)
        return data

    def keep(self, key: Hashable, data: bytes) -> None:
        """Cache bytes, and evict the least recently used ones."""
        if key in self._kept:
            # A concurrent read has cached them.
            return
        self._kept[key] = data
        self.size_bytes += len(data)
        while self.size_bytes > self._bytes_max:
            self.size_bytes -= len(self._kept.popitem(last=False)[1])

    def drop(self, key: Hashable) -> None:
        """Drop the bytes cached under a key."""
        self.size_bytes -= len(self._kept.pop(key, b""))

    def drop_range(self, unwanted: Range) -> None:
        """Drop the cached blocks of a range."""
        for block in _blocks_of(unwanted):
            self.drop(block)

    async def read(self, ranges: Sequence[Range]) -> list[bytearray]:
        """Return the bytes of ranges, each in a new buffer. LookupError if one is gone. OSError."""
        for each in ranges:
            if each.position + each.length > each.object_size:
                raise LookupError(f"object {each.object_id} is shorter than that")
        found = [bytearray() for _ in ranges]
        order = sorted(range(len(ranges)), key=ranges.__getitem__)
        pieces = deque((at, block) for at in order for block in _blocks_of(ranges[at]))
        while pieces:
            # A few blocks at a time, to bound memory: many small ranges may touch as many blocks.
            some: list[tuple[int, _Block]] = []
            blocks: dict[_Block, int] = {}
            while pieces and (pieces[0][1] in blocks or len(blocks) < BLOCKS_HELD_MAX):
                at, block = pieces.popleft()
                some.append((at, block))
                blocks[block] = ranges[at].object_size
            held = await self._blocks(blocks)
            for at, block in some:
                found[at] += _part(ranges[at], block, held[block])
        self._read_ahead(ranges)
        return found

    async def close(self) -> None:
        """Wait for the requests under way."""
        while self._under_way:
            await asyncio.wait(self._under_way.values())

    async def _blocks(self, wanted: dict[_Block, int]) -> dict[_Block, bytes]:
        """Return blocks, from the cache or the store. ``wanted`` maps each to the size of its object."""
        found: dict[_Block, bytes] = {}
        tasks: list[asyncio.Task[dict[_Block, bytes]]] = []
        missing: dict[_Block, int] = {}
        for block, size in wanted.items():
            if (data := self.get(block)) is not None:
                found[block] = data
            elif (task := self._under_way.get(block)) is not None:
                tasks.append(task)
            else:
                missing[block] = size
        tasks += self._request(missing)
        for task in dict.fromkeys(tasks):
            # Shielded: cancelling one reader must not cancel a request that other readers share.
            found |= await asyncio.shield(task)
        return found

    def _request(self, missing: dict[_Block, int]) -> list[asyncio.Task[dict[_Block, bytes]]]:
        tasks: list[asyncio.Task[dict[_Block, bytes]]] = []
        for run in _runs(missing):
            task = asyncio.create_task(self._fetch(run, missing[run[0]]), name="blocks")
            # Retrieve the exception even if no reader waits any more, or asyncio logs it.
            task.add_done_callback(lambda done: done.cancelled() or done.exception())
            self._under_way.update(dict.fromkeys(run, task))
            tasks.append(task)
        return tasks

    async def _fetch(self, run: list[_Block], object_size: int) -> dict[_Block, bytes]:
        object_id, first = run[0]
        start = first * BLOCK_BYTES
        length = min(len(run) * BLOCK_BYTES, object_size - start)
        self.requests += 1
        try:
            (data,) = await self._objects.read([BatchLocation(object_id, start, length)])
            # Copies, so that each block can be evicted without the others.
            found = {
                block: data[at : at + BLOCK_BYTES]
                for block, at in zip(run, range(0, length, BLOCK_BYTES), strict=True)
            }
            for block, part in found.items():
                self.keep(block, part)
            return found
        finally:
            for block in run:
                del self._under_way[block]

    def _read_ahead(self, ranges: Iterable[Range]) -> None:
        """Request the next blocks of objects that are read sequentially."""
        reached: dict[int, tuple[int, int, int]] = {}
        for each in ranges:
            (_, first), (_, last) = _blocks_of(each)[0], _blocks_of(each)[-1]
            low, high, _ = reached.get(each.object_id, (first, last, 0))
            reached[each.object_id] = (min(low, first), max(high, last), each.object_size)
        for object_id, (first, last, size) in reached.items():
            before = self._ends.pop(object_id, -1)
            self._ends[object_id] = max(before, last)
            if len(self._ends) > ENDS_MAX:
                self._ends.popitem(last=False)
            if first <= before + 1 and last >= before:
                room = self._bytes_max // (2 * BLOCK_BYTES)
                end = min(last + 1 + min(BLOCKS_AHEAD, room), -(-size // BLOCK_BYTES))
                ahead = [(object_id, number) for number in range(last + 1, end)]
                self._request(
                    {each: size for each in ahead if each not in self._kept and each not in self._under_way}
                )


def _blocks_of(wanted: Range) -> list[_Block]:
    first = wanted.position // BLOCK_BYTES
    last = (wanted.position + wanted.length - 1) // BLOCK_BYTES
    return [(wanted.object_id, number) for number in range(first, last + 1)]


def _part(wanted: Range, block: _Block, data: bytes) -> memoryview:
    """The part of a range that is in a block."""
    start = block[1] * BLOCK_BYTES
    low = max(wanted.position - start, 0)
    return memoryview(data)[low : wanted.position + wanted.length - start]


def _runs(blocks: Iterable[_Block]) -> list[list[_Block]]:
    """Group adjacent blocks, at most ``BLOCKS_AT_ONCE`` per request."""
    runs: list[list[_Block]] = []
    for object_id, number in sorted(blocks):
        if runs and runs[-1][-1] == (object_id, number - 1) and len(runs[-1]) < BLOCKS_AT_ONCE:
            runs[-1].append((object_id, number))
        else:
            runs.append([(object_id, number)])
    return runs
