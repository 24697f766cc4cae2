"""Share groups: Read on the group for members, Describe to describe it, Delete to delete its offsets.

Members also need Describe on the topics they subscribe to, and Read on those they fetch from. As with Fetch,
sessions keep partitions regardless of rights, so the handlers check which topics may be read. Semel's own
TxnShareAcknowledge also needs Write on the transactional id.
"""

from collections.abc import Awaitable
from functools import partial
from typing import Any, Final

from semel.broker.commit.promise import resolved
from semel.core.security.acls import Operation
from semel.core.types import ErrorCode
from semel.handlers.authorization.access import (
    GROUP,
    GROUP_DENIED,
    ID_DENIED,
    MESSAGES,
    TOPIC,
    TOPIC_DENIED,
    TRANSACTIONAL_ID,
    Access,
    Guard,
    except_for,
)
from semel.wire.api_key import ApiKey
from semel.wire.messages.semel import TxnShareAcknowledgeRequest, TxnShareAcknowledgeResponse
from semel.wire.messages.share_offsets import (
    AlteredShareGroupOffsetsPartition,
    AlteredShareGroupOffsetsTopic,
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsResponse,
    DeletedShareGroupOffsetsTopic,
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsResponse,
    DescribedShareGroupOffsetsGroup,
    DescribedShareGroupOffsetsPartition,
    DescribedShareGroupOffsetsTopic,
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsResponse,
    DescribeShareGroupOffsetsTopic,
)
from semel.wire.messages.shares import (
    DescribedShareGroup,
    ShareAcknowledgeRequest,
    ShareAcknowledgeResponse,
    ShareFetchRequest,
    ShareFetchResponse,
    ShareGroupDescribeRequest,
    ShareGroupDescribeResponse,
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
)

READ: Final = Operation.READ
DESCRIBE: Final = Operation.DESCRIBE
HAS_DENIED_TOPICS: Final = "The group has topics that the client may not describe."


def share_group_heartbeat(access: Access, request: ShareGroupHeartbeatRequest) -> Awaitable[Any]:
    """Read on the group, Describe on each topic of the subscription."""
    if not access.may(READ, GROUP, request.group_id):
        return resolved(ShareGroupHeartbeatResponse(error_code=GROUP_DENIED))
    names = dict.fromkeys(request.subscribed_topic_names or ())
    if not all(access.may(DESCRIBE, TOPIC, each) for each in names):
        return resolved(ShareGroupHeartbeatResponse(error_code=TOPIC_DENIED))
    return access.pass_on(request)


async def share_group_describe(
    access: Access, request: ShareGroupDescribeRequest
) -> ShareGroupDescribeResponse:
    """Describe on each group, and on the topics that are assigned in it."""
    ids = list(dict.fromkeys(request.group_ids))
    request.group_ids = [each for each in ids if access.may(DESCRIBE, GROUP, each)]
    response: ShareGroupDescribeResponse = await access.pass_on(request)
    allowed = set(request.group_ids)
    groups = [
        DescribedShareGroup(group_id=each, error_code=GROUP_DENIED) for each in ids if each not in allowed
    ]
    for group in response.groups:
        if group.error_code == ErrorCode.NONE and request.include_authorized_operations:
            group.authorized_operations = access.rights.operations(GROUP, group.group_id)
        groups.append(group if _may_see_topics(access, group) else _hidden(group.group_id))
    response.groups = groups
    return response


def _may_see_topics(access: Access, group: DescribedShareGroup) -> bool:
    names = {each.topic_name for member in group.members for each in member.assignment.topic_partitions}
    return all(access.may(DESCRIBE, TOPIC, each) for each in names)


def _hidden(group_id: str) -> DescribedShareGroup:
    return DescribedShareGroup(group_id=group_id, error_code=TOPIC_DENIED, error_message=HAS_DENIED_TOPICS)


def _may_read(access: Access, name: str | None) -> bool:
    # An unknown id has no name, and the handler refuses it.
    return name is None or access.may_now(READ, TOPIC, name)


def share_fetch(access: Access, request: ShareFetchRequest) -> Awaitable[Any]:
    """Read on the group and on each topic."""
    if request.group_id and not access.may(READ, GROUP, request.group_id):
        return resolved(ShareFetchResponse(error_code=GROUP_DENIED))
    handler: Any = access.handler
    answer: Awaitable[Any] = handler(access.broker, request, access.context, partial(_may_read, access))
    return answer


def share_acknowledge(access: Access, request: ShareAcknowledgeRequest) -> Awaitable[Any]:
    """Read on the group and on each topic."""
    if request.group_id and not access.may(READ, GROUP, request.group_id):
        return resolved(ShareAcknowledgeResponse(error_code=GROUP_DENIED))
    handler: Any = access.handler
    answer: Awaitable[Any] = handler(access.broker, request, access.context, partial(_may_read, access))
    return answer


