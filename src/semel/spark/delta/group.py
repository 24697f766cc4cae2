"""Reads and moves the consumer group of a pipeline that writes to a table. The group follows the table.

From the group, lag tools show the position of the pipeline, and a source finds its start when the checkpoint
is lost. A note with the offsets names the table, so that a new start can read the position there. The note is
written before the first commit of the table. It also has the pipeline's last commit to the table, so that the
command line and the console show it without access to the table.
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
    last: "LastCommit | None" = None

    def to_note(self) -> str:
        """Format the note for an offset."""
        return f"{MARK} {json.dumps(self._asdict(), separators=(',', ':'))}"

    def is_same(self, other: "TableName") -> bool:
        """Whether this is the same table in the same place."""
        return self[:2] == other[:2]


class LastCommit(NamedTuple):
    """The last commit of a pipeline to its table."""

    number: int
    batch_id: int  # -1 if it is not known
    run: str
    rows: int | None = None  # that it has added


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
            found_table = _table(pipeline_id, each.metadata.removeprefix(MARK))
            # A commit changes only the offsets of partitions that the batch has read.
            if table is None or _number(found_table) > _number(table):
                table = found_table
    return Group(found, table)


def _number(table: TableName) -> int:
    return -1 if table.last is None else table.last.number


def _table(pipeline_id: str, note: str) -> TableName:
    try:
        found = json.loads(note)
        last = found.get("last")
        return TableName(
            found["table_id"], found["location"], None if last is None else LastCommit(*last[:4])
        )
    except (LookupError, ValueError, TypeError, AttributeError, RecursionError):
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
    behind = {
        key: CommittedOffset(offset, note)
        for key, offset in offsets.items()
        if not _is_there(pipeline_id, known.get(key), offset, table)
    }
    commit_offsets(client, pipeline_id, behind)


def _is_there(pipeline_id: str, found: CommittedOffset | None, offset: int, table: TableName) -> bool:
    if found is None or found.offset != offset or not found.metadata.startswith(f"{MARK} "):
        return False
    return _table(pipeline_id, found.metadata.removeprefix(MARK)).is_same(table)
