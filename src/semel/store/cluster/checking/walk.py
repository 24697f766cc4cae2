"""Check the batches of a partition: are they contiguous, and do their bytes exist?

One statement reads a page of batches and the row of the partition, so they belong to one snapshot. In a
partition that compaction has changed, gaps are legitimate; the size of the partition reveals a batch that is
missing there.
"""

from collections.abc import AsyncIterator
from typing import Any, Final, NamedTuple

from semel.core.types import PartitionKey
from semel.store.cluster.bytes.merging import batches_of
from semel.store.cluster.checking.rows import RESTORE, Finding
from semel.store.rows import unpack_open_transactions, unpack_staged

PAGE: Final = 2_000
_LOST: Final = f"{RESTORE}, or have readers continue behind them: their records are lost"
_PAGE: Final = """
    SELECT log_start_offset, high_watermark, compactions, partitions.size_bytes, batches.*,
        chunks.chunk_id IS NOT NULL AS has_chunk,
        chunks.object_position + batches.position + batches.length > objects.size_bytes AS is_beyond
    FROM partitions LEFT JOIN LATERAL (
        SELECT * FROM batches
        WHERE batches.topic_id = $1 AND batches.partition_index = $2
        AND base_offset >= batch_holding($1, $2, greatest($3, log_start_offset))
        ORDER BY base_offset LIMIT $4
    ) AS batches ON true
    LEFT JOIN chunks ON chunks.chunk_id = batches.chunk_id LEFT JOIN objects USING (object_id)
    WHERE partitions.topic_id = $1 AND partitions.partition_index = $2
    ORDER BY base_offset
"""
_SIZE: Final = """
    SELECT size_bytes - (
        SELECT coalesce(sum(length), 0) FROM batch_sizes
        WHERE batch_sizes.topic_id = partitions.topic_id
        AND batch_sizes.partition_index = partitions.partition_index
        AND row_offset >= batch_holding(topic_id, partition_index, log_start_offset)
        AND last_offset >= log_start_offset
    )::bigint
    FROM partitions WHERE topic_id = $1 AND partition_index = $2
"""
_TRANSACTIONS: Final = """
    SELECT open_transactions, last_aborted_offset < log_start_offset OR compactions > 0 OR EXISTS (
        SELECT FROM aborted WHERE aborted.topic_id = partitions.topic_id
        AND aborted.partition_index = partitions.partition_index AND marker_offset = last_aborted_offset
    ) AS has_aborted,
    ARRAY(
        SELECT (producer_id, transaction_first_offset, staged, (
            SELECT count(*) FROM staged WHERE staged.topic_id = producers.topic_id
            AND staged.partition_index = producers.partition_index
            AND staged.producer_id = producers.producer_id
        ), EXISTS (SELECT FROM transactions
            WHERE producers.producer_id IN (transactions.producer_id, previous_producer_id)
        ))
        FROM producers WHERE producers.topic_id = partitions.topic_id
        AND producers.partition_index = partitions.partition_index
        AND (transaction_first_offset >= 0 OR octet_length(staged) > 0)
    ) AS producers,
    ARRAY(
        SELECT DISTINCT producer_id FROM staged WHERE staged.topic_id = partitions.topic_id
        AND staged.partition_index = partitions.partition_index
    ) AS staging
    FROM partitions WHERE topic_id = $1 AND partition_index = $2
"""


class _Seen(NamedTuple):
    """The partition in the snapshot of a page."""

    log_start_offset: int
    high_watermark: int
    compactions: int
    size_bytes: int


