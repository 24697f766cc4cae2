"""The plan of a batch for a table."""

import uuid
from dataclasses import dataclass, field

from semel.spark.partition_offsets import PartitionOffsets, TopicIds
from semel.spark.sink.versions import NO_BATCH, NO_QUERY, Version
from semel.spark.source.log_marks import Mark


@dataclass(frozen=True, slots=True)
class Plan:
    """The driver's plan for a batch, made before its tasks start. The tasks receive it and return it."""

    app: str  # the name under which the table numbers commits
    number: int
    table_id: str
    partition_by: tuple[str, ...]
    required: tuple[str, ...]
    query_id: str = NO_QUERY
    batch_id: int = NO_BATCH
    begin: PartitionOffsets = field(default_factory=dict)  # the position of the pipeline
    end: PartitionOffsets = field(default_factory=dict)  # the position after this batch
    starts: PartitionOffsets = field(default_factory=dict)  # where this batch starts
    ids: TopicIds = field(default_factory=dict)
    is_done: bool = False  # the table contains the batch, so nothing is written again
    version: Version | None = None  # of a batch write that has one
    mark: Mark | None = None  # of the log that was read
    done_in: str | None = None  # the run of a streaming query that has written the version
    run: str = field(default_factory=lambda: uuid.uuid4().hex[:12])
