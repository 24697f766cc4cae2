"""Topics: Create, Delete and Alter on each topic; Create and Delete on the cluster cover all topics.

Topics that are named twice, or both by name and by id, are left to the handlers, which refuse them: Kafka
does so before it checks rights.
"""

from collections import Counter
from typing import Final

from semel.core.security.acls import CLUSTER_NAME, Operation
from semel.core.types import ErrorCode
from semel.handlers.authorization.access import (
    CLUSTER,
    MESSAGES,
    TOPIC,
    TOPIC_DENIED,
    Access,
    Guard,
    except_for,
)
from semel.handlers.topics import NO_TOPIC_ID
from semel.wire.api_key import ApiKey
from semel.wire.messages.topics import (
    CreatableTopicResult,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeletableTopicResult,
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)

TOPIC_IDS: Final = 6
"""The version from which DeleteTopics can name topics by id."""


async def create_topics(access: Access, request: CreateTopicsRequest) -> CreateTopicsResponse:
    """Create on the cluster or on each topic. The response has configs only with DescribeConfigs."""
    times = Counter(each.name for each in request.topics)
    may_all = access.rights.may(Operation.CREATE, CLUSTER, CLUSTER_NAME)
    denied = [
        each
        for each in request.topics
        if not may_all and times[each.name] == 1 and not access.may(Operation.CREATE, TOPIC, each.name)
    ]
    request.topics = except_for(request.topics, denied)
    response: CreateTopicsResponse = await access.pass_on(request)
    for created in response.topics:
        if not created.error_code and not access.rights.may(Operation.DESCRIBE_CONFIGS, TOPIC, created.name):
            created.topic_config_error_code = TOPIC_DENIED
            created.num_partitions = created.replication_factor = -1
            created.configs = []
    response.topics += [
        CreatableTopicResult(name=each.name, error_code=TOPIC_DENIED, error_message="Authorization failed.")
        for each in denied
    ]
    return response


async def delete_topics(access: Access, request: DeleteTopicsRequest) -> DeleteTopicsResponse:
    """Delete on the cluster or on each topic. Without Describe, the response hides whether a name exists."""
    rights = access.rights
    is_enabled = access.broker.settings.delete_topic_enable
    if not is_enabled or rights.may(Operation.DELETE, CLUSTER, CLUSTER_NAME):
        unchanged: DeleteTopicsResponse = await access.pass_on(request)
        return unchanged
    refused: list[DeletableTopicResult] = []
    if access.context.version >= TOPIC_IDS:
        times = Counter((each.name, each.topic_id) for each in request.topics)
        denied = []
        for each in request.topics:
            result = None
            if times[each.name, each.topic_id] == 1:
                result = await _not_deleted(access, each)
            if result is not None:
                denied.append(each)
                refused.append(result)
        request.topics = except_for(request.topics, denied)
    else:
        names = []
        for name, count in Counter(request.topic_names).items():
            result = await _not_deleted(access, DeleteTopicState(name=name)) if count == 1 else None
            if result is None:
                names += [name] * count
            else:
                refused.append(result)
        request.topic_names = names
    response: DeleteTopicsResponse = await access.pass_on(request)
    response.responses += refused
    return response


async def _not_deleted(access: Access, wanted: DeleteTopicState) -> DeletableTopicResult | None:
    """The result for a topic that may not be deleted; None if the handler decides."""
    name = wanted.name
    by_id = wanted.topic_id != NO_TOPIC_ID
    if by_id == (name is not None):
        return None
    if by_id:
        topic = await access.broker.catalog.topic_by_id(wanted.topic_id)
        name = None if topic is None else topic.name
    if name is None or access.may(Operation.DELETE, TOPIC, name):
        return None
    result = DeletableTopicResult(
        name=name, topic_id=wanted.topic_id, error_code=TOPIC_DENIED, error_message=MESSAGES[TOPIC_DENIED]
    )
    may_describe = access.rights.may(Operation.DESCRIBE, TOPIC, name)
    if by_id and not may_describe:
        result.name = None
    if not by_id and may_describe and await access.broker.catalog.topic(name) is None:
        result.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        result.error_message = f"Topic {name!r} does not exist."
    return result


async def create_partitions(access: Access, request: CreatePartitionsRequest) -> CreatePartitionsResponse:
    """Alter on each topic."""
    times = Counter(each.name for each in request.topics)
    denied = [
        each
        for each in request.topics
        if times[each.name] == 1 and not access.may(Operation.ALTER, TOPIC, each.name)
    ]
    request.topics = except_for(request.topics, denied)
    response: CreatePartitionsResponse = await access.pass_on(request)
    response.results += [
        CreatePartitionsTopicResult(name=each.name, error_code=TOPIC_DENIED) for each in denied
    ]
    return response


async def delete_records(access: Access, request: DeleteRecordsRequest) -> DeleteRecordsResponse:
    """Delete on each topic."""
    denied = [each for each in request.topics if not access.may(Operation.DELETE, TOPIC, each.name)]
    request.topics = except_for(request.topics, denied)
    response: DeleteRecordsResponse = await access.pass_on(request)
    response.topics += [
        DeleteRecordsTopicResult(
            name=topic.name,
            partitions=[
                DeleteRecordsPartitionResult(
                    partition_index=each.partition_index, low_watermark=-1, error_code=TOPIC_DENIED
                )
                for each in topic.partitions
            ],
        )
        for topic in denied
    ]
    return response


GUARDS: dict[int, Guard] = {
    ApiKey.CREATE_TOPICS: create_topics,
    ApiKey.DELETE_TOPICS: delete_topics,
    ApiKey.DELETE_RECORDS: delete_records,
    ApiKey.CREATE_PARTITIONS: create_partitions,
}
