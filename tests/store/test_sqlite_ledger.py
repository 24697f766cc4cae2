"""The embedded ledger: how SQLite is set, what a failing disk does, and that searches do not scan."""

import ast
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
import pytest

from semel.core.facts import BatchAppended, ProducerIdAllocated, Put, TopicDeleted
from semel.core.types import (
    Cluster,
    ClusterKey,
    CommittedOffset,
    OffsetKey,
    PartitionKey,
    ProducerKey,
    ProducerState,
    TopicKey,
    Transaction,
)
from semel.store.cluster import migration
from semel.store.contract import BatchLocation, StoreBroken, StoreFull
from semel.store.embedded import ledger_writer, row_writer
from semel.store.embedded.ledger import SqliteLedger
from semel.store.embedded.ledger_opening import open_reader
from semel.store.embedded.ledger_writer import LedgerWriter
from semel.store.embedded.queries import QUERIES, SCHEMA, ManyRows, Statements, parse

STORE = Path(ledger_writer.__file__).parent


# -- settings ---------------------------------------------------------------------------------------------


def test_every_connection_flushes_and_maps_nothing(tmp_path: Path) -> None:
    writer = LedgerWriter(tmp_path / "ledger.db")
    reader = open_reader(tmp_path / "ledger.db")
    for connection in (writer.connection, reader):
        assert connection.pragma("journal_mode") == "wal"
        assert connection.pragma("synchronous") == 2
        assert connection.pragma("mmap_size") == 0
    assert writer.connection.pragma("wal_autocheckpoint") == 0
    with pytest.raises(apsw.ReadOnlyError):
        reader.execute("DELETE FROM topics")
    reader.close()
    writer.close(cleanly=True)


def test_the_library_has_no_known_corruption() -> None:
    """SQLite before 3.51.3 could corrupt a database when its write-ahead log was reset."""
    assert apsw.sqlite_lib_version() >= "3.51.3"


def test_every_table_is_strict_and_described() -> None:
    tables = re.findall(r"((?:^--.*\n)+)CREATE TABLE (\w+) \((?:.|\n)*?\n\)(.*);", SCHEMA, re.MULTILINE)
    assert len(tables) == SCHEMA.count("CREATE TABLE")
    for sentence, name, options in tables:
        assert sentence.strip(), name
        assert "STRICT" in options, name


def test_every_field_of_a_transaction_is_a_column() -> None:
    writer = LedgerWriter(None)
    columns = writer.connection.execute("SELECT name FROM pragma_table_info('transactions')").fetchall()
    assert tuple(name for (name,) in columns) == Transaction.__struct_fields__
    writer.close(cleanly=False)


def test_every_query_is_described_and_used_and_every_used_one_exists() -> None:
    text = (STORE / "queries.sql").read_text()
    assert len(QUERIES) == text.count("-- name: ")
    used: set[str] = set()
    for path in (*STORE.rglob("*.py"), Path(migration.__file__)):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and node.args:
                name = getattr(node.func, "attr", getattr(node.func, "id", ""))
                # One of two may be chosen by a condition.
                chosen = node.args[0]
                named = [chosen.body, chosen.orelse] if isinstance(chosen, ast.IfExp) else [chosen]
                if name in ("run", "rows", "each", "value", "ManyRows"):
                    texts = (str(each.value) for each in named if isinstance(each, ast.Constant))
                    # Others than names are the SQL of clusters.
                    used.update(text for text in texts if " " not in text)
    assert used == set(QUERIES)


def test_queries_need_a_sentence_and_a_name_of_their_own() -> None:
    assert parse("-- name: a\n-- What it does.\nSELECT 1;\n") == {"a": "SELECT 1;"}
    assert parse("-- name: a\nSELECT 1;\n") == {}
    with pytest.raises(ValueError, match="two queries"):
        parse("-- name: a\n-- One.\nSELECT 1;\n-- name: a\n-- Two.\nSELECT 2;\n")
    with pytest.raises(ValueError, match="no row"):
        ManyRows("begin")


