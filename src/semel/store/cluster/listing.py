"""List groups, transactional ids and producers in order, of all shards or of some.

A group may have only offsets. The ids of such groups are found by skipping from one to the next in an index,
because a group has many offsets.
"""

from collections.abc import Collection
from typing import Final

from semel.core.types import ProducerKey, Transaction, TransactionState
from semel.store.cluster.loading import TRANSACTION_COLUMNS
from semel.store.cluster.postgres.database import Database
from semel.store.cluster.postgres.texts import original, stored
from semel.store.contract import GroupSummary
from semel.store.rows import transaction_of

_ALL_GROUPS: Final = """
    WITH RECURSIVE committed (group_id, number) AS (
        (SELECT group_id, 1 FROM offsets WHERE group_id > $1 ORDER BY group_id LIMIT 1)
        UNION ALL
        SELECT (
            SELECT offsets.group_id FROM offsets WHERE offsets.group_id > committed.group_id
            ORDER BY offsets.group_id LIMIT 1
        ), number + 1
        FROM committed WHERE committed.group_id IS NOT NULL AND number < $2
    ),
    ids (group_id) AS (
        (SELECT group_id FROM groups WHERE group_id > $1 ORDER BY group_id LIMIT $2)
        UNION
        SELECT group_id FROM committed WHERE group_id IS NOT NULL
    )
    SELECT ids.group_id, coalesce(kind, ''), coalesce(protocol_type, ''), coalesce(state, '')
    FROM ids LEFT JOIN groups USING (group_id) ORDER BY ids.group_id LIMIT $2
"""
_GROUPS_OF_SHARDS: Final = """
    WITH RECURSIVE committed (shard, group_id, number) AS (
        SELECT shard, (
            SELECT offsets.group_id FROM offsets WHERE offsets.shard = wanted.shard AND offsets.group_id > $1
            ORDER BY offsets.group_id LIMIT 1
        ), 1
        FROM unnest($3::smallint[]) AS wanted (shard)
        UNION ALL
        SELECT shard, (
            SELECT offsets.group_id FROM offsets
            WHERE offsets.shard = committed.shard AND offsets.group_id > committed.group_id
            ORDER BY offsets.group_id LIMIT 1
        ), number + 1
        FROM committed WHERE committed.group_id IS NOT NULL AND number < $2
    ),
    ids (group_id) AS (
        (
            SELECT group_id FROM groups WHERE shard = ANY ($3) AND group_id > $1
            ORDER BY group_id LIMIT $2
        )
        UNION
        SELECT group_id FROM committed WHERE group_id IS NOT NULL
    )
    SELECT ids.group_id, coalesce(kind, ''), coalesce(protocol_type, ''), coalesce(state, '')
    FROM ids LEFT JOIN groups USING (group_id) ORDER BY ids.group_id LIMIT $2
"""


async def list_groups(
    database: Database, after: str, limit: int, shards: Collection[int] | None
) -> list[GroupSummary]:
    """Return groups, ordered by id, including those that only have offsets (kind "")."""
    page = (stored(after), limit)
    if shards is None:
        rows = await database.fetch(_ALL_GROUPS, *page)
    else:
        rows = await database.fetch(_GROUPS_OF_SHARDS, *page, list(shards))
    return [
        GroupSummary(original(name), kind, original(protocol), state) for name, kind, protocol, state in rows
    ]


async def list_transactions(
    database: Database,
    after: str,
    limit: int,
    state: TransactionState | None,
    shards: Collection[int] | None,
) -> list[Transaction]:
    """Return transactions ordered by transactional id, in any state or one, of all shards or some."""
    of_shards = "" if shards is None else "AND shard = ANY ($4)"
    rows = await database.fetch(
        f"""
        SELECT {TRANSACTION_COLUMNS} FROM transactions
        WHERE transactional_id > $1 AND ($2 = '' OR state = $2) {of_shards}
        ORDER BY transactional_id LIMIT $3
        """,
        stored(after),
        "" if state is None else state.label,
        limit,
        *([] if shards is None else [list(shards)]),
    )
    return [transaction_of((original(name), *rest)) for name, *rest in rows]


async def list_unseen_producers(
    database: Database, before_ms: int, after: ProducerKey | None, limit: int
) -> list[ProducerKey]:
    """Return producers, ordered by key, without an open transaction and last seen before this time."""
    rows = await database.fetch(
        """
        SELECT topic_id, partition_index, producer_id FROM producers JOIN partitions
        USING (topic_id, partition_index)
        WHERE seen_ms < $1 AND transaction_first_offset < 0 AND octet_length(staged) = 0
        AND (topic_id, partition_index, producer_id) > ($3, $4, $5)
        ORDER BY topic_id, partition_index, producer_id LIMIT $2
        """,
        before_ms,
        limit,
        *(after.values() if after is not None else (b"", -1, -1)),
    )
    return [ProducerKey(*row) for row in rows]


async def list_unused_transactions(database: Database, before_ms: int, after: str, limit: int) -> list[str]:
    """Return transactional ids, in order, without an open transaction and not used after this time."""
    rows = await database.fetch(
        """
        SELECT transactional_id FROM transactions
        WHERE updated_ms <= $1 AND state <> $2 AND transactional_id > $3
        ORDER BY transactional_id LIMIT $4
        """,
        before_ms,
        TransactionState.ONGOING.label,
        stored(after),
        limit,
    )
    return [original(name) for (name,) in rows]
