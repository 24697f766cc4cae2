"""Upgrades of the embedded ledger. No release has an older schema, so the test provides the steps."""

from pathlib import Path
from typing import Any

import apsw
import pytest

from semel.store.contract import StoreBroken
from semel.store.embedded import ledger_opening
from semel.store.embedded.ledger import SqliteLedger

STEPS = {
    "1": "CREATE TABLE notes (note TEXT) STRICT; INSERT INTO notes VALUES ('a')",
    "2": "ALTER TABLE notes ADD COLUMN noted_ms INTEGER",
}
VERSION = "SELECT value FROM meta WHERE name = 'schema_version'"
NOTES = "SELECT sql FROM sqlite_schema WHERE name = 'notes'"


def _run(path: Path, statement: str) -> list[tuple[Any, ...]]:
    connection = apsw.Connection(str(path), vfs=ledger_opening.available())
    rows = connection.execute(statement).fetchall()
    connection.close()
    return rows


async def _refused(path: Path, match: str) -> None:
    with pytest.raises(StoreBroken, match=match):
        await SqliteLedger.open(path)


async def test_an_older_ledger_is_upgraded_as_a_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scribe: Any
) -> None:
    path = tmp_path / "ledger.db"
    ledger = await SqliteLedger.open(path)
    (key,) = await scribe.create(ledger)
    await ledger.close()
    with monkeypatch.context() as newer:
        newer.setattr(ledger_opening, "SCHEMA_VERSION", "3")
        newer.setattr(ledger_opening, "_STEPS", {**STEPS, "2": "ALTER TABLE absent ADD COLUMN x INTEGER"})
        await _refused(path, "no such table: absent")
        newer.setattr(ledger_opening, "_STEPS", STEPS)
        # The WAL may have commits that only the older Semel can read.
        _run(path, "UPDATE meta SET value = '0' WHERE name = 'clean_stop'")
        await _refused(path, "start and stop the version of Semel that wrote it once")
        assert (_run(path, VERSION), _run(path, NOTES)) == ([("1",)], [])
        _run(path, "UPDATE meta SET value = '1' WHERE name = 'clean_stop'")
        for _ in range(2):
            ledger = await SqliteLedger.open(path)
            assert await ledger.load([key]) == [scribe.partitions[key]]
            await ledger.close()
            assert (_run(path, VERSION), _run(path, "SELECT * FROM notes")) == ([("3",)], [("a", None)])
    await _refused(path, "schema 3, and this Semel knows 1: use the Semel that wrote it")
    with pytest.raises(StoreBroken, match="schema 3, and this Semel knows 1: use the Semel that wrote it"):
        ledger_opening.look_at(path)
