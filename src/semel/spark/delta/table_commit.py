"""Commits a batch to a table that other programs may change at any time.

Delta refuses a commit if, since the table was opened, another commit was made that it might depend on: a
DELETE, an overwrite, a change of the schema. An append depends on none of the existing rows. So the table is
opened again, and the commit is made to its current version, if the rows that were written still fit. If they
do not, the query stops. Its restart plans again, and writes the batch for the table as it is then or says why
it cannot.

Delta does not compare the commits between the plan and the last opening. So everything that the plan has
found is checked once more: the table, its columns, the number of the commit, the version.
"""

from collections.abc import Sequence

from deltalake.exceptions import CommitFailedError, DeltaError
from pyspark.sql.types import StructType

from semel.spark.delta.files import Added
from semel.spark.delta.options import DeltaOptions
from semel.spark.delta.plan import Plan
from semel.spark.delta.position import (
    Note,
    Position,
    is_of_stream,
    is_of_versions,
    read_of_version,
    read_position,
)
from semel.spark.delta.schema import delta_schema, required_columns
from semel.spark.delta.table import Table, check_rows, open_table
from semel.spark.errors import OptionError, PipelineFenced, PipelineMismatch, TableChanged, TableUnreachable
from semel.spark.sink.foreach_batch import is_repeated
from semel.spark.sink.versions import NO_QUERY, Version

#: How often a commit is tried while other programs change the table. It fails only if one has committed.
ATTEMPTS_MAX = 20


def commit_to_table(
    options: DeltaOptions, schema: StructType, plan: Plan, note: Note, added: Sequence[Added]
) -> Table:
    """Commit to the current version of the table; retry if another program commits at the same moment."""
    failure: DeltaError | None = None
    for _ in range(ATTEMPTS_MAX):
        table = _table_now(options, schema, plan)
        if _is_in(table, note):
            return table
        _check_number(table, plan)
        _check_files(table, added)
        try:
            table.commit(added, note)
        except CommitFailedError as error:
            failure = error
        except (DeltaError, OSError, TableUnreachable) as error:
            # The commit may have been made despite the error.
            if _is_in(table := _table_now(options, schema, plan), note):
                return table
            raise TableUnreachable(f"the table {options.location} cannot be reached: {error}") from error
        else:
            return table
    raise TableChanged(
        f"nothing was committed: whenever this batch was, the table {options.location} was changed at the "
        f"same moment ({str(failure).partition(chr(10))[0]}) Start again"
    ) from failure


def _table_now(options: DeltaOptions, schema: StructType, plan: Plan) -> Table:
    """Return the table. TableChanged if the written rows do not fit it: only a new plan can tell why."""
    table = open_table(options.location)
    changed = f"nothing was committed: while this batch was written, the table {options.location} was "
    if table is None:
        raise TableChanged(f"{changed}deleted or moved. Start again")
    if table.table_id != plan.table_id:
        raise TableChanged(f"{changed}replaced by another one. Start again")
    try:
        new = check_rows(table, delta_schema(schema, options.partition_by), plan.partition_by)
    except OptionError as error:
        raise TableChanged(f"{changed}changed: {error}. Start again") from error
    if (
        new
        or table.partition_by != plan.partition_by
        or set(required_columns(table.schema)) - {*plan.required}
    ):
        raise TableChanged(f"{changed}given other columns or partitions. Start again")
    return table


def _is_in(table: Table, note: Note) -> bool:
    """Whether the table has this very commit: a response was lost, or Spark commits a second time."""
    found = read_position(table, note.app).recent.get(note.number)
    return found is not None and (found.run, found.winners) == (note.run, note.winners)


def _check_files(table: Table, added: Sequence[Added]) -> None:
    """Check that the files still exist: VACUUM may have deleted them, because no commit names them yet."""
    if missing := table.storage.missing([each.path for each in added]):
        raise TableChanged(
            f"nothing was committed: {missing[0]}, which this batch has written to {table.location}, is "
            "gone. VACUUM must keep files for longer than a batch takes. Start again"
        )


def _check_number(table: Table, plan: Plan) -> None:
    position = read_position(table, plan.app)
    if plan.query_id != NO_QUERY:
        check_not_restored(table, position, f"pipeline {plan.app!r}", NEW_PIPELINE)
    if plan.version is not None:
        check_not_restored(table, position, f"txnAppId {plan.version.app!r}", NEW_APP)
        reached = table.transaction_version(plan.version.app)
        if position.number < plan.number and reached is not None and reached >= plan.version.number:
            raise PipelineFenced(
                f"another write has put {plan.version}, or a later one, into the table since this one was "
                "planned, so this one stops. What it wrote does not count"
            )
    if position.number >= plan.number:
        by = position.recent.get(position.number)
        where = (
            " on the same checkpoint" if by is not None and by.query_id == plan.query_id != NO_QUERY else ""
        )
        who = "" if by is None else f" (commit {by.number} of it, by run {by.run})"
        raise PipelineFenced(
            f"another copy of pipeline {plan.app!r}{where} has written to the table since this batch was "
            f"planned{who}, so this one stops. What it wrote in this batch does not count"
        )


def has_version(table: Table, version: Version) -> bool:
    """Whether the table contains this version of a write, or a later one. PipelineMismatch if unclear."""
    reached = table.transaction_version(version.app)
    if reached is None:
        return False
    if not is_of_versions(table, version.app) and is_of_stream(table, version.app):
        raise PipelineMismatch(
            f"the table {table.location} knows {version.app!r} as the pipeline.id of a streaming query. Give "
            "this write another txnAppId"
        )
    return is_repeated(version, reached, read_of_version(table, version.app, reached))


NEW_PIPELINE = (
    "start with a new pipeline.id and a new checkpointLocation, startingOffsets where it ends, and "
    "pipeline.new=true"
)
NEW_APP = "choose a new txnAppId, and go on with the first version that is not in the table"


def check_not_restored(table: Table, position: Position, who: str, advice: str) -> None:
    """PipelineMismatch if a RESTORE has removed rows that `who` has written."""
    if position.lost_by is not None:
        raise PipelineMismatch(
            f"the table {table.location} was restored to an older version, by its commit {position.lost_by}, "
            f"after {who} had written to it: rows are gone that the table's transaction identifiers still "
            f"count. Undo it by a RESTORE to version {position.lost_by - 1}; or, to keep the table as it "
            f"is, {advice}"
        )
