"""Merge old batches: move those of a partition side by side into large objects, with one row per run.

A run is a row of the ledger for many batches. Commits mix the bytes of many partitions, and every
batch has a row. Without merging, a reader of one partition would read the others' bytes too, and the ledger
would grow with every batch that is kept.

Readers notice nothing: batches and offsets stay the same, and the old bytes stay for a while. The swap is one
transaction. It locks the rows that it replaces and compares them with those that were read, because the log
start may have moved, or compaction or another broker may have replaced them. It does not change rows of
``partitions``, so compaction locks rows of ``batches`` too before it reads them (``replacing.sql``).

Topics with compaction are not merged, because compaction rewrites batches anyway. If a topic gets that policy
later, compaction splits the runs that it changes.

The batches of a run are adjacent, in offsets and in bytes. So arrays of their ends, lengths and timestamps
suffice to locate each batch, and readers see batches, however they are stored.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final, NamedTuple

from semel.config import Settings
from semel.core.types import PartitionKey
from semel.store.cluster.bytes.chunks import ClusterChunks
from semel.store.cluster.bytes.roller import always
from semel.store.cluster.postgres.database import Database
from semel.store.cluster.sweeping import free
from semel.store.contract import BatchLocation, StoredBatch, StoreRefused
from semel.wire.batch import HEADER_BYTES, has_valid_crc, read_header


def batches_of(row: Mapping[str, Any]) -> Iterator[StoredBatch]:
    """Yield the batches of a row of ``batches``."""
    chunk_id, position = row["chunk_id"], row["position"]
    base_offset: int = row["base_offset"]
    if row["run_ends"] is None:
        location = BatchLocation(chunk_id, position, row["length"])
        yield StoredBatch(base_offset, row["last_offset"], row["max_timestamp"], location)
        return
    start = base_offset
    columns = (row["run_ends"], row["run_lengths"], row["run_timestamps"])
    for end, length, max_timestamp in zip(*columns, strict=True):
        location = BatchLocation(chunk_id, position, length)
        yield StoredBatch(start, base_offset + end, max_timestamp, location)
        start = base_offset + end + 1
        position += length


class Merging(NamedTuple):
    """A row that is to become part of a run."""

    batch: StoredBatch
    peak_timestamp: int
    source: BatchLocation
    """Where its bytes are now: an object, and a range of it."""


def columns_of(run: Sequence[Merging]) -> tuple[Any, ...]:
    """Return the columns from run_ends on: None for a single batch."""
    if len(run) == 1:
        return None, None, None
    base_offset = run[0].batch.base_offset
    return (
        [each.batch.last_offset - base_offset for each in run],
        [each.batch.location.length for each in run],
        [each.batch.max_timestamp for each in run],
    )


def runs_in(rows: Sequence[Merging | None], bytes_max: int, batches_max: int) -> list[list[Merging]]:
    """Divide consecutive rows into runs. None stands for rows that are not merged.

    The rows after the last complete run are left out, because more will follow.
    """
    runs: list[list[Merging]] = []
    run: list[Merging] = []
    size = 0
    for row in rows:
        if run and (
            row is None
            or row.batch.base_offset != run[-1].batch.last_offset + 1
            or size + row.batch.location.length > bytes_max
            or len(run) == batches_max
        ):
            runs.append(run)
            run, size = [], 0
        if row is not None:
            run.append(row)
            size += row.batch.location.length
    if size >= bytes_max or len(run) == batches_max:
        runs.append(run)
    return runs


log = logging.getLogger("semel.store")

RUN_BYTES: Final = 1024 * 1024
RUN_BATCHES: Final = 1_000
OBJECT_BYTES: Final = 32 * 1024 * 1024
"""The size of a merged object, which is in memory while it is made."""
PARTITIONS: Final = 100
"""Partitions per query."""


@dataclass(frozen=True, slots=True, eq=False)
class _Run:
    partition: PartitionKey
    rows: Sequence[Merging]
    data: Sequence[bytes]

    @property
    def size(self) -> int:
        return sum(map(len, self.data))


class Merger:
    """Merges the batches of one cluster."""

    def __init__(self, database: Database, chunks: ClusterChunks, settings: Settings) -> None:
        self._database = database
        self._chunks = chunks
        self._interval_seconds = settings.semel_merge_interval_ms / 1000
        self._age_seconds = settings.semel_merge_age_ms / 1000
        self._policy = settings.log_cleanup_policy

    async def run(self, is_mine: Callable[[], bool] = always) -> None:
        """Merge at intervals until cancelled, while the job is this broker's."""
        while self._interval_seconds > 0:
            await asyncio.sleep(self._interval_seconds)
            try:
                while is_mine() and await self.merge_once():
                    pass
            except (StoreRefused, OSError) as error:
                log.warning("old batches are merged later: %s", error)

    async def merge_once(self) -> int:
        """Go through all partitions once. Return how many rows were merged. StoreRefused, OSError."""
        merged = 0
        waiting: list[_Run] = []
        size = 0
        after = (b"", -1)
        while candidates := await self._candidates(after):
            for key, first_offset in candidates:
                for run in await self._runs(key, first_offset):
                    waiting.append(run)
                    size += run.size
                    if size >= OBJECT_BYTES:
                        merged += await self._swap(waiting)
                        waiting, size = [], 0
            after = candidates[-1][0].topic_id, candidates[-1][0].index
        if waiting:
            merged += await self._swap(waiting)
        return merged

    async def _candidates(self, after: tuple[bytes, int]) -> list[tuple[PartitionKey, int]]:
        """Return partitions that may have enough for a run, and the first offset that is not merged.

        Partitions are listed by topics, because an old snapshot keeps all versions of their own rows.
        """
        rows = await self._database.fetch(
            """
            SELECT topic_id, partition_index, first_offset
            FROM (
                SELECT topic_id, partition_index, high_watermark,
                    batch_holding(topic_id, partition_index, greatest(log_start_offset, next_offset))
                        AS first_offset
                FROM (
                    SELECT topic_id, partition_index
                    FROM topics CROSS JOIN generate_series(0, partitions - 1) AS partition_index
                    WHERE (topic_id, partition_index) > ($1, $2)
                    AND coalesce(configs::json ->> 'cleanup.policy', $6) NOT LIKE '%compact%'
                    ORDER BY topic_id, partition_index
                ) AS keys CROSS JOIN LATERAL (
                    SELECT log_start_offset, high_watermark FROM partitions
                    WHERE partitions.topic_id = keys.topic_id
                    AND partitions.partition_index = keys.partition_index
                    ORDER BY generation DESC LIMIT 1
                ) AS newest LEFT JOIN merged USING (topic_id, partition_index)
            ) AS each CROSS JOIN LATERAL (
                SELECT count(*) AS number, sum(length) AS size FROM (
                    SELECT length FROM batches
                    WHERE batches.topic_id = each.topic_id
                    AND batches.partition_index = each.partition_index
                    AND base_offset >= first_offset ORDER BY base_offset LIMIT $4
                ) AS next_ones
            ) AS waiting
            WHERE first_offset < high_watermark AND (number >= $4 OR size >= $5)
            ORDER BY topic_id, partition_index LIMIT $3
            """,
            *after,
            PARTITIONS,
            RUN_BATCHES,
            RUN_BYTES,
            self._policy,
        )
        return [(PartitionKey(topic_id, index), offset) for topic_id, index, offset in rows]

    async def _runs(self, key: PartitionKey, first_offset: int) -> list[_Run]:
        """Return the next runs of a partition, up to the size of an object, with their bytes."""
        rows = await self._database.fetch(
            """
            SELECT base_offset, last_offset, max_timestamp, chunk_id, position, length, peak_timestamp,
                object_id, object_position + position,
                run_ends IS NOT NULL,
                -- If the clock was set back, it is not waited for.
                clock_timestamp() NOT BETWEEN since AND since + make_interval(secs => $4)
            FROM batches LEFT JOIN chunks USING (chunk_id) LEFT JOIN objects USING (object_id)
            WHERE topic_id = $1 AND partition_index = $2 AND base_offset >= $3
            ORDER BY base_offset LIMIT $5
            """,
            *key.values(),
            first_offset,
            self._age_seconds,
            # One more row, which shows that a run of the most batches is complete.
            RUN_BATCHES * 4 + 1,
        )
        found: list[Merging | None] = []
        size = 0
        for base, last, timestamp, *location, peak, object_id, position, is_run, is_old in rows:
            length = location[2]
            if not is_old or size + length > OBJECT_BYTES:
                break
            size += length
            batch = StoredBatch(base, last, timestamp, BatchLocation(*location))
            source = BatchLocation(object_id, position, length)
            found.append(None if is_run else Merging(batch, peak, source))
        runs = runs_in(found, RUN_BYTES, RUN_BATCHES)
        try:
            data = iter(await self._chunks.objects.read([row.source for run in runs for row in run]))
        except LookupError as error:
            log.error("batches of %s are not merged, from offset %d: %s", key, first_offset, error)
            return []
        whole: list[_Run] = []
        for run in runs:
            pieces = [next(data) for _ in run]
            if not all(map(_is_whole, pieces)):
                # They stay where they are: perhaps only this read was damaged.
                first = run[0].batch.base_offset
                log.error("damaged batches of %s are not merged, from offset %d", key, first)
                continue
            whole.append(_Run(key, run, pieces))
        return whole

    async def _swap(self, runs: Sequence[_Run]) -> int:
        """Upload runs as one object, and replace their rows. Return how many rows were replaced."""
        number = await self._chunks.numbers.object_now()
        await self._chunks.objects.put(number, [piece for run in runs for piece in run.data])
        async with self._database.transaction() as connection:
            same = await self._unchanged(connection, runs)
            new: list[tuple[Any, ...]] = []
            position = 0
            for run in runs:
                if run in same:
                    new.append(_row_of(run, number, position))
                position += run.size
            if not new:
                return 0
            await self._delete(connection, same)
            await connection.execute("INSERT INTO batches SELECT * FROM unnest($1::batches[])", new)
            await connection.execute("SELECT store_objects($1)", [(number, position, None, None)])
            await connection.execute(
                "INSERT INTO chunks VALUES ($1, $2, $1, 0)", number, sum(run.size for run in same)
            )
            await free(connection, [row.batch.location for run in same for row in run.rows])
            await self._note(connection, same)
        return sum(len(run.rows) for run in same)

    async def _unchanged(self, connection: Any, runs: Sequence[_Run]) -> list[_Run]:
        """Lock the rows of runs. Return each partition's runs up to the first one that was changed."""
        # Run by run, in the order of keys. A join that is sorted as a whole would read all batches there are.
        rows = await connection.fetch(
            """
            SELECT run.* FROM unnest($1::bytea[], $2::integer[], $3::bigint[], $4::bigint[])
                AS wanted (topic, index, first_offset, end_offset)
            CROSS JOIN LATERAL (
                SELECT topic_id, partition_index, base_offset, last_offset, max_timestamp,
                    chunk_id, position, length
                FROM batches WHERE topic_id = topic AND partition_index = index
                AND base_offset BETWEEN first_offset AND end_offset
                ORDER BY base_offset FOR UPDATE
            ) AS run
            """,
            *_ranges(runs),
        )
        found = {
            (PartitionKey(topic_id, index), base): StoredBatch(base, last, at, BatchLocation(*location))
            for topic_id, index, base, last, at, *location in rows
        }
        same: list[_Run] = []
        for key, own in groupby(runs, lambda run: run.partition):
            for run in own:
                if any(found.get((key, row.batch.base_offset)) != row.batch for row in run.rows):
                    break
                same.append(run)
        return same

    async def _delete(self, connection: Any, runs: Sequence[_Run]) -> None:
        await connection.execute(
            """
            DELETE FROM batches USING unnest($1::bytea[], $2::integer[], $3::bigint[], $4::bigint[])
                AS gone (topic_id, partition_index, first_offset, end_offset)
            WHERE batches.topic_id = gone.topic_id AND batches.partition_index = gone.partition_index
            AND base_offset BETWEEN first_offset AND end_offset
            """,
            *_ranges(runs),
        )

    async def _note(self, connection: Any, runs: Sequence[_Run]) -> None:
        """Note how far partitions are merged."""
        reached = {run.partition: run.rows[-1].batch.last_offset + 1 for run in runs}
        await connection.executemany(
            """
            INSERT INTO merged VALUES ($1, $2, $3)
            ON CONFLICT (topic_id, partition_index) DO UPDATE SET next_offset = excluded.next_offset
            """,
            [
                (*key.values(), offset)
                for key, offset in sorted(reached.items(), key=lambda each: each[0].values())
            ],
        )


def _ranges(runs: Sequence[_Run]) -> tuple[list[bytes], list[int], list[int], list[int]]:
    return (
        [run.partition.topic_id for run in runs],
        [run.partition.index for run in runs],
        [run.rows[0].batch.base_offset for run in runs],
        [run.rows[-1].batch.last_offset for run in runs],
    )


def _row_of(run: _Run, chunk_id: int, position: int) -> tuple[Any, ...]:
    first, last = run.rows[0].batch, run.rows[-1].batch
    max_timestamp = max(row.batch.max_timestamp for row in run.rows)
    return (
        *run.partition.values(),
        *(first.base_offset, last.last_offset, max_timestamp, run.rows[-1].peak_timestamp),
        *(chunk_id, position, run.size),
        *columns_of(run.rows),
    )


def _is_whole(data: bytes) -> bool:
    """Whether this is a batch with the right checksum."""
    if len(data) < HEADER_BYTES:
        return False
    header = read_header(data)
    return header.length == len(data) and has_valid_crc(data, 0, header)