@pytest.mark.parametrize("count", [0, 1, 2, 3, 255, 256, 257, 1000])
def test_many_rows_writes_each_row_once(count: int) -> None:
    writer = LedgerWriter(None)
    steps: list[str] = []

    def note(cursor: Any, sql: str, bindings: Any) -> bool:
        steps.append(sql)
        return True

    writer.connection.exec_trace = note
    values = [number for index in range(count) for number in (index + 1, index)]
    ManyRows("leave_batches").run(Statements(writer.connection), values)
    assert len(steps) == -(-count // 256)
    writer.connection.exec_trace = None
    rows = writer.connection.execute("SELECT partition_id, below_offset FROM leftovers ORDER BY 1").fetchall()
    assert rows == [(index + 1, index) for index in range(count)]
    writer.close(cleanly=False)


NOT_WHILE_CLIENTS_WAIT = (
    *("chunk_references", "checkpoint_chunks", "known_chunks", "batches_at_rest", "staged_at_rest", "counts"),
)
"""A row for each chunk, and a chunk holds 256 MiB; and what is asked when no broker serves clients."""


def test_searches_use_keys_and_never_scan() -> None:
    """Every query that runs while clients wait finds its rows by a key."""
    writer = LedgerWriter(None)
    # Of one row, or lists of work from which the first is taken.
    small = {"meta", "cluster", "leftovers", "dropped"}
    tables = set(re.findall(r"CREATE TABLE (\w+)", SCHEMA)) - small
    for name, text in QUERIES.items():
        if name in NOT_WHILE_CLIENTS_WAIT or not re.match(r"SELECT|UPDATE|DELETE|INSERT|WITH", text):
            continue
        names = re.findall(r":(\w+)", text)
        bindings: Any = dict.fromkeys(names, 1) if names else [1] * text.count("?")
        plan = writer.connection.execute(f"EXPLAIN QUERY PLAN {text}", bindings).fetchall()
        for *_, step in plan:
            scanned = re.match(r"SCAN (\w+)", str(step))
            # What is scanned may be the rows that were given, or what a part of the query has found.
            assert scanned is None or scanned.group(1) not in tables, (name, step)
    writer.close(cleanly=False)


# -- a few rows per tick ----------------------------------------------------------------------------------


async def test_a_tick_writes_each_partition_and_producer_once(tmp_path: Path, scribe: Any) -> None:
    ledger = await SqliteLedger.open(tmp_path / "ledger.db")
    created = scribe.created(partitions=10)
    await ledger.commit([created], [])
    facts: list[Any] = []
    locations: list[BatchLocation] = []
    for number in range(1_000):
        key = PartitionKey(created.topic.topic_id, number % 10)
        fact, location = scribe.append(key)
        facts += [fact, Put(key.of(7), ProducerState(0, seen_ms=number))]
        locations.append(location)
    steps: list[str] = []
    connection = ledger._writer.connection

    def note(cursor: Any, sql: str, bindings: Any) -> bool:
        steps.append(sql)
        return True

    def trace(step: Callable[..., bool] | None) -> int:
        connection.exec_trace = step
        return connection.total_changes()

    # The connection belongs to its thread, which may be resting on it.
    changes = await ledger._worker.run(trace, note)
    await ledger.commit([*facts, *scribe.changed()], locations)
    changes = await ledger._worker.run(trace, None) - changes
    # A thousand batches, ten partitions, ten producers, one chunk, one row of counters.
    assert changes == 1_000 + 10 + 10 + 1 + 1
    assert len(steps) == 1 + 1 + 4 + 1 + 1 + 1 + 1
    await ledger.close()


async def test_partition_ids_in_memory_are_bounded(
    tmp_path: Path, scribe: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_writer, "PARTITIONS_MAX", 8)
    ledger = await SqliteLedger.open(tmp_path / "ledger.db")
    created = scribe.created(partitions=30)
    await ledger.commit([created], [])
    keys = [PartitionKey(created.topic.topic_id, index) for index in range(30)]
    for _ in range(3):
        for key in keys:
            await scribe.fill(ledger, key, [{}])
        pairs = [scribe.append(key) for key in keys]
        facts = [fact for fact, _ in pairs]
        await ledger.commit([*facts, *scribe.changed()], [location for _, location in pairs])
        await scribe.fill(ledger, keys[0], [{}])
    assert len(ledger._writer._rows._ids) <= 8
    assert await ledger.load(keys) == [scribe.partitions[key] for key in keys]
    await ledger.close()


# -- a disk that fails ------------------------------------------------------------------------------------


@pytest.mark.parametrize("call", ["write", "sync"])
async def test_an_error_in_a_commit_breaks_the_ledger_for_good(
    tmp_path: Path, failing_disk: Any, scribe: Any, call: str
) -> None:
    ledger = await SqliteLedger.open(tmp_path / "ledger.db", vfs=failing_disk.name)
    await ledger.commit([scribe.created("before")], [])
    failing_disk.failing[call] = apsw.IOError
    with pytest.raises(StoreBroken):
        await ledger.commit([scribe.created("unknown")], [])
    failing_disk.failing.clear()
    for again in (
        ledger.commit([scribe.created("after")], []),
        ledger.load([TopicKey("before")]),
        ledger.topics(),
        ledger.sweep(limit=1),
        ledger.chunk_references(),
    ):
        with pytest.raises(StoreBroken):
            await again
    await ledger.close()

    # Whether it happened is for the next start to say; it is one of the two, and nothing in between.
    ledger = await SqliteLedger.open(tmp_path / "ledger.db")
    assert [topic.name for topic in await ledger.topics()] in (["before"], ["before", "unknown"])
    assert not ledger.identity.stopped_cleanly
    await ledger.commit([scribe.created("after")], [])
    await ledger.close()


async def test_no_room_for_a_commit_undoes_it(tmp_path: Path, failing_disk: Any, scribe: Any) -> None:
    ledger = await SqliteLedger.open(tmp_path / "ledger.db", vfs=failing_disk.name)
    created = scribe.created("before", 2)
    key = PartitionKey(created.topic.topic_id, 0)
    await ledger.commit([created], [])
    await scribe.fill(ledger, key, [{}] * 3)
    expected = scribe.partitions[key]
    number = await ledger.commit([ProducerIdAllocated(0)], [])
    failing_disk.failing["write"] = apsw.FullError
    for _ in range(2):
        with pytest.raises(StoreFull):
            await ledger.commit(
                [
                    BatchAppended(key, 3, 3, 1, 1_000, 100, -1, False, False),
                    Put(key, expected.but(high_watermark=4)),
                    ProducerIdAllocated(1),
                    scribe.created("refused"),
                ],
                [BatchLocation(1, 900, 100)],
            )
    # Reads go on.
    assert await ledger.load([key, ClusterKey()]) == [expected, Cluster(1)]
    failing_disk.failing.clear()
    fact, location = scribe.append(key)
    assert fact.base_offset == 3
    facts = [fact, *scribe.changed(), scribe.created("after")]
    assert await ledger.commit(facts, [location]) == number + 1
    await ledger.close()
    ledger = await SqliteLedger.open(tmp_path / "ledger.db")
    assert await ledger.load([key, ClusterKey()]) == [scribe.partitions[key], Cluster(1)]
    assert [topic.name for topic in await ledger.topics()] == ["after", "before"]
    await ledger.close()


def test_a_log_that_cannot_be_moved_makes_the_ledger_tight(
    tmp_path: Path, failing_disk: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger_writer, "LOG_FRAMES_BUSY", 100)
    monkeypatch.setattr(ledger_writer, "LOG_FRAMES_QUIET", 50)
    writer = LedgerWriter(tmp_path / "ledger.db", vfs=failing_disk.name)

    def write(commits: int) -> None:
        for _ in range(commits):
            keys = [OffsetKey(f"{number}", "t", 0) for number in range(50)]
            writer.commit([Put(key, CommittedOffset(1, -1, "x" * 500)) for key in keys], [])
            writer.rest(quiet=False)

    write(100)
    writer.rest(quiet=True)
    assert not writer.is_tight
    failing_disk.failing["move"] = apsw.FullError
    write(100)
    assert writer.is_tight
    writer.rest(quiet=True)
    assert writer.is_tight
    failing_disk.failing.clear()
    writer.rest(quiet=True)
    assert not writer.is_tight
    write(100)
    assert not writer.is_tight
    writer.close(cleanly=True)


async def test_a_database_that_may_not_grow_still_deletes(tmp_path: Path, scribe: Any) -> None:
    ledger = await SqliteLedger.open(tmp_path / "ledger.db")
    created = scribe.created()
    key = PartitionKey(created.topic.topic_id, 0)
    await ledger.commit([created], [])
    await scribe.fill(ledger, key, [{}] * 2_000)
    connection = ledger._writer.connection

    def stop_growing() -> None:
        connection.pragma("max_page_count", connection.pragma("page_count"))

    # The connection belongs to its thread, which may be resting on it.
    await ledger._worker.run(stop_growing)
    refused = [
        BatchAppended(key, 2_000 + number, 2_000 + number, 0, 1_000, 1, -1, False, False)
        for number in range(3_000)
    ]
    with pytest.raises(StoreFull):
        await ledger.commit(refused, [BatchLocation(2, number, 1) for number in range(3_000)])
    assert await ledger.load([key]) == [scribe.partitions[key]]
    await ledger.commit([scribe.trim(key, 1_000), *scribe.changed()], [])
    await ledger.commit([TopicDeleted(created.topic)], [])
    freed = 0
    while locations := await ledger.sweep(limit=300):
        freed += len(locations)
    assert freed == 2_000
    assert await ledger.chunk_references() == {}
    await ledger.close()


async def test_a_fact_that_cannot_be_written_breaks_the_ledger(tmp_path: Path, scribe: Any) -> None:
    """The core promises dense offsets and known partitions. If it breaks that, nothing may go on."""
    ledger = await SqliteLedger.open(tmp_path / "ledger.db")
    await ledger.commit([scribe.created()], [])
    unknown = ProducerKey(b"?" * 16, 0, 1)
    with pytest.raises(StoreBroken, match="not in the ledger"):
        await ledger.commit([Put(unknown, None)], [])
    with pytest.raises(StoreBroken):
        await ledger.topics()
    await ledger.close()


async def test_what_is_not_a_ledger_is_refused(tmp_path: Path) -> None:
    before = set(threading.enumerate())
    (tmp_path / "ledger.db").write_bytes(b"not a database" * 1_000)
    with pytest.raises(StoreBroken, match=r"ledger\.db"):
        await SqliteLedger.open(tmp_path / "ledger.db")
    assert set(threading.enumerate()) <= before


# -- the write-ahead log ----------------------------------------------------------------------------------


def _frames(writer: LedgerWriter) -> tuple[int, int]:
    return writer.connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_NOOP)


