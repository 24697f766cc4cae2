"""The schema as people and older versions see it: views, and a ledger of version 1."""

import os
import re
from pathlib import Path
from typing import Any

import apsw
import pytest

from semel.core.facts import (
    Closing,
    OffsetCommitted,
    PendingChanged,
    ProducerAdvanced,
    TransactionChanged,
)
from semel.core.types import (
    Cluster,
    ClusterKey,
    CommittedOffset,
    OffsetKey,
    OpenTransaction,
    Partition,
    PartitionKey,
    PendingOffset,
    ProducerKey,
    ProducerState,
    Staged,
    TopicKey,
    Transaction,
    TransactionState,
)
from semel.store import ledger_opening, page_checksums
from semel.store.interface import StoreBroken, StoreFull
from semel.store.ledger_writer import LedgerWriter
from semel.store.queries import SCHEMA
from semel.store.rows import pack_open_transactions
from semel.store.sqlite_ledger import SqliteLedger

HERE = Path(__file__).parent


def _look(path: Path, query: str) -> list[dict[str, Any]]:
    """What somebody sees who looks at the ledger while it is written."""
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    cursor = connection.execute(query)
    rows = [dict(zip([name for name, _ in cursor.get_description()], row, strict=True)) for row in cursor]
    connection.close()
    return rows


def test_every_view_is_described() -> None:
    views = re.findall(r"((?:^--.*\n)+)CREATE VIEW IF NOT EXISTS (\w+)", SCHEMA, re.MULTILINE)
    assert len(views) == SCHEMA.count("CREATE VIEW")
    assert {name for _, name in views} == {
        "open_transactions",
        "blocked_partitions",
        "committed_offsets",
        "pending",
    }


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.db"


async def _busy(path: Path, scribe: Any) -> SqliteLedger:
    """Two topics; transactions of 7 (two partitions, one staged), 8 (offsets only), and 9, which hangs."""
    ledger = await SqliteLedger.open(path)
    orders, journal = scribe.created("orders", 2), scribe.created("journal")
    facts: list[Any] = [orders, journal]
    keys = [PartitionKey(orders.topic.topic_id, index) for index in range(2)]
    staged = PartitionKey(journal.topic.topic_id, 0)
    locations = []
    for key, producer_id in ((keys[0], 5), (keys[0], 7), (keys[0], 9), (keys[1], 9), (keys[1], 5)):
        fact, location = scribe.append(key)
        is_transactional = producer_id > 5
        facts.append(
            scribe.opens(fact, producer_id) if is_transactional else fact.but(producer_id=producer_id)
        )
        locations.append(location)
        first = fact.base_offset if is_transactional else -1
        state = ProducerState(0, transaction_first_offset=first)
        facts.append(ProducerAdvanced(key.of(producer_id), state))
    facts += [
        *scribe.changed(),
        ProducerAdvanced(staged.of(7), ProducerState(0, staged=Staged(1, 1, 1))),
        TransactionChanged(
            Transaction(
                "seven",
                7,
                3,
                1_000,
                TransactionState.ONGOING,
                partitions=(keys[0], staged),
                started_ms=50,
                deadline_ms=1_050,
            )
        ),
        TransactionChanged(
            Transaction("eight", 8, 0, 1_000, TransactionState.ONGOING, groups=("g",), started_ms=60)
        ),
        TransactionChanged(Transaction("nine", 9, 0, 1_000, TransactionState.COMPLETE_COMMIT)),
        OffsetCommitted(OffsetKey("g", "orders", 0), CommittedOffset(1, 0, "m", 40)),
        OffsetCommitted(OffsetKey("g", "gone", 0), CommittedOffset(5)),
        PendingChanged(
            "g",
            (
                PendingOffset(8, OffsetKey("g", "orders", 1), CommittedOffset(2, 0, "", 70)),
                PendingOffset(9, OffsetKey("g", "orders", 0), CommittedOffset(3), is_superseded=True),
            ),
        ),
    ]
    await ledger.commit(facts, locations)
    return ledger


async def test_open_transactions_are_seen(path: Path, scribe: Any) -> None:
    ledger = await _busy(path, scribe)
    rows = _look(path, "SELECT * FROM open_transactions ORDER BY transactional_id, topic")
    seven = {
        "transactional_id": "seven",
        "producer_id": 7,
        "epoch": 3,
        "state": "Ongoing",
        "started_ms": 50,
        "deadline_ms": 1_050,
        "is_two_phase": 0,
    }
    nowhere = {"topic": None, "partition_index": None, "first_offset": None}
    assert rows == [
        {
            **seven,
            "transactional_id": "eight",
            "producer_id": 8,
            "epoch": 0,
            "started_ms": 60,
            "deadline_ms": None,
            **nowhere,
        },
        {**seven, "topic": "journal", "partition_index": 0, "first_offset": None},
        {**seven, "topic": "orders", "partition_index": 0, "first_offset": 1},
    ]
    await ledger.close()


