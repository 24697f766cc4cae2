"""ShareGroupHeartbeat and ShareGroupDescribe: the membership of share groups (KIP-932).

As for consumer groups, a heartbeat takes two commands: read the group, look its topics up, then submit the
heartbeat with the result. The next heartbeat notices what changes between the two.
"""

from collections.abc import Iterator
from typing import Final

from semel.broker.broker import Broker
from semel.core.groups.commands import ConsumerAnswer, DescribeGroup
from semel.core.groups.model import Assignment as OwnedPartitions
from semel.core.groups.model import Group, TopicShape
from semel.core.shares.group import SIMPLE, ShareGroup, ShareMember
from semel.core.shares.members import ShareHeartbeat
from semel.core.types import ErrorCode
from semel.handlers.consumer_groups import by_topic
from semel.handlers.context import Handler, RequestContext
from semel.handlers.group_admin import describe_each
from semel.handlers.leadership import coordination_error, refused_by_store
from semel.handlers.rights import DESCRIBE, GROUP_DENIED, READ, TOPIC_DENIED, rights_of
from semel.store.contract import StoreRefused
from semel.wire import messages as wire
from semel.wire.api_key import ApiKey

HAS_DENIED_TOPICS: Final = "The group has topics that the client may not describe."


async def share_group_heartbeat(
    broker: Broker, request: wire.ShareGroupHeartbeatRequest, context: RequestContext
) -> wire.ShareGroupHeartbeatResponse:
    """ShareGroupHeartbeat v1: join a share group, stay a member, leave, and get an assignment (KIP-932).

    Behaviour: a null assignment means "unchanged". The heartbeat that first sees a topic creates the
        share-partitions of the group, in the same commit, so the partitions are assigned at once. A group of
        another coordinator is NOT_COORDINATOR.
    Differs:   targets are computed at once; Kafka does so asynchronously, after informing the share
        coordinator.
    """
    rights = rights_of(broker, request, context)
    if not rights.group(READ, request.group_id):
        return wire.ShareGroupHeartbeatResponse(error_code=GROUP_DENIED)
    if not rights.topics(DESCRIBE, request.subscribed_topic_names or ()):
        return wire.ShareGroupHeartbeatResponse(error_code=TOPIC_DENIED)
    try:
        if error := coordination_error(broker, request.group_id):
            answer = ConsumerAnswer(error, "This broker does not coordinate the group.")
        elif request.member_epoch == 0 and not await broker.has_room_for_group(request.group_id):
            answer = ConsumerAnswer(
                ErrorCode.COORDINATOR_NOT_AVAILABLE, "Too many groups (semel.groups.max)."
            )
        else:
            answer = await _heartbeat(broker, request, context)
    except StoreRefused:
        error = refused_by_store(broker, request.group_id)
        answer = ConsumerAnswer(error, "the broker cannot write now")
    return wire.ShareGroupHeartbeatResponse(
        error_code=answer.error,
        error_message=answer.message,
        member_id=answer.member_id,
        member_epoch=answer.epoch,
        heartbeat_interval_ms=answer.heartbeat_interval_ms,
        assignment=None
        if answer.assignment is None
        else wire.Assignment(
            topic_partitions=[
                wire.TopicPartitions(topic_id=topic_id, partitions=partitions)
                for topic_id, partitions in by_topic(answer.assignment)
            ]
        ),
    )


