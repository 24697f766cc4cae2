"""The bytes of a cluster's batches: of small commits in PostgreSQL, of large ones in objects.

A chunk holds the bytes of one commit and never changes.
"""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Final, NamedTuple

from semel.core.types import Buffer
from semel.store.interface import BatchLocation
from semel.store.objects import Objects
from semel.store.postgres.database import Database
from semel.store.postgres.fold import Bytes

INLINE_BYTES_MAX: Final = 256 * 1024
CACHE_BYTES_MAX: Final = 64 * 1024 * 1024
CACHED_CHUNKS_MAX: Final = 100_000
BLOCK: Final = 1_000
"""Chunk ids that are taken at once: the increment of the sequence."""


class _Place(NamedTuple):
    object_id: int
    position: int


class ClusterChunks:
    """Implements ``interface.ChunkStore``. ``write`` prepares bytes, and a commit makes them a chunk."""

    def __init__(self, database: Database, objects: Objects) -> None:
        self._database = database
        self.objects = objects
        self._ids = iter(range(0))
        self._inline: OrderedDict[int, bytes] = OrderedDict()
        self._inline_bytes = 0
        self._places: OrderedDict[int, _Place] = OrderedDict()

    async def write(self, batches: Sequence[Buffer]) -> tuple[list[BatchLocation], Bytes]:
        """Return the locations of batches after a commit with these ``Bytes``. StoreRefused."""
        chunk_id = await self._next_id()
        locations: list[BatchLocation] = []
        position = 0
        for batch in batches:
            locations.append(BatchLocation(chunk_id, position, len(batch)))
            position += len(batch)
        if position <= INLINE_BYTES_MAX:
            data = b"".join(batches)
            self._remember(chunk_id, data)
            return locations, Bytes(inline=[(chunk_id, data)])
        await self.objects.put(chunk_id, batches)
        self._remember_place(chunk_id, _Place(chunk_id, 0))
        return locations, Bytes(objects=[(chunk_id, position)])

    async def _next_id(self) -> int:
        number = next(self._ids, None)
        if number is None:
            first = await self._database.value("SELECT nextval('chunk_ids')")
            self._ids = iter(range(first, first + BLOCK))
            number = next(self._ids)
        return number

    async def read(self, locations: Sequence[BatchLocation]) -> list[bytearray]:
        """Return the bytes at these locations, each in a new buffer. LookupError if one is gone. OSError."""
        wanted = dict.fromkeys(each.chunk_id for each in locations)
        inline = {each: self._inline[each] for each in wanted if each in self._inline}
        places = {each: self._places[each] for each in wanted if each in self._places}
        if unknown := [each for each in wanted if each not in inline and each not in places]:
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
        for at, data in zip(elsewhere, await self.objects.read(ranges), strict=True):
            found[at] = bytearray(data)
        return found

    async def read_together(self, locations: Sequence[BatchLocation]) -> bytearray:
        """Like `read`, but return a single buffer."""
        return bytearray().join(await self.read(locations))

    async def _find(self, unknown: list[int], inline: dict[int, bytes], places: dict[int, _Place]) -> None:
        rows = await self._database.fetch(
            """
            SELECT chunk_id, object_id, object_position, bytes
            FROM chunks LEFT JOIN inline_bytes USING (chunk_id) WHERE chunk_id = ANY ($1)
            """,
            unknown,
        )
        for chunk_id, object_id, position, data in rows:
            if data is not None:
                inline[chunk_id] = data
                self._remember(chunk_id, data)
            elif object_id is not None:
                places[chunk_id] = _Place(object_id, position)
                self._remember_place(chunk_id, places[chunk_id])

    async def release(self, locations: Sequence[BatchLocation]) -> None:
        """Nothing: the bytes of a chunk are deleted together, when the last of them is swept."""

    async def delete(self, chunk_id: int) -> None:
        """Forget a chunk, which the ledger has deleted."""
        self._places.pop(chunk_id, None)
        self._inline_bytes -= len(self._inline.pop(chunk_id, b""))

    async def list_chunks(self) -> list[tuple[int, int]]:
        """Return every chunk and the space that it uses."""
        rows = await self._database.fetch("SELECT chunk_id, live_bytes FROM chunks ORDER BY chunk_id")
        return [(chunk_id, size) for chunk_id, size in rows]

    async def close(self) -> None:
        """End the threads."""
        self.objects.close()

    def _remember(self, chunk_id: int, data: bytes) -> None:
        if chunk_id in self._inline:
            # Another read has found it meanwhile.
            return
        self._inline[chunk_id] = data
        self._inline_bytes += len(data)
        while self._inline_bytes > CACHE_BYTES_MAX:
            self._inline_bytes -= len(self._inline.popitem(last=False)[1])

    def _remember_place(self, chunk_id: int, place: _Place) -> None:
        self._places[chunk_id] = place
        if len(self._places) > CACHED_CHUNKS_MAX:
            self._places.popitem(last=False)


def _range(places: dict[int, _Place], location: BatchLocation) -> BatchLocation:
    place = places.get(location.chunk_id)
    if place is None:
        raise LookupError(f"there is no chunk {location.chunk_id}")
    return BatchLocation(place.object_id, place.position + location.position, location.length)
