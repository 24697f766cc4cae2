"""Find rows that contradict other rows: each check queries one page of a table and names the problems.

A query sees one snapshot, but a truncated table looks empty to a query that began before (``chunks``). So a
page with a problem is read again, and a problem seen both times is a finding.
"""

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, Final, NamedTuple

from semel.core.entities import SHARDS
from semel.store.cluster.postgres.opening import LOST_BASICS

Progress = Callable[[str], None]
"""Called from time to time with a sentence."""

RESTORE: Final = "restore the ledger from a backup (docs/cluster.md, Restoring)"
FINDINGS_MAX: Final = 1_000
"""Findings that are kept and reported. Further ones are only counted."""
TOLD_ROWS: Final = 100_000
"""Rows between two progress reports."""


class Finding(NamedTuple):
    """A contradiction that only lost or altered rows or objects explain."""

    kind: str
    """The table, or ``object store``."""
    what: str
    """What was found, and what it means."""
    advice: str
    """What to do."""


class Findings:
    """The findings of one check. Each is reported at once, because the rest of the check may fail."""

    def __init__(self, tell: Callable[[Finding], None]) -> None:
        self._tell = tell
        self.kept: list[Finding] = []
        self.total = 0

    def add(self, finding: Finding) -> None:
        """Keep and report a finding; beyond ``FINDINGS_MAX``, only count it."""
        self.total += 1
        if len(self.kept) < FINDINGS_MAX:
            self.kept.append(finding)
            self._tell(finding)


def not_told(finding: Finding) -> None:
    """Report nothing: the caller reads all findings from ``Checked``."""


class Checked(NamedTuple):
    """The result of a check."""

    findings: list[Finding]
    total: int
    """The number of findings, including those that are not listed."""
    partitions: int
    batches: int
    chunks: int
    objects: int
    compared_objects: bool
    """Whether the objects were compared with the object store."""
    failure: str | None = None
    """Why the check ended early."""
    not_checked: tuple[str, ...] = ()
    """The parts that were not checked, or not completely."""


PAGE: Final = 2_000


class Check(NamedTuple):
    """A check of one table, page by page."""

    kind: str
    first: tuple[Any, ...]
    """A key that sorts before all others."""
    query: str
    """Takes a key and a number of rows. Returns the rows after the key: each its key and problem, or NULL."""
    advice: str


class Single(NamedTuple):
    """A check without pages. The query returns problems."""

    kind: str
    query: str
    advice: str


SINGLES: Final = (
    Single("meta", f"SELECT 'the row is lost: ' || lost FROM ({LOST_BASICS}) AS each (lost)", RESTORE),
    Single(
        "shards",
        f"""
        SELECT format('the row of shard %s is lost: nobody serves its partitions, groups and ids', number)
        FROM generate_series(0, {SHARDS - 1}) AS number
        WHERE NOT EXISTS (SELECT FROM shards WHERE shard = number)
        """,
        "brokers write it again by themselves after a lease (semel.lease.ms); if none runs, start one",
    ),
)

_NO_PARTITION: Final = """
    NOT EXISTS (
        SELECT FROM partitions
        WHERE partitions.topic_id = each.topic_id AND partitions.partition_index = each.partition_index
    )
    AND NOT EXISTS (
        SELECT FROM leftovers WHERE leftovers.topic_id = each.topic_id
        AND leftovers.partition_index = each.partition_index AND below_offset = 9223372036854775807
    )
    AND NOT EXISTS (
        SELECT FROM topics WHERE topics.topic_id = each.topic_id AND each.partition_index < topics.partitions
    )
"""
"""The partition has no row, does not wait for the sweep, and its topic does not have it (a lost row)."""


def _of_no_partition(table: str, what: str) -> Check:
    """Check for rows of partitions that do not exist. Visits each partition once, whatever its rows."""
    query = f"""
        WITH RECURSIVE each AS (
            (
                SELECT topic_id, partition_index FROM {table}
                WHERE (topic_id, partition_index) > ($1, $2) ORDER BY 1, 2 LIMIT 1
            )
            UNION ALL
            SELECT following.* FROM each CROSS JOIN LATERAL (
                SELECT topic_id, partition_index FROM {table}
                WHERE ({table}.topic_id, {table}.partition_index) > (each.topic_id, each.partition_index)
                ORDER BY 1, 2 LIMIT 1
            ) AS following
        )
        SELECT topic_id, partition_index, CASE WHEN {_NO_PARTITION} THEN format(
            '{what} of topic id %s partition %s belong to nothing: a row of topics, partitions or'
            ' leftovers is lost',
            encode(topic_id, 'hex'), partition_index
        ) END
        FROM each LIMIT $3
    """
    return Check(table, (b"", -1), query, f"{RESTORE}, or leave them: nobody reads them, and they use space")


