"""Hold the bytes of a cluster's batches: of small commits in PostgreSQL, of large ones in objects.

A chunk holds the bytes of one commit and never changes. The roller moves small ones to an object later
(``roller``).

Reserve numbers of chunks and objects, in blocks, so that a commit needs no round trip for them.

The number of an object gets a row before the object is uploaded (``chunks.sql``: objects), and a commit can
refer to it only while it has that row. So an object whose commit never came is known, and can be deleted.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from semel.config import Settings
from semel.core.types import Buffer
from semel.store.cluster.bytes.block_cache import BlockCache, Range
from semel.store.cluster.bytes.objects import Objects
from semel.store.cluster.commit_calls import Bytes
from semel.store.cluster.postgres.database import Database
from semel.store.contract import BatchLocation

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


def _range(places: dict[int, _Place], location: BatchLocation) -> Range:
    place = places.get(location.chunk_id)
    if place is None:
        raise LookupError(f"there is no chunk {location.chunk_id}")
    position = place.position + location.position
    return Range(place.object_id, position, location.length, place.object_size)