def test_the_log_is_moved_in_quiet_moments_and_at_its_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = LedgerWriter(tmp_path / "ledger.db")
    for number in range(400):
        writer.commit([Put(OffsetKey("g", "t", number), CommittedOffset(1))], [])
        writer.rest(quiet=False)
    frames, moved = _frames(writer)
    assert frames > ledger_writer.LOG_FRAMES_QUIET
    assert moved == 0
    writer.rest(quiet=True)
    # With one more, which says that it is being moved.
    assert _frames(writer) == (frames + 1, frames + 1)
    # All of it was moved, so the next commit begins the log anew.
    writer.commit([ProducerIdAllocated(1)], [])
    assert _frames(writer)[0] < 10

    monkeypatch.setattr(ledger_writer, "LOG_FRAMES_MAX", 300)
    most = 0
    for number in range(1_000):
        writer.commit([Put(OffsetKey("g", "t", number), CommittedOffset(2))], [])
        writer.rest(quiet=False)
        most = max(most, _frames(writer)[0])
    assert 300 <= most < 300 + 10 * ledger_writer.LOOK_EVERY
    writer.close(cleanly=True)
    assert (tmp_path / "ledger.db-wal").stat().st_size == 0


def test_the_log_takes_its_space_at_the_start(tmp_path: Path) -> None:
    writer = LedgerWriter(tmp_path / "ledger.db")
    taken = (tmp_path / "ledger.db-wal").stat().st_size
    assert taken >= ledger_writer.LOG_FRAMES_MAX * 4096
    for number in range(50):
        writer.commit([ProducerIdAllocated(number)], [])
    assert (tmp_path / "ledger.db-wal").stat().st_size == taken
    # A process that ends here leaves the log with room behind its last commit.
    writer.close(cleanly=False)
    writer = LedgerWriter(tmp_path / "ledger.db")
    assert writer._rows.counters.next_producer_id == 50
    writer.close(cleanly=True)