def _of_one_row(table: str, **key: Any) -> Check:
    """Check for keys that two rows have: indexes end in the generation (``schema.sql``), so they allow it."""
    names = ", ".join(key)
    after = ", ".join(f"${number}" for number in range(1, len(key) + 1))
    query = f"""
        SELECT {names}, CASE WHEN count(*) > 1 THEN format(
            '%s rows have the key (%s), and only one of them is seen: one was added twice, or altered',
            count(*), concat_ws(', ', {names})
        ) END
        FROM {table} WHERE ({names}) > ({after}) GROUP BY {names} ORDER BY {names} LIMIT ${len(key) + 1}
    """
    return Check(table, tuple(key.values()), query, f"stop all brokers; {RESTORE}")


_LOST_CHUNK: Final = "the bytes cannot be read: " + RESTORE
CHECKS: Final = (
    Check(
        "partitions",
        ("",),
        """
        SELECT name, CASE WHEN lost.number > 0 THEN format(
            'the rows of %s partitions of topic %s are lost, the first is that of partition %s: they can be'
            ' neither read nor written', lost.number, name, lost.first
        ) END
        FROM (SELECT name, topic_id, partitions FROM topics WHERE name > $1 ORDER BY name LIMIT $2) AS each
        CROSS JOIN LATERAL (
            SELECT count(*) AS number, min(index) AS first
            FROM generate_series(0, each.partitions - 1) AS index WHERE NOT EXISTS (
                SELECT FROM partitions WHERE partitions.topic_id = each.topic_id AND partition_index = index
            )
        ) AS lost ORDER BY name
        """,
        f"{RESTORE}; or delete the topic, with all its records",
    ),
    Check(
        "topics",
        (b"", -1),
        """
        SELECT each.topic_id, partition_index, CASE WHEN name IS NULL THEN format(
            'there is a partition %s of topic id %s, but no such topic: its row is lost, and clients do not'
            ' find it', partition_index, encode(each.topic_id, 'hex')
        ) WHEN partition_index >= topics.partitions THEN format(
            'topic %s has %s partitions, but there is a partition %s',
            name, topics.partitions, partition_index
        ) END
        FROM (
            SELECT topic_id, partition_index FROM partitions WHERE (topic_id, partition_index) > ($1, $2)
            ORDER BY 1, 2 LIMIT $3
        ) AS each LEFT JOIN topics USING (topic_id) ORDER BY 1, 2
        """,
        f"{RESTORE}; nothing deletes the records meanwhile",
    ),
    *(
        _of_no_partition(table, what)
        for table, what in (
            ("batches", "batches"),
            ("staged", "staged batches"),
            ("aborted", "aborted transactions"),
            ("producers", "producers"),
        )
    ),
    Check(
        "chunks",
        (0,),
        """
        SELECT chunk_id, CASE
            WHEN each.object_id IS NULL AND NOT EXISTS (
                SELECT FROM inline_bytes WHERE inline_bytes.chunk_id = each.chunk_id
            ) THEN format('the bytes of chunk %s are lost: no object and no inline table has them', chunk_id)
            WHEN each.object_id IS NOT NULL AND objects.object_id IS NULL THEN format(
                'chunk %s is in object %s, whose row is lost', chunk_id, lpad(to_hex(object_id), 16, '0')
            )
            WHEN each.object_id IS NOT NULL AND objects.state <> 'stored' THEN format(
                'chunk %s is in object %s, which is marked as %s',
                chunk_id, lpad(to_hex(object_id), 16, '0'), objects.state
            )
        END
        FROM (SELECT * FROM chunks WHERE chunk_id > $1 ORDER BY chunk_id LIMIT $2) AS each
        LEFT JOIN objects USING (object_id) ORDER BY chunk_id
        """,
        "if an object is in the object store, brokers write its lost row again when they compare the objects"
        f" (semel.object.reconcile.interval.ms); otherwise {RESTORE}",
    ),
    Check(
        "objects",
        (0,),
        """
        SELECT object_id, CASE WHEN state = 'stored' AND NOT EXISTS (
            SELECT FROM chunks WHERE chunks.object_id = each.object_id
        ) THEN format(
            'object %s is in use, but no chunk is in it: rows of chunks are lost',
            lpad(to_hex(object_id), 16, '0')
        ) END
        FROM (SELECT * FROM objects WHERE object_id > $1 ORDER BY object_id LIMIT $2) AS each
        ORDER BY object_id
        """,
        f"{RESTORE}. The object is kept; if no batch lacks a chunk, nobody needs it",
    ),
    Check(
        "dropped",
        (0, -1),
        """
        SELECT chunk_id, position, CASE WHEN NOT EXISTS (
            SELECT FROM chunks WHERE chunks.chunk_id = each.chunk_id
        ) THEN format('bytes of chunk %s wait for the sweep, but the row of the chunk is lost', chunk_id) END
        FROM (
            SELECT chunk_id, position FROM dropped WHERE (chunk_id, position) > ($1, $2)
            ORDER BY 1, 2 LIMIT $3
        ) AS each ORDER BY 1, 2
        """,
        _LOST_CHUNK,
    ),
    Check(
        "staged",
        (b"", -1, -1, -1),
        """
        SELECT topic_id, partition_index, producer_id, stage_number, CASE WHEN NOT EXISTS (
            SELECT FROM chunks WHERE chunks.chunk_id = each.chunk_id
        ) THEN format(
            'a batch that producer %s has staged in topic id %s partition %s is in chunk %s, whose row is'
            ' lost', producer_id, encode(topic_id, 'hex'), partition_index, chunk_id
        ) END
        FROM (
            SELECT * FROM staged
            WHERE (topic_id, partition_index, producer_id, stage_number) > ($1, $2, $3, $4)
            ORDER BY topic_id, partition_index, producer_id, stage_number LIMIT $5
        ) AS each ORDER BY 1, 2, 3, 4
        """,
        _LOST_CHUNK,
    ),
    Check(
        "pending_versions",
        ("", -1),
        """
        SELECT group_id, position, CASE WHEN NOT EXISTS (
            SELECT FROM pending_versions WHERE pending_versions.group_id = each.group_id
            AND pending_versions.row_version = each.row_version
        ) THEN format(
            'group %s has pending offsets, but its row of pending_versions is lost, or has another version',
            group_id
        ) END
        FROM (
            SELECT group_id, position, row_version FROM pending_offsets WHERE (group_id, position) > ($1, $2)
            ORDER BY 1, 2 LIMIT $3
        ) AS each ORDER BY 1, 2
        """,
        f"{RESTORE}, or abort the open transactions of the group's members",
    ),
    _of_one_row("partitions", topic_id=b"", partition_index=-1),
    _of_one_row("producers", topic_id=b"", partition_index=-1, producer_id=-1),
    _of_one_row("shares", topic_id=b"", partition_index=-1, group_id=""),
    _of_one_row("offsets", group_id="", topic="", partition_index=-1),
    _of_one_row("pending_versions", group_id=""),
    _of_one_row("transactions", transactional_id=""),
    _of_one_row("groups", group_id=""),
    _of_one_row("commits", broker_id=-1),
)


