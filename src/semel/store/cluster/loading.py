"""Load entities and their versions by key: one query for each kind of key.

The version of a group's pending offsets also covers its committed offsets. The version is loaded first, so
committed offsets may be newer than it, which a commit detects, but never older.

Lists have groups, transactional ids and producers. A group may have only offsets. The ids of such groups are
found by skipping from one to the next in an index, because a group has many offsets.
"""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from semel.core import types
from semel.core.entities import ABSENT, ENTITIES
from semel.core.groups import unpack_group
from semel.store.cluster.contract import Versioned
from semel.store.cluster.postgres.database import Database, original, stored
from semel.store.contract import GroupSummary, LedgerDamaged
from semel.store.rows import (
    offset_of,
    partition_of,
    pending_of,
    producer_of,
    share_of,
    topic_of,
    transaction_of,
)

Found = dict[Any, Versioned[Any]]
Fetch = Callable[..., Awaitable[list[Any]]]
"""Returns the rows of a query."""
TRANSACTION_COLUMNS: Final = """
    transactional_id, producer_id, epoch, timeout_ms, state, partitions, groups, started_ms, updated_ms,
    deadline_ms, previous_producer_id, last_epoch, version, term, is_two_phase, prepared_epoch, shares
"""
PARTITION: Final = """
    (SELECT * FROM partitions WHERE topic_id = $1 AND partition_index = $2 ORDER BY generation DESC LIMIT 1)
"""
"""The newest version of a row is looked up by its generation (``schema.sql``)."""
NOTHING: Final = Versioned(None, ABSENT)


async def load(
    fetch: Fetch, keys: Sequence[types.Key], broker_id: int, *, at_once: bool = False
) -> list[Versioned[Any]]:
    """Return the entities with these keys in the same order, and their versions. LedgerDamaged.

    ``at_once``: ``fetch`` has several connections, so the queries run concurrently.
    """
    by_kind: defaultdict[type, list[Any]] = defaultdict(list)
    for key in keys:
        by_kind[type(key)].append(key)
    queries: list[Callable[[], Awaitable[Found]]] = [
        partial(loader, fetch, by_kind[kind]) for kind, loader in _LOADERS.items() if kind in by_kind
    ]
    if types.ClusterKey in by_kind:
        queries.append(partial(_cluster, fetch, broker_id))
    found: Found = {}
    if at_once and len(queries) > 1:
        for some in await asyncio.gather(*(query() for query in queries)):
            found |= some
    else:
        for query in queries:
            found |= await query()
    if types.OffsetKey in by_kind:
        found |= await _offsets(fetch, by_kind[types.OffsetKey])
    return [found.get(key, NOTHING) for key in keys]


async def _topics(fetch: Fetch, keys: list[types.TopicKey]) -> Found:
    rows = await fetch(
        "SELECT name, topic_id, partitions, configs, row_version FROM topics WHERE name = ANY ($1)",
        [stored(key.name) for key in keys],
    )
    return {types.TopicKey(row[0]): Versioned(topic_of(row), version) for *row, version in rows}


async def _partitions(fetch: Fetch, keys: list[types.PartitionKey]) -> Found:
    rows = await fetch(
        """
        SELECT newest.* FROM unnest($1::bytea[], $2::integer[]) AS wanted (topic_id, partition_index)
        CROSS JOIN LATERAL (
            SELECT * FROM partitions
            WHERE topic_id = wanted.topic_id AND partition_index = wanted.partition_index
            ORDER BY generation DESC LIMIT 1
        ) AS newest
        """,
        *_columns(keys),
    )
    if len(rows) < len(keys):
        await _check_absent(fetch, keys)
    return {
        types.PartitionKey(topic_id, index): Versioned(partition_of(rest), version)
        for topic_id, index, *rest, version, _ in rows
    }


async def _check_absent(fetch: Fetch, keys: list[types.PartitionKey]) -> None:
    """Raise LedgerDamaged if one of these partitions should exist, because its topic does."""
    rows = await fetch(
        """
        SELECT name, partition_index
        FROM unnest($1::bytea[], $2::integer[]) AS wanted (topic_id, partition_index)
        JOIN topics USING (topic_id)
        WHERE partition_index BETWEEN 0 AND topics.partitions - 1 AND NOT EXISTS (
            SELECT FROM partitions
            WHERE partitions.topic_id = wanted.topic_id
            AND partitions.partition_index = wanted.partition_index
        )
        ORDER BY 1, 2 LIMIT 1
        """,
        *_columns(keys),
    )
    for name, index in rows:
        raise LedgerDamaged(
            f"the ledger has lost the row of partition {index} of topic {original(name)}: it can be neither"
            " read nor written. Restore the ledger; see 'semel cluster check'"
        )


