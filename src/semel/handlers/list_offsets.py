"""ListOffsets and OffsetForLeaderEpoch: the offset at a timestamp, or at the end of an epoch.

Every batch has leader epoch 0, whichever broker led when it was written, so every offset has epoch 0. No
leader truncates a log: each epoch up to the current one ends at the high watermark.
"""

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final

from semel.broker.broker import Broker
from semel.broker.reads.offset_search import (
    COMPACTIONS,
    EARLIEST,
    EARLIEST_LOCAL,
    EARLIEST_PENDING_UPLOAD,
    END_TOGETHER,
    HOLD_COMPACTION,
    LATEST,
    LATEST_TIERED,
    MAX_TIMESTAMP,
    ListedOffset,
)
from semel.broker.reads.published_partitions import damaged_among
from semel.broker.reads.reads import Isolation
from semel.broker.reads.tail import LEADER_EPOCH
from semel.core.types import ErrorCode, PartitionKey, Topic
from semel.handlers.context import CloseConnection, RequestContext
from semel.handlers.leadership import NO_EPOCH, leadership_error
from semel.handlers.rights import CLUSTER, CLUSTER_ACTION, DESCRIBE, TOPIC_DENIED, rights_of
from semel.store.contract import LedgerDamaged
from semel.wire import messages as wire

OWN: Final = (COMPACTIONS, HOLD_COMPACTION, END_TOGETHER)

NONE: Final = ErrorCode.NONE
NO_PARTITION: Final = ListedOffset(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)

FIRST_VERSION: Final = {
    LATEST: 1,
    EARLIEST: 1,
    MAX_TIMESTAMP: 7,
    EARLIEST_LOCAL: 8,
    LATEST_TIERED: 9,
    EARLIEST_PENDING_UPLOAD: 11,
    **dict.fromkeys(OWN, 1),
}
"""The first version of ListOffsets that supports each special timestamp."""


def isolation_of(level: int) -> Isolation:
    """The isolation level of a request; an unknown one closes the connection."""
    if level == Isolation.READ_COMMITTED:
        return Isolation.READ_COMMITTED
    if level == Isolation.READ_UNCOMMITTED:
        return Isolation.READ_UNCOMMITTED
    raise CloseConnection(f"there is no isolation level {level}")


async def list_offsets(
    broker: Broker, request: wire.ListOffsetsRequest, context: RequestContext
) -> wire.ListOffsetsResponse:
    """ListOffsets v1–v11: the offset at a timestamp, at the start or at the end of partitions.

    Behaviour: the end is the high watermark, or the last stable offset for READ_COMMITTED; a match at or
        after it is not returned. All ends in one response are taken after the same commit, so they include
        all markers of a transaction or none (feature semel.snapshot). A partition that another broker leads
        is NOT_LEADER_OR_FOLLOWER. At level 2 of that feature, timestamp -1001 returns as offset how often
        compaction has replaced batches of the partition. Timestamp -1002 also holds compaction, and returns
        as timestamp the milliseconds of the hold, or -1 if there is no hold. Only compacted topics are held.
        At level 3, timestamp -1003 returns high watermarks after the same commit, whichever brokers lead the
        partitions.
    Versions:  v2 isolation · v4 leader epoch · v6 flexible · v7 max timestamp · v8 earliest local ·
        v9 latest tiered · v11 earliest pending upload.
    Differs:   there is no tiered storage: earliest local is the earliest, the other two find nothing. The max
        timestamp is that of an existing record; Kafka may return one that was deleted.
    """
    rights = rights_of(broker, request, context)
    request.topics, refused = rights.split(request.topics, lambda each: rights.topic(DESCRIBE, each.name))
    isolation = isolation_of(request.isolation_level)
    times_named = Counter(
        (topic.name, partition.partition_index) for topic in request.topics for partition in topic.partitions
    )
    topics = {
        each.name: broker.catalog.cached(each.name) or await broker.catalog.topic(each.name)
        for each in request.topics
    }
    known = await _known(broker, request, topics, isolation)
    response = wire.ListOffsetsResponse()
    for asked in request.topics:
        topic = topics[asked.name]
        answers: list[wire.ListOffsetsPartitionResponse] = []
        for partition in asked.partitions:
            if times_named[asked.name, partition.partition_index] > 1:
                answers.append(_refused(partition.partition_index, ErrorCode.INVALID_REQUEST))
            elif (error := _check(broker, topic, partition, context.version)) or topic is None:
                answers.append(_refused(partition.partition_index, error))
            else:
                key = PartitionKey(topic.topic_id, partition.partition_index)
                listed = known.get(key) or await broker.reads.list_offsets(
                    key, partition.timestamp, isolation
                )
                answers.append(_answer(partition.partition_index, listed))
        response.topics.append(wire.ListOffsetsTopicResponse(name=asked.name, partitions=answers))
    for asked in refused:
        errors = [_refused(each.partition_index, TOPIC_DENIED) for each in asked.partitions]
        response.topics.append(wire.ListOffsetsTopicResponse(name=asked.name, partitions=errors))
    return response