# -- identity and terms -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cleanly", "boot", "term"),
    [(True, "one", 1), (True, "two", 1), (False, "one", 1), (False, "two", 2), (False, "", 2)],
)
def test_a_term_ends_when_unflushed_writes_may_be_lost(
    tmp_path: Path, cleanly: bool, boot: str, term: int
) -> None:
    """A killed process loses nothing that it wrote; an operating system that went down may."""
    writer = LedgerWriter(tmp_path / "ledger.db", boot_id="one")
    assert writer.identity.term == 1
    cluster_id, store_id = writer.identity.cluster_id, writer.identity.store_id
    assert len(store_id) == 16
    assert re.fullmatch(r"[A-Za-z0-9_-]{22}", cluster_id)
    writer.close(cleanly=cleanly)
    writer = LedgerWriter(tmp_path / "ledger.db", boot_id=boot)
    assert writer.identity == (cluster_id, term, cleanly, 0, store_id)
    writer.close(cleanly=True)


def test_a_cluster_id_is_given_once(tmp_path: Path) -> None:
    writer = LedgerWriter(tmp_path / "ledger.db", cluster_id="mine")
    assert writer.identity.cluster_id == "mine"
    writer.close(cleanly=True)
    writer = LedgerWriter(tmp_path / "ledger.db")
    assert writer.identity.cluster_id == "mine"
    writer.close(cleanly=True)
    with pytest.raises(ValueError, match="cluster mine"):
        LedgerWriter(tmp_path / "ledger.db", cluster_id="other")
