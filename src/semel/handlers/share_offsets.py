"""DescribeShareGroupOffsets, AlterShareGroupOffsets, DeleteShareGroupOffsets (KIP-932)."""

from collections.abc import Sequence
from typing import Final

from semel.broker.broker import Broker
from semel.core.groups.commands import DescribeGroup
from semel.core.groups.model import TopicShape
from semel.core.shares.commands import ReadShare, ReadShares
from semel.core.shares.group import ShareGroup
from semel.core.shares.offsets import AlterShareOffsets, DeleteShareOffsets, ShareOffsetsAltered
from semel.core.types import ErrorCode, ShareKey
from semel.handlers.context import Handler, RequestContext
from semel.handlers.leadership import coordination_error, refused_by_store
from semel.handlers.rights import (
    DELETE,
    DESCRIBE,
    GROUP_DENIED,
    MESSAGES,
    READ,
    TOPIC,
    TOPIC_DENIED,
    RequestRights,
    rights_of,
)
from semel.store.contract import StoreRefused
from semel.wire import messages as wire
from semel.wire.api_key import ApiKey

UNKNOWN: Final = -1


async def describe_share_group_offsets(
    broker: Broker, request: wire.DescribeShareGroupOffsetsRequest, context: RequestContext
) -> wire.DescribeShareGroupOffsetsResponse:
    """DescribeShareGroupOffsets v0–v1: the start offsets of share groups.

    Behaviour: -1 for partitions that the group has not begun to read. Without a list of topics, all topics
        that the group has subscribed to. GROUP_ID_NOT_FOUND if there is no such share group.
    Versions:  v1 the lag: records after the start that are not settled (KIP-1226).
    """
    rights = rights_of(broker, request, context)
    allowed, refused = rights.split(request.groups, lambda each: rights.group(DESCRIBE, each.group_id))
    groups = [await _described(broker, rights, group) for group in allowed]
    groups += [
        wire.DescribedShareGroupOffsetsGroup(group_id=each.group_id, error_code=GROUP_DENIED)
        for each in refused
    ]
    return wire.DescribeShareGroupOffsetsResponse(groups=groups)


async def _described(
    broker: Broker, rights: RequestRights, wanted: wire.DescribeShareGroupOffsetsGroup
) -> wire.DescribedShareGroupOffsetsGroup:
    allowed, refused = rights.split(wanted.topics or (), lambda each: rights.topic(DESCRIBE, each.topic_name))
    described = wire.DescribedShareGroupOffsetsGroup(group_id=wanted.group_id)
    described.error_code = coordination_error(broker, wanted.group_id)
    if described.error_code:
        return described
    group = await broker.ask(DescribeGroup(wanted.group_id))
    if not isinstance(group, ShareGroup):
        described.error_code = ErrorCode.GROUP_ID_NOT_FOUND
        described.error_message = f"Share group {wanted.group_id} not found."
        return described
    names: list[tuple[str, Sequence[int] | None]] = (
        [(name, None) for name in group.shared if rights.has(DESCRIBE, TOPIC, name)]
        if wanted.topics is None
        else [(each.topic_name, each.partitions) for each in allowed]
    )
    topics = await broker.catalog.topics([name for name, _ in names])
    for name, indexes in names:
        topic = topics[name]
        if topic is None and indexes is None:
            continue
        shown = wire.DescribedShareGroupOffsetsTopic(topic_name=name)
        if topic is not None:
            shown.topic_id = topic.topic_id
            indexes = range(topic.partitions) if indexes is None else indexes
        keys = tuple(ShareKey(shown.topic_id, index, wanted.group_id) for index in indexes or ())
        async for some in broker.slices.over(keys):
            found: Sequence[ReadShare | None] = await broker.ask(ReadShares(tuple(some)))
            shown.partitions += [_partition(key.index, share) for key, share in zip(some, found, strict=True)]
        described.topics.append(shown)
    described.topics += map(_not_described, refused)
    return described


def _not_described(topic: wire.DescribeShareGroupOffsetsTopic) -> wire.DescribedShareGroupOffsetsTopic:
    return wire.DescribedShareGroupOffsetsTopic(
        topic_name=topic.topic_name,
        partitions=[
            wire.DescribedShareGroupOffsetsPartition(
                partition_index=index,
                start_offset=UNKNOWN,
                lag=UNKNOWN,
                error_code=TOPIC_DENIED,
                error_message=MESSAGES[TOPIC_DENIED],
            )
            for index in topic.partitions
        ],
    )


def _partition(index: int, share: ReadShare | None) -> wire.DescribedShareGroupOffsetsPartition:
    if share is None or share.start_offset < 0:
        return wire.DescribedShareGroupOffsetsPartition(
            partition_index=index, start_offset=UNKNOWN, lag=UNKNOWN
        )
    lag = max(share.high_watermark - share.start_offset - share.settled, 0)
    return wire.DescribedShareGroupOffsetsPartition(
        partition_index=index, start_offset=share.start_offset, lag=lag
    )