async def _producers(fetch: Fetch, keys: list[types.ProducerKey]) -> Found:
    rows = await fetch(
        """
        SELECT newest.* FROM unnest($1::bytea[], $2::integer[], $3::bigint[])
            AS wanted (topic_id, partition_index, producer_id)
        CROSS JOIN LATERAL (
            SELECT * FROM producers
            WHERE topic_id = wanted.topic_id AND partition_index = wanted.partition_index
            AND producer_id = wanted.producer_id
            ORDER BY generation DESC LIMIT 1
        ) AS newest
        WHERE (
            SELECT true FROM partitions
            WHERE topic_id = wanted.topic_id AND partition_index = wanted.partition_index
            ORDER BY generation DESC LIMIT 1
        )
        """,
        *_columns(keys),
    )
    return {
        types.ProducerKey(*row[:3]): Versioned(producer_of(row[3:]), version) for *row, version, _ in rows
    }


async def _groups(fetch: Fetch, keys: list[types.GroupKey]) -> Found:
    rows = await fetch(
        """
        SELECT name, kind, body, row_version FROM unnest($1::text[]) AS name CROSS JOIN LATERAL (
            SELECT * FROM groups WHERE group_id = name ORDER BY generation DESC LIMIT 1
        ) AS newest
        """,
        [stored(key.group_id) for key in keys],
    )
    return {
        types.GroupKey(original(name)): Versioned(unpack_group(kind, body), version)
        for name, kind, body, version in rows
    }


async def _offsets(fetch: Fetch, keys: list[types.OffsetKey]) -> Found:
    rows = await fetch(
        """
        SELECT newest.* FROM unnest($1::text[], $2::text[], $3::integer[])
            AS wanted (group_id, topic, partition_index)
        CROSS JOIN LATERAL (
            SELECT group_id, topic, partition_index, committed_offset, leader_epoch, metadata, committed_ms
            FROM offsets
            WHERE group_id = wanted.group_id AND topic = wanted.topic
            AND partition_index = wanted.partition_index
            ORDER BY generation DESC LIMIT 1
        ) AS newest
        """,
        [stored(key.group_id) for key in keys],
        [stored(key.topic) for key in keys],
        [key.partition for key in keys],
    )
    found: Found = {}
    for group, topic, index, offset, epoch, metadata, at in rows:
        value = offset_of((offset, epoch, original(metadata), at))
        found[types.OffsetKey(original(group), original(topic), index)] = Versioned(value, ABSENT)
    return found


async def _pending(fetch: Fetch, keys: list[types.PendingKey]) -> Found:
    rows = await fetch(
        """
        SELECT newest.*, producer_id, topic, partition_index, committed_offset, leader_epoch, metadata,
            committed_ms, is_superseded
        FROM unnest($1::text[]) AS name CROSS JOIN LATERAL (
            SELECT group_id, row_version FROM pending_versions
            WHERE group_id = name ORDER BY generation DESC LIMIT 1
        ) AS newest
        LEFT JOIN LATERAL (
            SELECT * FROM pending_offsets
            WHERE group_id = newest.group_id AND row_version = newest.row_version OFFSET 0
        ) AS pending ON true
        ORDER BY newest.group_id, position
        """,
        [stored(key.group_id) for key in keys],
    )
    pending: defaultdict[types.PendingKey, list[types.PendingOffset]] = defaultdict(list)
    versions: dict[types.PendingKey, int] = {}
    for group, version, producer_id, topic, index, offset, epoch, metadata, *rest in rows:
        name = original(group)
        versions[types.PendingKey(name)] = version
        if producer_id is not None:
            row = (producer_id, original(topic), index, offset, epoch, original(metadata), *rest)
            pending[types.PendingKey(name)].append(pending_of(name, row))
    return {key: Versioned(tuple(pending[key]) or None, version) for key, version in versions.items()}


