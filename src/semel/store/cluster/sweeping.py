"""Delete unreachable rows: of deleted topics, below log starts, and of dropped batches.

Several brokers may sweep at once, and during commits: the sweep that deletes a row frees its bytes.
"""

from collections import Counter
from collections.abc import Iterable
from typing import Any, Final

from semel.store.contract import BatchLocation

GONE: Final = 2**63 - 1
"""A leftover below this offset means that the partition was deleted."""
_LEFTOVERS: Final = "SELECT * FROM leftovers ORDER BY topic_id, partition_index LIMIT $1"


async def leftovers(connection: Any, limit: int) -> list[BatchLocation]:
    """Return the locations of up to ``limit`` rows that the next sweep deletes."""
    found: list[BatchLocation] = []
    rows = await connection.fetch(_LEFTOVERS, limit)
    for topic_id, index, below in rows:
        if limit <= 0:
            break
        batches = await _batches(connection, topic_id, index, below, limit)
        found += [location for _, location in batches]
        limit -= max(len(batches), 1)
    return found + await _dropped(connection, limit)


async def sweep(connection: Any, limit: int) -> tuple[list[BatchLocation], bool]:
    """Delete up to ``limit`` rows. Return the locations that they freed, and whether there are more."""
    freed: list[BatchLocation] = []
    for topic_id, index, below in await connection.fetch(_LEFTOVERS, limit):
        if limit <= 0:
            break
        swept = await _sweep_partition(connection, topic_id, index, below, limit)
        freed += swept
        # A partition without batches counts too: a topic may have many of them.
        limit -= max(len(swept), 1)
    freed += await _sweep_dropped(connection, limit)
    await free(connection, freed)
    more: bool = await connection.fetchval(
        "SELECT EXISTS (SELECT FROM leftovers) OR EXISTS (SELECT FROM dropped)"
    )
    return freed, more


async def free(connection: Any, locations: Iterable[BatchLocation]) -> None:
    """Subtract freed bytes from their chunks. Delete empty chunks, and mark empty objects as unused."""
    sizes: Counter[int] = Counter()
    for chunk_id, _, length in locations:
        sizes[chunk_id] += length
    # In order, because the roller and other sweeps lock chunks too.
    await connection.execute(
        "SELECT FROM chunks WHERE chunk_id = ANY ($1) ORDER BY chunk_id FOR UPDATE", list(sizes)
    )
    await connection.execute(
        """
        UPDATE chunks SET live_bytes = live_bytes - freed.length
        FROM unnest($1::bigint[], $2::bigint[]) AS freed (chunk_id, length)
        WHERE chunks.chunk_id = freed.chunk_id
        """,
        list(sizes),
        list(sizes.values()),
    )
    rows = await connection.fetch(
        "DELETE FROM chunks WHERE chunk_id = ANY ($1) AND live_bytes = 0 RETURNING object_id", list(sizes)
    )
    left = sorted({number for (number,) in rows if number is not None})
    # Two sweeps may each delete one of an object's last two chunks. The lock lets the second see the first.
    await connection.execute(
        "SELECT FROM objects WHERE object_id = ANY ($1) ORDER BY object_id FOR UPDATE", left
    )
    await connection.execute(
        """
        UPDATE objects SET state = 'unused', since = clock_timestamp()
        WHERE object_id = ANY ($1) AND state = 'stored'
        AND NOT EXISTS (SELECT FROM chunks WHERE chunks.object_id = objects.object_id)
        """,
        left,
    )


async def _sweep_partition(
    connection: Any, topic_id: bytes, index: int, below: int, limit: int
) -> list[BatchLocation]:
    partition = (topic_id, index)
    rows = await connection.fetch(
        """
        DELETE FROM batches WHERE topic_id = $1 AND partition_index = $2 AND base_offset = ANY (
            SELECT base_offset FROM batches
            WHERE topic_id = $1 AND partition_index = $2 AND base_offset < $3 AND last_offset < $3
            ORDER BY base_offset LIMIT $4
        )
        RETURNING base_offset, chunk_id, position, length
        """,
        *partition,
        below,
        limit,
    )
    if len(rows) < limit:
        await connection.execute(
            "DELETE FROM aborted WHERE topic_id = $1 AND partition_index = $2 AND marker_offset < $3",
            *partition,
            below,
        )
        if below == GONE:
            for table in ("producers", "merged"):
                await connection.execute(
                    f"DELETE FROM {table} WHERE topic_id = $1 AND partition_index = $2", *partition
                )
        # Look again: a commit may have left more rows, and another sweep may have taken rows before this one.
        await connection.execute(
            """
            DELETE FROM leftovers WHERE topic_id = $1 AND partition_index = $2 AND below_offset = $3
            AND NOT EXISTS (
                SELECT FROM batches
                WHERE topic_id = $1 AND partition_index = $2 AND base_offset < $3 AND last_offset < $3
            )
            """,
            *partition,
            below,
        )
    return [BatchLocation(*location) for _, *location in sorted(map(tuple, rows))]


async def _sweep_dropped(connection: Any, limit: int) -> list[BatchLocation]:
    rows = await connection.fetch(
        """
        DELETE FROM dropped WHERE (chunk_id, position) IN (
            SELECT chunk_id, position FROM dropped ORDER BY chunk_id, position LIMIT $1 FOR UPDATE
        )
        RETURNING chunk_id, position, length
        """,
        max(limit, 0),
    )
    return sorted(BatchLocation(*row) for row in rows)


async def _batches(
    connection: Any, topic_id: bytes, index: int, below: int, limit: int
) -> list[tuple[int, BatchLocation]]:
    rows = await connection.fetch(
        """
        SELECT base_offset, chunk_id, position, length FROM batches
        WHERE topic_id = $1 AND partition_index = $2 AND base_offset < $3 AND last_offset < $3
        ORDER BY base_offset LIMIT $4
        """,
        topic_id,
        index,
        below,
        limit,
    )
    return [(base_offset, BatchLocation(*location)) for base_offset, *location in rows]


async def _dropped(connection: Any, limit: int) -> list[BatchLocation]:
    rows = await connection.fetch("SELECT * FROM dropped ORDER BY chunk_id, position LIMIT $1", max(limit, 0))
    return [BatchLocation(*row) for row in rows]
