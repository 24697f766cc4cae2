"""Hold the bytes of a cluster's batches: of small commits in PostgreSQL, of large ones in objects.

A chunk holds the bytes of one commit and never changes. The roller moves small ones to an object later
(``roller``).

Numbers of chunks and objects are reserved in blocks, so that a commit needs no round trip for them. The
number of an object gets a row before the object is uploaded (``chunks.sql``: objects), and a commit can refer
to it only while it has that row. So an object whose commit never came is known, and can be deleted.

**The cache.** Objects are read in blocks of 1 MiB, because an object store answers a request for a large
range almost as fast as one for a small range, and this reader of a partition, or another, needs the bytes
around it next. Adjacent blocks share a request, and so do readers of the same block. If an object is read
sequentially, its next blocks are requested ahead.

Memory: the cache is bounded in bytes. A read holds at most ``BLOCKS_HELD_MAX`` more blocks at a time.
"""

import asyncio
from collections import OrderedDict, deque
from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from semel.config import Settings
from semel.core.types import Buffer
from semel.store.cluster.bytes.objects import Objects
from semel.store.cluster.commit_calls import Bytes
from semel.store.cluster.postgres.database import Database
from semel.store.contract import BatchLocation

BLOCK_BYTES: Final = 1024 * 1024
BLOCKS_AT_ONCE: Final = 8
"""Blocks per request at most."""
BLOCKS_HELD_MAX: Final = 32
"""Blocks that one read holds beside the cache."""
BLOCKS_AHEAD: Final = 4
ENDS_MAX: Final = 10_000
"""Objects whose last block read is remembered, to detect sequential reads."""


class ObjectRange(NamedTuple):
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

    def drop_range(self, unwanted: ObjectRange) -> None:
        """Drop the cached blocks of a range."""
        for block in _blocks_of(unwanted):
            self.drop(block)

    async def read(self, ranges: Sequence[ObjectRange]) -> list[bytearray]:
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

    def _read_ahead(self, ranges: Iterable[ObjectRange]) -> None:
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


def _blocks_of(wanted: ObjectRange) -> list[_Block]:
    first = wanted.position // BLOCK_BYTES
    last = (wanted.position + wanted.length - 1) // BLOCK_BYTES
    return [(wanted.object_id, number) for number in range(first, last + 1)]


def _part(wanted: ObjectRange, block: _Block, data: bytes) -> memoryview:
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


BLOCK: Final = 1_000
"""The increment of the sequence of chunk numbers."""
RESERVED: Final = 50
"""Numbers of objects that are reserved at once. Each one that is not used in time is a row to delete."""


class Numbers:
    """The numbers that one process has taken."""

    def __init__(self, database: Database, delete_delay_seconds: float) -> None:
        self._database = database
        self._chunks: Iterator[int] = iter(())
        self._objects: Iterator[int] = iter(())
        self._valid_until = 0.0
        # The other half of the time is left for the upload and the commit.
        self._valid_seconds = delete_delay_seconds / 2

    async def chunk(self) -> int:
        """Return a number for a chunk that is in no object yet. StoreRefused."""
        number = next(self._chunks, None)
        if number is None:
            first = await self._database.value("SELECT nextval('chunk_ids')")
            self._chunks = iter(range(first, first + BLOCK))
            number = next(self._chunks)
        return number

    async def object(self) -> int:
        """Return a number for an object and for its chunk. StoreRefused."""
        clock = asyncio.get_running_loop().time
        number = next(self._objects, None)
        if number is None or clock() > self._valid_until:
            asked_at = clock()
            first = await self._database.value("SELECT reserve_objects($1)", RESERVED)
            self._objects = iter(range(first, first + RESERVED))
            self._valid_until = asked_at + self._valid_seconds
            number = next(self._objects)
        return number

    async def object_now(self) -> int:
        """Like `object`, for background work: reserve the number now, which takes a round trip."""
        number: int = await self._database.value("SELECT reserve_objects(1)")
        return number

    def forget(self) -> None:
        """Discard the reserved numbers of objects, because the ledger has refused one."""
        self._objects = iter(())


CACHED_PLACES_MAX: Final = 100_000


class _Place(NamedTuple):
    object_id: int
    position: int
    object_size: int