_USES: Final = """
    SELECT chunk_id, sum(length)::bigint FROM {table}
    WHERE ctid >= $1 AND ctid < $2 AND chunk_id BETWEEN $3 AND $4 GROUP BY chunk_id
"""
_SIZES: Final = """
    SELECT chunk_id, live_bytes, coalesce(used, 0) FROM chunks LEFT JOIN (
        SELECT chunk_id, sum(length)::bigint AS used FROM (
            SELECT chunk_id, length FROM batches
            UNION ALL SELECT chunk_id, length FROM staged
            UNION ALL SELECT chunk_id, length FROM dropped
        ) AS each WHERE chunk_id IN (SELECT unnest($1::bigint[])) GROUP BY chunk_id
    ) AS uses USING (chunk_id)
    WHERE chunk_id IN (SELECT unnest($1::bigint[])) AND live_bytes <> coalesce(used, 0) ORDER BY chunk_id
"""
SIZES_SECONDS: Final = 300.0
"""Timeout of the longest statement. It reads every row of batches once, about a million per second, and is
needed only for chunks that look wrong."""
CHUNKS: Final = 500_000
"""Chunks that are added up together, in memory. All rows of batches are read for each such group."""
BLOCKS: Final = 2_048
"""Blocks of a table that one statement adds up: some hundred thousand rows."""


