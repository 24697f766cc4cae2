"""Writes a batch to a table exactly once: plan, write, commit, follow.

1. **Plan** (driver, before the tasks start). Open the table, or create it. It says how many commits it has of
   the pipeline and up to which offsets. A batch that it contains is not written again; a batch that does not
   start where the last commit ended is refused. The group is moved to the position of the table.
2. **Write** (task attempt). Parquet files with unique names, for the next number. See `files`.
3. **Commit** (driver, when all tasks are done). One commit of the table adds the winners' files, and records
   the number, the batch and its end offsets. See `position`. Delta refuses another commit of the same number:
   of two copies of a pipeline one continues. If other programs have changed the table meanwhile, the batch is
   committed to its current version, provided that it still fits.
4. **Follow**. Commit the offsets of the group. After an interruption the next start does it.

Spark's checkpoint is not trusted; it may be old or lost. Nothing is cleaned up when a batch fails, because a
commit that failed may have been made: the next commit of the same number makes everything else leftovers.

Recognises a pipeline that goes on under another id, by the table that it writes to.

See `semel.spark.sink.predecessors`. Delta does not list the transaction identifiers of a table, so the names
of the pipelines come from its history, and from the groups whose notes name the table: old commits are
removed from the history, and a group may have expired or belong to another cluster.

Commits a batch to a table that other programs may change at any time.

Delta refuses a commit if, since the table was opened, another commit was made that it might depend on: a
DELETE, an overwrite, a change of the schema. An append depends on none of the existing rows. So the table is
opened again, and the commit is made to its current version, if the rows that were written still fit. If they
do not, the query stops. Its restart plans again, and writes the batch for the table as it is then or says why
it cannot.

Delta does not compare the commits between the plan and the last opening. So everything that the plan has
found is checked once more: the table, its columns, the number of the commit, the version.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

from deltalake.exceptions import CommitFailedError, DeltaError
from pyspark.sql.types import StructType

from semel.client import Client, ClientError, KafkaError, Partition
from semel.spark import errors
from semel.spark.checkpoint import Checkpoint, Step, describe
from semel.spark.clients import connect
from semel.spark.delta import leftovers
from semel.spark.delta.data_source import DeltaOptions
from semel.spark.delta.files import Added
from semel.spark.delta.group import Group, LastCommit, TableName, follow, read_group
from semel.spark.delta.position import (
    NOWHERE,
    Note,
    Position,
    TablePlan,
    is_of_stream,
    is_of_versions,
    read_of_version,
    read_position,
    streams_of,
)
from semel.spark.delta.schema import delta_schema, required_columns
from semel.spark.delta.table import Table, check_rows, open_for, open_table
from semel.spark.partition_offsets import PartitionOffsets
from semel.spark.relations import Relations
from semel.spark.sink.continuity import check_source
from semel.spark.sink.foreach_batch import is_repeated, with_read
from semel.spark.sink.predecessors import Writer, of_other_groups, overlapping, reads_all
from semel.spark.sink.versions import NO_BATCH, NO_QUERY, Version, fingerprint

#: How often a commit is tried while other programs change the table. It fails only if one has committed.
ATTEMPTS_MAX = 20


def commit_to_table(
    options: DeltaOptions,
    schema: StructType,
    plan: TablePlan,
    note: Note,
    added: Sequence[Added],
    change: Callable[[Table], None] | None = None,
) -> Table:
    """Commit to the current version of the table; retry if another program commits at the same moment.

    `change` makes the commit, if it does not just add the files.
    """
    failure: DeltaError | None = None
    for _ in range(ATTEMPTS_MAX):
        table = _table_now(options, schema, plan)
        if _is_in(table, note):
            return table
        _check_number(table, plan)
        _check_files(table, added)
        try:
            if change is None:
                table.commit(added, note)
            else:
                change(table)
        except CommitFailedError as error:
            failure = error
        except (DeltaError, OSError, errors.TableUnreachable) as error:
            # The commit may have been made despite the error.
            if _is_in(table := _table_now(options, schema, plan), note):
                return table
            raise errors.TableUnreachable(
                f"the table {options.location} cannot be reached: {error}"
            ) from error
        else:
            return table
    raise errors.TableBusy(
        f"nothing was committed: whenever this batch was, the table {options.location} was changed at the "
        f"same moment ({str(failure).partition(chr(10))[0]}) Start again"
    ) from failure


def _table_now(options: DeltaOptions, schema: StructType, plan: TablePlan) -> Table:
    """Return the table. TableChanged if the written rows do not fit it: only a new plan can tell why."""
    table = open_table(options.location)
    changed = f"nothing was committed: while this batch was written, the table {options.location} was "
    if table is None:
        raise errors.TableChanged(f"{changed}deleted or moved. Start again")
    if table.table_id != plan.table_id:
        raise errors.TableChanged(f"{changed}replaced by another one. Start again")
    try:
        new = check_rows(table, delta_schema(schema, options.partition_by), plan.partition_by)
    except errors.OptionError as error:
        raise errors.TableChanged(f"{changed}changed: {error}. Start again") from error
    if (
        new
        or table.partition_by != plan.partition_by
        or set(required_columns(table.schema)) - {*plan.required}
    ):
        raise errors.TableChanged(f"{changed}given other columns or partitions. Start again")
    return table


def _is_in(table: Table, note: Note) -> bool:
    """Whether the table has this very commit: a response was lost, or Spark commits a second time."""
    found = read_position(table, note.app).recent.get(note.number)
    return found is not None and (found.run, found.winners) == (note.run, note.winners)


def _check_files(table: Table, added: Sequence[Added]) -> None:
    """Check that the files still exist: VACUUM may have deleted them, because no commit names them yet."""
    if missing := table.storage.missing([each.path for each in added]):
        raise errors.TableChanged(
            f"nothing was committed: {missing[0]}, which this batch has written to {table.location}, is "
            "gone. VACUUM must keep files for longer than a batch takes. Start again"
        )


def _check_number(table: Table, plan: TablePlan) -> None:
    position = read_position(table, plan.app)
    if plan.query_id != NO_QUERY:
        check_not_restored(table, position, f"pipeline {plan.app!r}", NEW_PIPELINE)
    if plan.version is not None:
        check_not_restored(table, position, f"txnAppId {plan.version.app!r}", NEW_APP)
        reached = table.transaction_version(plan.version.app)
        if position.number < plan.number and reached is not None and reached >= plan.version.number:
            raise errors.PipelineFenced(
                f"another write has put {plan.version}, or a later one, into the table since this one was "
                "planned, so this one stops. What it wrote does not count"
            )
    if position.number >= plan.number:
        by = position.recent.get(position.number)
        where = (
            " on the same checkpoint" if by is not None and by.query_id == plan.query_id != NO_QUERY else ""
        )
        who = "" if by is None else f" (commit {by.number} of it, by run {by.run})"
        raise errors.PipelineFenced(
            f"another copy of pipeline {plan.app!r}{where} has written to the table since this batch was "
            f"planned{who}, so this one stops. What it wrote in this batch does not count"
        )


def has_version(table: Table, version: Version) -> bool:
    """Whether the table contains this version of a write, or a later one. PipelineMismatch if unclear."""
    reached = table.transaction_version(version.app)
    if reached is None:
        return False
    if not is_of_versions(table, version.app) and is_of_stream(table, version.app):
        raise errors.PipelineMismatch(
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
        raise errors.PipelineMismatch(
            f"the table {table.location} was restored to an older version, by its commit {position.lost_by}, "
            f"after {who} had written to it: rows are gone that the table's transaction identifiers still "
            f"count. Undo it by a RESTORE to version {position.lost_by - 1}; or, to keep the table as it "
            f"is, {advice}"
        )


def check_predecessors(
    client: Client, table: Table, pipeline_id: str, relations: Relations, step: Step
) -> None:
    """PipelineMismatch if the table has, under another id, what this pipeline is about to read."""
    if relations.is_new:
        return
    names = {*streams_of(table), *_followers(client, table, pipeline_id)} - {pipeline_id}
    writers = (_writer(name, read_position(table, name, keys=step.end), step) for name in sorted(names))
    for each in overlapping(writers, relations, step):
        raise errors.PipelineMismatch(each.refusal(pipeline_id, f"the table {table.location}"))
    if not names and table.has_rows_of_unknown_origin() and reads_all(client, step.spans):
        raise errors.PipelineMismatch(
            f"pipeline {pipeline_id!r} is new and reads all of its input, and the table {table.location} has "
            "rows from before its history begins. If a pipeline has written them whose group was deleted or "
            "has expired, they would be there twice: set startingOffsets where the table ends. If they are "
            "of others: pipeline.new=true, or 'semel pipeline run --new'"
        )


def _followers(client: Client, table: Table, pipeline_id: str) -> Iterable[str]:
    for name, group in of_other_groups(client, pipeline_id, read_group):
        if group.table is not None and group.table.table_id == table.table_id:
            yield name


def _writer(name: str, position: Position, step: Step) -> Writer:
    """Return a pipeline as the table records it. Of a topic id, the table has only a fingerprint."""
    of_others = {topic for topic, known in position.topics.items() if _is_other(known, step.ids.get(topic))}
    offsets = {key: offset for key, offset in position.offsets.items() if key[0] not in of_others}
    return Writer(name, offsets, {}, {})


def _is_other(known: int, topic_id: str | None) -> bool:
    return topic_id is not None and fingerprint(topic_id) != known


# ---- plan


def plan_stream(options: DeltaOptions, schema: StructType, checkpoint: Checkpoint) -> TablePlan:
    """Plan the query's current batch: whether it is written, and as which commit number."""
    query_id, batch_id = checkpoint.query_id(), checkpoint.newest_batch()
    step = checkpoint.step(batch_id)
    if not step.end:
        raise errors.PipelineError(
            "exactly-once needs an input whose offsets the table can record: a source of format 'semel' in "
            "this query"
        )
    client, app = _client(options), options.pipeline_id
    check_source(app, step)
    group = read_group(client, app)
    if open_table(options.location) is None:
        _check_may_be_made(options, group, batch_id)
    table = _open(options, schema)
    name = TableName(table.table_id, table.location)
    _check_table(group, name, app)
    # The group also has the partitions that the pipeline has read before and no longer reads.
    position = read_position(table, app, query_id, {*step.start, *step.end, *group.offsets})
    check_not_restored(table, position, f"pipeline {app!r}", NEW_PIPELINE)
    if position.number > 0 and position.number not in position.recent and is_of_versions(table, app):
        raise errors.PipelineMismatch(
            f"the table {table.location} knows {app!r} as the txnAppId of batch writes. Give this query "
            "another pipeline.id"
        )
    if position.number == 0:
        check_predecessors(client, table, app, options.relations, step)
    last = position.recent.get(position.number)
    if last is not None:
        name = name._replace(last=LastCommit(last.number, last.batch_id, last.run))
    known = {
        key: offset
        for key, offset in position.offsets.items()
        if key in step.end and not _is_other_topic(position, step, key[0])
    }
    # Before the check: if the batch is refused, a new checkpoint starts at the position of the table.
    follow(client, app, group.offsets, name, known)
    is_done = _check(position, app, query_id, batch_id, step)
    new = {key: step.start.get(key, 0) for key in step.end if key not in known}
    follow(client, app, group.offsets, name, new)
    _clear(table, app, position)
    return TablePlan(
        app=app,
        number=position.number + 1,
        table_id=table.table_id,
        query_id=query_id,
        batch_id=batch_id,
        begin={**known, **new},
        end={**_kept(position, step), **step.end},
        starts={key: start for key, (start, _) in step.spans.items()},
        ids={**(last.ids if last is not None else {}), **step.ids},
        partition_by=table.partition_by,
        required=tuple(required_columns(table.schema)),
        is_done=is_done,
        mark=step.mark,
    )