async def test_blocked_partitions_are_seen(path: Path, scribe: Any) -> None:
    ledger = await _busy(path, scribe)
    assert _look(path, "SELECT * FROM blocked_partitions ORDER BY partition_index") == [
        {
            "topic": "orders",
            "partition_index": 0,
            "last_stable_offset": 1,
            "high_watermark": 3,
            "producer_id": 7,
            "transactional_id": "seven",
            "started_ms": 50,
        },
        {
            "topic": "orders",
            "partition_index": 1,
            "last_stable_offset": 0,
            "high_watermark": 2,
            "producer_id": 9,
            "transactional_id": None,
            "started_ms": None,
        },
    ]
    # The view says what the core says, also when the log begins behind the first offset.
    (topic, *_) = await ledger.load([TopicKey("orders")])
    key = PartitionKey(topic.topic_id, 0)
    await ledger.commit([scribe.trim(key, 2), *scribe.changed()], [])
    (partition,) = await ledger.load([key])
    (row,) = _look(path, "SELECT * FROM blocked_partitions WHERE partition_index = 0")
    assert row["last_stable_offset"] == partition.last_stable_offset == 2
    facts: list[Any] = []
    locations: list[Any] = []
    for producer_id, first in ((7, 1), (9, 2)):
        marker, location = scribe.append(key)
        facts.append(scribe.closes(marker, producer_id, Closing(first, 6, is_commit=True)))
        locations.append(location)
        facts.append(ProducerAdvanced(key.of(producer_id), ProducerState(0)))
    await ledger.commit([*facts, *scribe.changed()], locations)
    assert [row["partition_index"] for row in _look(path, "SELECT * FROM blocked_partitions")] == [1]
    await ledger.close()


async def test_offsets_are_seen(path: Path, scribe: Any) -> None:
    ledger = await _busy(path, scribe)
    assert _look(path, "SELECT * FROM committed_offsets ORDER BY topic DESC") == [
        {
            "group_id": "g",
            "topic": "orders",
            "partition_index": 0,
            "committed_offset": 1,
            "metadata": "m",
            "committed_ms": 40,
            "high_watermark": 3,
            "behind": 2,
        },
        {
            "group_id": "g",
            "topic": "gone",
            "partition_index": 0,
            "committed_offset": 5,
            "metadata": "",
            "committed_ms": 0,
            "high_watermark": None,
            "behind": None,
        },
    ]
    rows = _look(path, "SELECT * FROM pending ORDER BY producer_id")
    assert rows[0] == {
        "group_id": "g",
        "topic": "orders",
        "partition_index": 1,
        "committed_offset": 2,
        "committed_ms": 70,
        "is_superseded": 0,
        "producer_id": 8,
        "transactional_id": "eight",
    }
    assert (rows[1]["is_superseded"], rows[1]["transactional_id"]) == (1, None)
    await ledger.close()


# -- version 1 --------------------------------------------------------------------------------------------

TOPIC_ID = os.urandom(16)


def _version_1(path: Path) -> None:
    """A ledger as version 1 left it: a topic with a batch, a producer with a transaction open, an offset."""
    connection = apsw.Connection(str(path))
    connection.execute((HERE / "schema_1.sql").read_text())
    meta = {"schema_version": "1", "cluster_id": "old", "term": "3", "boot_id": "b", "clean_stop": "1"}
    connection.executemany("INSERT INTO meta VALUES (?, ?)", list(meta.items()))
    connection.execute("INSERT INTO cluster VALUES (1, 40, 12, 2)")
    connection.execute("INSERT INTO topics VALUES ('t', ?, 1, '{}')", (TOPIC_ID,))
    opened = pack_open_transactions((OpenTransaction(0, 7),))
    connection.execute("INSERT INTO partitions VALUES (1, ?, 0, 0, 5, 9, 100, ?)", (TOPIC_ID, opened))
    connection.execute("INSERT INTO batches VALUES (1, 0, 4, 9, 9, 1, 0, 100)")
    connection.execute("INSERT INTO chunks VALUES (1, 100)")
    connection.execute("INSERT INTO producers VALUES (1, 7, 2, x'', 9, 9, -1, 0)")
    connection.execute("INSERT INTO offsets VALUES ('g', 't', 0, 3, -1, '', 0)")
    connection.close()