async def size_problems(connection: Any, progress: Progress) -> AsyncIterator[Finding]:
    """Yield chunks whose ``live_bytes`` differ from the bytes that rows reference. TimeoutError.

    A chunk is deleted when no live bytes are left, so one that counts too few is deleted too early. No index
    leads from a chunk to its batches, so the tables are added up block by block. Rows move meanwhile, so a
    chunk that looks wrong twice is compared again, by a statement that sees one snapshot.
    """
    after = 0
    while page := await connection.fetch(
        "SELECT chunk_id, live_bytes FROM chunks WHERE chunk_id > $1 ORDER BY chunk_id LIMIT $2",
        after,
        CHUNKS,
    ):
        after = page[-1][0]
        suspects = await _differing(connection, dict(page), progress)
        page = await connection.fetch(
            "SELECT chunk_id, live_bytes FROM chunks WHERE chunk_id = ANY($1)", suspects
        )
        suspects = await _differing(connection, dict(page), progress)
        if not suspects:
            continue
        progress(f"Adding up the bytes of {len(suspects)} chunks again.")
        for chunk_id, counted, used in await connection.fetch(_SIZES, suspects, timeout=SIZES_SECONDS):
            what = f"chunk {chunk_id} counts {counted} bytes in use, but {used} bytes are"
            if counted < used:
                what += ": it will be deleted while batches need it"
                advice = (
                    "stop all brokers, set live_bytes of the chunk to what is in use, and start them again"
                )
            else:
                what += ": its space is never freed"
                advice = "rows of batches, staged or dropped are lost; see the other findings"
            yield Finding("chunks", what, advice)


async def _differing(connection: Any, left: dict[int, int], progress: Progress) -> list[int]:
    """Return chunks whose counted bytes (``left``) seem to differ from the bytes that rows reference."""
    if not left:
        return []
    first, last = min(left), max(left)
    for table in ("batches", "staged", "dropped"):
        blocks = await connection.fetchval(
            "SELECT pg_relation_size($1::text::regclass) / current_setting('block_size')::bigint", table
        )
        for block in range(0, blocks, BLOCKS):
            if block:
                progress(f"Chunks up to {last}: {block} of {blocks} blocks of {table}.")
            bounds = (block, 0), (block + BLOCKS, 0)
            for chunk_id, used in await connection.fetch(_USES.format(table=table), *bounds, first, last):
                if chunk_id in left:
                    left[chunk_id] -= used
    return [chunk_id for chunk_id, bytes_left in left.items() if bytes_left]


async def problems(connection: Any, progress: Progress) -> AsyncIterator[Finding]:
    """Yield the findings of all checks of rows."""
    for single in SINGLES:
        progress(f"Looking for lost rows of {single.kind}.")
        for (problem,) in await connection.fetch(single.query):
            yield Finding(single.kind, problem, single.advice)
    for number, check in enumerate(CHECKS, 1):
        progress(f"Comparing the tables of the ledger, {number} of {len(CHECKS)}: {check.kind}.")
        after: Sequence[Any] = check.first
        compared = 0
        while rows := await connection.fetch(check.query, *after, PAGE):
            found = _found(rows)
            if found:
                # Read more rows, because brokers may have added some before these.
                again = _found(await connection.fetch(check.query, *after, 2 * PAGE))
                for key, problem in found.items():
                    if again.get(key) == problem:
                        yield Finding(check.kind, problem, check.advice)
            after = tuple(rows[-1])[:-1]
            compared += len(rows)
            if compared % TOLD_ROWS < len(rows):
                progress(f"{check.kind}: {compared} rows compared.")


def _found(rows: Sequence[Any]) -> dict[tuple[Any, ...], str]:
    return {tuple(key): problem for *key, problem in rows if problem is not None}
