"""Opens and creates Delta tables, and commits to them, in the driver.

Only this module uses `deltalake`. A process keeps its tables open, because loading a large one is slow;
before each use it reads the commits that were made since.
"""

import json
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Field, Schema, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction

from semel.spark.delta.files import Added
from semel.spark.delta.position import UNKNOWN, Commit, Note
from semel.spark.delta.schema import new_columns
from semel.spark.delta.storage import Storage, reaching
from semel.spark.errors import OptionError, PipelineError, TableChanged, TableUnreachable

LOG = "_delta_log"
#: Tables that a process keeps open.
TABLES_MAX = 8
#: Table features that are accepted: they do not affect files that are only added, or `_check_features` checks
#: them.
FEATURES = frozenset(
    {
        "appendOnly",
        "changeDataFeed",
        "checkConstraints",
        "columnMapping",
        "deletionVectors",
        "domainMetadata",
        "generatedColumns",
        "identityColumns",
        "inCommitTimestamp",
        "invariants",
        "timestampNtz",
        "v2Checkpoint",
        "vacuumProtocolCheck",
    }
)
#: Column properties that only the writer can enforce.
COLUMN_RULES = ("delta.invariants", "delta.generationExpression", "delta.identity.start")

_opened: dict[tuple[int, str], tuple[DeltaTable, int | None]] = {}


class Table:
    """A table at the version it had when it was opened."""

    def __init__(self, location: str, table: DeltaTable) -> None:
        self.location = location
        self.storage = Storage(location)
        self._table = table

    @property
    def table_id(self) -> str:
        """The id of the table, which stays the same wherever it is moved."""
        return str(self._table.metadata().id)

    @property
    def partition_by(self) -> tuple[str, ...]:
        """The columns by which it is partitioned."""
        return tuple(self._table.metadata().partition_columns)

    @property
    def schema(self) -> dict[str, Any]:
        """Its columns, in Delta's JSON."""
        found: dict[str, Any] = json.loads(self._table.schema().to_json())
        return found

    def transaction_version(self, app_id: str) -> int | None:
        """Return the version of a transaction identifier."""
        with _explained(self.location):
            return self._table.transaction_version(app_id)

    def history(self, limit: int | None) -> list[Commit]:
        """Return the newest commits, the newest first; without a limit all that are kept."""
        with _explained(self.location):
            return [_commit_of(each) for each in self._table.history(limit)]

    def has_rows_of_unknown_origin(self) -> bool:
        """Whether it has rows from before its history begins, whose writer is unknown."""
        with _explained(self.location):
            oldest = min((each["version"] for each in self._table.history(None)), default=0)
            return oldest > 0 and bool(self._table.file_uris())

    def commit(self, added: Iterable[Added], note: Note) -> None:
        """Add files. CommitFailedError: another writer has changed what this commit builds on."""
        columns, now = self.partition_by, int(time.time() * 1000)
        actions: list[AddAction | RemoveAction] = [
            AddAction(
                each.path, each.size, dict(zip(columns, each.values, strict=True)), now, True, each.stats
            )
            for each in added
        ]
        before = self._table.version()
        self._table.create_write_transaction(
            actions, "append", self._table.schema(), list(columns), commit_properties=_properties(note)
        )
        self._table.update_incremental()
        for version in range(before + 1, self._table.version() + 1):
            self.storage.flush(_log_file(version))
        _keep(self.location, self._table)

    def merge(self, rows: pa.Table, keys: Sequence[str], deleted: str, note: Note) -> None:
        """Replace the rows with these keys, and delete those for which the column `deleted` is true.

        CommitFailedError: another writer has changed what this commit builds on.
        """
        columns = {_quoted(name): f"source.{_quoted(name)}" for name in rows.column_names if name != deleted}
        same = " AND ".join(f"target.{_quoted(key)} = source.{_quoted(key)}" for key in keys)
        before = self._table.version()
        (
            self._table.merge(
                rows,
                same,
                source_alias="source",
                target_alias="target",
                commit_properties=_properties(note),
            )
            .when_matched_delete(f"source.{_quoted(deleted)}")
            .when_matched_update(columns)
            .when_not_matched_insert(columns, predicate=f"NOT source.{_quoted(deleted)}")
            .execute()
        )
        self._table.update_incremental()
        if self._table.version() == before:
            # Nothing has changed, and deltalake has not committed: record that the rows were merged.
            self.commit((), note)
            return
        for version in range(before + 1, self._table.version() + 1):
            for path in self._files_of(version):
                self.storage.flush(path)
            self.storage.flush(_log_file(version))
        _keep(self.location, self._table)

    def _files_of(self, version: int) -> list[str]:
        """Return the files that a commit has added; only those that this process may have written matter."""
        lines = (self.storage.read(_log_file(version)) or b"").splitlines()
        added = (json.loads(line).get("add") for line in lines)
        paths = [unquote(each["path"]) for each in added if each is not None]
        missing = set(self.storage.missing(paths))
        return [path for path in paths if path not in missing]