async def alter_share_group_offsets(
    broker: Broker, request: wire.AlterShareGroupOffsetsRequest, context: RequestContext
) -> wire.AlterShareGroupOffsetsResponse:
    """AlterShareGroupOffsets v0: set the start offsets of a share group, which is created if needed.

    Behaviour: NON_EMPTY_GROUP while it has members. Every record from the new offset on becomes available, as
        if it had never been delivered. All offsets of a request are set together.
    Differs:   a negative offset is INVALID_REQUEST.
    """
    rights = rights_of(broker, request, context)
    if not rights.group(READ, request.group_id):
        return wire.AlterShareGroupOffsetsResponse(
            error_code=GROUP_DENIED, error_message=MESSAGES[GROUP_DENIED]
        )
    topics, refused = rights.split(request.topics, lambda each: rights.topic(READ, each.topic_name))
    response = wire.AlterShareGroupOffsetsResponse()
    if topics or not refused:
        response = await _alter(broker, request.group_id, topics)
    if not response.error_code:
        response.responses += map(_not_altered, refused)
    return response


def _not_altered(topic: wire.AlterShareGroupOffsetsTopic) -> wire.AlteredShareGroupOffsetsTopic:
    return wire.AlteredShareGroupOffsetsTopic(
        topic_name=topic.topic_name,
        partitions=[
            wire.AlteredShareGroupOffsetsPartition(
                partition_index=each.partition_index,
                error_code=TOPIC_DENIED,
                error_message=MESSAGES[TOPIC_DENIED],
            )
            for each in topic.partitions
        ],
    )


async def _alter(
    broker: Broker, group_id: str, topics: Sequence[wire.AlterShareGroupOffsetsTopic]
) -> wire.AlterShareGroupOffsetsResponse:
    found = await broker.catalog.topics([topic.topic_name for topic in topics])
    wanted: dict[str, tuple[TopicShape, dict[int, int]]] = {}
    for topic in topics:
        if any(each.start_offset < 0 for each in topic.partitions):
            return wire.AlterShareGroupOffsetsResponse(
                error_code=ErrorCode.INVALID_REQUEST, error_message="Offsets begin at 0."
            )
        known = found[topic.topic_name]
        if known is not None:
            offsets = {
                each.partition_index: each.start_offset
                for each in topic.partitions
                if 0 <= each.partition_index < known.partitions
            }
            wanted[topic.topic_name] = TopicShape(known.topic_id, known.partitions), offsets
    if not await broker.has_room_for_group(group_id):
        return wire.AlterShareGroupOffsetsResponse(
            error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE,
            error_message="Too many groups (semel.groups.max).",
        )
    answer = await _altered(broker, group_id, AlterShareOffsets(group_id, wanted))
    response = wire.AlterShareGroupOffsetsResponse(error_code=answer.error)
    for topic in topics if not answer.error else ():
        known = found[topic.topic_name]
        shown = wire.AlteredShareGroupOffsetsTopic(topic_name=topic.topic_name)
        error = answer.topics.get(topic.topic_name, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        if known is not None:
            shown.topic_id = known.topic_id
        for each in topic.partitions:
            is_there = known is not None and 0 <= each.partition_index < known.partitions
            shown.partitions.append(
                wire.AlteredShareGroupOffsetsPartition(
                    partition_index=each.partition_index,
                    error_code=error if is_there else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                )
            )
        response.responses.append(shown)
    return response


async def delete_share_group_offsets(
    broker: Broker, request: wire.DeleteShareGroupOffsetsRequest, context: RequestContext
) -> wire.DeleteShareGroupOffsetsResponse:
    """DeleteShareGroupOffsets v0: delete the offsets of topics, in which the share group then begins anew.

    Behaviour: NON_EMPTY_GROUP while it has members; UNKNOWN_TOPIC_OR_PARTITION for a topic in which
        the group has no offsets.
    """
    rights = rights_of(broker, request, context)
    if not rights.group(DELETE, request.group_id):
        return wire.DeleteShareGroupOffsetsResponse(
            error_code=GROUP_DENIED, error_message=MESSAGES[GROUP_DENIED]
        )
    topics, refused = rights.split(request.topics, lambda each: rights.topic(READ, each.topic_name))
    names = tuple(dict.fromkeys(each.topic_name for each in topics))
    found = await broker.catalog.topics(names)
    answer = await _altered(broker, request.group_id, DeleteShareOffsets(request.group_id, names))
    response = wire.DeleteShareGroupOffsetsResponse(error_code=answer.error)
    for name, error in answer.topics.items():
        topic = found[name]
        shown = wire.DeletedShareGroupOffsetsTopic(topic_name=name, error_code=error)
        if topic is not None:
            shown.topic_id = topic.topic_id
            if error:
                shown.error_message = "There is no offset information to delete."
        response.responses.append(shown)
    if not answer.error:
        response.responses += [
            wire.DeletedShareGroupOffsetsTopic(
                topic_name=each.topic_name, error_code=TOPIC_DENIED, error_message=MESSAGES[TOPIC_DENIED]
            )
            for each in refused
        ]
    return response


async def _altered(
    broker: Broker, group_id: str, command: AlterShareOffsets | DeleteShareOffsets
) -> ShareOffsetsAltered:
    if error := coordination_error(broker, group_id):
        return ShareOffsetsAltered(error)
    try:
        answer: ShareOffsetsAltered = await broker.ask(command)
    except StoreRefused:
        return ShareOffsetsAltered(refused_by_store(broker, group_id))
    return answer


HANDLERS: dict[int, Handler] = {
    ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS: describe_share_group_offsets,
    ApiKey.ALTER_SHARE_GROUP_OFFSETS: alter_share_group_offsets,
    ApiKey.DELETE_SHARE_GROUP_OFFSETS: delete_share_group_offsets,
}
