"""Commits to tables that are prepared before a decision and completed after it.

A batch with several outputs counts by one decision, which is made in the Kafka cluster (`sink.batch`). So a
table must not have the rows before, and has to get them afterwards, whatever happens in between. All that the
commit needs is stored first: the rows in Parquet files that no commit names yet, the rest in a *prepared
commit*, a small file below `_semel` that readers of Delta ignore. The decision names it. Then the table is
committed to; after an interruption, the next start does it.

The number of the commit is a transaction identifier of the table, as in `batch_commit`. So a commit that is
completed twice is made once. A decision also remembers the id and the number of each table, so a table that
was replaced or set back is noticed before anything more is written.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from pyspark.sql.types import StructType

from semel.client import Client
from semel.spark import errors
from semel.spark.checkpoint import Step
from semel.spark.delta import leftovers
from semel.spark.delta.batch_commit import (
    NEW_PIPELINE,
    check_not_restored,
    check_predecessors,
    commit_to_table,
)
from semel.spark.delta.data_source import DeltaOptions
from semel.spark.delta.files import Added
from semel.spark.delta.leftovers import DIRECTORY
from semel.spark.delta.merging import DELETED, Merge, check_keys, rows_of
from semel.spark.delta.position import Note, Position, TablePlan, is_of_versions, read_position
from semel.spark.delta.schema import delta_schema, required_columns
from semel.spark.delta.storage import Storage
from semel.spark.delta.table import Table, check_is_free, check_merges, check_rows, open_for, open_table
from semel.spark.partition_offsets import recreated
from semel.spark.sink.batch_commit import BatchPlan
from semel.spark.sink.decision import TableState


def plan_table(client: Client, options: DeltaOptions, schema: StructType, batch: BatchPlan) -> TablePlan:
    """Plan what a batch writes to a table, which is created if there is none."""
    app = batch.pipeline_id
    _check_known(app, options.location, batch)
    rows = delta_schema(schema, options.partition_by)
    table = open_for(options.location, rows, options.partition_by, merges=options.merge_schema)
    position = _position(client, options, table, batch)
    winners = {each.number: each.winners for each in position.recent.values()}
    _clear(table.storage, app, position.number, winners)
    return TablePlan(
        app=app,
        number=position.number + 1,
        table_id=table.table_id,
        query_id=batch.query_id,
        batch_id=batch.batch_id,
        end={key: span.end for key, span in batch.spans.items()},
        starts={key: span.start for key, span in batch.spans.items()},
        ids={topic: each.topic_id for topic, each in batch.inputs.items() if each.topic_id},
        partition_by=table.partition_by,
        required=tuple(required_columns(table.schema)),
        is_done=batch.is_done,
    )


def foresee_table(
    client: Client, options: DeltaOptions, schema: StructType, batch: BatchPlan
) -> list[str] | None:
    """Return the columns that a batch adds to its table; None if it creates it.

    Raises what `plan_table` would, and changes nothing.
    """
    _check_known(batch.pipeline_id, options.location, batch)
    rows, table = delta_schema(schema, options.partition_by), open_table(options.location)
    if table is None:
        check_is_free(options.location)
        return None
    new = check_rows(table, rows, options.partition_by)
    check_merges(options.location, new, merges=options.merge_schema)
    _position(client, options, table, batch)
    return [str(each["name"]) for each in new]


def lacks_commit(pipeline_id: str, location: str, state: TableState) -> bool:
    """Whether a decided commit is still to be made."""
    table = open_table(location) if state.prepared else None
    return table is not None and (table.transaction_version(pipeline_id) or 0) < state.number


def _position(client: Client, options: DeltaOptions, table: Table, batch: BatchPlan) -> Position:
    """Return what the table has of the pipeline. PipelineMismatch if it must not get this batch."""
    app = batch.pipeline_id
    position = read_position(table, app, batch.query_id, batch.spans.keys())
    check_not_restored(table, position, f"pipeline {app!r}", NEW_PIPELINE)
    if position.number > 0 and position.number not in position.recent and is_of_versions(table, app):
        raise errors.PipelineMismatch(
            f"the table {table.location} knows {app!r} as the txnAppId of batch writes. Give this query "
            "another pipeline.id"
        )
    _check_no_more(table, position, options, batch)
    if position.number == 0 and options.location not in batch.tables:
        step = Step(
            {key: span.start for key, span in batch.spans.items()},
            {key: span.end for key, span in batch.spans.items()},
            {topic: each.topic_id for topic, each in batch.inputs.items()},
        )
        check_predecessors(client, table, app, options.relations, step)
    return position


def _check_known(pipeline_id: str, location: str, batch: BatchPlan) -> None:
    """PipelineMismatch if the table is not the one that the pipeline has written to, or has lost commits."""
    known = batch.tables.get(location)
    if known is None or known.number == 0:
        return
    table = open_table(location)
    what, has = None, 0 if table is None else table.transaction_version(pipeline_id) or 0
    if table is None:
        what = "there is no table there any more"
    elif table.table_id != known.table_id:
        what = f"the table there is another one, {table.table_id}"
    elif has < known.number:
        what = f"the table has only commit {has} of it"
    if what is not None:
        raise errors.PipelineMismatch(
            f"pipeline {pipeline_id!r} has written commit {known.number} to the table {known.table_id} in "
            f"{location}, and {what}. Put it back if that was a mistake; or start with a new pipeline.id and "
            "a new checkpointLocation, and startingOffsets=earliest to write everything again"
        )


def _check_no_more(table: Table, position: Position, options: DeltaOptions, batch: BatchPlan) -> None:
    """PipelineMismatch if the table has commits of the pipeline that its last decision does not know.

    Deleting the input topics deletes the decisions too. What is read of new topics is not in the table.
    """
    number, last = position.number, position.recent.get(position.number)
    ids = {topic: each.topic_id for topic, each in batch.inputs.items()}
    if last is not None and last.ids and recreated(last.ids, ids) == last.ids.keys():
        return
    known = max((each.number for each in batch.tables.values() if each.table_id == table.table_id), default=0)
    if number > known and not (known == 0 and options.relations.is_new):
        raise errors.PipelineMismatch(
            f"the table {table.location} has commit {number} of pipeline {batch.pipeline_id!r}, and the "
            f"position of the pipeline knows {known or 'none'}. The broker was restored from an older "
            "backup, or the consumer group of the pipeline was deleted or has expired, or another copy of "
            "the pipeline runs. What the table has would be written to it again. Restore the table from a "
            "backup of the same time; or start with a new pipeline.id, a new checkpointLocation and new "
            "sinks. If the pipeline is to begin on purpose: pipeline.new=true, or 'semel pipeline run --new'"
        )


def prepare(
    options: DeltaOptions,
    schema: StructType,
    plan: TablePlan,
    winners: Sequence[str],
    added: Sequence[Added],
    merge: Merge | None = None,
) -> TableState:
    """Store the commit that the batch needs; return what the decision says about the table."""
    if not added:
        return TableState(plan.table_id, plan.number - 1, "")
    storage = Storage(options.location)
    if merge is not None:
        check_keys(storage, [each.path for each in added], merge)
    # The rows of a merge are copied, so no file of the batch becomes part of the table.
    named = () if merge else tuple(winners)
    note = Note(
        plan.app, plan.number, plan.run, plan.query_id, plan.batch_id, plan.end, named, plan.starts, plan.ids
    )
    content = {
        "note": note.to_text(),
        "schema": schema.json(),
        "partition_by": list(plan.partition_by),
        "required": list(plan.required),
        "added": [asdict(each) for each in added],
        "merge": None if merge is None else asdict(merge),
    }
    name = f"{_directory(plan.app)}/{plan.number}-{plan.run}.json"
    storage.write(name, json.dumps(content).encode())
    storage.flush(name)
    return TableState(plan.table_id, plan.number, name)


def complete(pipeline_id: str, tables: Mapping[str, TableState]) -> None:
    """Make the commits that a decision has named. Idempotent; must be repeated until it succeeds.

    If one table fails, the others get the batch nevertheless.
    """
    failure: errors.PipelineError | None = None
    for location, state in tables.items():
        if state.prepared:
            try:
                _complete(pipeline_id, location, state)
            except errors.PipelineError as error:
                failure = failure or _explained(location, error)
    if failure is not None:
        raise failure


def _explained(location: str, error: errors.PipelineError) -> errors.PipelineError:
    if isinstance(error, (errors.TableUnreachable, errors.TableBusy)):
        found: errors.PipelineError = errors.BatchUnfinished(
            f"the batch is decided, but is not in the table {location} yet: {error} Start the query "
            "again; it finishes the batch"
        )
    elif isinstance(error, errors.TableChanged):
        # What is advised before a decision does not help after it.
        why = str(error).removeprefix("nothing was committed: ").removesuffix(". Start again")
        found = errors.DecidedTableChanged(
            f"the batch is decided, and cannot be added to the table {location}: {why}. Undo that change; "
            "the next start finishes the batch"
        )
    else:
        return error
    found.__cause__ = error
    return found


def _complete(pipeline_id: str, location: str, state: TableState) -> None:
    try:
        _commit(pipeline_id, location, state)
    except errors.TableChanged:
        # Another driver may have done this at the same time, and have deleted the files.
        table = open_table(location)
        if table is None or table.table_id != state.table_id or not _has(table, pipeline_id, state):
            raise


def _has(table: Table, pipeline_id: str, state: TableState) -> bool:
    return (table.transaction_version(pipeline_id) or 0) >= state.number


def _commit(pipeline_id: str, location: str, state: TableState) -> None:
    storage, table = Storage(location), open_table(location)
    if table is None or table.table_id != state.table_id:
        raise errors.TableChanged(f"the table {state.table_id} is not there any more")
    if _has(table, pipeline_id, state):
        recent = read_position(table, pipeline_id).recent.values()
        _clear(storage, pipeline_id, state.number, {each.number: each.winners for each in recent})
        return
    text = storage.read(state.prepared)
    if text is None:
        raise errors.TableChanged(f"its file {state.prepared} is gone")
    content: dict[str, Any] = json.loads(text)
    note = Note.of_text(content["note"])
    if note is None:
        raise errors.TableChanged(f"its file {state.prepared} cannot be read")
    plan = TablePlan(
        app=note.app,
        number=note.number,
        table_id=state.table_id,
        partition_by=tuple(content["partition_by"]),
        required=tuple(content["required"]),
        query_id=note.query_id,
        batch_id=note.batch_id,
        run=note.run,
    )
    added = [Added(**{**each, "values": tuple(each["values"])}) for each in content["added"]]
    options = DeltaOptions(location, pipeline_id, (), False, None, "")
    schema = StructType.fromJson(json.loads(content["schema"]))
    if content["merge"] is None:
        commit_to_table(options, schema, plan, note, added)
    else:
        merge = Merge(tuple(content["merge"]["keys"]), content["merge"]["order_by"])

        def change(table: Table) -> None:
            rows = rows_of(storage, [each.path for each in added], merge)
            table.merge(rows, merge.keys, DELETED, note)

        commit_to_table(options, schema, plan, note, added, change)
    _clear(storage, pipeline_id, plan.number, {plan.number: note.winners})


def _clear(storage: Storage, app: str, reached: int, winners: Mapping[int, Collection[str]]) -> None:
    """Delete the files that no commit names, and the commits that were prepared, up to this number.

    What cannot be deleted now is deleted later.
    """
    with suppress(errors.TableUnreachable):
        leftovers.clear(storage, app, reached, winners)
        for name in storage.names(_directory(app)):
            number = name.partition("-")[0]
            if number.isdigit() and int(number) <= reached:
                storage.delete(f"{_directory(app)}/{name}")


def _directory(app: str) -> str:
    return f"{DIRECTORY}/{app}/prepared"
