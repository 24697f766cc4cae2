"""Metadata, DescribeTopicPartitions, DescribeCluster, FindCoordinator: Describe on what is returned.

A list of all topics contains those that may be described. A named topic that may not be described is refused,
whether it exists or not. The guards set the bits of authorized operations; the handlers set all of them.
"""

from collections.abc import Awaitable, Iterable
from typing import Any, Final

from semel.broker.commit.promise import resolved
from semel.core.security.acls import CLUSTER_NAME, Operation
from semel.core.topics import name_problem
from semel.core.types import ErrorCode, Topic
from semel.handlers.authorization.access import (
    CLUSTER,
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
from semel.handlers.metadata import INTERNAL_TOPICS, PARTITIONS_PER_RESPONSE_MAX, is_by_id
from semel.handlers.topics import NO_TOPIC_ID
from semel.wire.api_key import ApiKey
from semel.wire.messages.metadata import (
    Coordinator,
    DescribeClusterRequest,
    DescribeClusterResponse,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponseTopic,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseTopic,
    TopicRequest,
)

DESCRIBE: Final = Operation.DESCRIBE
TOPIC_IDS: Final = 12
"""The version from which Metadata can ask for topics by id."""
SEVERAL_KEYS: Final = 4
"""The version from which FindCoordinator has several keys."""

_MISSING: Final = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.INVALID_TOPIC_EXCEPTION)
_KEY_TYPES: Final = {0: (GROUP, GROUP_DENIED), 1: (TRANSACTIONAL_ID, ID_DENIED)}


def metadata(access: Access, request: MetadataRequest) -> Awaitable[Any]:
    """Describe on each topic; Create on it, or on the cluster, if it is to be created."""
    version = access.context.version
    if request.topics is None or (version == 0 and not request.topics):
        return _all_topics(access, request)
    if version < TOPIC_IDS and is_by_id(request):
        return access.pass_on(request)  # an error for all of them
    return _named_topics(access, request, request.topics)


async def _all_topics(access: Access, request: MetadataRequest) -> MetadataResponse:
    """Ask the handler for the allowed topics by name: its cached response contains all topics."""
    names = [each.name for each in await _describable(access)]
    request.topics = [MetadataRequestTopic(name=each) for each in names]
    request.allow_auto_topic_creation = False
    response = await _ask(access, request)
    # A topic may have been deleted since it was listed.
    response.topics = [each for each in response.topics if each.error_code not in _MISSING]
    _set_operations(access, request, response)
    return response


async def _describable(access: Access) -> list[Topic]:
    may = access.rights.may
    return [each for each in await access.broker.catalog.all() if may(DESCRIBE, TOPIC, each.name)]


async def _named_topics(
    access: Access, request: MetadataRequest, topics: list[MetadataRequestTopic]
) -> MetadataResponse:
    refused: list[MetadataResponseTopic] = []
    allowed: list[MetadataRequestTopic] = []
    for each in topics:
        name = each.name
        if each.topic_id != NO_TOPIC_ID:
            topic = await access.broker.catalog.topic_by_id(each.topic_id)
            name = None if topic is None else topic.name
        if name is None or access.may(DESCRIBE, TOPIC, name):
            allowed.append(each)
        elif each.topic_id != NO_TOPIC_ID:
            # The id is not secret, but the name is.
            refused.append(MetadataResponseTopic(error_code=TOPIC_DENIED, name=None, topic_id=each.topic_id))
        else:
            refused.append(MetadataResponseTopic(error_code=TOPIC_DENIED, name=name))
    uncreatable = _uncreatable(access, request, allowed)
    request.topics = except_for(allowed, uncreatable)
    response = await _ask(access, request)
    _set_operations(access, request, response)
    if uncreatable:
        existing, missing = await _existing(access, request, uncreatable)
        response.topics += existing
        refused = missing + refused
    response.topics += refused
    return response


async def _ask(access: Access, request: MetadataRequest) -> MetadataResponse:
    # In version 0 an empty list means all topics.
    context = access.context._replace(version=max(1, access.context.version))
    response: MetadataResponse = await access.handler(access.broker, request, context)
    return response


def _uncreatable(
    access: Access, request: MetadataRequest, topics: Iterable[MetadataRequestTopic]
) -> list[MetadataRequestTopic]:
    """The topics that this request would create if missing, without the right to create them."""
    may = access.rights.may
    creates = request.allow_auto_topic_creation and access.broker.settings.auto_create_topics_enable
    if not creates or may(Operation.CREATE, CLUSTER, CLUSTER_NAME):
        return []
    return [
        each
        for each in topics
        if each.topic_id == NO_TOPIC_ID and each.name and not may(Operation.CREATE, TOPIC, each.name)
    ]


