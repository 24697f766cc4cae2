"""Move the bytes of small commits from PostgreSQL to objects.

Commits write their bytes to one of a few tables, the current generation. When it is large or old enough, the
roller makes the next table current. It moves the rows of the other tables to objects, many to an object, and
then truncates the tables. One transaction per object records the new locations of its chunks.

Several rollers at once are harmless: a chunk is moved once, and an object without a chunk is deleted later. A
table is truncated only if no chunk in it has to be moved, which is checked under a lock against writers.
Until then the bytes of a moved chunk are in both places.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from semel.config import Settings
from semel.store.cluster.bytes.chunks import ClusterChunks
from semel.store.cluster.postgres.database import Database
from semel.store.contract import LedgerDamaged, StoreRefused

log = logging.getLogger("semel.store")

GENERATIONS: Final = 4
CHECKS: Final = 4
"""How often the roller checks within ``semel.roll.interval.ms``."""
PAGE: Final = 2_000
"""Chunks of one object at most."""
LOCK_MS: Final = 50
"""How long the roller waits for earlier readers of a table. Later readers wait behind it meanwhile."""

_NOT_MOVED: Final = """
    CROSS JOIN LATERAL (
        SELECT FROM chunks WHERE chunks.chunk_id = small.chunk_id AND object_id IS NULL OFFSET 0
    ) AS waiting
"""
"""Of the rows of an inline table (``small``), those whose chunk is not in an object.

Chunks are looked up one by one. A join in the order of their numbers would read ``chunks`` from the
beginning: chunks of all ages, and every version that an old snapshot keeps.
"""


def always() -> bool:
    """Return that the job is this broker's: the default of ``run``."""
    return True


class _Look(NamedTuple):
    current: int
    is_due: bool
    """Whether the current generation is large or old enough."""
    filled: Sequence[bool]
    """Which generations have rows."""


class Roller:
    """Moves the chunks of one cluster."""

    def __init__(self, database: Database, chunks: ClusterChunks, settings: Settings) -> None:
        self._database = database
        self._chunks = chunks
        self._object_bytes = settings.semel_object_bytes
        self._interval_seconds = settings.semel_roll_interval_ms / 1000

    async def run(self, is_mine: Callable[[], bool] = always) -> None:
        """Roll at intervals until cancelled, while the job is this broker's. Never if the interval is 0."""
        while self._interval_seconds > 0:
            await asyncio.sleep(self._interval_seconds / CHECKS)
            if is_mine():
                try:
                    await self.roll_once()
                except (StoreRefused, OSError) as error:
                    log.warning("the bytes of small commits stay in PostgreSQL for now: %s", error)

    async def roll_once(self) -> int:
        """Move the chunks that are due. Return their number. StoreRefused."""
        look = await self._look()
        current, filled = look.current, list(look.filled)
        moved = 0
        for generation in range(GENERATIONS):
            if filled[generation] and generation != current:
                moved += await self._move_all(generation)
                filled[generation] = not await self._is_truncated(generation)
        if look.is_due and filled[current] and not filled[(current + 1) % GENERATIONS]:
            await self._advance(current)
            moved += await self._move_all(current)
            await self._is_truncated(current)
        return moved

    async def _look(self) -> "_Look":
        row = await self._database.row(
            """
            SELECT generation,
                -- If the clock was set back, it is not waited for.
                clock_timestamp() NOT BETWEEN since AND since + make_interval(secs => $1)
                OR pg_table_size(format('inline_%s', generation)::regclass) >= $2,
                EXISTS (SELECT FROM inline_0), EXISTS (SELECT FROM inline_1),
                EXISTS (SELECT FROM inline_2), EXISTS (SELECT FROM inline_3)
            FROM inline_generation
            """,
            self._interval_seconds,
            self._object_bytes,
        )
        if row is None:
            raise LedgerDamaged("the ledger has lost the row of inline_generation")
        current, is_due, *filled = row
        return _Look(current, is_due, filled)

    async def _advance(self, current: int) -> None:
        """Make the next table current, unless another roller has done so."""
        await self._database.row(
            """
            UPDATE inline_generation SET generation = $2, since = clock_timestamp() WHERE generation = $1
            """,
            current,
            (current + 1) % GENERATIONS,
        )

    async def _move_all(self, generation: int) -> int:
        moved = 0
        after = 0
        while rows := await self._database.fetch(
            f"""
            SELECT chunk_id, octet_length(bytes) FROM inline_{generation} AS small {_NOT_MOVED}
            WHERE chunk_id > $1 ORDER BY chunk_id LIMIT {PAGE}
            """,
            after,
        ):
            ids: list[int] = []
            size = 0
            for chunk_id, length in rows:
                if ids and size + length > self._object_bytes:
                    break
                ids.append(chunk_id)
                size += length
            after = ids[-1]
            moved += await self._move(generation, ids)
        return moved

    async def _move(self, generation: int, ids: list[int]) -> int:
        """Move chunks to one object. Return how many were moved; others were moved or deleted meanwhile."""
        rows = await self._database.fetch(
            f"SELECT chunk_id, bytes FROM inline_{generation} WHERE chunk_id = ANY ($1) ORDER BY chunk_id",
            ids,
        )
        if not rows:
            # Another roller was faster.
            return 0
        positions: list[int] = []
        size = 0
        for _, data in rows:
            positions.append(size)
            size += len(data)
        number = await self._chunks.numbers.object_now()
        await self._chunks.objects.put(number, [data for _, data in rows])
        async with self._database.transaction() as connection:
            # In order, because sweeps lock chunks too. Chunks that were deleted meanwhile are not moved.
            found = await connection.fetch(
                """
                SELECT chunk_id FROM chunks WHERE chunk_id = ANY ($1) AND object_id IS NULL
                ORDER BY chunk_id FOR UPDATE
                """,
                [chunk_id for chunk_id, _ in rows],
            )
            if found:
                # First, because this is refused if the object may be deleted.
                await connection.execute("SELECT store_objects($1)", [(number, size, None, None)])
                await connection.execute(
                    """
                    UPDATE chunks SET object_id = $1, object_position = moved.position
                    FROM unnest($2::bigint[], $3::bigint[]) AS moved (chunk_id, position)
                    WHERE chunks.chunk_id = moved.chunk_id AND object_id IS NULL
                    """,
                    number,
                    [chunk_id for chunk_id, _ in rows],
                    positions,
                )
        return len(found)

    async def _is_truncated(self, generation: int) -> bool:
        """Truncate a table if all its chunks are moved or deleted, unless a long read holds it."""
        with contextlib.suppress(StoreRefused):
            async with self._database.transaction() as connection:
                # Later readers wait behind this lock, so do not wait for it long.
                await connection.execute(f"SET LOCAL lock_timeout = {LOCK_MS}")
                await connection.execute(f"LOCK TABLE inline_{generation} IN ACCESS EXCLUSIVE MODE")
                # A commit may have written here after the generation has changed.
                if await connection.fetchval(
                    f"SELECT EXISTS (SELECT FROM inline_{generation} AS small {_NOT_MOVED})"
                ):
                    return False
                await connection.execute(f"TRUNCATE inline_{generation}")
                return True
        return False
