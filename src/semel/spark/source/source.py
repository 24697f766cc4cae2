"""Plans the offsets of every batch of the source. The driver plans; executors read (`reading`).

The offsets of a batch are decided once, logged by Spark, and then read by any number of attempts. So
everything variable (`latest`, committed offsets, new partitions) is looked up only when a batch is planned,
never when it is repeated. A query reads up to the last stable offset of each partition; a batch with the
option `snapshot` reads up to one commit of the broker.

Limits on reading: offsets per batch, and records per task.

Both have the meaning of Spark's own Kafka source. `Admission` decides how far the next batch of a stream goes
(`maxOffsetsPerTrigger`, `minOffsetsPerTrigger`, `maxTriggerDelay`); `split` divides ranges into more tasks
than there are partitions (`minPartitions`, `maxRecordsPerPartition`).

Determines how far a streaming query can read now, and what it can no longer read.

Offsets are only valid within one topic. Before the next end is determined, the layout is compared with the
position of the query. A missing partition, a topic with another id and a log that ends before the position
are data loss. With `failOnDataLoss=false` the query continues with what there is: a topic that was created
again is read from its start.
"""

import math
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import replace
from itertools import pairwise
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from semel.client import Isolation, Partition
from semel.spark.clients import connect
from semel.spark.edge import faces_spark
from semel.spark.errors import DataLoss, OptionError, PipelineMismatch
from semel.spark.options import Portions, SourceOptions, Where
from semel.spark.partition_offsets import (
    MARK,
    PIPELINE,
    PartitionOffsets,
    TopicIds,
    admit,
    began_of,
    ids_of,
    of_json,
    recreated,
    recreated_text,
    to_json,
    without_topics,
)
from semel.spark.source.log_marks import Mark, check_mark, mark_at
from semel.spark.source.positions import Positions
from semel.spark.source.prefetch import Prefetching, is_small, read_at_once
from semel.spark.source.reading import OffsetRange, read_range
from semel.spark.source.snapshot import Ended, plan, read_snapshot


class Next(NamedTuple):
    """The next batch at its maximum: its start, its possible end, and the ids of the topics."""

    begin: PartitionOffsets
    end: PartitionOffsets
    ids: TopicIds


class _Found(NamedTuple):
    ends: PartitionOffsets
    ids: TopicIds


class LogEnds:
    """The ends of the log, as a query sees them."""

    def __init__(self, positions: Positions, *, fail_on_data_loss: bool) -> None:
        self._positions = positions
        self._fails = fail_on_data_loss
        self._bound: _Found | None = None

    @property
    def is_bounded(self) -> bool:
        """Whether the query stops at a fixed end."""
        return self._bound is not None

    def bound(self) -> None:
        """Fix the end at the current end of the log (Trigger.AvailableNow)."""
        self._bound = self._look()

    def next(self, begin: PartitionOffsets, ids: TopicIds) -> Next:
        """Return what can be read from here. DataLoss if something can no longer be read."""
        found = self._bound or self._look()
        begin = self._still_there(begin, ids, found)
        shorter = self._shorter(begin, found)
        # A query that read uncommitted records before may be ahead of the last stable offset: it waits there.
        end = {
            key: offset if key in shorter else max(offset, begin.get(key, 0))
            for key, offset in found.ends.items()
        }
        return Next(begin, end, {**ids, **found.ids})

    def _look(self) -> _Found:
        partitions, ids = self._positions.layout()
        return _Found(self._positions.ends(partitions), ids)

    def _still_there(self, begin: PartitionOffsets, ids: TopicIds, found: _Found) -> PartitionOffsets:
        anew = recreated(ids, found.ids)
        if anew and self._fails:
            raise DataLoss(recreated_text(anew, ids, found.ids))
        begin = without_topics(begin, anew)
        gone = begin.keys() - found.ends.keys()
        if gone and self._fails:
            raise DataLoss(_gone_text(gone, self._positions.existing(gone)))
        return {key: offset for key, offset in begin.items() if key not in gone}

    def _shorter(self, begin: PartitionOffsets, found: _Found) -> set[Partition]:
        """Return the partitions that end before the query's position, whatever is committed in them."""
        ahead = [key for key, offset in begin.items() if found.ends[key] < offset]
        ends = self._positions.ends(ahead, Isolation.READ_UNCOMMITTED) if ahead else {}
        shorter = {key for key, end in ends.items() if end < begin[key]}
        if shorter and self._fails:
            topic, partition = key = min(shorter)
            raise DataLoss(
                f"records of {topic}/{partition} are lost: the query has read up to offset {begin[key]}, and "
                f"the log ends at {ends[key]}. The topic was deleted and created again, or the broker was "
                "restored from a backup. Set failOnDataLoss=false to go on with what is written from now on"
            )
        return shorter


def _gone_text(gone: Set[Partition], existing: Set[Partition]) -> str:
    if left := gone & existing:
        return (
            f"{_names(left)} is there, and was read by this query before, but its options subscribe, "
            "subscribePattern or assign do not name it any more. Records that come there would not be read. "
            "Name it again, or set failOnDataLoss=false to go on without it"
        )
    return (
        f"{_names(gone)} cannot be read any more: there is no such partition. "
        "Set failOnDataLoss=false to go on without it"
    )


def _names(partitions: Set[Partition]) -> str:
    return ", ".join(f"{topic}/{partition}" for topic, partition in sorted(partitions))