def plan_batch(options: DeltaOptions, schema: StructType) -> TablePlan:
    """Determine the number of a batch write, whose input is unknown."""
    app, version = f"{options.pipeline_id}/write", with_read(options.version)
    table = _open(options, schema)
    position = read_position(table, app)
    if version is not None:
        check_not_restored(table, position, f"txnAppId {version.app!r}", NEW_APP)
    _clear(table, app, position)
    last = position.recent.get(position.number)
    return TablePlan(
        app,
        position.number + 1,
        table_id=table.table_id,
        partition_by=table.partition_by,
        required=tuple(required_columns(table.schema)),
        is_done=version is not None and has_version(table, version),
        version=version,
        done_in=last.stream_run if last is not None and last.version == version else None,
    )


def _open(options: DeltaOptions, schema: StructType) -> Table:
    rows = delta_schema(schema, options.partition_by)
    return open_for(options.location, rows, options.partition_by, merges=options.merge_schema)


def _client(options: DeltaOptions) -> Client:
    assert options.address is not None, "a stream has a cluster"
    return connect(options.address)


def _check_table(group: Group, table: TableName, pipeline_id: str) -> None:
    known = group.table
    if known is not None and known.table_id != table.table_id:
        raise errors.PipelineMismatch(_other_table_text(pipeline_id, known, table.location))


