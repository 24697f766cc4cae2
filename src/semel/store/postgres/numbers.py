"""Numbers of chunks and objects. They are taken in blocks, so a commit needs no round trip for them.

The number of an object is written down before the object is uploaded (``chunks.sql``: objects), and a commit
can refer to it only as long as it is. So an object whose commit never came is known, and can be deleted.
"""

import asyncio
from collections.abc import Iterator
from typing import Final

from semel.store.postgres.database import Database

BLOCK: Final = 1_000
"""Numbers that the sequence counts on at once."""
RESERVED: Final = 50
"""Numbers of objects that are reserved at once. Those that are not used in time are rows to delete."""


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
        """Return a number for an object, and for the chunk that it is uploaded for. StoreRefused."""
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
        """Like `object`, for work in the background: reserved at this moment, however long that takes."""
        number: int = await self._database.value("SELECT reserve_objects(1)")
        return number

    def forget(self) -> None:
        """Use no number that was reserved before: the ledger has refused one."""
        self._objects = iter(())
