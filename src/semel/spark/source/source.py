"""Plans the offsets of every batch of the source. The driver plans; executors read (`reading`).

The offsets of a batch are decided once, logged by Spark, and then read by any number of attempts. So
everything variable (`latest`, committed offsets, new partitions) is looked up only when a batch is planned,
never when it is repeated. A query reads up to the last stable offset of each partition; a batch with the
option `snapshot` reads up to one commit of the broker.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from semel.spark.clients import connect
from semel.spark.edge import faces_spark
from semel.spark.errors import OptionError, PipelineMismatch
from semel.spark.options import SourceOptions, Where
from semel.spark.partition_offsets import (
    MARK,
    PIPELINE,
    PartitionOffsets,
    TopicIds,
    began_of,
    ids_of,
    of_json,
    recreated,
    to_json,
    without_topics,
)
from semel.spark.source.limits import Admission, now_s, split
from semel.spark.source.log_ends import LogEnds
from semel.spark.source.log_marks import Mark, check_mark, mark_at
from semel.spark.source.positions import Positions
from semel.spark.source.reading import Range, read_range
from semel.spark.source.snapshot import Ended, plan, read_snapshot


class RangePartition(InputPartition):
    """A range of offsets as Spark passes it to an executor."""

    def __init__(self, wanted: Range) -> None:
        super().__init__(wanted)
        self.range = wanted


@faces_spark
class BatchReader(DataSourceReader):
    """Reads a fixed range of every partition."""

    def __init__(self, options: SourceOptions, columns: Sequence[str]) -> None:
        self._options = options
        self._columns = tuple(columns)

    def partitions(self) -> Sequence[InputPartition]:
        """One task for every non-empty partition, or more if requested."""
        options = self._options
        positions = Positions(options)
        if options.is_snapshot:
            ended, tails = plan(options, positions)
            return [*_tasks(ended, options), *map(RangePartition, tails)]
        partitions, ids = positions.layout()
        end = positions.resolve(options.end, partitions, "endingOffsets")
        start = positions.resolve(options.start, partitions, "startingOffsets")
        if isinstance(options.end, dict):
            _check_order(start, end)
        return _tasks(_ranges(start, end, ids), options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Return the records of one task. If nothing is to be read, Spark runs one task without a range."""
        if not isinstance(partition, RangePartition):
            return iter(())
        client = connect(self._options.reading_address)
        if isinstance(partition.range, Ended):
            return read_snapshot(client, partition.range, self._options, self._columns)
        return read_range(client, partition.range, self._options, self._columns)


