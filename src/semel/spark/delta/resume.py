"""Finds where a query starts if its pipeline writes to a table, and the checkpoint is new or lost.

The source starts at the offsets of the pipeline's group. If a driver died after the commit of the table and
before that of the group, the group is behind. So the reader first moves the group to the position in the
table, which the group names.
"""

from contextlib import suppress
from typing import Any

from semel.client import Client
from semel.spark.clients import connect
from semel.spark.delta.group import Group, follow, read_group
from semel.spark.edge import faces_spark
from semel.spark.errors import PipelineError
from semel.spark.options import Where
from semel.spark.partition_offsets import recreated, topic_ids
from semel.spark.source.log_marks import Mark, check_mark
from semel.spark.source.source import StreamReader


@faces_spark
class ResumingReader(StreamReader):
    """The streaming source, which reads the position of a table first."""

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return where a query without a checkpoint starts."""
        pipeline_id = self._options.pipeline_id
        if self._options.start is Where.COMMITTED and pipeline_id is not None:
            client = connect(self._options.address)
            # The pipeline may write to topics, or its table may be unreachable from here: the sink decides.
            with suppress(PipelineError, ModuleNotFoundError):
                mark = _ask_table(client, pipeline_id, read_group(client, pipeline_id))
                if mark is not None and self._options.fail_on_data_loss:
                    check_mark(client, mark)
        return super().initialOffset()


def _ask_table(client: Client, pipeline_id: str, group: Group) -> Mark | None:
    """Move the group to the position of the table. Return the mark of the log that was read, if any."""
    if group.table is None:
        return None
    from semel.spark.delta.position import read_position
    from semel.spark.delta.table import open_table

    table = open_table(group.table.location)
    if table is None or table.table_id != group.table.table_id:
        return None
    position = read_position(table, pipeline_id, keys=group.offsets)
    reached = {key: offset for key, offset in position.offsets.items() if key in group.offsets}
    follow(client, pipeline_id, group.offsets, group.table, reached)
    last = position.recent.get(position.number)
    if last is None or last.mark is None:
        return None
    # A topic that was created again is detected by its id, not by the mark.
    ids = topic_ids(client.describe([last.mark.topic]).topics)
    return None if recreated(last.ids, ids) else last.mark