async def test_a_ledger_of_version_1_goes_on(path: Path) -> None:
    _version_1(path)
    key = PartitionKey(TOPIC_ID, 0)
    keys = [key, ProducerKey(TOPIC_ID, 0, 7), OffsetKey("g", "t", 0), ClusterKey()]
    values = [
        Partition(0, 5, 9, 100, (OpenTransaction(0, 7),)),
        ProducerState(2, (), 9, 9, -1, 0),
        CommittedOffset(3),
        Cluster(12, 2, 1),
    ]
    for _ in range(2):
        ledger = await SqliteLedger.open(path)
        assert (ledger.identity.cluster_id, ledger.identity.term) == ("old", 3)
        assert await ledger.load(keys) == values
        assert len(await ledger.find_batches(key, 0, before=99, bytes_max=999, batches_max=9)) == 1
        assert _look(path, "SELECT producer_id FROM blocked_partitions") == [{"producer_id": 7}]
        await ledger.commit([TransactionChanged(Transaction("x", 1, 1, 1))], [])
        await ledger.close()


def test_a_ledger_of_version_1_becomes_as_a_new_one(path: Path) -> None:
    _version_1(path)
    old, new = LedgerWriter(path), LedgerWriter(None)
    columns = (
        'SELECT objects.name, columns.name, columns.type, columns."notnull", columns.dflt_value '
        "FROM sqlite_schema AS objects, pragma_table_info(objects.name) AS columns ORDER BY 1, 2"
    )
    for query in (columns, "SELECT type, name FROM sqlite_schema ORDER BY 1, 2"):
        assert old.connection.execute(query).fetchall() == new.connection.execute(query).fetchall()
    for writer in (old, new):
        writer.close(cleanly=False)


def test_a_migration_happens_as_a_whole_or_not_at_all(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _version_1(path)

    def crash(*args: Any) -> None:
        raise StoreFull("no room")

    with monkeypatch.context() as patch:
        patch.setattr(ledger_opening, "write_something", crash)
        with pytest.raises(StoreFull):
            LedgerWriter(path)
    assert _look(path, "SELECT value FROM meta WHERE name = 'schema_version'") == [{"value": "1"}]
    assert _look(path, "SELECT name FROM sqlite_schema WHERE name IN ('transactions', 'pending')") == []
    LedgerWriter(path).close(cleanly=True)
    assert _look(path, "SELECT value FROM meta WHERE name = 'schema_version'") == [{"value": "4"}]
    # Byte 20 of a database says how many bytes of each page are not SQLite's.
    assert path.read_bytes()[20] == page_checksums.RESERVED_BYTES


def test_an_older_ledger_that_was_not_stopped_cleanly_is_left_to_its_own_version(path: Path) -> None:
    """Its wal may hold what only that version reads, and that version cannot read new tables."""
    _version_1(path)
    connection = apsw.Connection(str(path))
    connection.execute("UPDATE meta SET value = '0' WHERE name = 'clean_stop'")
    connection.close()
    with pytest.raises(StoreBroken, match="start and stop the version of Semel that wrote it once"):
        LedgerWriter(path)
    assert _look(path, "SELECT value FROM meta WHERE name = 'schema_version'") == [{"value": "1"}]
    assert _look(path, "SELECT name FROM sqlite_schema WHERE name = 'transactions'") == []


async def test_a_ledger_of_version_2_goes_on(path: Path, scribe: Any) -> None:
    ledger = await SqliteLedger.open(path)
    (key,) = await scribe.create(ledger)
    await scribe.fill(ledger, key, [{"records": 2}])
    await ledger.close()
    connection = apsw.Connection(str(path), vfs=page_checksums.available())
    later = {
        "partitions": ("cleaned_offset", "compactions"),
        "cluster": ("sqlite_checkpoints",),
        "chunks": ("end_position", "checkpointed_end"),
    }
    for table, columns in later.items():
        for column in columns:
            connection.execute(f"ALTER TABLE {table} DROP COLUMN {column}")
    connection.execute("UPDATE meta SET value = '2' WHERE name = 'schema_version'")
    connection.execute("DELETE FROM meta WHERE name IN ('store_id', 'wal_bytes')")
    connection.close()
    ledger = await SqliteLedger.open(path)
    assert await ledger.load([key]) == [scribe.partitions[key]]
    await ledger.close()
    assert _look(path, "SELECT value FROM meta WHERE name = 'schema_version'") == [{"value": "4"}]
