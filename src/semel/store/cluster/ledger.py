"""Implement ``contract.Ledger`` in PostgreSQL.

A commit is one transaction, usually one call (``commit_calls``). Commits (``committing``) and queries
(``database``) survive a restart of PostgreSQL. Queries that need a row that the ledger has lost are counted
and logged.
"""

import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from types import MappingProxyType
from typing import Any, Final

import asyncpg

from semel.core import types
from semel.rate_limit import LoggedOnce
from semel.store import contract
from semel.store.cluster import loading
from semel.store.cluster.bytes.merging import batches_of
from semel.store.cluster.commit_calls import Bytes
from semel.store.cluster.committing import Committer
from semel.store.cluster.contract import Versioned
from semel.store.cluster.membership import BrokerSlot, take_place
from semel.store.cluster.postgres.database import (
    QUERY_PATIENCE_SECONDS,
    ConnectionLost,
    Database,
    original,
    patiently,
    stored,
)
from semel.store.cluster.postgres.opening import open_database
from semel.store.cluster.postgres.terms import Terms
from semel.store.cluster.sweeping import leftovers, sweep
from semel.store.rows import batch_of, offset_of, producer_of, topic_of

log = logging.getLogger("semel.damage")


class LostRows:
    """The lost rows that one broker has met."""

    def __init__(self) -> None:
        self.met = 0
        self._logged = LoggedOnce()

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Count and log a LedgerDamaged that is raised within."""
        try:
            yield
        except contract.LedgerDamaged as damaged:
            self.met += 1
            if self._logged.is_news(str(damaged)):
                log.error("%s", damaged)
            raise


NO_BYTES: Final = Bytes()
CONNECTIONS_MAX: Final = 8
LEASE_SECONDS: Final = 3.0
TOPIC_COLUMNS: Final = "name, topic_id, partitions, configs"
PAGE_FIRST: Final = 32
"""Batches in the first page: enough for most answers, and few are read in vain."""
PAGE_MAX: Final = 1024


class PostgresLedger:
    """Created by ``PostgresLedger.open``."""

    def __init__(self, database: Database, place: BrokerSlot, committer: Committer, cluster_id: str) -> None:
        self.database = database
        self.place = place
        self.committer = committer
        self.cluster_id = cluster_id
        self.lost_rows = LostRows()

    @classmethod
    async def open(
        cls,
        dsn: str,
        *,
        schema: str = "semel",
        broker_id: int = 0,
        lease_seconds: float = LEASE_SECONDS,
        unsafe: Collection[str] = (),
    ) -> "PostgresLedger":
        """Open the ledger, and take the place of the last process with this id.

        ``unsafe`` are settings of PostgreSQL that may endanger durability (``sessions``).

        StoreBroken, StoreDamaged; StoreLocked if another process runs with this id.
        """
        database = await open_database(dsn, schema, CONNECTIONS_MAX, unsafe)
        try:
            cluster_id = await database.value("SELECT value FROM meta WHERE name = 'cluster_id'")
            place = await take_place(database, broker_id, lease_seconds)
            term = await Terms(database).begin()
        except contract.StoreRefused as error:
            await database.close()
            raise contract.StoreBroken(f"the ledger cannot be opened: {error}") from error
        except BaseException:
            await database.close()
            raise
        return cls(database, place, Committer(database, place, term), cluster_id)

    async def close(self) -> None:
        """End the lease, and close the connections."""
        await self.committer.locks.give_up()
        # If the server is away, or must not be used, the lease expires.
        with suppress(ConnectionLost, asyncpg.PostgresError, contract.StoreBroken):
            async with self.database.connection() as connection:
                await connection.execute("SELECT end_lease($1, $2)", self.place.broker_id, self.place.epoch)
        await self.database.close()

    # -- commits ------------------------------------------------------------------------------------------

    async def commit(
        self,
        facts: Sequence[types.Fact],
        locations: Sequence[contract.BatchLocation],
        contents: Bytes = NO_BYTES,
        *,
        expected: Mapping[types.Key, int] = MappingProxyType({}),
        defers_sync: bool = False,
    ) -> int:
        """Write the facts together and durably; their i-th batch is at locations[i]. Return the number."""
        return await self.committer.commit(
            facts, locations, contents, expected=expected, defers_sync=defers_sync
        )

    # -- entities -----------------------------------------------------------------------------------------

    async def load(self, keys: Sequence[types.EntityKey[types.V]]) -> list[types.V | None]:
        """Return the entities with these keys in the same order, None for those that do not exist.

        Partitions are durable when they are returned, because clients may read what they show.
        """

        async def work() -> list[Versioned[Any]]:
            # One connection, which survives no crash: what it has read cannot be lost before the flush.
            async with self.database.connection() as connection:
                found = await loading.load(connection.fetch, keys, self.place.broker_id)
                shown = zip(keys, found, strict=True)
                versions = [each.version for key, each in shown if isinstance(key, types.PartitionKey)]
                await self.committer.make_durable(versions, connection)
                return found

        with self.lost_rows.watched():
            return [each.value for each in await patiently(work, QUERY_PATIENCE_SECONDS)]

    async def load_versioned(self, keys: Sequence[types.Key], *, locks: bool) -> list[Versioned[Any]]:
        """Return entities and their versions. With ``locks``, they are locked until the next commit."""
        if not locks:
            with self.lost_rows.watched():
                return await loading.load(self.database.fetch, keys, self.place.broker_id, at_once=True)

        async def work() -> list[Versioned[Any]]:
            async with self.committer.locks.taken(keys) as connection:
                return await loading.load(connection.fetch, keys, self.place.broker_id)

        try:
            with self.lost_rows.watched():
                return await patiently(work, QUERY_PATIENCE_SECONDS)
        except BaseException:
            await self.committer.locks.give_up()
            raise

    async def topic_by_id(self, topic_id: bytes) -> types.Topic | None:
        """Return the topic with this id."""
        row = await self.database.row(f"SELECT {TOPIC_COLUMNS} FROM topics WHERE topic_id = $1", topic_id)
        return None if row is None else topic_of(row)

    async def topics(self, *, after: str = "", limit: int = 10_000) -> list[types.Topic]:
        """Return topics, ordered by name."""
        rows = await self.database.fetch(
            f"SELECT {TOPIC_COLUMNS} FROM topics WHERE name > $1 ORDER BY name LIMIT $2", after, limit
        )
        return [topic_of(row) for row in rows]

    async def policies(
        self, *, after: types.PolicyKey | None = None, limit: int = 10_000
    ) -> list[tuple[types.PolicyKey, str]]:
        """Return policies and their values, ordered by key."""
        start = types.PolicyKey("", "") if after is None else after
        rows = await self.database.fetch(
            """
            SELECT kind, name, body FROM policies WHERE (kind, name) > ($1, $2) ORDER BY kind, name LIMIT $3
            """,
            start.kind,
            stored(start.name),
            limit,
        )
        return [(types.PolicyKey(kind, original(name)), original(body)) for kind, name, body in rows]

    async def counts(self) -> contract.Counts:
        """Return the counts of what clients can create."""
        # Partitions are counted by topics: an old snapshot keeps all versions of the rows of partitions.
        row = await self.database.row(
            """
            SELECT (SELECT coalesce(sum(partitions), 0) FROM topics), (SELECT count(*) FROM groups),
                (SELECT count(*) FROM transactions)
            """
        )
        return contract.Counts(*row)

    async def groups(self, *, after: str = "", limit: int = 10_000) -> list[contract.GroupSummary]:
        """Return groups, ordered by id, including those that only have offsets (kind "")."""
        return await loading.list_groups(self.database, after, limit)

    async def group_offsets(self, group_id: str) -> list[tuple[types.OffsetKey, types.CommittedOffset]]:
        """Return everything a group has committed."""
        rows = await self.database.fetch(
            """
            SELECT topic, partition_index, committed_offset, leader_epoch, metadata, committed_ms
            FROM offsets WHERE group_id = $1 ORDER BY topic, partition_index
            """,
            stored(group_id),
        )
        return [
            (
                types.OffsetKey(group_id, original(topic), index),
                offset_of((offset, epoch, original(metadata), at)),
            )
            for topic, index, offset, epoch, metadata, at in rows
        ]

    async def producers(self, partition: types.PartitionKey) -> list[tuple[int, types.ProducerState]]:
        """Return the producers that a partition remembers."""
        rows = await self.database.fetch(
            """
            SELECT producer_id, epoch, recent_batches, last_timestamp, seen_ms, coordinator_epoch,
                transaction_first_offset, staged
            FROM producers JOIN partitions USING (topic_id, partition_index)
            WHERE topic_id = $1 AND partition_index = $2 ORDER BY producer_id
            """,
            *partition.values(),
        )
        return [(producer_id, producer_of(rest)) for producer_id, *rest in rows]

    async def producers_unseen_since(
        self, before_ms: int, *, after: types.ProducerKey | None = None, limit: int
    ) -> list[types.ProducerKey]:
        """Return producers without an open transaction and last seen before this time, the last key first."""
        return await loading.list_unseen_producers(self.database, before_ms, after, limit)

    async def transactions(self, *, after: str = "", limit: int = 10_000) -> list[types.Transaction]:
        """Return transactions ordered by transactional id, in any state."""
        return await loading.list_transactions(self.database, after, limit)

    async def open_transactions(self, *, after: str = "", limit: int) -> list[types.Transaction]:
        """Return open transactions, the last transactional id first."""
        return await loading.list_open_transactions(self.database, after, limit)

    async def transactions_unused_since(self, before_ms: int, *, after: str = "", limit: int) -> list[str]:
        """Return unused transactional ids without an open transaction, the last one first."""
        return await loading.list_unused_transactions(self.database, before_ms, after, limit)

    # -- batches ------------------------------------------------------------------------------------------

    async def find_batches(
        self, partition: types.PartitionKey, offset: int, *, before: int, bytes_max: int, batches_max: int
    ) -> list[contract.StoredBatch]:
        """Return batches from the one that holds ``offset``, or the next, that end below ``before``."""
        found: list[contract.StoredBatch] = []
        page_size = PAGE_FIRST
        while len(found) < batches_max:
            # One more, because the page may begin with the batch that ends just below the offset.
            rows_max = min(page_size, batches_max - len(found)) + 1
            rows = await self.database.fetch(
                f"""
                WITH edges AS {loading.PARTITION}
                SELECT base_offset, last_offset, max_timestamp, chunk_id, position, length,
                    run_ends, run_lengths, run_timestamps,
                    (SELECT log_start_offset FROM edges) AS log_start_offset
                FROM batches WHERE topic_id = $1 AND partition_index = $2 AND base_offset < $4
                AND base_offset >= batch_holding(
                    $1, $2, (SELECT greatest($3, log_start_offset) FROM edges)
                )
                ORDER BY base_offset LIMIT $5
                """,
                *partition.values(),
                offset,
                before,
                rows_max,
            )
            for batch in (batch for row in rows for batch in batches_of(row)):
                if batch.last_offset < max(offset, rows[0]["log_start_offset"]):
                    continue
                bytes_max -= batch.location.length
                if batch.last_offset >= before or (found and bytes_max < 0) or len(found) >= batches_max:
                    return found
                found.append(batch)
            if len(rows) < rows_max:
                return found
            offset = rows[-1]["last_offset"] + 1
            page_size = min(page_size * 4, PAGE_MAX)
        return found

    async def first_batch_since(
        self, partition: types.PartitionKey, timestamp: int
    ) -> contract.StoredBatch | None:
        """Return the first batch whose largest timestamp is at or after this one."""
        row = await self.database.row(
            """
            SELECT base_offset, last_offset, max_timestamp, chunk_id, position, length
            FROM first_batch_since($1, $2, $3)
            """,
            *partition.values(),
            timestamp,
        )
        return None if row is None else batch_of(row)

    async def offset_at_size(self, partition: types.PartitionKey, size_bytes: int) -> int:
        """Return the smallest batch boundary from which the partition has at most this size."""
        found: int | None = await self.database.value(
            f"""
            SELECT CASE WHEN size_bytes <= $3 THEN log_start_offset ELSE coalesce(
                (
                    SELECT last_offset + 1 FROM (
                        SELECT last_offset, sum(length) OVER (
                            ORDER BY row_offset, number ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW
                        ) AS taken
                        FROM batch_sizes WHERE topic_id = $1 AND partition_index = $2
                        AND row_offset >= batch_holding($1, $2, log_start_offset)
                        AND last_offset >= log_start_offset
                    ) AS each WHERE taken >= size_bytes - $3 LIMIT 1
                ), high_watermark
            ) END
            FROM {loading.PARTITION} AS edges
            """,
            *partition.values(),
            size_bytes,
        )
        return found or 0

    async def size_below(self, partition: types.PartitionKey, offset: int) -> tuple[int, int]:
        """Return the log start, and the size of the batches from there that end below this offset."""
        row = await self.database.row(
            f"""
            SELECT log_start_offset, (
                SELECT coalesce(sum(length), 0)::bigint FROM batch_sizes
                WHERE topic_id = $1 AND partition_index = $2 AND row_offset < $3 AND last_offset < $3
                AND row_offset >= batch_holding($1, $2, log_start_offset)
                AND last_offset >= log_start_offset
            )
            FROM {loading.PARTITION} AS edges
            """,
            *partition.values(),
            offset,
        )
        return (0, 0) if row is None else (row[0], row[1])

    async def aborted(self, partition: types.PartitionKey, first: int, before: int) -> list[tuple[int, int]]:
        """Return producer and first offset of aborted transactions in this range, by first offset."""
        rows = await self.database.fetch(
            f"""
            SELECT producer_id, first_offset FROM aborted
            WHERE topic_id = $1 AND partition_index = $2 AND marker_offset >= $3 AND first_offset < $4
            AND (SELECT true FROM {loading.PARTITION} AS edges) AND marker_offset <= coalesce(
                (
                    SELECT marker_offset FROM aborted
                    WHERE topic_id = $1 AND partition_index = $2 AND marker_offset >= $3
                    AND last_stable_offset >= $4 ORDER BY marker_offset LIMIT 1
                ), 9223372036854775807
            )
            ORDER BY first_offset
            """,
            *partition.values(),
            first,
            before,
        )
        return [(producer_id, first_offset) for producer_id, first_offset in rows]

    # -- sweeping -----------------------------------------------------------------------------------------

    async def leftovers(self, *, limit: int) -> list[contract.BatchLocation]:
        """Return the locations of up to ``limit`` unreachable rows, which the next sweep deletes."""
        async with self.database.transaction() as connection:
            return await leftovers(connection, limit)

    async def sweep(self, *, limit: int) -> list[contract.BatchLocation]:
        """Delete up to ``limit`` unreachable rows. Return the locations that they freed."""
        while True:
            async with self.database.transaction() as connection:
                locations, more = await sweep(connection, limit)
            if locations or not more:
                return locations

    async def chunk_references(self) -> dict[int, int]:
        """Return how many bytes of each chunk are referenced. Chunks that are not listed are orphans."""
        return dict(await self.database.fetch("SELECT chunk_id, live_bytes FROM chunks"))