async def _known(
    broker: Broker,
    request: wire.ListOffsetsRequest,
    topics: Mapping[str, Topic | None],
    isolation: Isolation,
) -> dict[PartitionKey, ListedOffset]:
    """The offsets that are looked up for all partitions together."""
    known = await _ends(broker, _asked(broker, request, topics, LATEST), isolation)
    known |= await _compactions(broker, request, topics)
    if broker.settings.semel_extensions_enable:
        together = _asked(broker, request, topics, END_TOGETHER, must_lead=False)
        known |= await _ends(broker, together, Isolation.READ_UNCOMMITTED)
    return known


def _asked(
    broker: Broker,
    request: wire.ListOffsetsRequest,
    topics: Mapping[str, Topic | None],
    *timestamps: int,
    must_lead: bool = True,
) -> list[PartitionKey]:
    """The partitions with one of these special timestamps; with ``must_lead`` only those led here."""
    keys = [
        PartitionKey(topic.topic_id, partition.partition_index)
        for each in request.topics
        if (topic := topics[each.name]) is not None
        for partition in each.partitions
        if partition.timestamp in timestamps and 0 <= partition.partition_index < topic.partitions
    ]
    return [key for key in keys if broker.ownership.leads(key)] if must_lead else keys


async def _ends(
    broker: Broker, keys: Sequence[PartitionKey], isolation: Isolation
) -> dict[PartitionKey, ListedOffset]:
    def ends(some: Sequence[PartitionKey]) -> Awaitable[dict[PartitionKey, int | None]]:
        return broker.reads.ends(some, isolation)

    found, refused = await _sound(keys, ends)
    return refused | {
        key: NO_PARTITION if end is None else ListedOffset(NONE, -1, end) for key, end in found.items()
    }


async def _sound(
    keys: Sequence[PartitionKey],
    ask: Callable[[Sequence[PartitionKey]], Awaitable[dict[PartitionKey, int | None]]],
) -> tuple[dict[PartitionKey, int | None], dict[PartitionKey, ListedOffset]]:
    """Ask for all partitions at once; refuse only those for which the ledger is damaged."""
    try:
        return await ask(keys), {}
    except LedgerDamaged:
        damaged = await damaged_among(keys, ask)
    sound = [key for key in keys if key not in damaged]
    return await ask(sound), {key: ListedOffset(ErrorCode.KAFKA_STORAGE_ERROR) for key in damaged}


async def _compactions(
    broker: Broker, request: wire.ListOffsetsRequest, topics: Mapping[str, Topic | None]
) -> dict[PartitionKey, ListedOffset]:
    extensions = broker.settings.semel_extensions_enable
    keys = _asked(broker, request, topics, COMPACTIONS, HOLD_COMPACTION) if extensions else []
    if not keys:
        return {}
    # Hold before reading: then the number includes every swap submitted so far, and no swap follows.
    compacted = {
        topic.topic_id for topic in topics.values() if topic and broker.catalog.limits(topic).compacts
    }
    held_ms = {
        key: broker.holds.hold(key, broker.now())
        for key in _asked(broker, request, topics, HOLD_COMPACTION)
        if key.topic_id in compacted
    }
    found, refused = await _sound(keys, broker.reads.compactions)
    return refused | {
        key: NO_PARTITION if number is None else ListedOffset(NONE, held_ms.get(key, 0) or -1, number)
        for key, number in found.items()
    }


