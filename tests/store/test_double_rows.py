"""Keys that two rows have, where no index excludes it: the second is refused or found."""

from pathlib import Path
from typing import Any

import asyncpg
import pytest
from support.stores.cluster_bytes import Place, opened

from semel.core.facts import Put
from semel.core.groups import ClassicGroup
from semel.core.shares.partition import SharePartition
from semel.core.types import CommittedOffset, OffsetKey, PendingKey, ProducerState, ShareKey, Transaction
from semel.store.cluster.checking.run import check_cluster

TABLES = (
    *("partitions", "producers", "shares", "offsets", "pending_versions", "transactions", "groups"),
    "commits",
)


async def test_a_key_that_two_rows_have_is_found(
    postgres_dsn: str, schema: str, tmp_path: Path, scribe: Any
) -> None:
    place = Place.new(postgres_dsn, tmp_path.as_uri(), schema)
    async with opened(place) as store:
        (key,) = await scribe.create(store)
        facts = [
            Put(key.of(7), ProducerState(0)),
            Put(ShareKey(key.topic_id, 0, "s"), SharePartition(5)),
            Put(OffsetKey("g", "orders", 0), CommittedOffset(1)),
            Put(PendingKey("g"), None),
            Put.of(Transaction("t", 7, 0, 1)),
            Put.of(ClassicGroup("g")),
        ]
        await store.commit(facts, [])
    assert (await check_cluster(place.dsn, place.schema, None, print)).findings == []
    connection: Any = await asyncpg.connect(place.dsn, server_settings={"search_path": place.schema})
    try:
        for table in TABLES:
            column = "sequence" if table == "commits" else "generation"
            again = f"INSERT INTO {table} SELECT * FROM kept"
            await connection.execute(f"CREATE TEMPORARY TABLE kept AS SELECT * FROM {table} LIMIT 1")
            with pytest.raises(asyncpg.UniqueViolationError):
                await connection.execute(again)
            await connection.execute(f"UPDATE kept SET {column} = {column} + 1000")
            await connection.execute(again)
            found = (await check_cluster(place.dsn, place.schema, None, print)).findings
            doubled = [each.kind for each in found if "2 rows have the key (" in each.what]
            assert doubled == [table]
            await connection.execute(f"DELETE FROM {table} WHERE {column} >= 1000; DROP TABLE kept")
    finally:
        await connection.close()
    assert (await check_cluster(place.dsn, place.schema, None, print)).findings == []