def _other_table_text(pipeline_id: str, known: TableName, location: str) -> str:
    return (
        f"pipeline {pipeline_id!r} writes to the table {known.table_id} in {known.location}, and "
        f"{location} is another one. Give this pipeline a pipeline.id of its own"
    )


def _check_may_be_made(options: DeltaOptions, group: Group, batch_id: int) -> None:
    """Refuse to create a table for a pipeline that had one: an empty table would hide the loss."""
    known = group.table
    if known is not None and known.location != options.location:
        raise errors.PipelineMismatch(_other_table_text(options.pipeline_id, known, options.location))
    if known is not None:
        raise errors.PipelineMismatch(
            f"pipeline {options.pipeline_id!r} writes to the table {known.table_id}, and there is no table "
            f"in {known.location} any more. Put it back if that was a mistake; or start with a new "
            "pipeline.id and a new checkpointLocation, and startingOffsets=earliest to write everything again"
        )
    if batch_id > 0:
        raise errors.PipelineMismatch(_none_text(options.pipeline_id, batch_id))


def _none_text(pipeline_id: str, batch_id: int) -> str:
    return (
        f"the checkpoint is at batch {batch_id}, but the table has none of pipeline {pipeline_id!r}. It is "
        "the checkpoint of another pipeline, or the table is another one. Start with a new "
        "checkpointLocation, and with startingOffsets where the table ends"
    )