async def _existing(
    access: Access, request: MetadataRequest, topics: list[MetadataRequestTopic]
) -> tuple[list[MetadataResponseTopic], list[MetadataResponseTopic]]:
    """Ask without creating topics; returns those that exist, and a refusal for each of the others."""
    request.topics = topics
    request.allow_auto_topic_creation = False
    response = await _ask(access, request)
    _set_operations(access, request, response)
    existing: list[MetadataResponseTopic] = []
    refused: list[MetadataResponseTopic] = []
    for each in response.topics:
        if each.error_code not in _MISSING:
            existing.append(each)
            continue
        name = each.name or ""
        access.deny(Operation.CREATE, TOPIC, name)
        refused.append(
            MetadataResponseTopic(error_code=TOPIC_DENIED, name=name, is_internal=name in INTERNAL_TOPICS)
        )
    return existing, refused


def _set_operations(access: Access, request: MetadataRequest, response: MetadataResponse) -> None:
    if request.include_topic_authorized_operations:
        for topic in response.topics:
            if topic.name is not None:
                topic.topic_authorized_operations = access.rights.operations(TOPIC, topic.name)
    if request.include_cluster_authorized_operations:
        response.cluster_authorized_operations = _cluster_operations(access)


def _cluster_operations(access: Access) -> int:
    may_describe = access.may(DESCRIBE, CLUSTER, CLUSTER_NAME)
    return access.rights.operations(CLUSTER, CLUSTER_NAME) if may_describe else 0


async def describe_cluster(access: Access, request: DescribeClusterRequest) -> DescribeClusterResponse:
    """No right is needed, except Describe on the cluster for the authorized operations."""
    response: DescribeClusterResponse = await access.pass_on(request)
    if request.include_cluster_authorized_operations and not response.error_code:
        response.cluster_authorized_operations = _cluster_operations(access)
    return response


async def describe_topic_partitions(
    access: Access, request: DescribeTopicPartitionsRequest
) -> DescribeTopicPartitionsResponse:
    """Describe on each topic."""
    denied: list[str] = []
    cursor = request.cursor
    if cursor is not None and not _is_valid(request):
        invalid: DescribeTopicPartitionsResponse = await access.pass_on(request)  # an error for each topic
        return invalid
    first = "" if cursor is None else cursor.topic_name
    is_of_all = not request.topics
    if is_of_all:
        room = max(1, min(request.response_partition_limit, PARTITIONS_PER_RESPONSE_MAX))
        names = [each.name for each in await _describable(access) if each.name >= first]
        # Every topic has a partition, so ``room`` names fill the page; one more is for the next cursor.
        names = names[: room + 1]
    else:
        wanted = sorted({each.name for each in request.topics if each.name >= first})
        names = [each for each in wanted if access.may(DESCRIBE, TOPIC, each)]
        denied = sorted(set(wanted) - set(names))
    if cursor is not None and cursor.topic_name not in names:
        request.cursor = None
    request.topics = [TopicRequest(name=each) for each in names]
    response = DescribeTopicPartitionsResponse()
    if names:
        response = await access.pass_on(request)
    if is_of_all:
        response.topics = [each for each in response.topics if each.error_code not in _MISSING]
    for topic in response.topics:
        topic.topic_authorized_operations = access.rights.operations(TOPIC, topic.name or "")
    response.topics += [
        DescribeTopicPartitionsResponseTopic(error_code=TOPIC_DENIED, name=each) for each in denied
    ]
    return response


def _is_valid(request: DescribeTopicPartitionsRequest) -> bool:
    """As in the handler: the cursor is at a valid name, which is one of the requested ones."""
    cursor = request.cursor
    if cursor is None:
        return True
    is_named = not request.topics or any(each.name == cursor.topic_name for each in request.topics)
    return is_named and cursor.partition_index >= 0 and not name_problem(cursor.topic_name)


def find_coordinator(access: Access, request: FindCoordinatorRequest) -> Awaitable[Any]:
    """Describe on the group or the transactional id. The handler refuses other types of keys."""
    if request.key_type not in _KEY_TYPES:
        return access.pass_on(request)
    resource_type, error = _KEY_TYPES[request.key_type]
    if access.context.version >= SEVERAL_KEYS:
        keys = dict.fromkeys(request.coordinator_keys)
        denied = {each for each in keys if not access.may(DESCRIBE, resource_type, each)}
        return _find_others(access, request, denied, error) if denied else access.pass_on(request)
    if access.may(DESCRIBE, resource_type, request.key):
        return access.pass_on(request)
    message = MESSAGES[error]
    return resolved(FindCoordinatorResponse(error_code=error, error_message=message, node_id=-1, port=-1))


async def _find_others(
    access: Access, request: FindCoordinatorRequest, denied: set[str], error: ErrorCode
) -> FindCoordinatorResponse:
    keys = request.coordinator_keys
    request.coordinator_keys = [each for each in keys if each not in denied]
    response: FindCoordinatorResponse = await access.pass_on(request)
    found = iter(response.coordinators)
    response.coordinators = [
        Coordinator(key=each, error_code=error, node_id=-1, port=-1) if each in denied else next(found)
        for each in keys
    ]
    return response


GUARDS: dict[int, Guard] = {
    ApiKey.METADATA: metadata,
    ApiKey.FIND_COORDINATOR: find_coordinator,
    ApiKey.DESCRIBE_CLUSTER: describe_cluster,
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: describe_topic_partitions,
}
