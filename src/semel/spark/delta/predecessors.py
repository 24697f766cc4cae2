"""Recognises a pipeline that goes on under another id, by the table that it writes to.

See `semel.spark.sink.predecessors`. Delta does not list the transaction identifiers of a table, so the names of
the pipelines come from its history, and from the groups whose notes name the table: old commits are removed
from the history, and a group may have expired or belong to another cluster.
"""

from collections.abc import Iterable

from semel.client import Client
from semel.spark.checkpoint import Step
from semel.spark.delta.group import read_group
from semel.spark.delta.position import Position, read_position, streams_of
from semel.spark.delta.table import Table
from semel.spark.errors import PipelineMismatch
from semel.spark.sink.predecessors import Relations, Writer, of_other_groups, overlapping, reads_all
from semel.spark.sink.versions import fingerprint


def check_predecessors(
    client: Client, table: Table, pipeline_id: str, relations: Relations, step: Step
) -> None:
    """PipelineMismatch if the table has, under another id, what this pipeline is about to read."""
    if relations.is_new:
        return
    names = {*streams_of(table), *_followers(client, table, pipeline_id)} - {pipeline_id}
    writers = (_writer(name, read_position(table, name, keys=step.end), step) for name in sorted(names))
    for each in overlapping(writers, relations, step):
        raise PipelineMismatch(each.refusal(pipeline_id, f"the table {table.location}"))
    if not names and table.has_rows_of_unknown_origin() and reads_all(client, step.spans):
        raise PipelineMismatch(
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
