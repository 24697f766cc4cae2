"""Topics as tables (`newestByKey`): one row per key, its newest record. Pipelines use it for lookups.

A record replaces earlier records with the same key; a record with a null value (a tombstone) deletes the key.
The newest record of a partition is the one with the largest offset. If several partitions have a key, because
the topic was given more partitions, the newest is the one with the largest timestamp. A record without a key
is refused: nothing could ever replace it.

One task reads the whole table, since any partition may have a newer record of a key than another. It keeps
the newest records in memory, so their size is limited. Replaced records are dropped on the way: memory is
bounded by the table, not by its history.

The task also decides how far to read. Spark plans a DataFrame of a Python source once and keeps the plan: all
batches of a query would otherwise see the table as it was when the query started.

On Semel the table is a snapshot (`snapshot`), as it was after one commit. Other brokers may compact the topic
during the read, and remove a record because of a newer one after the planned end. There, the task reads on
until it reaches the current end. For a key that exists all the time it then finds one of the two records.
"""

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSourceReader, InputPartition

from semel.client import LATEST, Client, Isolation
from semel.client.consume.offsets import list_offsets
from semel.spark.clients import connect
from semel.spark.edge import faces_spark
from semel.spark.errors import KeyMissing, TableTooLarge
from semel.spark.options import SourceOptions, Where
from semel.spark.source.positions import Positions
from semel.spark.source.reading import ROWS_MAX, OffsetRange, read_range
from semel.spark.source.snapshot import Ended, can_snapshot, plan, read_snapshot

#: The columns that decide which record is the newest, and whether it is a tombstone.
NEEDED = ("key", "value", "partition", "offset", "timestamp")
#: How much a task collects before it drops replaced records; more if the table itself is larger.
COLLECTED_BYTES = 64 << 20
#: The largest table. Arrow's binary columns end at 2 GiB.
TABLE_BYTES_MAX = 1 << 30


@faces_spark
class NewestReader(DataSourceReader):
    """Reads the newest record of each key."""

    def __init__(self, options: SourceOptions, columns: Sequence[str]) -> None:
        self._options = options
        self._columns = tuple(columns)

    def partitions(self) -> Sequence[InputPartition]:
        """One task for the whole table."""
        # Invalid options should fail here, on the driver, and not in the task.
        self._ranges()
        return [InputPartition(None)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Return the rows of the table."""
        client = connect(self._options.reading_address)
        columns = [*self._columns, *(name for name in NEEDED if name not in self._columns)]
        parts: dict[tuple[str, int], NewestOfPartition] = {}
        size_bytes = 0
        for wanted in self._ranges():
            newest = parts.setdefault((wanted.topic, wanted.partition), NewestOfPartition(wanted))
            size_bytes -= newest.size_bytes
            for batch in self._batches(client, wanted, columns):
                newest.add(batch, TABLE_BYTES_MAX - size_bytes)
            newest.reduce(TABLE_BYTES_MAX - size_bytes)
            size_bytes += newest.size_bytes
        tables = [each.table for each in parts.values() if each.table is not None]
        if tables:
            table = _newest_of_all(pa.concat_tables(tables))
            yield from table.select(list(self._columns)).to_batches(max_chunksize=ROWS_MAX)

    def _ranges(self) -> Sequence[OffsetRange]:
        """Return the current range of every partition."""
        options = self._options
        positions = Positions(options)
        if options.is_snapshot or self._can_be_snapshot(positions.client):
            ended, tails = plan(options, positions)
            return [*ended, *tails]
        partitions = positions.partitions()
        end = positions.resolve(options.end, partitions, "endingOffsets")
        start = positions.resolve(options.start, partitions, "startingOffsets")
        return [OffsetRange(*key, start[key], max(end[key], start[key])) for key in sorted(end)]

    def _can_be_snapshot(self, client: Client) -> bool:
        options = self._options
        is_whole = options.end is Where.LATEST and options.fail_on_data_loss
        return is_whole and options.isolation is Isolation.READ_COMMITTED and can_snapshot(client)

    def _batches(
        self, client: Client, wanted: OffsetRange, columns: Sequence[str]
    ) -> Iterator[pa.RecordBatch]:
        options = self._options
        if isinstance(wanted, Ended):
            yield from read_snapshot(client, wanted, options, columns)
            return
        key, start, end = (wanted.topic, wanted.partition), wanted.start, wanted.end
        while True:
            yield from read_range(client, OffsetRange(*key, start, end), options, columns)
            if options.end is not Where.LATEST:
                return
            now = list_offsets(client, {key: LATEST}, isolation=options.isolation)[key].offset
            if now <= end:
                return
            start, end = end, now


class NewestOfPartition:
    """The newest record of each key in one partition so far, including tombstones."""

    def __init__(self, wanted: OffsetRange) -> None:
        self._name = f"{wanted.topic}/{wanted.partition}"
        self._collected: list[pa.RecordBatch] = []
        self._collected_bytes = 0
        self.table: pa.Table | None = None
        self.size_bytes = 0

    def add(self, batch: pa.RecordBatch, bytes_max: int) -> None:
        """Add records. TableTooLarge if the newest take more than `bytes_max`."""
        if batch.column("key").null_count:
            offset = batch.filter(pc.is_null(batch.column("key"))).column("offset")[0].as_py()
            raise KeyMissing(
                f"the record at offset {offset} of {self._name} has no key, so nothing can ever replace it. "
                "A lookup is a table by key: write its records with keys, and set cleanup.policy=compact on "
                "its topic to have the broker insist on them"
            )
        self._collected.append(batch)
        self._collected_bytes += batch.nbytes
        if self._collected_bytes > max(COLLECTED_BYTES, self.size_bytes):
            self.reduce(bytes_max)

    def reduce(self, bytes_max: int) -> None:
        """Drop replaced records. TableTooLarge if there is still too much."""
        if not self._collected:
            return
        collected = pa.Table.from_batches(self._collected)
        whole = collected if self.table is None else pa.concat_tables([self.table, collected])
        newest = whole.select(["key", "offset"]).group_by("key").aggregate([("offset", "max")])
        # Offsets are unique within a partition.
        kept = whole.filter(pc.is_in(whole["offset"], value_set=newest["offset_max"].combine_chunks()))
        self.table, self.size_bytes = kept, kept.nbytes
        self._collected, self._collected_bytes = [], 0
        if self.size_bytes > bytes_max:
            raise TableTooLarge(
                f"{self._name} is too large for a lookup, which is at most {TABLE_BYTES_MAX >> 20} MiB. "
                "Read the topic as a stream and join the streams, or set newestByKey=false to get all records"
            )


def _newest_of_all(table: pa.Table) -> pa.Table:
    """For keys in several partitions keep the newest by time; then drop the deleted."""
    table = table.sort_by([("timestamp", "ascending"), ("partition", "ascending")])
    table = table.append_column("row", pa.array(range(table.num_rows), pa.int64()))
    newest = table.select(["key", "row"]).group_by("key").aggregate([("row", "max")])
    table = table.filter(pc.is_in(table["row"], value_set=newest["row_max"].combine_chunks()))
    return table.filter(pc.is_valid(table["value"]))