def txn_share_acknowledge(access: Access, request: TxnShareAcknowledgeRequest) -> Awaitable[Any]:
    """Write on the transactional id, Read on the group and on each topic."""
    error = ErrorCode.NONE
    if not access.may(Operation.WRITE, TRANSACTIONAL_ID, request.transactional_id):
        error = ID_DENIED
    elif not access.may(READ, GROUP, request.group_id):
        error = GROUP_DENIED
    if error:
        return resolved(TxnShareAcknowledgeResponse(error_code=error, error_message=MESSAGES[error]))
    handler: Any = access.handler
    answer: Awaitable[Any] = handler(access.broker, request, access.context, partial(_may_read, access))
    return answer


async def describe_share_group_offsets(
    access: Access, request: DescribeShareGroupOffsetsRequest
) -> DescribeShareGroupOffsetsResponse:
    """Describe on each group and each topic. Without a list of topics, denied ones are left out."""
    refused = [each for each in request.groups if not access.may(DESCRIBE, GROUP, each.group_id)]
    request.groups = except_for(request.groups, refused)
    denied: list[list[DescribeShareGroupOffsetsTopic]] = []
    for group in request.groups:
        some = [each for each in group.topics or () if not access.may(DESCRIBE, TOPIC, each.topic_name)]
        denied.append(some)
        if group.topics is not None:
            group.topics = except_for(group.topics, some)
    are_all = [group.topics is None for group in request.groups]
    response: DescribeShareGroupOffsetsResponse = await access.pass_on(request)
    for shown, some, is_all in zip(response.groups, denied, are_all, strict=True):
        if is_all:
            shown.topics = [
                each for each in shown.topics if access.rights.may(DESCRIBE, TOPIC, each.topic_name)
            ]
        elif not shown.error_code:
            shown.topics += map(_not_described, some)
    response.groups += [
        DescribedShareGroupOffsetsGroup(group_id=each.group_id, error_code=GROUP_DENIED) for each in refused
    ]
    return response


def _not_described(topic: DescribeShareGroupOffsetsTopic) -> DescribedShareGroupOffsetsTopic:
    return DescribedShareGroupOffsetsTopic(
        topic_name=topic.topic_name,
        partitions=[
            DescribedShareGroupOffsetsPartition(
                partition_index=index,
                start_offset=-1,
                lag=-1,
                error_code=TOPIC_DENIED,
                error_message=MESSAGES[TOPIC_DENIED],
            )
            for index in topic.partitions
        ],
    )


async def alter_share_group_offsets(
    access: Access, request: AlterShareGroupOffsetsRequest
) -> AlterShareGroupOffsetsResponse:
    """Read on the group and on each topic."""
    if not access.may(READ, GROUP, request.group_id):
        return AlterShareGroupOffsetsResponse(error_code=GROUP_DENIED, error_message=MESSAGES[GROUP_DENIED])
    denied = [each for each in request.topics if not access.may(READ, TOPIC, each.topic_name)]
    request.topics = except_for(request.topics, denied)
    if denied and not request.topics:
        response = AlterShareGroupOffsetsResponse()
    else:
        response = await access.pass_on(request)
    if not response.error_code:
        response.responses += [
            AlteredShareGroupOffsetsTopic(
                topic_name=topic.topic_name,
                partitions=[
                    AlteredShareGroupOffsetsPartition(
                        partition_index=each.partition_index,
                        error_code=TOPIC_DENIED,
                        error_message=MESSAGES[TOPIC_DENIED],
                    )
                    for each in topic.partitions
                ],
            )
            for topic in denied
        ]
    return response


async def delete_share_group_offsets(
    access: Access, request: DeleteShareGroupOffsetsRequest
) -> DeleteShareGroupOffsetsResponse:
    """Delete on the group, Read on each topic."""
    if not access.may(Operation.DELETE, GROUP, request.group_id):
        return DeleteShareGroupOffsetsResponse(error_code=GROUP_DENIED, error_message=MESSAGES[GROUP_DENIED])
    denied = [each for each in request.topics if not access.may(READ, TOPIC, each.topic_name)]
    request.topics = except_for(request.topics, denied)
    response: DeleteShareGroupOffsetsResponse = await access.pass_on(request)
    if not response.error_code:
        response.responses += [
            DeletedShareGroupOffsetsTopic(
                topic_name=each.topic_name, error_code=TOPIC_DENIED, error_message=MESSAGES[TOPIC_DENIED]
            )
            for each in denied
        ]
    return response


GUARDS: dict[int, Guard] = {
    ApiKey.SHARE_GROUP_HEARTBEAT: share_group_heartbeat,
    ApiKey.SHARE_GROUP_DESCRIBE: share_group_describe,
    ApiKey.SHARE_FETCH: share_fetch,
    ApiKey.SHARE_ACKNOWLEDGE: share_acknowledge,
    ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS: describe_share_group_offsets,
    ApiKey.ALTER_SHARE_GROUP_OFFSETS: alter_share_group_offsets,
    ApiKey.DELETE_SHARE_GROUP_OFFSETS: delete_share_group_offsets,
    TxnShareAcknowledgeRequest.api_key: txn_share_acknowledge,
}
