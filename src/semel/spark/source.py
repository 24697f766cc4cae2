"""The source: which offsets a batch has. The driver decides; executors read (`reading`).

Offsets of a batch are decided once, written down by Spark, and then read by any number of attempts, so
everything that is not fixed (`latest`, what a group has committed, new partitions) is looked up when a batch
is made and never when it is done again. A query reads up to the last stable offset of each partition.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from semel.client import EARLIEST, LATEST, Client, KafkaError, Partition
from semel.client.group_offsets import fetch_offsets, is_unstable
from semel.client.offsets import list_offsets
from semel.spark.clients import connect
from semel.spark.decision import take_over
from semel.spark.errors import DataLoss, OptionError
from semel.spark.options import SourceOptions, Where
from semel.spark.reading import Range, read_range
from semel.spark.vectors import Vector, admit, began_of, of_json, to_json

#: A decision takes milliseconds; one that takes longer than this has lost its driver.
DECISION_S = 5.0


class RangePartition(InputPartition):
    """A range of offsets as Spark hands it to an executor."""

    def __init__(self, wanted: Range) -> None:
        super().__init__(wanted)
        self.range = wanted


class BatchReader(DataSourceReader):
    """Reads a fixed range of every partition."""

    def __init__(self, options: SourceOptions, columns: Sequence[str]) -> None:
        self._options = options
        self._columns = tuple(columns)

    def partitions(self) -> Sequence[InputPartition]:
        """One task for every partition that has something to read."""
        log = _Log(self._options)
        partitions = log.partitions()
        end = log.resolve(self._options.end, partitions, "endingOffsets")
        start = log.resolve(self._options.start, partitions, "startingOffsets")
        return _ranges(start, end)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The records of one task. Where there is nothing to read, Spark has a task without a range."""
        if not isinstance(partition, RangePartition):
            return iter(())
        return read_range(connect(self._options.address), partition.range, self._options, self._columns)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Decides, batch after batch, how far to read."""

    def __init__(self, options: SourceOptions, columns: Sequence[str]) -> None:
        self._options = options
        self._columns = tuple(columns)
        self._initial: dict[str, Any] | None = None
        self._target: Vector | None = None  # of Trigger.AvailableNow

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Where a query without a checkpoint begins."""
        log = _Log(self._options)
        if self._options.start is Where.COMMITTED:
            log.settle()
        start = log.resolve(self._options.start, log.partitions(), "startingOffsets")
        self._initial = to_json(start)
        return self._initial

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """What `maxOffsetsPerTrigger` says."""
        most = self._options.max_per_trigger
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """The end of the next batch; the start itself if there is nothing new."""
        begin = of_json(start)
        end = self._ends(begin)
        if isinstance(limit, ReadMaxRows):
            end = admit(begin, end, limit.max_rows)
        if start == self._initial:
            return to_json(end, began=begin)
        return start if end == begin else to_json(end)

    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802
        """Where the log ends now, for progress reports."""
        log = _Log(self._options)
        return to_json(log.ends(log.partitions()))

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Read what is there now, and then stop."""
        log = _Log(self._options)
        self._target = log.ends(log.partitions())

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """One task for every partition that has something to read."""
        # Only a first batch begins where nothing has ended, and then it begins where it did the first time.
        began = began_of(end) if began_of(start) is None else None
        return _ranges(of_json(start) if began is None else began, of_json(end))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The records of one task."""
        assert isinstance(partition, RangePartition)
        return read_range(connect(self._options.address), partition.range, self._options, self._columns)

    def _ends(self, begin: Vector) -> Vector:
        if self._target is not None:
            return {
                key: max(self._target.get(key, 0), begin.get(key, 0)) for key in {**begin, **self._target}
            }
        log = _Log(self._options)
        current = log.partitions()
        gone = begin.keys() - set(current)
        if gone and self._options.fail_on_data_loss:
            names = ", ".join(f"{topic}/{partition}" for topic, partition in sorted(gone))
            raise DataLoss(
                f"{names} cannot be read any more: there is no such partition. "
                "Set failOnDataLoss=false to go on without it"
            )
        found = log.ends(current)
        return {key: max(found[key], begin.get(key, 0)) for key in current}


class _Log:
    """What the cluster knows about the partitions that are read."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._client: Client = connect(options.address)

    def partitions(self) -> list[Partition]:
        """The partitions there are now."""
        wanted = self._options.topics
        if wanted.pattern is not None:
            pattern = re.compile(wanted.pattern)
            topics = [
                topic
                for topic in self._client.describe().topics
                if not topic.is_internal and pattern.fullmatch(topic.name)
            ]
        else:
            names = sorted({*wanted.names, *(topic for topic, _ in wanted.partitions)})
            topics = list(self._client.describe(names).topics)
            if missing := set(names) - {topic.name for topic in topics}:
                raise OptionError(
                    f"there is no topic {', '.join(sorted(missing))}. "
                    "Check the name, or create it with 'semel topics create'"
                )
        found = [(topic.name, each.partition) for topic in topics for each in topic.partitions]
        if not wanted.partitions:
            return found
        if absent := set(wanted.partitions) - set(found):
            names = [f"{topic}/{partition}" for topic, partition in sorted(absent)]
            raise OptionError(f"assign names partitions that there are not: {', '.join(names)}")
        return list(wanted.partitions)

    def ends(self, partitions: Sequence[Partition]) -> Vector:
        """Where a reader has to stop now."""
        return self._at(dict.fromkeys(partitions, LATEST))

    def settle(self) -> None:
        """Wait for a decision that the pipeline is making; if nobody makes it any more, take over.

        A driver that died in the middle of one leaves offsets that nobody else can commit. The query that
        begins here is its successor, so it may.
        """
        pipeline_id = self._options.pipeline_id or ""
        try:
            fetch_offsets(self._client, pipeline_id, stable_within_s=DECISION_S)
        except KafkaError as error:
            if not is_unstable(error):
                raise
            take_over(self._client, pipeline_id)

    def resolve(self, where: Where | Vector, partitions: Sequence[Partition], option: str) -> Vector:
        """The offsets that an option means now."""
        if isinstance(where, dict):
            if wrong := set(partitions) ^ where.keys():
                names = [f"{topic}/{partition}" for topic, partition in sorted(wrong)]
                raise OptionError(f"{option} gives one offset for every partition; check {', '.join(names)}")
            return self._at(where)
        if where is Where.COMMITTED:
            committed = fetch_offsets(self._client, self._options.pipeline_id or "", partitions)
            known = {key: each.offset for key, each in committed.items()}
            # What a pipeline has not begun it reads from its beginning: every record counts.
            return self._at({key: known.get(key, EARLIEST) for key in partitions})
        return self._at(dict.fromkeys(partitions, EARLIEST if where is Where.EARLIEST else LATEST))

    def _at(self, wanted: Mapping[Partition, int]) -> Vector:
        asked = {key: offset for key, offset in wanted.items() if offset < 0}
        found = list_offsets(self._client, asked, isolation=self._options.isolation)
        return {key: found[key].offset if key in found else offset for key, offset in wanted.items()}


def _ranges(start: Vector, end: Vector) -> list[InputPartition]:
    # A partition that is not in the start is new, and is read from its beginning.
    return [
        RangePartition(Range(*key, start.get(key, 0), offset))
        for key, offset in sorted(end.items())
        if offset > start.get(key, 0)
    ]
