"""The share session of a member with one broker (KIP-932): sends requests, and knows the records held there.

The first request of a session lists the partitions, later ones only the changes. Every request has the next
epoch. When the connection ends, the broker ends the session and releases the records that the member holds.
So after a lost answer or an error, the client begins a new session and holds none of the old records: they
will be delivered again.

`acquired` decodes the records, `Acknowledgements` are encoded by ranges.
"""

from collections.abc import Iterable, Iterator
from enum import IntEnum
from itertools import groupby
from typing import Any, Final, NamedTuple, TypeAlias

from semel.client.errors import ClientError, ErrorCode, KafkaError, check
from semel.client.net.cluster import Client, by_topic
from semel.client.net.connection import Pending
from semel.wire import messages as wire
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
    topic: str, partition_id: TopicIdPartition, data: Buffer, spans: Iterable[wire.AcquiredRecords]
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


def batches_of(kinds: dict[int, AcknowledgeType]) -> list[wire.AcknowledgementBatch]:
    """Return acknowledgements as ranges of offsets with the same type, in order."""
    return [
        wire.AcknowledgementBatch(first_offset=first, last_offset=last, acknowledge_types=[kind])
        for first, last, kind in _ranges(kinds)
    ]


def _ranges(kinds: dict[int, AcknowledgeType]) -> Iterator[tuple[int, int, int]]:
    ordered = enumerate(sorted(kinds.items()))
    for _, together in groupby(ordered, key=lambda item: (item[1][0] - item[0], item[1][1])):
        offsets = list(together)
        (_, (first, kind)), (_, (last, _)) = offsets[0], offsets[-1]
        yield first, last, int(kind)


BEGIN: Final = 0
END: Final = -1
EPOCH_MAX: Final = 2**31 - 1
RECORD_LIMIT: Final = 1
"""The acquire mode that never exceeds ``max_records`` (KIP-1206), from version 2 of ShareFetch on."""

Acknowledgements = dict[TopicIdPartition, dict[int, AcknowledgeType]]


class ShareSession:
    """The session with one broker."""

    def __init__(self, client: Client, node: int, group_id: str, member_id: str) -> None:
        self.node = node
        self.held: dict[TopicIdPartition, set[int]] = {}
        """The offsets that the member has acquired here and not acknowledged."""
        self._client = client
        self._group_id = group_id
        self._member_id = member_id
        self._epoch = BEGIN
        self._listed: frozenset[TopicIdPartition] = frozenset()

    def post_fetch(
        self, partitions: frozenset[TopicIdPartition], max_records: int, max_wait_ms: int
    ) -> Pending:
        """Request records of these partitions; `take` waits for the response."""
        request = wire.ShareFetchRequest(
            group_id=self._group_id,
            member_id=self._member_id,
            share_session_epoch=self._epoch,
            max_wait_ms=max_wait_ms,
            min_bytes=1,
            max_records=max_records,
            batch_size=max_records,
            share_acquire_mode=RECORD_LIMIT,
            topics=[
                wire.ShareFetchTopic(
                    topic_id=topic_id,
                    partitions=[wire.ShareFetchPartition(partition_index=index) for index in indexes],
                )
                for topic_id, indexes in by_topic(sorted(partitions - self._listed)).items()
            ],
            forgotten_topics_data=[
                wire.ForgottenShareTopic(topic_id=topic_id, partitions=indexes)
                for topic_id, indexes in by_topic(sorted(self._listed - partitions)).items()
            ],
        )
        try:
            pending = self._client.post(request, node=self.node)
        except ClientError:
            self.lose()
            raise
        self._listed = partitions
        return pending

    def take(self, pending: Pending, timeout_s: float) -> wire.ShareFetchResponse:
        """Wait for the response to a `post_fetch`."""
        response: wire.ShareFetchResponse = self._answer(pending, timeout_s)
        return response

    def acknowledge(self, kinds: Acknowledgements, *, ends: bool = False) -> None:
        """Acknowledge records that are held here. Except for renewed ones, they are not held any more.

        KafkaError if the acknowledgements of a partition were refused; this does not affect other partitions.
        """
        if self._epoch == BEGIN:
            check(ErrorCode.SHARE_SESSION_NOT_FOUND if kinds else ErrorCode.NONE, _LOST)
            return
        request = wire.ShareAcknowledgeRequest(
            group_id=self._group_id,
            member_id=self._member_id,
            share_session_epoch=END if ends else self._epoch,
            is_renew_ack=any(AcknowledgeType.RENEW in by_offset.values() for by_offset in kinds.values()),
            topics=acknowledged_topics(kinds),
        )
        try:
            pending = self._client.post(request, node=self.node)
        except ClientError:
            self.lose()
            raise
        response: wire.ShareAcknowledgeResponse = self._answer(pending, None)
        for key, offsets in kinds.items():
            renewed = {at for at, kind in offsets.items() if kind is AcknowledgeType.RENEW}
            self.forget(key, set(offsets) - renewed)
        for topic in response.responses:
            for partition in topic.partitions:
                what = f"records of partition {partition.partition_index} were not acknowledged"
                check(partition.error_code, what, partition.error_message)

    def forget(self, key: TopicIdPartition, offsets: Iterable[int]) -> None:
        """Stop holding the records at these offsets."""
        self.held.get(key, set()).difference_update(offsets)

    def lose(self) -> None:
        """Begin a new session with the next request; no record is held any more."""
        self._epoch, self._listed = BEGIN, frozenset()
        self.held.clear()

    def _answer(self, pending: Pending, timeout_s: float | None) -> Any:
        try:
            response = pending.wait(timeout_s)
            check(response.error_code, "a request of a share group was refused", response.error_message)
        except (KafkaError, ClientError):
            self.lose()
            raise
        self._epoch = self._epoch + 1 if self._epoch < EPOCH_MAX else 1
        return response


def acknowledged_topics(kinds: Acknowledgements) -> list[wire.ShareAcknowledgeTopic]:
    """Convert acknowledgements to the topics of a request."""
    topics: dict[bytes, wire.ShareAcknowledgeTopic] = {}
    for (topic_id, index), offsets in sorted(kinds.items()):
        topic = topics.setdefault(topic_id, wire.ShareAcknowledgeTopic(topic_id=topic_id))
        topic.partitions.append(
            wire.ShareAcknowledgePartition(partition_index=index, acknowledgement_batches=batches_of(offsets))
        )
    return list(topics.values())


_LOST: Final = "the records are not held any more, and will be delivered again"