def _properties(note: Note) -> CommitProperties:
    return CommitProperties(
        custom_metadata={"userMetadata": note.to_text()},
        app_transactions=[Transaction(name, version) for name, version in note.identifiers().items()],
    )


def _quoted(name: str) -> str:
    return "`{}`".format(name.replace("`", "``"))


def open_table(location: str) -> Table | None:
    """Return the table as it is now; None if there is none."""
    key = (os.getpid(), location)
    with _explained(location):
        try:
            table, changed = _opened.pop(key, (None, None))
            # If the log is not the one that was read, it belongs to another table at the same location.
            if table is not None and changed == _changed(location, table):
                table.update_incremental()
            else:
                table = DeltaTable(location)
        except TableNotFoundError:
            return None
        _keep(location, table)
        return Table(location, table)


def _keep(location: str, table: DeltaTable) -> None:
    if len(_opened) >= TABLES_MAX:
        _opened.pop(next(iter(_opened)))
    _opened[os.getpid(), location] = (table, _changed(location, table))


def open_for(location: str, rows: dict[str, Any], partition_by: Sequence[str], *, merges: bool) -> Table:
    """Return the table for these rows, created if there is none; OptionError if it does not accept them."""
    table = open_table(location) or _create(location, rows, partition_by)
    new = check_rows(table, rows, partition_by)
    if not new:
        return table
    check_merges(location, new, merges=merges)
    with _explained(location):
        table._table.alter.add_columns([Field.from_json(json.dumps(each)) for each in new])
    _opened.pop((os.getpid(), location), None)
    return open_for(location, rows, partition_by, merges=False)


def check_merges(location: str, new: Sequence[dict[str, Any]], *, merges: bool) -> None:
    """OptionError if the rows have new columns that are not to be added."""
    if new and not merges:
        names = ", ".join(repr(each["name"]) for each in new)
        raise OptionError(
            f"the table {location} has no column {names}. Leave it out, or set mergeSchema=true to add it"
        )


def check_rows(table: Table, rows: dict[str, Any], partition_by: Sequence[str]) -> list[dict[str, Any]]:
    """Return the columns of these rows that the table lacks. OptionError if they do not fit it."""
    if partition_by and table.partition_by != tuple(partition_by):
        raise OptionError(
            f"the table {table.location} is partitioned by {', '.join(table.partition_by) or 'nothing'}, and "
            f"not by {', '.join(partition_by)}. Leave partitionBy out"
        )
    _check_features(table)
    return new_columns(rows, table.schema, table.partition_by)


def check_is_free(location: str) -> None:
    """OptionError if no table can be created there."""
    if found := Storage(location).names(""):
        raise OptionError(
            f"{location} is not a Delta table and not empty: it has {found[0]!r}. Give another path"
        )


def _create(location: str, rows: dict[str, Any], partition_by: Sequence[str]) -> Table:
    check_is_free(location)
    with _explained(location):
        schema = Schema.from_json(json.dumps(rows))
        # If another copy created it a moment ago, use that one.
        DeltaTable.create(location, schema, mode="ignore", partition_by=list(partition_by))
    table = open_table(location)
    if table is None:
        raise PipelineError(f"the table {location} was created but cannot be found")
    return table


def _check_features(table: Table) -> None:
    """Refuse tables with rules that would not be enforced for rows written here."""
    protocol, settings = table._table.protocol(), table._table.metadata().configuration
    asked = sorted(set(protocol.writer_features or ()) - FEATURES)
    asked += [name for name in settings if name.startswith("delta.constraints.")]
    if settings.get("delta.columnMapping.mode", "none") != "none":
        asked.append("columnMapping")
    for field in table.schema["fields"]:
        asked += [f"{name} of {field['name']}" for name in COLUMN_RULES if name in field["metadata"]]
    if asked:
        raise OptionError(
            f"the table {table.location} requires {', '.join(asked)}, which this sink does not support"
        )


def _commit_of(entry: dict[str, Any]) -> Commit:
    note, restored_to = entry.get("userMetadata"), None
    if entry.get("operation") == "RESTORE":
        given = str((entry.get("operationParameters") or {}).get("version"))
        restored_to = int(given) if given.isascii() and given.isdigit() else UNKNOWN
    return Commit(int(entry["version"]), note if isinstance(note, str) else None, restored_to)


def _log_file(version: int) -> str:
    return f"{LOG}/{version:020}.json"


def _changed(location: str, table: DeltaTable) -> int | None:
    """Return when the newest known commit was written."""
    return Storage(location).changed(_log_file(table.version()))


@contextmanager
def _explained(location: str) -> Iterator[None]:
    try:
        with reaching(location):
            yield
    except CommitFailedError as error:
        raise TableChanged(
            f"the table {location} was changed at the same moment: {error} Start again"
        ) from error
    except DeltaError as error:
        raise TableUnreachable(f"the table {location} cannot be reached: {error}") from error
