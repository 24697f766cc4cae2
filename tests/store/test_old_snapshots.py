"""An old snapshot keeps every version of a row. Commits and loads must not look at all of them."""

import os
from collections import defaultdict
from typing import Any

import asyncpg

from semel.core.facts import Put
from semel.core.groups import ClassicGroup
from semel.core.shares.partition import SharePartition
from semel.core.types import (
    CommittedOffset,
    Fact,
    GroupKey,
    Key,
    OffsetKey,
    PartitionKey,
    PendingKey,
    PendingOffset,
    ProducerState,
    ShareKey,
    Transaction,
    TransactionKey,
)
from semel.store.cluster.commit_calls import Bytes
from semel.store.cluster.ledger import PostgresLedger
from semel.store.contract import BatchLocation

VERSIONS = 400
LOOKED_AT = 20
"""Commits whose work is counted."""
ENTRIES_MAX = 2.5
"""Entries of an index that are read to find a row: one without a snapshot."""
COUNTS = """
    SELECT relname, sum(idx_scan), sum(idx_tup_read)
    FROM pg_stat_user_indexes WHERE schemaname = $1 GROUP BY 1
"""


class Load:
    """Commits that change one row of every table whose rows change all the time."""

    def __init__(self, ledger: PostgresLedger, key: PartitionKey, scribe: Any) -> None:
        self._ledger = ledger
        self._key = key
        self._scribe = scribe
        self._versions: dict[Key, int] = {}
        self._commits = 0

    @property
    def keys(self) -> list[Key]:
        return [*self._versions, OffsetKey("g", "orders", 0)]

    async def commit(self) -> None:
        self._commits += 1
        at, key = self._commits, self._key
        appended, location = self._scribe.append(key, chunk_id=at)
        offset = OffsetKey("g", "orders", 0)
        changes: dict[Key, Fact] = {
            key: self._scribe.changed()[0],
            key.of(7): Put(key.of(7), ProducerState(0, (), at, at)),
            TransactionKey("t"): Put.of(Transaction("t", 7, 0, at)),
            PendingKey("g"): Put(PendingKey("g"), (PendingOffset(7, offset, CommittedOffset(at)),)),
            GroupKey("g"): Put.of(ClassicGroup("g", generation=at)),
            ShareKey(key.topic_id, 0, "s"): Put(ShareKey(key.topic_id, 0, "s"), SharePartition(at)),
        }
        number = await self._ledger.commit(
            [appended, *changes.values(), Put(offset, CommittedOffset(at))],
            [BatchLocation(at, 0, location.length)],
            Bytes(inline=[(at, bytes(location.length))]),
            expected=self._versions,
        )
        self._versions |= dict.fromkeys(changes, self._ledger.committer.version(number))


async def test_commits_and_loads_do_not_look_at_versions_that_a_snapshot_keeps(
    postgres_dsn: str, scribe: Any
) -> None:
    schema = f"test_{os.urandom(8).hex()}"
    ledger = await PostgresLedger.open(postgres_dsn, schema=schema, lease_seconds=60.0)
    (key,) = await scribe.create(ledger)
    load = Load(ledger, key, scribe)
    await load.commit()
    holder: Any = await asyncpg.connect(postgres_dsn)
    analyst: Any = await asyncpg.connect(postgres_dsn)
    await holder.execute(f"BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT FROM {schema}.topics")
    await ledger.database.value("SELECT setseed(0.5)")
    for _ in range(VERSIONS):
        await load.commit()
    # As autovacuum does: plans are made anew, for few rows in many pages.
    for (table,) in await holder.fetch(
        "SELECT relname FROM pg_class WHERE relkind = 'r' AND relnamespace = $1::regnamespace", schema
    ):
        await analyst.execute(f"ANALYZE {schema}.{table}")
    before = await _counts(ledger, schema)
    for _ in range(LOOKED_AT):
        await load.commit()
        await ledger.load(load.keys)
        await ledger.find_batches(key, 0, before=1, bytes_max=1, batches_max=1)
        assert await ledger.open_transactions(limit=10) == []
        assert await ledger.transactions_unused_since(VERSIONS * 2, limit=10) == ["t"]
        assert await ledger.producers_unseen_since(VERSIONS * 2, limit=10) == [key.of(7)]
    after = await _counts(ledger, schema)
    await holder.close()
    await analyst.close()
    await ledger.close()
    work = {
        table: (scans - before[table][0], entries - before[table][1])
        for table, (scans, entries) in after.items()
    }
    used = {table: entries / scans for table, (scans, entries) in work.items() if scans}
    hot = {"partitions", "producers", "transactions", "offsets", "groups", "shares", "commits"}
    assert hot | {"pending_versions", "pending_offsets"} <= used.keys()
    assert {table: each for table, each in used.items() if each > ENTRIES_MAX} == {}


async def _counts(ledger: PostgresLedger, schema: str) -> dict[str, tuple[int, int]]:
    """How often indexes were searched, and how many entries that has read."""
    await ledger.database.value("SELECT pg_stat_force_next_flush()")
    found: defaultdict[str, tuple[int, int]] = defaultdict(lambda: (0, 0))
    found.update(
        {
            table: (int(scans), int(entries))
            for table, scans, entries in await ledger.database.fetch(COUNTS, schema)
        }
    )
    return found
