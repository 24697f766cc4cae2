"""Prefetch: reads the records of a small batch when it is planned, and passes them to Spark with the plan.

A batch of a few records takes its time from processes, not from records: a task for every partition, each
with a Python worker that fetches. So the planner, which is connected to the brokers anyway, fetches the
records of a small batch itself, with one request to each leader. Spark keeps them as a block, which the one
task of the batch reads in Java. If the block is lost, or the planner could not read all at once, the task
fetches them like those of any other batch.

Spark takes records from a planner for its own simple readers alone, of a class that is private. `Prefetching`
passes for that class when Spark asks, and only then. Another version of Spark may not have it; then tasks
read.
"""

from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa

from semel.client import Client, ClientError, KafkaError, Partition
from semel.client.consume.fetch import FetchLimits, begin_fetch, shown
from semel.client.errors import check
from semel.spark.options import SourceOptions
from semel.spark.partition_offsets import id_text
from semel.spark.source.reading import OffsetRange, RangeRows

try:
    from pyspark.sql.datasource_internal import _SimpleStreamReaderWrapper as SimpleReader
except ImportError:  # Another version of Spark.
    SimpleReader = None  # type: ignore[assignment,misc]

#: A batch of more offsets, or of more bytes, is read by tasks: several if it has several partitions.
OFFSETS_MAX = 1_000
FETCHED_BYTES_MAX = 1 << 20
#: The limit after decompression.
BYTES_MAX = 8 << 20


def is_small(ranges: Sequence[OffsetRange], options: SourceOptions) -> bool:
    """Whether one task reads all of these ranges. `minPartitions` asks for more."""
    total = sum(each.end - each.start for each in ranges)
    most = options.max_records_per_partition
    return options.min_partitions is None and total <= min(OFFSETS_MAX, OFFSETS_MAX if most is None else most)


def read_at_once(
    client: Client, ranges: Sequence[OffsetRange], options: SourceOptions, columns: Sequence[str]
) -> list[pa.RecordBatch] | None:
    """Return the visible records of these ranges; None if that takes more than one request to each leader."""
    wanted = {(each.topic, each.partition): each for each in ranges}
    limits = FetchLimits(max_wait_ms=0, max_bytes=FETCHED_BYTES_MAX, partition_max_bytes=FETCHED_BYTES_MAX)
    found: list[pa.RecordBatch] = []
    size = 0
    try:
        positions = {key: each.start for key, each in wanted.items()}
        fetched = begin_fetch(client, positions, options.isolation, limits)
        if not _are_known(client, wanted):
            return None
        for key, data in fetched.wait():
            check(data.error_code, f"{key[0]}/{key[1]} cannot be read at offset {positions[key]}")
            rows = RangeRows(wanted[key], columns)
            end = positions[key]
            for at, header, is_shown in shown(
                data.records or b"", data.aborted_transactions, options.isolation
            ):
                if is_shown:
                    rows.reader.add(data.records or b"", at, header, positions[key], wanted[key].end)
                end = header.last_offset + 1
                if size + rows.reader.size_bytes > BYTES_MAX:
                    return None
            if end < wanted.pop(key).end:
                return None
            size += rows.reader.size_bytes
            found.extend(rows.take())
    except (KafkaError, ClientError):
        return None  # A task retries, and says what is wrong.
    return None if wanted else found


def _are_known(client: Client, wanted: Mapping[Partition, OffsetRange]) -> bool:
    """Whether this client knows the topics of the plan, and no others of their names."""
    ids = {topic: id_text(client.topic(topic).topic_id) for topic, _ in wanted}
    return all(each.topic_id in ("", ids[each.topic]) for each in wanted.values())


class Prefetching:
    """The part of a stream reader that passes prefetched records to Spark.

    `partitions` of the reader calls `offer`; then Spark asks whether the reader is a simple one, and takes
    the records with `getCache`.
    """

    _offered: list[pa.RecordBatch] | None = None

    def offer(self, records: list[pa.RecordBatch]) -> None:
        """Have Spark take these records for the one partition that `partitions` returns."""
        self._offered = records

    @property  # type: ignore[misc]  # other objects have a class that can be set
    def __class__(self) -> type:
        """The class that `isinstance` sees, beside the real one."""
        return type(self) if self._offered is None or SimpleReader is None else SimpleReader

    def getCache(  # noqa: N802 - Spark's name
        self, start: Mapping[str, object], end: Mapping[str, object]
    ) -> Iterator[pa.RecordBatch] | None:
        """Return the records that were offered."""
        offered, self._offered = self._offered, None
        return None if offered is None else iter(offered)