class Walk:
    """Checks one partition."""

    def __init__(self, connection: Any, topic: str, key: PartitionKey) -> None:
        self._connection = connection
        self._key = key
        self._name = f"{topic}-{key.index}"
        self.batches = 0

    async def problems(self) -> AsyncIterator[Finding]:
        """Yield findings. None if the partition is deleted meanwhile."""
        first: _Seen | None = None
        expected = total = 0
        is_whole = True
        while rows := await self._connection.fetch(_PAGE, *self._key.values(), expected, PAGE):
            seen = _Seen._make(tuple(rows[0])[: len(_Seen._fields)])
            first = first or seen
            is_whole = is_whole and _is_comparable(first, seen)
            expected = max(expected, seen.log_start_offset)
            stored = [row for row in rows if row["base_offset"] is not None]
            for number, row in enumerate(stored):
                if number and row["base_offset"] < expected:
                    is_whole = False
                    yield self._overlap(row["base_offset"])
                for finding in self._row_problems(row, expected, may_have_gaps=seen.compactions > 0):
                    is_whole = False
                    yield finding
                total += _size_between(row, expected, first.high_watermark)
                expected = max(expected, row["last_offset"] + 1)
            if len(stored) < PAGE:
                for finding in self._end_problems(expected, seen):
                    is_whole = False
                    yield finding
                break
        if first is not None and is_whole and total != first.size_bytes:
            # Slow for a large partition, but it sees one snapshot.
            difference = await self._connection.fetchval(_SIZE, *self._key.values())
            if difference:
                what = f"{self._name} should have {difference:+} bytes more in its batches than it has"
                yield Finding(
                    "batches", f"{what}: rows of batches, or of its size, are lost or altered", _LOST
                )
        async for finding in self._transaction_problems():
            yield finding

    def _row_problems(self, row: Any, expected: int, *, may_have_gaps: bool) -> list[Finding]:
        """Return the problems of one row, which should begin at ``expected`` or contain it."""
        found: list[Finding] = []
        base, last = row["base_offset"], row["last_offset"]
        self.batches += 1
        if base > expected and not may_have_gaps:
            found.append(self._gap(expected, base - 1))
        if not row["has_chunk"]:
            what = f"the batches of {self._name} at offsets {base} to {last} are in chunk {row['chunk_id']}"
            found.append(Finding("chunks", f"{what}, whose row is lost: they cannot be read", RESTORE))
        if row["is_beyond"]:
            what = (
                f"the batches of {self._name} at offsets {base} to {last} are beyond the end of their object"
            )
            found.append(Finding("batches", what, RESTORE))
        parts = list(batches_of(row))
        if parts[-1].last_offset != last or sum(each.location.length for each in parts) != row["length"]:
            what = f"the run of batches of {self._name} at offsets {base} to {last} contradicts itself"
            found.append(Finding("batches", what, RESTORE))
        return found

    def _end_problems(self, expected: int, seen: _Seen) -> list[Finding]:
        """Check that the batches end at the high watermark. Compaction keeps the last batch, too."""
        if expected < seen.high_watermark:
            return [self._gap(expected, seen.high_watermark - 1)]
        if expected > seen.high_watermark:
            what = f"{self._name} ends at offset {seen.high_watermark}, but has batches up to {expected}"
            advice = f"stop all brokers; {RESTORE}"
            return [Finding("partitions", f"{what}: its row is old or altered", advice)]
        return []

    def _overlap(self, offset: int) -> Finding:
        what = f"the batch of {self._name} at offset {offset} begins within the one before"
        return Finding("batches", f"{what}: its row or that one is altered", RESTORE)

    def _gap(self, first: int, last: int) -> Finding:
        what = (
            f"the batches of {self._name} at offsets {first} to {last} are lost: readers get CORRUPT_MESSAGE"
        )
        return Finding("batches", what, _LOST)

    async def _transaction_problems(self) -> AsyncIterator[Finding]:
        row = await self._connection.fetchrow(_TRANSACTIONS, *self._key.values())
        if row is None:
            return
        if not row["has_aborted"]:
            what = f"the newest aborted transaction of {self._name} is lost"
            yield Finding("aborted", f"{what}: readers take its records for committed", RESTORE)
        known = {producer_id: rest for producer_id, *rest in row["producers"]}
        advice = f"{RESTORE}, or end the transaction: semel transactions"
        for each in unpack_open_transactions(row["open_transactions"]):
            first = known.get(each.producer_id, [-1])[0]
            if first != each.first_offset:
                what = f"{self._name} has an open transaction of producer {each.producer_id}, which it forgot"
                yield Finding("producers", f"{what}: readers wait for its end", advice)
        for producer_id, (_, staged, number, has_transaction) in known.items():
            counted = unpack_staged(staged)
            batches = 0 if counted is None else counted.batches
            if number != batches:
                what = f"producer {producer_id} has staged {batches} batches in {self._name}"
                yield Finding("staged", f"{what}, but there are {number}: some are lost", RESTORE)
            if not has_transaction:
                what = f"producer {producer_id} has an open transaction in {self._name} that no id belongs to"
                yield Finding("transactions", f"{what}: nobody can end it, and readers wait", advice)
        for producer_id in set(row["staging"]) - known.keys():
            what = f"producer {producer_id} has staged batches in {self._name}, which it forgot"
            yield Finding("producers", what, advice)


def _is_comparable(first: _Seen, seen: _Seen) -> bool:
    """Whether the batches from the log start to the first high watermark are the same, perhaps merged."""
    return (first.log_start_offset, first.compactions) == (seen.log_start_offset, seen.compactions)


def _size_between(row: Any, start: int, end: int) -> int:
    return sum(
        each.location.length
        for each in batches_of(row)
        if each.last_offset >= start and each.base_offset < end
    )
