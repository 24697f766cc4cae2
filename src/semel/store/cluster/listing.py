"""List groups, transactional ids and producers.

A group may have only offsets. The ids of such groups are found by skipping from one to the next in an index,
because a group has many offsets.
"""

from typing import Any, Final

from semel.core.types import ProducerKey, Transaction, TransactionState
from semel.store.cluster.loading import TRANSACTION_COLUMNS
from semel.store.cluster.postgres.database import Database
from semel.store.cluster.postgres.texts import original, stored
from semel.store.contract import GroupSummary
from semel.store.rows import transaction_of

_GROUPS: Final = """
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


async def list_groups(database: Database, after: str, limit: int) -> list[GroupSummary]:
    """Return groups, ordered by id, including those that only have offsets (kind "")."""
    rows = await database.fetch(_GROUPS, stored(after), limit)
    return [
        GroupSummary(original(name), kind, original(protocol), state) for name, kind, protocol, state in rows
    ]


async def list_transactions(database: Database, after: str, limit: int) -> list[Transaction]:
    """Return transactions ordered by transactional id."""
    rows = await database.fetch(
        f"""
        SELECT {TRANSACTION_COLUMNS} FROM transactions
        WHERE transactional_id > $1 ORDER BY transactional_id LIMIT $2
        """,
        stored(after),
        limit,
    )
    return [_transaction(row) for row in rows]


async def list_open_transactions(database: Database, after: str, limit: int) -> list[Transaction]:
    """Return open transactions, the last transactional id first."""
    rows = await database.fetch(
        f"{_newest_transactions(after)} SELECT {TRANSACTION_COLUMNS} FROM newest WHERE state = $3 LIMIT $2",
        stored(after),
        limit,
        TransactionState.ONGOING.label,
    )
    return [_transaction(row) for row in rows]


async def list_unused_transactions(database: Database, before_ms: int, after: str, limit: int) -> list[str]:
    """Return transactional ids without an open transaction and not used after this time, last id first."""
    rows = await database.fetch(
        f"""
        {_newest_transactions(after)}
        SELECT transactional_id FROM newest WHERE updated_ms <= $4 AND state <> $3 LIMIT $2
        """,
        stored(after),
        limit,
        TransactionState.ONGOING.label,
        before_ms,
    )
    return [original(name) for (name,) in rows]


async def list_unseen_producers(
    database: Database, before_ms: int, after: ProducerKey | None, limit: int
) -> list[ProducerKey]:
    """Return producers without an open transaction and last seen before this time, the last key first."""
    key = "topic_id, partition_index, producer_id"
    rows = await database.fetch(
        f"""
        {_newest("producers", key, "" if after is None else f"WHERE ({key}) < ($3, $4, $5)")}
        SELECT {key} FROM newest
        WHERE seen_ms < $1 AND transaction_first_offset < 0 AND octet_length(staged) = 0 AND (
            SELECT true FROM partitions
            WHERE partitions.topic_id = newest.topic_id
            AND partitions.partition_index = newest.partition_index
            ORDER BY generation DESC LIMIT 1
        )
        LIMIT $2
        """,
        before_ms,
        limit,
        *(after.values() if after is not None else ()),
    )
    return [ProducerKey(*row) for row in rows]


def _newest_transactions(after: str) -> str:
    return _newest(
        "transactions", "transactional_id", "WHERE transactional_id < $1" if after else "WHERE $1 = ''"
    )


def _newest(table: str, key: str, where: str) -> str:
    """Return a query of the newest version of each row, from the last key to the first.

    It skips from key to key from the end of the index, where the newest version is found first. Another plan
    would read all versions that old snapshots keep.
    """
    columns = key.split(", ")
    last = ", ".join(f"newest.{column}" for column in columns)
    order = ", ".join(f"{column} DESC" for column in (*columns, "generation"))
    return f"""
        WITH RECURSIVE newest AS (
            (SELECT * FROM {table} {where} ORDER BY {order} LIMIT 1)
            UNION ALL
            SELECT following.* FROM newest CROSS JOIN LATERAL (
                SELECT * FROM {table} AS other
                WHERE ({", ".join(f"other.{column}" for column in columns)}) < ({last})
                ORDER BY {order} LIMIT 1
            ) AS following
        )
    """


def _transaction(row: Any) -> Transaction:
    name, *rest = row
    return transaction_of((original(name), *rest))