def _refused(index: int, error: ErrorCode) -> wire.ListOffsetsPartitionResponse:
    return wire.ListOffsetsPartitionResponse(partition_index=index, error_code=error)


def _check(broker: Broker, topic: Topic | None, asked: wire.ListOffsetsPartition, version: int) -> ErrorCode:
    if asked.timestamp < 0 and version < FIRST_VERSION.get(asked.timestamp, version + 1):
        return ErrorCode.UNSUPPORTED_VERSION
    if asked.timestamp in OWN and not broker.settings.semel_extensions_enable:
        return ErrorCode.UNSUPPORTED_VERSION
    if topic is None or not 0 <= asked.partition_index < topic.partitions:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if asked.timestamp == END_TOGETHER:
        return ErrorCode.NONE
    key = PartitionKey(topic.topic_id, asked.partition_index)
    return leadership_error(broker, key, asked.current_leader_epoch)


def _answer(index: int, listed: ListedOffset) -> wire.ListOffsetsPartitionResponse:
    return wire.ListOffsetsPartitionResponse(
        partition_index=index,
        error_code=listed.error,
        timestamp=listed.timestamp,
        offset=listed.offset,
        leader_epoch=LEADER_EPOCH if listed.offset >= 0 else NO_EPOCH,
    )


async def offset_for_leader_epoch(
    broker: Broker, request: wire.OffsetForLeaderEpochRequest, context: RequestContext
) -> wire.OffsetForLeaderEpochResponse:
    """OffsetForLeaderEpoch v2–v4: the end offset of an epoch, for clients that detect truncation (KIP-320).

    Behaviour: every epoch up to the current one ends at the high watermark: logs are never truncated. Later
        epochs are unknown: -1. A partition that another broker leads is NOT_LEADER_OR_FOLLOWER.
    Versions:  v3 replica id · v4 flexible.
    """
    rights = rights_of(broker, request, context)
    may_all = rights.has(CLUSTER_ACTION, CLUSTER)
    allowed, refused = rights.split(
        request.topics, lambda each: may_all or rights.topic(DESCRIBE, each.topic)
    )
    response = wire.OffsetForLeaderEpochResponse()
    for asked in allowed:
        topic = broker.catalog.cached(asked.topic) or await broker.catalog.topic(asked.topic)
        answers = [await _end_of_epoch(broker, topic, partition) for partition in asked.partitions]
        response.topics.append(wire.OffsetForLeaderTopicResult(topic=asked.topic, partitions=answers))
    for asked in refused:
        answers = [
            wire.OffsetForLeaderEpochEpochEndOffset(partition=each.partition, error_code=TOPIC_DENIED)
            for each in asked.partitions
        ]
        response.topics.append(wire.OffsetForLeaderTopicResult(topic=asked.topic, partitions=answers))
    return response


async def _end_of_epoch(
    broker: Broker, topic: Topic | None, asked: wire.OffsetForLeaderPartition
) -> wire.OffsetForLeaderEpochEpochEndOffset:
    answer = wire.OffsetForLeaderEpochEpochEndOffset(partition=asked.partition)
    if topic is None or not 0 <= asked.partition < topic.partitions:
        answer.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return answer
    key = PartitionKey(topic.topic_id, asked.partition)
    answer.error_code = leadership_error(broker, key, asked.current_leader_epoch)
    if answer.error_code:
        return answer
    current = broker.ownership.leader(key).epoch
    try:
        partition = await broker.reads.partition(key)
    except LedgerDamaged:
        answer.error_code = ErrorCode.KAFKA_STORAGE_ERROR
        return answer
    if partition is None:
        answer.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    elif 0 <= asked.leader_epoch <= current:
        answer.leader_epoch = asked.leader_epoch
        answer.end_offset = partition.high_watermark
    return answer
