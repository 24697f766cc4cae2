"""Reserve numbers of chunks and objects, in blocks, so that a commit needs no round trip for them.

The number of an object gets a row before the object is uploaded (``chunks.sql``: objects), and a commit can
refer to it only while it has that row. So an object whose commit never came is known, and can be deleted.
"""

import asyncio
from collections.abc import Iterator
from typing import Final

from semel.store.cluster.postgres.database import Database

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