def _check(position: Position, pipeline_id: str, query_id: str, batch_id: int, step: Step) -> bool:
    """Whether the table contains the batch. PipelineMismatch if it does not follow the last one there."""
    if position == NOWHERE and batch_id > 0:
        raise errors.PipelineMismatch(_none_text(pipeline_id, batch_id))
    if batch_id <= position.batch_id:
        _check_same(position, pipeline_id, batch_id, step)
        return True
    for key in sorted(step.end):
        start, reached = step.start.get(key, 0), position.offsets.get(key)
        is_other_topic = _is_other_topic(position, step, key[0])
        if is_other_topic and position.batch_id == NO_BATCH:
            raise errors.PipelineMismatch(
                f"topic {key[0]} was deleted and created again since the table got records of it from "
                f"pipeline {pipeline_id!r}. What was not read before is lost. Start with a new pipeline.id "
                "to read the new topic"
            )
        if reached is None or is_other_topic:
            # If the table knows the query but not the partition, it has no records of the partition.
            reached = 0 if position.batch_id != NO_BATCH and key in step.start else start
        if start != reached:
            raise errors.PipelineMismatch(_mismatch_text(position, pipeline_id, batch_id, step, key))
    return False


def _check_same(position: Position, pipeline_id: str, batch_id: int, step: Step) -> None:
    """Check that this is the batch in the table, and not another one made from an old checkpoint."""
    is_last = batch_id == position.batch_id
    for key, (start, end) in sorted(step.spans.items()):
        has = (position.starts.get(key), position.offsets.get(key))
        if not is_last or has != (start, end) or _is_other_topic(position, step, key[0]):
            raise errors.PipelineMismatch(_mismatch_text(position, pipeline_id, batch_id, step, key))


