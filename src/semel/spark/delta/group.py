"""The consumer group of a pipeline that writes to a table. The table knows the truth; the group follows it.

It is there so that lag tools show how far the pipeline is, and so that a source finds where to begin when the
checkpoint is lost. A note beside the offsets names the table, so whoever starts can ask it. The note is there
before the first commit of the table is.
"""

import json
from collections.abc import Mapping
from typing import NamedTuple

from semel.client import Client, CommittedOffset, Partition
from semel.client.group_offsets import commit_offsets, fetch_offsets
from semel.spark import decision
from semel.spark.errors import PipelineError, PipelineMismatch

MARK = decision.TABLE_MARK


class TableName(NamedTuple):
    """A table: where it is, and what stays the same if it is moved."""

    table_id: str
    location: str

    def to_note(self) -> str:
        """The note beside an offset."""
        return f"{MARK} {json.dumps(self._asdict(), separators=(',', ':'))}"


class Group(NamedTuple):
    """What the group knows."""

    offsets: dict[Partition, CommittedOffset]
    table: TableName | None


def read_group(client: Client, pipeline_id: str) -> Group:
    """How far the group is, and which table it follows."""
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
            f"the group of pipeline {pipeline_id!r} does not say which table it follows: somebody else has "
            "changed its offsets. Choose a new pipeline.id"
        ) from None


def follow(
    client: Client,
    pipeline_id: str,
    known: Mapping[Partition, CommittedOffset],
    table: TableName,
    offsets: Mapping[Partition, int],
) -> None:
    """Put the group where the table is; what it is known to have already is not written again."""
    note = table.to_note()
    wanted = {key: CommittedOffset(offset, note) for key, offset in offsets.items()}
    behind = {key: each for key, each in wanted.items() if known.get(key) != each}
    commit_offsets(client, pipeline_id, behind)