async def _heartbeat(
    broker: Broker, request: wire.ShareGroupHeartbeatRequest, context: RequestContext
) -> ConsumerAnswer:
    names = set(request.subscribed_topic_names or ())
    group = await broker.ask(DescribeGroup(request.group_id)) if request.group_id else None
    if isinstance(group, ShareGroup) and request.member_epoch >= 0:
        names.update(*(each.topic_names for each in group.members.values()))
    topics = {
        name: None if topic is None else TopicShape(topic.topic_id, topic.partitions)
        for name, topic in (await broker.catalog.topics(names)).items()
    }
    settings = broker.settings
    configs = broker.policies.configs.share_group(request.group_id)
    subscribed = request.subscribed_topic_names
    answer: ConsumerAnswer = await broker.ask(
        ShareHeartbeat(
            group_id=request.group_id,
            member_id=request.member_id,
            epoch=request.member_epoch,
            client_id=context.client_id or "",
            client_host=f"/{context.client_host}",
            rack_id=request.rack_id,
            topic_names=None if subscribed is None else tuple(subscribed),
            topics=topics,
            session_timeout_ms=configs.session_timeout_ms,
            heartbeat_interval_ms=configs.heartbeat_interval_ms,
            members_max=settings.group_share_max_size,
            member_bytes_max=settings.semel_group_member_bytes_max,
            group_bytes_max=settings.semel_group_bytes_max,
            sessions_max=settings.semel_entities_max,
        )
    )
    return answer


async def share_group_describe(
    broker: Broker, request: wire.ShareGroupDescribeRequest, context: RequestContext
) -> wire.ShareGroupDescribeResponse:
    """ShareGroupDescribe v1: share groups with their members and assignments.

    Behaviour: GROUP_ID_NOT_FOUND for groups that do not exist or are not share groups, NOT_COORDINATOR for
        those of another coordinator. A repeated group is described once.
    """
    rights = rights_of(broker, request, context)
    groups = await describe_each(
        broker,
        rights,
        request.group_ids,
        _described,
        wire.DescribedShareGroup,
        has_operations=request.include_authorized_operations,
    )
    return wire.ShareGroupDescribeResponse(
        groups=[
            each
            if rights.topics(DESCRIBE, _assigned_topics(each))
            else wire.DescribedShareGroup(
                group_id=each.group_id, error_code=TOPIC_DENIED, error_message=HAS_DENIED_TOPICS
            )
            for each in groups
        ]
    )


def _assigned_topics(group: wire.DescribedShareGroup) -> Iterator[str]:
    return (each.topic_name for member in group.members for each in member.assignment.topic_partitions)


def _described(group_id: str, group: Group | None) -> wire.DescribedShareGroup:
    if not isinstance(group, ShareGroup):
        what = "not found" if group is None else "is not a share group"
        return wire.DescribedShareGroup(
            error_code=ErrorCode.GROUP_ID_NOT_FOUND if group_id else ErrorCode.INVALID_GROUP_ID,
            error_message=f"Group {group_id} {what}.",
            group_id=group_id,
        )
    names = {shape.topic_id: name for name, shape in group.topics.items()}
    return wire.DescribedShareGroup(
        group_id=group_id,
        group_state=group.state_name,
        group_epoch=group.epoch,
        assignment_epoch=group.target_epoch,
        assignor_name=SIMPLE,
        members=[_member(member, names) for member in group.members.values()],
    )


def _member(member: ShareMember, names: dict[bytes, str]) -> wire.DescribedShareGroupMember:
    return wire.DescribedShareGroupMember(
        member_id=member.member_id,
        rack_id=member.rack_id,
        member_epoch=member.epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=list(member.topic_names),
        assignment=_shown(member.assigned, names),
    )


def _shown(owned: OwnedPartitions, names: dict[bytes, str]) -> wire.DescribedShareGroupAssignment:
    """An assignment with topic names. Topics that have been deleted have no name and are left out."""
    return wire.DescribedShareGroupAssignment(
        topic_partitions=[
            wire.DescribedShareGroupTopicPartitions(
                topic_id=topic_id, topic_name=names[topic_id], partitions=partitions
            )
            for topic_id, partitions in by_topic(owned)
            if topic_id in names
        ]
    )


HANDLERS: dict[int, Handler] = {
    ApiKey.SHARE_GROUP_HEARTBEAT: share_group_heartbeat,
    ApiKey.SHARE_GROUP_DESCRIBE: share_group_describe,
}