async def _transactions(fetch: Fetch, keys: list[types.TransactionKey]) -> Found:
    rows = await fetch(
        f"""
        SELECT {TRANSACTION_COLUMNS}, row_version FROM unnest($1::text[]) AS name CROSS JOIN LATERAL (
            SELECT * FROM transactions WHERE transactional_id = name ORDER BY generation DESC LIMIT 1
        ) AS newest
        """,
        [stored(key.transactional_id) for key in keys],
    )
    return {
        types.TransactionKey(original(name)): Versioned(transaction_of((original(name), *rest)), version)
        for name, *rest, version in rows
    }


async def _policies(fetch: Fetch, keys: list[types.PolicyKey]) -> Found:
    rows = await fetch(
        """
        SELECT kind, name, body FROM policies
        JOIN unnest($1::text[], $2::text[]) AS wanted (kind, name) USING (kind, name)
        """,
        [key.kind for key in keys],
        [stored(key.name) for key in keys],
    )
    return {
        types.PolicyKey(kind, original(name)): Versioned(original(body), ABSENT) for kind, name, body in rows
    }


async def _shares(fetch: Fetch, keys: list[types.ShareKey]) -> Found:
    rows = await fetch(
        """
        SELECT newest.* FROM unnest($1::bytea[], $2::integer[], $3::text[])
            AS wanted (topic_id, partition_index, group_id)
        CROSS JOIN LATERAL (
            SELECT * FROM shares
            WHERE topic_id = wanted.topic_id AND partition_index = wanted.partition_index
            AND group_id = wanted.group_id
            ORDER BY generation DESC LIMIT 1
        ) AS newest
        """,
        [key.topic_id for key in keys],
        [key.index for key in keys],
        [stored(key.group_id) for key in keys],
    )
    return {
        types.ShareKey(topic_id, index, original(group)): Versioned(share_of(row), version)
        for topic_id, index, group, *row, version, _ in rows
    }


async def _cluster(fetch: Fetch, broker_id: int) -> Found:
    rows = await fetch(
        """
        SELECT next_producer_id, transaction_version, features_epoch
        FROM cluster, commits WHERE broker_id = $1 ORDER BY sequence DESC LIMIT 1
        """,
        broker_id,
    )
    if not rows:
        raise LedgerDamaged(f"the ledger has lost the row of broker {broker_id}, or that of the cluster")
    return {types.ClusterKey(): Versioned(types.Cluster(*rows[0]), ABSENT)}


def _columns(keys: Sequence[Any]) -> list[list[Any]]:
    return [list(column) for column in zip(*[key.values() for key in keys], strict=True)]


_LOADERS: Final[dict[type, Callable[[Fetch, list[Any]], Awaitable[Found]]]] = {
    types.TopicKey: _topics,
    types.PartitionKey: _partitions,
    types.ProducerKey: _producers,
    types.TransactionKey: _transactions,
    types.GroupKey: _groups,
    types.PendingKey: _pending,
    types.PolicyKey: _policies,
    types.ShareKey: _shares,
}
"""All kinds but the cluster, and committed offsets, which are loaded last."""
assert _LOADERS.keys() | {types.ClusterKey, types.OffsetKey} == ENTITIES.keys()

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


async def list_transactions(database: Database, after: str, limit: int) -> list[types.Transaction]:
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


async def list_open_transactions(database: Database, after: str, limit: int) -> list[types.Transaction]:
    """Return open transactions, the last transactional id first."""
    open_ones = f"state = '{types.TransactionState.ONGOING.label}'"
    rows = await _walk(database, _TRANSACTIONS, open_ones, (stored(after),) if after else (), limit)
    return [_transaction(row) for row in rows]


async def list_unused_transactions(database: Database, before_ms: int, after: str, limit: int) -> list[str]:
    """Return transactional ids without an open transaction and not used after this time, last id first."""
    unused = f"updated_ms <= {before_ms} AND state <> '{types.TransactionState.ONGOING.label}'"
    rows = await _walk(database, _TRANSACTIONS, unused, (stored(after),) if after else (), limit)
    return [original(row[0]) for row in rows]


async def list_unseen_producers(
    database: Database, before_ms: int, after: types.ProducerKey | None, limit: int
) -> list[types.ProducerKey]:
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
    return [types.ProducerKey(*row) for row in rows]


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


def _transaction(row: Any) -> types.Transaction:
    name, *rest = row
    return transaction_of((original(name), *rest))
