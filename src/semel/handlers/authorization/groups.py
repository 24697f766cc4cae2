"""Groups: Read for members, Describe to describe groups, Delete to delete them.

A member of the consumer protocol also needs Describe on the topics it subscribes to. Describing a consumer
group also needs Describe on all topics that are assigned in it.
"""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final

from semel.broker.commit.promise import resolved
from semel.core.security.acls import CLUSTER_NAME, Operation
from semel.core.types import ErrorCode
from semel.handlers.authorization.access import (
    CLUSTER,
    GROUP,
    GROUP_DENIED,
    TOPIC,
    TOPIC_DENIED,
    Access,
    Guard,
)
from semel.wire.api_key import ApiKey
from semel.wire.messages.groups import (
    ConsumerGroupDescribeDescribedGroup,
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    DeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribedGroup,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    HeartbeatResponse,
    JoinGroupResponse,
    LeaveGroupResponse,
    ListGroupsRequest,
    ListGroupsResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)
from semel.wire.schema import Response

DESCRIBE: Final = Operation.DESCRIBE
PROTOCOL_REQUIRED: Final = 5
"""The version from which SyncGroup must have a protocol, which the handler checks first."""
HAS_DENIED_TOPICS: Final = "A topic of this group may not be described."


def member(respond: Callable[[int], Response], access: Access, request: Any) -> Awaitable[Any]:
    """Read on the group, for everything that a member of a classic group sends."""
    if access.may(Operation.READ, GROUP, request.group_id):
        return access.pass_on(request)
    return resolved(respond(access.context.version))


def _not_joined(version: int) -> JoinGroupResponse:
    # Before version 7 an absent protocol is an empty name.
    return JoinGroupResponse(error_code=GROUP_DENIED, protocol_name=None if version >= 7 else "")


def sync_group(access: Access, request: SyncGroupRequest) -> Awaitable[Any]:
    """Read on the group. A request that lacks its protocol is left to the handler, which refuses it."""
    if access.context.version >= PROTOCOL_REQUIRED and None in (request.protocol_type, request.protocol_name):
        return access.pass_on(request)
    return member(lambda _: SyncGroupResponse(error_code=GROUP_DENIED), access, request)


def consumer_group_heartbeat(access: Access, request: ConsumerGroupHeartbeatRequest) -> Awaitable[Any]:
    """Read on the group, Describe on each topic of the subscription."""
    if not access.may(Operation.READ, GROUP, request.group_id):
        return resolved(ConsumerGroupHeartbeatResponse(error_code=GROUP_DENIED))
    names = request.subscribed_topic_names or ()
    if not all(access.may(DESCRIBE, TOPIC, each) for each in dict.fromkeys(names)):
        return resolved(ConsumerGroupHeartbeatResponse(error_code=TOPIC_DENIED))
    return _assign_describable(access, request)


async def _assign_describable(
    access: Access, request: ConsumerGroupHeartbeatRequest
) -> ConsumerGroupHeartbeatResponse:
    """Match regular expressions only against topics that the member may describe.

    As in Kafka, a regular expression is matched with the rights of any member of the group. So the assignment
    may contain topics that this member may not describe; the response omits them.
    """
    handler: Any = access.handler
    may_describe = partial(access.rights.may, DESCRIBE, TOPIC)
    response: ConsumerGroupHeartbeatResponse = await handler(
        access.broker, request, access.context, may_describe
    )
    if response.assignment is None:
        return response
    described = []
    for each in response.assignment.topic_partitions:
        catalog = access.broker.catalog
        topic = catalog.cached_by_id(each.topic_id) or await catalog.topic_by_id(each.topic_id)
        if topic is None or may_describe(topic.name):
            described.append(each)
    response.assignment.topic_partitions = described
    return response


