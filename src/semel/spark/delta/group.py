"""Reads and moves the consumer group of a pipeline that writes to a table. The group follows the table.

From the group, lag tools show the position of the pipeline, and a source finds its start when the checkpoint
is lost. A note with the offsets names the table, so that a new start can read the position there. The note is
written before the first commit of the table.
"""

import json
from collections.abc import Mapping
from typing import NamedTuple

from semel.client import Client, CommittedOffset, Partition
from semel.client.admin.group_offsets import commit_offsets, fetch_offsets
from semel.spark.errors import PipelineError, PipelineMismatch
from semel.spark.sink import decision

MARK = decision.TABLE_MARK


class TableName(NamedTuple):
    """A table: its location, and the id that stays the same if it is moved."""

    table_id: str
    location: str

    def to_note(self) -> str:
        """Format the note for an offset."""
        return f"{MARK} {json.dumps(self._asdict(), separators=(',', ':'))}"


class Group(NamedTuple):
    """The offsets of the group, and its table."""

    offsets: dict[Partition, CommittedOffset]
    table: TableName | None


def read_group(client: Client, pipeline_id: str) -> Group:
    """Read the offsets of the group, and the table that it follows."""
    found = fetch_offsets(client, pipeline_id, require_stable=False)
    table = None
    for each in found.values():
        if each.metadata.startswith(f"{decision.MARK} "):
            raise PipelineMismatch(
                f"pipeline.id {pipeline_id!r} belongs to a pipeline that writes to topics. Give this one "
                "a pipeline.id of its own"
            )
        if each.metadata.startswith(f"{MARK} "):
            table = _table(pipeline_id, each.metadata.removeprefix(MARK))
    return Group(found, table)


def _table(pipeline_id: str, note: str) -> TableName:
    try:
        return TableName(**json.loads(note))
    except (ValueError, TypeError, RecursionError):
        raise PipelineError(
            f"the group of pipeline {pipeline_id!r} does not say which table it follows: another program has "
            "changed its offsets. Choose a new pipeline.id"
        ) from None


def follow(
    client: Client,
    pipeline_id: str,
    known: Mapping[Partition, CommittedOffset],
    table: TableName,
    offsets: Mapping[Partition, int],
) -> None:
    """Move the group to the position of the table; `known` offsets are not committed again."""
    note = table.to_note()
    wanted = {key: CommittedOffset(offset, note) for key, offset in offsets.items()}
    behind = {key: each for key, each in wanted.items() if known.get(key) != each}
    commit_offsets(client, pipeline_id, behind)