class ClusterChunks:
    """Implements ``contract.ChunkStore``. ``write`` prepares bytes, and a commit makes them chunks."""

    def __init__(self, database: Database, objects: Objects, settings: Settings) -> None:
        self._database = database
        self._settings = settings
        self.objects = objects
        self.numbers = Numbers(database, settings.semel_object_delete_delay_ms / 1000)
        self.cache = BlockCache(objects, settings.semel_block_cache_bytes)
        self._places: OrderedDict[int, _Place] = OrderedDict()

    # -- writing ------------------------------------------------------------------------------------------

    async def write(self, batches: Sequence[Buffer]) -> tuple[list[BatchLocation], Bytes]:
        """Prepare batches. Return their locations after a commit with these ``Bytes``. StoreRefused."""
        if sum(map(len, batches)) > self._settings.semel_inline_bytes_max:
            return await self.put(batches)
        chunk_id = await self.numbers.chunk()
        data = b"".join(batches)
        self.cache.keep(chunk_id, data)
        return _locations(chunk_id, batches), Bytes(inline=[(chunk_id, data)])

    async def put(self, batches: Sequence[Buffer]) -> tuple[list[BatchLocation], Bytes]:
        """Upload batches to objects, as ``write`` does if there are many bytes. StoreRefused.

        The upload does not depend on the decision, so it may precede it. All uploads run concurrently, within
        a call and between calls. The commit with these ``Bytes`` may omit some batches. It must follow soon,
        or it is refused. Without a commit the objects are deleted later.
        """
        groups = list(_groups(batches, self._settings.semel_object_bytes))
        numbers = [await self.numbers.object() for _ in groups]
        await asyncio.gather(*map(self.objects.put, numbers, groups))
        sizes = [sum(map(len, group)) for group in groups]
        for number, size in zip(numbers, sizes, strict=True):
            self._remember_place(number, _Place(number, 0, size))
        locations = [
            each for number, group in zip(numbers, groups, strict=True) for each in _locations(number, group)
        ]
        return locations, Bytes(objects=list(zip(numbers, sizes, strict=True)))

    # -- reading ------------------------------------------------------------------------------------------

    async def read(self, locations: Sequence[BatchLocation]) -> list[bytearray]:
        """Return the bytes at these locations, each in a new buffer. LookupError if one is gone. OSError."""
        inline: dict[int, bytes] = {}
        places: dict[int, _Place] = {}
        unknown: list[int] = []
        for chunk_id in dict.fromkeys(each.chunk_id for each in locations):
            if (data := self.cache.get(chunk_id)) is not None:
                inline[chunk_id] = data
            elif (place := self._places.get(chunk_id)) is not None:
                self._places.move_to_end(chunk_id)
                places[chunk_id] = place
            else:
                unknown.append(chunk_id)
        if unknown:
            await self._find(unknown, inline, places)
        found: list[bytearray] = [bytearray()] * len(locations)
        elsewhere: list[int] = []
        for at, (chunk_id, position, length) in enumerate(locations):
            if chunk_id in inline:
                found[at] = bytearray(memoryview(inline[chunk_id])[position : position + length])
                if len(found[at]) != length:
                    raise LookupError(f"chunk {chunk_id} is shorter than that")
            else:
                elsewhere.append(at)
        ranges = [_range(places, locations[at]) for at in elsewhere]
        for at, read in zip(elsewhere, await self.cache.read(ranges), strict=True):
            found[at] = read
        return found

    async def read_together(self, locations: Sequence[BatchLocation]) -> bytearray:
        """Like `read`, but return a single buffer."""
        return bytearray().join(await self.read(locations))

    def forget(self, location: BatchLocation) -> None:
        """Drop cached bytes that are damaged, so that the next read fetches them again."""
        self.cache.drop(location.chunk_id)
        if location.chunk_id in self._places:
            self.cache.drop_range(_range(self._places, location))

    async def _find(self, unknown: list[int], inline: dict[int, bytes], places: dict[int, _Place]) -> None:
        """Look up where chunks are, again for those found neither inline nor in an object: they were moved.

        A truncated table looks empty to a query that began before, so such a query may see the old location
        of a chunk and no bytes there. A second query sees the new location.
        """
        for _ in range(2):
            rows = await self._database.fetch(
                """
                SELECT chunk_id, bytes, object_id, object_position, size_bytes
                FROM chunks LEFT JOIN inline_bytes USING (chunk_id) LEFT JOIN objects USING (object_id)
                WHERE chunk_id = ANY ($1)
                """,
                unknown,
            )
            unknown = []
            for chunk_id, data, object_id, position, size in rows:
                if data is not None:
                    inline[chunk_id] = data
                    self.cache.keep(chunk_id, data)
                elif object_id is not None and size is None:
                    # The object may exist, but no reader may rely on that: see ``reconciling``.
                    raise LookupError(f"the ledger has lost the row of object {object_id:016x}")
                elif object_id is not None:
                    places[chunk_id] = _Place(object_id, position, size)
                    self._remember_place(chunk_id, places[chunk_id])
                else:
                    unknown.append(chunk_id)
            if not unknown:
                return

    # -- housekeeping -------------------------------------------------------------------------------------

    async def release(self, locations: Sequence[BatchLocation]) -> None:
        """Do nothing: the bytes of a chunk are deleted together, when the last of them is swept."""

    async def delete(self, chunk_id: int) -> None:
        """Forget a chunk, which the ledger has deleted."""
        self._places.pop(chunk_id, None)
        self.cache.drop(chunk_id)

    async def list_chunks(self) -> list[tuple[int, int]]:
        """Return every chunk and the space that it uses."""
        rows = await self._database.fetch("SELECT chunk_id, live_bytes FROM chunks ORDER BY chunk_id")
        return [(chunk_id, size) for chunk_id, size in rows]

    async def close(self) -> None:
        """Wait for the requests under way, and stop the threads."""
        await self.cache.close()
        self.objects.close()

    def _remember_place(self, chunk_id: int, place: _Place) -> None:
        self._places[chunk_id] = place
        if len(self._places) > CACHED_PLACES_MAX:
            self._places.popitem(last=False)


def _locations(chunk_id: int, batches: Iterable[Buffer]) -> list[BatchLocation]:
    locations: list[BatchLocation] = []
    position = 0
    for batch in batches:
        locations.append(BatchLocation(chunk_id, position, len(batch)))
        position += len(batch)
    return locations


def _groups(batches: Sequence[Buffer], bytes_max: int) -> Iterable[list[Buffer]]:
    """Group batches up to a size. A larger batch is a group by itself."""
    group: list[Buffer] = []
    size = 0
    for batch in batches:
        if group and size + len(batch) > bytes_max:
            yield group
            group, size = [], 0
        group.append(batch)
        size += len(batch)
    if group:
        yield group


def _range(places: dict[int, _Place], location: BatchLocation) -> ObjectRange:
    place = places.get(location.chunk_id)
    if place is None:
        raise LookupError(f"there is no chunk {location.chunk_id}")
    position = place.position + location.position
    return ObjectRange(place.object_id, position, location.length, place.object_size)
