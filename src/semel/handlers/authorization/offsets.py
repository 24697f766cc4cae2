"""Committed offsets: Read on the group and on topics to commit, Describe on both to fetch.

Deleting needs Delete on the group and Read on topics.
"""

from collections.abc import Awaitable, Iterable
from typing import Any, Final

from semel.broker.commit.promise import resolved
from semel.core.security.acls import Operation
from semel.core.types import ErrorCode
from semel.handlers.authorization.access import (
    GROUP,
    GROUP_DENIED,
    TOPIC,
    TOPIC_DENIED,
    Access,
    Guard,
    except_for,
)
from semel.handlers.offsets import TOPIC_IDS
from semel.wire.api_key import ApiKey
from semel.wire.messages.offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)

READ: Final = Operation.READ
DESCRIBE: Final = Operation.DESCRIBE
SEVERAL_GROUPS: Final = 8
FIRST_WITH_GROUP_ERROR: Final = 2


async def _name(access: Access, name: str, topic_id: bytes) -> str | None:
    """The name of a topic that a request gives by name or by id; None if the id is unknown."""
    if access.context.version < TOPIC_IDS:
        return name
    topic = await access.broker.catalog.topic_by_id(topic_id)
    return None if topic is None else topic.name


def offset_commit(access: Access, request: OffsetCommitRequest) -> Awaitable[Any]:
    """Read on the group and on each topic."""
    if access.may(READ, GROUP, request.group_id):
        return _commit_allowed(access, request)
    return resolved(OffsetCommitResponse(topics=_not_committed(request.topics, GROUP_DENIED)))


async def _commit_allowed(access: Access, request: OffsetCommitRequest) -> OffsetCommitResponse:
    denied = []
    for each in request.topics:
        name = await _name(access, each.name, each.topic_id)
        if name is not None and not access.may(READ, TOPIC, name):
            denied.append(each)
    request.topics = except_for(request.topics, denied)
    response: OffsetCommitResponse = await access.pass_on(request)
    response.topics += _not_committed(denied, TOPIC_DENIED)
    return response


def _not_committed(
    topics: Iterable[OffsetCommitRequestTopic], error: ErrorCode
) -> list[OffsetCommitResponseTopic]:
    return [
        OffsetCommitResponseTopic(
            name=topic.name,
            topic_id=topic.topic_id,
            partitions=[
                OffsetCommitResponsePartition(partition_index=each.partition_index, error_code=error)
                for each in topic.partitions
            ],
        )
        for topic in topics
    ]


def offset_fetch(access: Access, request: OffsetFetchRequest) -> Awaitable[Any]:
    """Describe on each group and on each topic. Without a list of topics, denied ones are left out."""
    return (
        _fetch_groups(access, request)
        if access.context.version >= SEVERAL_GROUPS
        else _fetch_group(access, request)
    )


async def _fetch_group(access: Access, request: OffsetFetchRequest) -> OffsetFetchResponse:
    """Up to version 7: one group."""
    if not access.may(DESCRIBE, GROUP, request.group_id):
        # Version 1 has no field for the group's error, so each partition carries it.
        is_first = access.context.version < FIRST_WITH_GROUP_ERROR
        topics = [_unfetched(each, GROUP_DENIED) for each in request.topics or () if is_first]
        return OffsetFetchResponse(error_code=GROUP_DENIED, topics=topics)
    if request.topics is None:
        response: OffsetFetchResponse = await access.pass_on(request)
        may = access.rights.may
        response.topics = [each for each in response.topics if may(DESCRIBE, TOPIC, each.name)]
        return response
    denied = [each for each in request.topics if not access.may(DESCRIBE, TOPIC, each.name)]
    request.topics = except_for(request.topics, denied)
    response = await access.pass_on(request)
    if not response.error_code:
        response.topics += [_unfetched(each, TOPIC_DENIED) for each in denied]
    return response


def _unfetched(topic: OffsetFetchRequestTopic, error: ErrorCode) -> OffsetFetchResponseTopic:
    return OffsetFetchResponseTopic(
        name=topic.name,
        partitions=[
            OffsetFetchResponsePartition(partition_index=index, committed_offset=-1, error_code=error)
            for index in topic.partition_indexes
        ],
    )


async def _fetch_groups(access: Access, request: OffsetFetchRequest) -> OffsetFetchResponse:
    groups = list({each.group_id: each for each in request.groups}.values())
    request.groups = [each for each in groups if access.may(DESCRIBE, GROUP, each.group_id)]
    denied: dict[str, list[OffsetFetchRequestTopics]] = {}
    for group in request.groups:
        denied[group.group_id] = await _take_denied(access, group)
    all_topics = {each.group_id for each in request.groups if each.topics is None}
    response: OffsetFetchResponse = await access.pass_on(request)
    may = access.rights.may
    answers = {}
    for answer in response.groups:
        answers[answer.group_id] = answer
        if answer.group_id in all_topics:
            answer.topics = [each for each in answer.topics if may(DESCRIBE, TOPIC, each.name)]
        elif not answer.error_code:
            answer.topics += map(_unfetched_topic, denied[answer.group_id])
    response.groups = [
        answers.get(each.group_id)
        or OffsetFetchResponseGroup(group_id=each.group_id, error_code=GROUP_DENIED)
        for each in groups
    ]
    return response


async def _take_denied(access: Access, group: OffsetFetchRequestGroup) -> list[OffsetFetchRequestTopics]:
    """Remove the denied topics from the request for a group; returns them."""
    denied = []
    for each in group.topics or ():
        name = await _name(access, each.name, each.topic_id)
        if name is not None and not access.may(DESCRIBE, TOPIC, name):
            denied.append(each)
    if group.topics is not None:
        group.topics = except_for(group.topics, denied)
    return denied


def _unfetched_topic(topic: OffsetFetchRequestTopics) -> OffsetFetchResponseTopics:
    return OffsetFetchResponseTopics(
        name=topic.name,
        topic_id=topic.topic_id,
        partitions=[
            OffsetFetchResponsePartitions(partition_index=index, committed_offset=-1, error_code=TOPIC_DENIED)
            for index in topic.partition_indexes
        ],
    )


def offset_delete(access: Access, request: OffsetDeleteRequest) -> Awaitable[Any]:
    """Delete on the group, Read on each topic."""
    if access.may(Operation.DELETE, GROUP, request.group_id):
        return _delete_allowed(access, request)
    return resolved(OffsetDeleteResponse(error_code=GROUP_DENIED))


async def _delete_allowed(access: Access, request: OffsetDeleteRequest) -> OffsetDeleteResponse:
    denied = [each for each in request.topics if not access.may(READ, TOPIC, each.name)]
    request.topics = except_for(request.topics, denied)
    response: OffsetDeleteResponse = await access.pass_on(request)
    if not response.error_code:
        response.topics += [
            OffsetDeleteResponseTopic(
                name=topic.name,
                partitions=[
                    OffsetDeleteResponsePartition(
                        partition_index=each.partition_index, error_code=TOPIC_DENIED
                    )
                    for each in topic.partitions
                ],
            )
            for topic in denied
        ]
    return response


GUARDS: dict[int, Guard] = {
    ApiKey.OFFSET_COMMIT: offset_commit,
    ApiKey.OFFSET_FETCH: offset_fetch,
    ApiKey.OFFSET_DELETE: offset_delete,
}
