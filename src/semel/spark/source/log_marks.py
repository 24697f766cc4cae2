"""Marks the log that a query has read, so that the query recognises it when it starts again.

If a broker is restored from an older backup, its log ends before a query's position. That is noticed
(`log_ends`) until new records have been written past the position. Then the offsets fit, but the records
below the position are not the ones that were read. So the end of a batch carries a mark: which record batch
was at the last offset that was read, in the partition that had the most to read. One partition is enough,
because a backup contains all of them, and one record batch is little to read.

A log that cannot be compared is taken for the same: the offset was deleted by retention, or compaction has
rewritten the record batch.
"""

from contextlib import suppress
from typing import Any, NamedTuple

from semel.client import Admin, Client, ClientError, Isolation, KafkaError, Partition
from semel.client.consume.fetch import FetchLimits, fetch_batches
from semel.spark.errors import DataLoss
from semel.wire.errors import ProtocolError
from semel.wire.records import iter_batches

#: A broker answers with one record batch at least, whatever the limit is.
ONE_BATCH = FetchLimits(max_wait_ms=0, max_bytes=1, partition_max_bytes=1)


class Mark(NamedTuple):
    """What was at an offset."""

    topic: str
    partition: int
    offset: int
    base_offset: int  # of the record batch there
    crc: int

    @property
    def key(self) -> Partition:
        """The partition."""
        return self.topic, self.partition

    @classmethod
    def of_json(cls, found: Any) -> "Mark | None":
        """Parse the mark stored beside offsets; None if there is none, or if it is invalid."""
        if not isinstance(found, list) or [type(each) for each in found] != [str, int, int, int, int]:
            return None
        return cls(*found)


def mark_at(client: Client, key: Partition, offset: int) -> Mark | None:
    """Return the mark of an offset; None if it cannot be read."""
    with suppress(KafkaError, ClientError, ProtocolError):
        for _, data in fetch_batches(client, {key: offset}, Isolation.READ_UNCOMMITTED, ONE_BATCH):
            for _, header in iter_batches(data.records or b""):
                if header.base_offset <= offset <= header.last_offset:
                    return Mark(*key, offset, header.base_offset, header.crc)
    return None


def check_mark(client: Client, mark: Mark) -> None:
    """Raise DataLoss if the log has another record batch at the offset of the mark."""
    found = mark_at(client, mark.key, mark.offset)
    if found is None or found == mark or _may_be_compacted(client, mark.topic):
        return
    raise DataLoss(
        f"{mark.topic}/{mark.partition} is not the log that was read before: offset {mark.offset} has "
        "another record by now. The broker was restored from an older backup, and has grown since. Records "
        "below the position of the query would never be read. Start with a new checkpointLocation: a "
        "pipeline that writes to topics goes on where it was when the backup was made; others need "
        "startingOffsets where the logs differ. Or set failOnDataLoss=false to go on without these records"
    )


def _may_be_compacted(client: Client, topic: str) -> bool:
    try:
        configs = Admin(client).configs.of_topic(topic)
    except (KafkaError, ClientError):
        return True
    return any(each.name == "cleanup.policy" and "compact" in (each.value or "") for each in configs)
