"""The schema as older versions see it: a ledger of version 1."""

import os
from pathlib import Path
from typing import Any

import apsw
import pytest

from semel.core.facts import ShareChanged, TransactionChanged
from semel.core.share_partition import ARCHIVED, AVAILABLE, Run, SharePartition
from semel.core.types import (
    Cluster,
    ClusterKey,
    CommittedOffset,
    Key,
    OffsetKey,
    OpenTransaction,
    Partition,
    PartitionKey,
    ProducerKey,
    ProducerState,
    ShareKey,
    Transaction,
    TransactionKey,
    TransactionState,
)
from semel.store import ledger_opening, page_checksums
from semel.store.interface import StoreBroken, StoreFull
from semel.store.ledger_writer import LedgerWriter
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


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.db"


# -- version 1 --------------------------------------------------------------------------------------------

TOPIC_ID = os.urandom(16)
WITHOUT_SHARES_OF_TRANSACTIONS = "ALTER TABLE transactions DROP COLUMN shares"
"""What version 6 did not have."""


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
    keys: list[Key] = [key, ProducerKey(TOPIC_ID, 0, 7), OffsetKey("g", "t", 0), ClusterKey()]
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
    assert _look(path, "SELECT value FROM meta WHERE name = 'schema_version'") == [{"value": "7"}]
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
        "transactions": ("shares",),
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
    assert _look(path, "SELECT value FROM meta WHERE name = 'schema_version'") == [{"value": "7"}]


async def test_a_ledger_of_version_4_gets_policies_and_stays_the_same_store(path: Path, scribe: Any) -> None:
    """Chunks and WAL carry the id of the store, so it must not change."""
    ledger = await SqliteLedger.open(path)
    (key,) = await scribe.create(ledger)
    await ledger.close()
    connection = apsw.Connection(str(path), vfs=page_checksums.available())
    connection.execute("DROP TABLE policies")
    connection.execute(WITHOUT_SHARES_OF_TRANSACTIONS)
    connection.execute("UPDATE meta SET value = '4' WHERE name = 'schema_version'")
    connection.close()
    before = _look(path, "SELECT value FROM meta WHERE name = 'store_id'")
    ledger = await SqliteLedger.open(path)
    assert await ledger.load([key]) == [scribe.partitions[key]]
    assert await ledger.policies() == []
    await ledger.close()
    assert _look(path, "SELECT value FROM meta WHERE name = 'store_id'") == before
    assert _look(path, "SELECT value FROM meta WHERE name = 'schema_version'") == [{"value": "7"}]


async def test_a_ledger_of_version_5_gets_share_partitions(path: Path, scribe: Any) -> None:
    ledger = await SqliteLedger.open(path)
    (key,) = await scribe.create(ledger)
    await ledger.close()
    connection = apsw.Connection(str(path), vfs=page_checksums.available())
    connection.execute("DROP TABLE shares")
    connection.execute(WITHOUT_SHARES_OF_TRANSACTIONS)
    connection.execute("UPDATE meta SET value = '5' WHERE name = 'schema_version'")
    connection.close()
    ledger = await SqliteLedger.open(path)
    share = ShareKey(key.topic_id, key.index, "g")
    assert await ledger.load([key, share]) == [scribe.partitions[key], None]
    await ledger.close()
    assert _look(path, "SELECT value FROM meta WHERE name = 'schema_version'") == [{"value": "7"}]


async def test_a_ledger_of_version_6_keeps_its_transactions_and_share_partitions(
    path: Path, scribe: Any
) -> None:
    ledger = await SqliteLedger.open(path)
    (key,) = await scribe.create(ledger)
    share_key = ShareKey(key.topic_id, key.index, "g")
    share = SharePartition(3, 1, (Run(3, 4, AVAILABLE, 2), Run(5, 6, ARCHIVED)))
    ongoing = Transaction("x", 1, 1, 1, TransactionState.ONGOING, (key,), ("g",))
    await ledger.commit([TransactionChanged(ongoing), ShareChanged(share_key, share)], [])
    await ledger.close()
    connection = apsw.Connection(str(path), vfs=page_checksums.available())
    connection.execute(WITHOUT_SHARES_OF_TRANSACTIONS)
    # Runs as version 6 wrote them.
    connection.execute("UPDATE shares SET runs = '[[3,4,0,2],[5,6,4,0]]'")
    connection.execute("UPDATE meta SET value = '6' WHERE name = 'schema_version'")
    connection.close()
    ledger = await SqliteLedger.open(path)
    assert await ledger.load([TransactionKey("x"), share_key]) == [ongoing, share]
    await ledger.commit([TransactionChanged(ongoing.but(shares=(share_key,)))], [])
    assert await ledger.load([TransactionKey("x")]) == [ongoing.but(shares=(share_key,))]
    await ledger.close()
    assert _look(path, "SELECT value FROM meta WHERE name = 'schema_version'") == [{"value": "7"}]
