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
"""

from collections.abc import Sequence
from contextlib import suppress

from pyspark.sql.types import StructType

from semel.client import Client, ClientError, KafkaError, Partition
from semel.spark.checkpoint import Checkpoint, Step, describe
from semel.spark.clients import connect
from semel.spark.delta import leftovers
from semel.spark.delta.files import Added
from semel.spark.delta.group import Group, TableName, follow, read_group
from semel.spark.delta.options import DeltaOptions
from semel.spark.delta.plan import Plan
from semel.spark.delta.position import (
    NOWHERE,
    Note,
    Position,
    is_of_versions,
    read_position,
)
from semel.spark.delta.predecessors import check_predecessors
from semel.spark.delta.schema import delta_schema, required_columns
from semel.spark.delta.table import Table, open_for, open_table
from semel.spark.delta.table_commit import (
    NEW_APP,
    NEW_PIPELINE,
    check_not_restored,
    commit_to_table,
    has_version,
)
from semel.spark.errors import BatchUnfinished, PipelineError, PipelineMismatch, TableUnreachable
from semel.spark.partition_offsets import PartitionOffsets
from semel.spark.sink.continuity import check_source
from semel.spark.sink.foreach_batch import with_read
from semel.spark.sink.versions import NO_BATCH, NO_QUERY, fingerprint

# ---- plan


def plan_stream(options: DeltaOptions, schema: StructType, checkpoint: Checkpoint) -> Plan:
    """Plan the query's current batch: whether it is written, and as which commit number."""
    query_id, batch_id = checkpoint.query_id(), checkpoint.newest_batch()
    step = checkpoint.step(batch_id)
    if not step.end:
        raise PipelineError(
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
        raise PipelineMismatch(
            f"the table {table.location} knows {app!r} as the txnAppId of batch writes. Give this query "
            "another pipeline.id"
        )
    if position.number == 0:
        check_predecessors(client, table, app, options.relations, step)
    last = position.recent.get(position.number)
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
    return Plan(
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


def plan_batch(options: DeltaOptions, schema: StructType) -> Plan:
    """Determine the number of a batch write, whose input is unknown."""
    app, version = f"{options.pipeline_id}/write", with_read(options.version)
    table = _open(options, schema)
    position = read_position(table, app)
    if version is not None:
        check_not_restored(table, position, f"txnAppId {version.app!r}", NEW_APP)
    _clear(table, app, position)
    last = position.recent.get(position.number)
    return Plan(
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
        raise PipelineMismatch(_other_table_text(pipeline_id, known, table.location))


def _other_table_text(pipeline_id: str, known: TableName, location: str) -> str:
    return (
        f"pipeline {pipeline_id!r} writes to the table {known.table_id} in {known.location}, and "
        f"{location} is another one. Give this pipeline a pipeline.id of its own"
    )


def _check_may_be_made(options: DeltaOptions, group: Group, batch_id: int) -> None:
    """Refuse to create a table for a pipeline that had one: an empty table would hide the loss."""
    known = group.table
    if known is not None and known.location != options.location:
        raise PipelineMismatch(_other_table_text(options.pipeline_id, known, options.location))
    if known is not None:
        raise PipelineMismatch(
            f"pipeline {options.pipeline_id!r} writes to the table {known.table_id}, and there is no table "
            f"in {known.location} any more. Put it back if that was a mistake; or start with a new "
            "pipeline.id and a new checkpointLocation, and startingOffsets=earliest to write everything again"
        )
    if batch_id > 0:
        raise PipelineMismatch(_none_text(options.pipeline_id, batch_id))


def _none_text(pipeline_id: str, batch_id: int) -> str:
    return (
        f"the checkpoint is at batch {batch_id}, but the table has none of pipeline {pipeline_id!r}. It is "
        "the checkpoint of another pipeline, or the table is another one. Start with a new "
        "checkpointLocation, and with startingOffsets where the table ends"
    )


def _check(position: Position, pipeline_id: str, query_id: str, batch_id: int, step: Step) -> bool:
    """Whether the table contains the batch. PipelineMismatch if it does not follow the last one there."""
    if position == NOWHERE and batch_id > 0:
        raise PipelineMismatch(_none_text(pipeline_id, batch_id))
    if batch_id <= position.batch_id:
        _check_same(position, pipeline_id, batch_id, step)
        return True
    for key in sorted(step.end):
        start, reached = step.start.get(key, 0), position.offsets.get(key)
        is_other_topic = _is_other_topic(position, step, key[0])
        if is_other_topic and position.batch_id == NO_BATCH:
            raise PipelineMismatch(
                f"topic {key[0]} was deleted and created again since the table got records of it from "
                f"pipeline {pipeline_id!r}. What was not read before is lost. Start with a new pipeline.id "
                "to read the new topic"
            )
        if reached is None or is_other_topic:
            # If the table knows the query but not the partition, it has no records of the partition.
            reached = 0 if position.batch_id != NO_BATCH and key in step.start else start
        if start != reached:
            raise PipelineMismatch(_mismatch_text(position, pipeline_id, batch_id, step, key))
    return False


def _check_same(position: Position, pipeline_id: str, batch_id: int, step: Step) -> None:
    """Check that this is the batch in the table, and not another one made from an old checkpoint."""
    is_last = batch_id == position.batch_id
    for key, (start, end) in sorted(step.spans.items()):
        has = (position.starts.get(key), position.offsets.get(key))
        if not is_last or has != (start, end) or _is_other_topic(position, step, key[0]):
            raise PipelineMismatch(_mismatch_text(position, pipeline_id, batch_id, step, key))


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
    plan: Plan,
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
        _follow(options, table, plan)
    # The next plan deletes the files that cannot be deleted now.
    with suppress(TableUnreachable):
        leftovers.clear(table.storage, plan.app, plan.number, {plan.number: winners})


def _follow(options: DeltaOptions, table: Table, plan: Plan) -> None:
    # The plan has moved the group to the start of the batch, so only partitions that moved need a commit.
    moved = {key: plan.end[key] for key, begin in plan.begin.items() if plan.end[key] != begin}
    try:
        follow(_client(options), plan.app, {}, TableName(table.table_id, table.location), moved)
    except (KafkaError, ClientError) as error:
        raise BatchUnfinished(
            f"batch {plan.batch_id} is in the table, but the group of pipeline {plan.app!r} was not updated: "
            f"{error} Start the query again; it updates the group"
        ) from error


# ---- leftovers


def _clear(table: Table, app: str, position: Position) -> None:
    winners = {each.number: each.winners for each in position.recent.values()}
    with suppress(TableUnreachable):
        leftovers.clear(table.storage, app, position.number, winners)