def _is_other_topic(position: Position, step: Step, topic: str) -> bool:
    known = position.topics.get(topic)
    return known is not None and topic in step.ids and fingerprint(step.ids[topic]) != known


def _kept(position: Position, step: Step) -> PartitionOffsets:
    """Return the position of the pipeline before the batch; 0 in topics that were created again."""
    return {
        key: 0 if _is_other_topic(position, step, key[0]) else offset
        for key, offset in position.offsets.items()
    }


def _mismatch_text(position: Position, pipeline_id: str, batch_id: int, step: Step, key: Partition) -> str:
    start, end = step.spans[key]
    return (
        f"batch {batch_id} has offsets {start} to {end} of {describe(key)}, but the table has pipeline "
        f"{pipeline_id!r} up to {position.offsets.get(key, 0)}. Either another copy of it is running, and "
        "this one has to stop; or the checkpoint is not the last one of the pipeline: start with a new "
        "checkpointLocation, and with pipeline.id and startingOffsets=committed on the source"
    )


# ---- commit and follow


def commit(
    options: DeltaOptions,
    schema: StructType,
    plan: TablePlan,
    winners: Sequence[str],
    added: Sequence[Added],
    stream_run: str | None = None,
) -> None:
    """Commit a batch, and move the group."""
    note = Note(
        plan.app,
        plan.number,
        plan.run,
        plan.query_id,
        plan.batch_id,
        plan.end,
        tuple(winners),
        plan.starts,
        plan.ids,
        plan.version,
        stream_run,
        plan.mark,
    )
    table = commit_to_table(options, schema, plan, note, added)
    if plan.query_id != NO_QUERY:
        _follow(options, table, plan, sum(each.rows for each in added))
    # The next plan deletes the files that cannot be deleted now.
    with suppress(errors.TableUnreachable):
        leftovers.clear(table.storage, plan.app, plan.number, {plan.number: winners})


def _follow(options: DeltaOptions, table: Table, plan: TablePlan, rows: int) -> None:
    # The plan has moved the group to the start of the batch, so only partitions that moved need a commit.
    moved = {key: plan.end[key] for key, begin in plan.begin.items() if plan.end[key] != begin}
    # A batch without input has a commit too, which the group names.
    moved = moved or dict(sorted(plan.begin.items())[:1])
    last = LastCommit(plan.number, plan.batch_id, plan.run, rows)
    try:
        follow(_client(options), plan.app, {}, TableName(table.table_id, table.location, last), moved)
    except (KafkaError, ClientError) as error:
        raise errors.BatchUnfinished(
            f"batch {plan.batch_id} is in the table, but the group of pipeline {plan.app!r} was not updated: "
            f"{error} Start the query again; it updates the group"
        ) from error


# ---- leftovers


def _clear(table: Table, app: str, position: Position) -> None:
    winners = {each.number: each.winners for each in position.recent.values()}
    with suppress(errors.TableUnreachable):
        leftovers.clear(table.storage, app, position.number, winners)