async def consumer_group_describe(
    access: Access, request: ConsumerGroupDescribeRequest
) -> ConsumerGroupDescribeResponse:
    """Describe on each group, and on the topics that are assigned in it."""
    ids = list(dict.fromkeys(request.group_ids))
    request.group_ids = [each for each in ids if access.may(DESCRIBE, GROUP, each)]
    response: ConsumerGroupDescribeResponse = await access.pass_on(request)
    allowed = set(request.group_ids)
    groups = [
        ConsumerGroupDescribeDescribedGroup(group_id=each, error_code=GROUP_DENIED)
        for each in ids
        if each not in allowed
    ]
    for group in response.groups:
        if group.error_code == ErrorCode.NONE and request.include_authorized_operations:
            group.authorized_operations = access.rights.operations(GROUP, group.group_id)
        groups.append(group if _may_see_topics(access, group) else _hidden(group.group_id))
    response.groups = groups
    return response


def _may_see_topics(access: Access, group: ConsumerGroupDescribeDescribedGroup) -> bool:
    names = {
        each.topic_name
        for member in group.members
        for assignment in (member.assignment, member.target_assignment)
        for each in assignment.topic_partitions
    }
    return all(access.may(DESCRIBE, TOPIC, each) for each in names)


def _hidden(group_id: str) -> ConsumerGroupDescribeDescribedGroup:
    return ConsumerGroupDescribeDescribedGroup(
        group_id=group_id, error_code=TOPIC_DENIED, error_message=HAS_DENIED_TOPICS
    )


async def describe_groups(access: Access, request: DescribeGroupsRequest) -> DescribeGroupsResponse:
    """Describe on each group."""
    ids = list(dict.fromkeys(request.groups))
    request.groups = [each for each in ids if access.may(DESCRIBE, GROUP, each)]
    response: DescribeGroupsResponse = await access.pass_on(request)
    for group in response.groups:
        if group.error_code == ErrorCode.NONE and request.include_authorized_operations:
            group.authorized_operations = access.rights.operations(GROUP, group.group_id)
    allowed = set(request.groups)
    denied = [DescribedGroup(group_id=each, error_code=GROUP_DENIED) for each in ids if each not in allowed]
    response.groups = denied + response.groups
    return response


async def list_groups(access: Access, request: ListGroupsRequest) -> ListGroupsResponse:
    """All groups with Describe on the cluster, else those that may be described."""
    response: ListGroupsResponse = await access.pass_on(request)
    may = access.rights.may
    if not may(DESCRIBE, CLUSTER, CLUSTER_NAME):
        response.groups = [each for each in response.groups if may(DESCRIBE, GROUP, each.group_id)]
    return response


async def delete_groups(access: Access, request: DeleteGroupsRequest) -> DeleteGroupsResponse:
    """Delete on each group."""
    ids = dict.fromkeys(request.groups_names)
    denied = {each: None for each in ids if not access.may(Operation.DELETE, GROUP, each)}
    request.groups_names = [each for each in request.groups_names if each not in denied]
    response: DeleteGroupsResponse = await access.pass_on(request)
    response.results += [DeletableGroupResult(group_id=each, error_code=GROUP_DENIED) for each in denied]
    return response


GUARDS: dict[int, Guard] = {
    ApiKey.JOIN_GROUP: partial(member, _not_joined),
    ApiKey.HEARTBEAT: partial(member, lambda _: HeartbeatResponse(error_code=GROUP_DENIED)),
    ApiKey.LEAVE_GROUP: partial(member, lambda _: LeaveGroupResponse(error_code=GROUP_DENIED)),
    ApiKey.SYNC_GROUP: sync_group,
    ApiKey.DESCRIBE_GROUPS: describe_groups,
    ApiKey.LIST_GROUPS: list_groups,
    ApiKey.DELETE_GROUPS: delete_groups,
    ApiKey.CONSUMER_GROUP_HEARTBEAT: consumer_group_heartbeat,
    ApiKey.CONSUMER_GROUP_DESCRIBE: consumer_group_describe,
}