@faces_spark
class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Decides for each batch how far to read."""

    def __init__(self, options: SourceOptions, columns: Sequence[str]) -> None:
        self._options = options
        self._columns = tuple(columns)
        self._positions = Positions(options)
        self._log_ends = LogEnds(self._positions, fail_on_data_loss=options.fail_on_data_loss)
        self._admission = Admission(options.portions)
        self._initial: dict[str, Any] | None = None
        self._has_checked_mark = False

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return where a query without a checkpoint starts."""
        if self._options.start is Where.COMMITTED:
            self._positions.settle()
        partitions, ids = self._positions.layout()
        start = self._positions.resolve(self._options.start, partitions, "startingOffsets")
        self._initial = to_json(start, ids=ids, pipeline_id=self._options.pipeline_id)
        return self._initial

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return whether batches are limited; `latestOffset` takes the limits from the options."""
        portions = self._options.portions
        if portions.least is not None:
            return ReadMinRows(portions.least)
        return ReadAllAvailable() if portions.most is None else ReadMaxRows(portions.most)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Return the end of the next batch; the start itself if there is nothing new."""
        self._check_pipeline(start)
        self._check_mark(start)
        begin, end, ids = self._log_ends.next(of_json(start), ids_of(start))
        if not isinstance(limit, ReadAllAvailable):
            # A query that stops at the current end must not wait for more records.
            may_wait = not self._log_ends.is_bounded
            end = self._admission.end(begin, end, may_wait=may_wait, now=now_s())
        is_first = start == self._initial
        if not is_first and end == begin == of_json(start):
            return start
        mark = self._mark(begin, end) or _kept(Mark.of_json(start.get(MARK)), begin, end)
        pipeline_id = self._options.pipeline_id
        return to_json(end, began=begin if is_first else None, ids=ids, pipeline_id=pipeline_id, mark=mark)

    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802
        """Return the current end of the log, for progress reports."""
        partitions, ids = self._positions.layout()
        ends = self._positions.ends(partitions)
        return to_json(ends, ids=ids, pipeline_id=self._options.pipeline_id)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Read up to the current end, and then stop."""
        self._log_ends.bound()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """One task for every partition with offsets to read, or more if requested."""
        self._check_mark(end)
        # `began:` in the end alone marks the query's first batch. A repetition starts where it first started.
        began = began_of(end) if began_of(start) is None else None
        ids = ids_of(end)
        begin = without_topics(of_json(start) if began is None else began, recreated(ids_of(start), ids))
        return _tasks(_ranges(begin, of_json(end), ids), self._options)

    def _check_pipeline(self, start: dict[str, Any]) -> None:
        mine, known = self._options.pipeline_id, start.get(PIPELINE)
        if mine is not None and known is not None and mine != known:
            advice = (
                f"If it is the same pipeline under another name, let it keep the id {known!r}. "
                "Otherwise start with a new checkpointLocation"
            )
            if not self._positions.has_committed():
                # With only a new checkpoint, it would read everything again, perhaps into the same output.
                advice += (
                    f". Pipeline {mine!r} has no position here: set startingOffsets where the output ends"
                )
            raise PipelineMismatch(
                f"the checkpoint is that of pipeline {known!r}, and this query is pipeline {mine!r}, which "
                f"would not get what the other one has read. {advice}"
            )

    def _mark(self, begin: PartitionOffsets, end: PartitionOffsets) -> Mark | None:
        key = max(end, key=lambda each: end[each] - begin.get(each, 0), default=None)
        if key is None or end[key] <= begin.get(key, 0):
            return None
        return mark_at(self._positions.client, key, end[key] - 1)

    def _check_mark(self, start: dict[str, Any]) -> None:
        """Check the log against the mark, once per run: brokers are restored while the query is down."""
        mark = None if self._has_checked_mark else Mark.of_json(start.get(MARK))
        self._has_checked_mark = True
        # A topic that was created again is detected by its id, not by the mark.
        before, now = ids_of(start), self._positions.layout().ids if mark is not None else {}
        if mark is not None and self._options.fail_on_data_loss and not recreated(before, now):
            check_mark(self._positions.client, mark)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Return the records of one task."""
        assert isinstance(partition, RangePartition)
        client = connect(self._options.reading_address)
        return read_range(client, partition.range, self._options, self._columns)


def _check_order(start: PartitionOffsets, end: PartitionOffsets) -> None:
    for (topic, partition), offset in sorted(end.items()):
        if offset < start[topic, partition]:
            raise OptionError(
                f"endingOffsets ends at {offset} of {topic}/{partition}, and the read begins there at "
                f"{start[topic, partition]}. Choose an end that is not before the beginning"
            )


def _kept(mark: Mark | None, begin: PartitionOffsets, end: PartitionOffsets) -> Mark | None:
    """Return the mark, if the query is still past its offset, in the same topic."""
    is_read = mark is not None and min(begin.get(mark.key, 0), end.get(mark.key, 0)) > mark.offset
    return mark if is_read else None


def _ranges(start: PartitionOffsets, end: PartitionOffsets, ids: TopicIds) -> list[Range]:
    # A partition that is missing from the start is new, and is read from offset 0.
    return [
        Range(*key, start.get(key, 0), offset, ids.get(key[0], ""))
        for key, offset in sorted(end.items())
        if offset > start.get(key, 0)
    ]


def _tasks(ranges: Sequence[Range], options: SourceOptions) -> list[InputPartition]:
    return [
        RangePartition(each)
        for each in split(ranges, options.min_partitions, options.max_records_per_partition)
    ]
