"""List groups, transactional ids and producers.

A group may have only offsets. The ids of such groups are found by skipping from one to the next in an index,
because a group has many offsets.
"""

from typing import Any, Final, NamedTuple

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
    open_ones = f"state = '{TransactionState.ONGOING.label}'"
    rows = await _walk(database, _TRANSACTIONS, open_ones, (stored(after),) if after else (), limit)
    return [_transaction(row) for row in rows]


async def list_unused_transactions(database: Database, before_ms: int, after: str, limit: int) -> list[str]:
    """Return transactional ids without an open transaction and not used after this time, last id first."""
    unused = f"updated_ms <= {before_ms} AND state <> '{TransactionState.ONGOING.label}'"
    rows = await _walk(database, _TRANSACTIONS, unused, (stored(after),) if after else (), limit)
    return [original(row[0]) for row in rows]


async def list_unseen_producers(
    database: Database, before_ms: int, after: ProducerKey | None, limit: int
) -> list[ProducerKey]:
    """Return producers without an open transaction and last seen before this time, the last key first."""
    unseen = f"""
        seen_ms < {before_ms} AND transaction_first_offset < 0 AND octet_length(staged) = 0 AND (
            SELECT true FROM partitions
            WHERE partitions.topic_id = newest.topic_id
            AND partitions.partition_index = newest.partition_index
            ORDER BY generation DESC LIMIT 1
        )
    """
    rows = await _walk(database, _PRODUCERS, unseen, after.values() if after is not None else (), limit)
    return [ProducerKey(*row) for row in rows]


class _Table(NamedTuple):
    """A table whose rows are walked through."""

    name: str
    key: tuple[str, ...]
    columns: str
    """What is returned; it begins with the key."""


_TRANSACTIONS: Final = _Table("transactions", ("transactional_id",), TRANSACTION_COLUMNS)
_PRODUCERS: Final = _Table(
    "producers", ("topic_id", "partition_index", "producer_id"), "topic_id, partition_index, producer_id"
)
READ_AT_ONCE: Final = 50_000
SKIPPED_AT_ONCE: Final = 5_000
"""Rows of one statement, so that none takes longer than a statement may."""
_MOST_ARE_OLD: Final = """
    SELECT n_dead_tup > n_live_tup FROM pg_stat_user_tables
    WHERE schemaname = current_schema() AND relname = $1
"""
"""Whether a table has more old versions of rows than rows."""


async def _walk(
    database: Database, table: _Table, wanted: str, after: tuple[Any, ...], limit: int
) -> list[tuple[Any, ...]]:
    """Return rows that fulfil a condition, from the last key to the first, or from behind a key."""
    found: list[tuple[Any, ...]] = []
    skips = bool(await database.value(_MOST_ARE_OLD, table.name))
    at_once = SKIPPED_AT_ONCE if skips else READ_AT_ONCE
    while len(found) < limit:
        newest = (_skipping if skips else _reading)(table, at_once, is_first=not after)
        rows = await database.fetch(
            f"""
            WITH RECURSIVE newest AS ({newest})
            SELECT {table.columns}, number, coalesce({wanted}, false) FROM newest
            WHERE {wanted} OR number = {at_once} ORDER BY number
            """,
            *after,
        )
        found += [tuple(row)[:-2] for row in rows if row[-1]]
        if not rows or rows[-1][-2] < at_once:
            break
        after = tuple(rows[-1])[: len(table.key)]
    return found[:limit]


def _reading(table: _Table, at_once: int, *, is_first: bool) -> str:
    """Return a query of the next rows, from the end of the index, with their numbers."""
    order = _descending(table)
    return f"""
        SELECT rows.*, row_number() OVER (ORDER BY {order}) AS number
        FROM (SELECT * FROM {table.name} {_behind(table, is_first)} ORDER BY {order} LIMIT {at_once}) AS rows
    """


def _skipping(table: _Table, at_once: int, *, is_first: bool) -> str:
    """Return the same query, if old snapshots keep many versions, or rows change all the time.

    It skips from key to key from the end of the index, where the newest version is found first. Reading would
    visit all versions; skipping takes several times as long as reading if there are few.
    """
    keys = ", ".join(f"other.{column}" for column in table.key)
    last = ", ".join(f"newest.{column}" for column in table.key)
    order = _descending(table)
    return f"""
        (
            SELECT rows.*, 1 AS number
            FROM (SELECT * FROM {table.name} {_behind(table, is_first)} ORDER BY {order} LIMIT 1) AS rows
        )
        UNION ALL
        SELECT following.*, newest.number + 1 FROM newest CROSS JOIN LATERAL (
            SELECT * FROM {table.name} AS other WHERE ({keys}) < ({last}) ORDER BY {order} LIMIT 1
        ) AS following
        WHERE newest.number < {at_once}
    """


def _behind(table: _Table, is_first: bool) -> str:
    places = ", ".join(f"${number}" for number in range(1, len(table.key) + 1))
    return "" if is_first else f"WHERE ({', '.join(table.key)}) < ({places})"


def _descending(table: _Table) -> str:
    return ", ".join(f"{column} DESC" for column in (*table.key, "generation"))


def _transaction(row: Any) -> Transaction:
    name, *rest = row
    return transaction_of((original(name), *rest))
