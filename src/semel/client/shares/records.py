"""Records of a share group: decodes the acquired ones, and encodes their acknowledgements."""

from collections.abc import Iterable, Iterator
from enum import IntEnum
from itertools import groupby
from typing import NamedTuple, TypeAlias

from semel.wire.messages.shares import AcknowledgementBatch, AcquiredRecords
from semel.wire.records import Header, iter_batches, iter_records
from semel.wire.schema import Buffer


class AcknowledgeType(IntEnum):
    """How a member acknowledges a record."""

    GAP = 0
    """There is no record at this offset. The consumer sends this by itself."""
    ACCEPT = 1
    """It was processed."""
    RELEASE = 2
    """It is to be delivered again, perhaps to another member."""
    REJECT = 3
    """It cannot be processed and must not be delivered again."""
    RENEW = 4
    """The member needs more time: the lock starts again."""


TopicIdPartition: TypeAlias = tuple[bytes, int]
"""A partition, by topic id: a topic that was deleted and created again has a new id."""


class ShareRecord(NamedTuple):
    """A record that this member has acquired."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...]
    deliveries: int
    """How often it was delivered, including this time."""
    topic_id: bytes

    @property
    def place(self) -> TopicIdPartition:
        """The partition of the record."""
        return self.topic_id, self.partition


def acquired(
    topic: str, partition_id: TopicIdPartition, data: Buffer, spans: Iterable[AcquiredRecords]
) -> tuple[list[ShareRecord], list[int]]:
    """Return the acquired records of a response, and the acquired offsets that have no record.

    Batches are sent as a whole, so a response also has records that other members hold. Offsets of markers,
    and of records that compaction has removed, have no record.
    """
    deliveries = {
        offset: span.delivery_count
        for span in spans
        for offset in range(span.first_offset, span.last_offset + 1)
    }
    topic_id, partition = partition_id
    records = [
        ShareRecord(topic, partition, *record, deliveries.pop(record.offset), topic_id)
        for at, header in iter_batches(data)
        if not header.is_control
        for record in iter_records(data, at)
        if record.offset in deliveries
    ]
    return records, sorted(deliveries)


def batches_of(kinds: dict[int, AcknowledgeType]) -> list[AcknowledgementBatch]:
    """Return acknowledgements as ranges of offsets with the same type, in order."""
    return [
        AcknowledgementBatch(first_offset=first, last_offset=last, acknowledge_types=[kind])
        for first, last, kind in _ranges(kinds)
    ]


def _ranges(kinds: dict[int, AcknowledgeType]) -> Iterator[tuple[int, int, int]]:
    ordered = enumerate(sorted(kinds.items()))
    for _, together in groupby(ordered, key=lambda item: (item[1][0] - item[0], item[1][1])):
        offsets = list(together)
        (_, (first, kind)), (_, (last, _)) = offsets[0], offsets[-1]
        yield first, last, int(kind)