class Admission:
    """Decides for each batch how much of the waiting input it reads."""

    def __init__(self, portions: Portions) -> None:
        self._portions = portions
        self._last_at: float | None = None  # when a batch was last admitted

    def end(
        self, start: Mapping[Partition, int], end: Mapping[Partition, int], *, may_wait: bool, now: float
    ) -> PartitionOffsets:
        """Return the end of the next batch; its start if it is better to wait for more."""
        least, most = self._portions.least, self._portions.most
        if may_wait and least is not None:
            waiting = sum(max(0, offset - start.get(key, 0)) for key, offset in end.items())
            # The first batch does not wait: it is unknown when the last one was.
            is_due = self._last_at is None or now - self._last_at >= self._portions.delay_s
            if waiting < least and not is_due:
                return dict(start)
            self._last_at = now
        return dict(end) if most is None else admit(start, end, most)


def now_s() -> float:
    """The clock of `Admission`, monotonic."""
    return time.monotonic()


def split(
    ranges: Sequence[OffsetRange], min_partitions: int | None, max_records: int | None
) -> list[OffsetRange]:
    """Split ranges to at most `max_records` offsets each, and to about `min_partitions` in total.

    Splits for the latter go to the large ranges, in proportion to their size; small ones stay whole.
    """
    found = [each for each in ranges if each.end > each.start]
    if max_records is not None:
        found = [
            piece for each in found for piece in _cut(each, math.ceil((each.end - each.start) / max_records))
        ]
    if min_partitions is None or len(found) >= min_partitions:
        return found
    total = sum(each.end - each.start for each in found)
    small = [each for each in found if _parts(each, total, min_partitions) == 1]
    left = total - sum(each.end - each.start for each in small)
    wanted = min_partitions - len(small)
    return [
        piece
        for each in found
        for piece in ([each] if each in small else _cut(each, _parts(each, left, wanted)))
    ]


def _parts(wanted: OffsetRange, total: int, parts: int) -> int:
    """Return how many parts a range gets, by its share of the total; halves are rounded up."""
    return max(1, math.floor((wanted.end - wanted.start) / total * parts + 0.5))


def _cut(wanted: OffsetRange, parts: int) -> list[OffsetRange]:
    """Divide a range into equal pieces; the remainder goes to the later ones."""
    size = wanted.end - wanted.start
    parts = min(parts, size)
    bounds = [wanted.start + size * number // parts for number in range(parts + 1)]
    return [replace(wanted, start=start, end=end) for start, end in pairwise(bounds)]


class RangePartition(InputPartition):
    """Ranges of offsets as Spark passes them to an executor: one, or all of a small batch."""

    def __init__(self, *wanted: OffsetRange) -> None:
        super().__init__(wanted)
        self.ranges = wanted


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
        (wanted,) = partition.ranges
        if isinstance(wanted, Ended):
            return read_snapshot(client, wanted, self._options, self._columns)
        return read_range(client, wanted, self._options, self._columns)


@faces_spark
class StreamReader(Prefetching, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Decides for each batch how far to read, and reads the records of a small one."""

    def __init__(self, options: SourceOptions, columns: Sequence[str]) -> None:
        self._options = options
        self._columns = tuple(columns)
        self._positions = Positions(options)
        self._log_ends = LogEnds(self._positions, fail_on_data_loss=options.fail_on_data_loss)
        self._admission = Admission(options.portions)
        self._initial: dict[str, Any] | None = None
        self._has_checked_mark = False
        self._reader = secrets.token_hex(4)
        self._prefetched: tuple[dict[str, Any], list[pa.RecordBatch]] | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return where a query without a checkpoint starts."""
        if self._options.start is Where.COMMITTED:
            self._positions.settle()
        partitions, ids = self._positions.layout()
        start = self._positions.resolve(self._options.start, partitions, "startingOffsets")
        self._initial = to_json(start, ids=ids, pipeline_id=self._options.pipeline_id, reader=self._reader)
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
        records = self._prefetch(_ranges(begin, end, ids))
        planned = to_json(
            end,
            began=begin if is_first else None,
            ids=ids,
            pipeline_id=pipeline_id,
            mark=mark,
            reader=self._reader,
            is_small=records is not None,
        )
        self._prefetched = None if records is None else (planned, records)
        return planned

    def _prefetch(self, ranges: list[OffsetRange]) -> list[pa.RecordBatch] | None:
        """Return the records of a small batch; None if it is not, or cannot be read at once."""
        if not ranges or not is_small(ranges, self._options):
            return None
        client = connect(self._options.reading_address)
        return read_at_once(client, ranges, self._options, self._columns)

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
        ranges = _ranges(begin, of_json(end), ids)
        if not ranges or not is_small(ranges, self._options):
            return _tasks(ranges, self._options)
        prefetched, self._prefetched = self._prefetched, None
        if prefetched is not None and prefetched[0] == end:
            self.offer(prefetched[1])
        return [RangePartition(*ranges)]

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
        for wanted in partition.ranges:
            yield from read_range(client, wanted, self._options, self._columns)


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


def _ranges(start: PartitionOffsets, end: PartitionOffsets, ids: TopicIds) -> list[OffsetRange]:
    # A partition that is missing from the start is new, and is read from offset 0.
    return [
        OffsetRange(*key, start.get(key, 0), offset, ids.get(key[0], ""))
        for key, offset in sorted(end.items())
        if offset > start.get(key, 0)
    ]


def _tasks(ranges: Sequence[OffsetRange], options: SourceOptions) -> list[InputPartition]:
    return [
        RangePartition(each)
        for each in split(ranges, options.min_partitions, options.max_records_per_partition)
    ]
