"""Fetch: Read on each topic. ListOffsets and OffsetForLeaderEpoch: Describe.

Fetch sessions keep partitions regardless of rights, so the handler itself checks which topics may be read:
when a request begins, and again when it is answered. A request that claims to come from a replica needs
ClusterAction (CVE-2018-1288).
"""

from collections.abc import Awaitable
from functools import partial
from typing import Any, Final, cast

from semel.core.security.acls import CLUSTER_NAME, Operation
from semel.handlers.authorization.access import CLUSTER, TOPIC, TOPIC_DENIED, Access, Guard, except_for
from semel.handlers.fetch import FetchHandler
from semel.wire.api_key import ApiKey
from semel.wire.messages.fetch import (
    FetchRequest,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
    OffsetForLeaderEpochEpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderTopicResult,
)

FIRST_WITH_REPLICA_STATE: Final = 15
DESCRIBE: Final = Operation.DESCRIBE


def fetch(access: Access, request: FetchRequest) -> Awaitable[Any]:
    """Read on each topic; ClusterAction for a replica."""
    replica_id = request.replica_id
    if access.context.version >= FIRST_WITH_REPLICA_STATE:
        replica_id = request.replica_state.replica_id
    may_read = partial(_may_replicate if replica_id >= 0 else _may_read, access)
    handler = cast(FetchHandler, access.handler)
    return handler(access.broker, request, access.context, may_read)


def _may_read(access: Access, name: str | None) -> bool:
    # An unknown id has no name, and the handler refuses it.
    return name is None or access.may_now(Operation.READ, TOPIC, name)


def _may_replicate(access: Access, name: str | None) -> bool:
    return access.may_now(Operation.CLUSTER_ACTION, CLUSTER, CLUSTER_NAME)


def list_offsets(access: Access, request: ListOffsetsRequest) -> Awaitable[Any]:
    """Describe on each topic."""
    denied = [each for each in request.topics if not access.may(DESCRIBE, TOPIC, each.name)]
    if not denied:
        return access.pass_on(request)
    request.topics = except_for(request.topics, denied)
    refused = [
        ListOffsetsTopicResponse(
            name=topic.name,
            partitions=[
                ListOffsetsPartitionResponse(partition_index=each.partition_index, error_code=TOPIC_DENIED)
                for each in topic.partitions
            ],
        )
        for topic in denied
    ]
    return _list_others(access, request, refused)


async def _list_others(
    access: Access, request: ListOffsetsRequest, refused: list[ListOffsetsTopicResponse]
) -> ListOffsetsResponse:
    response: ListOffsetsResponse = await access.pass_on(request)
    response.topics += refused
    return response


async def offset_for_leader_epoch(
    access: Access, request: OffsetForLeaderEpochRequest
) -> OffsetForLeaderEpochResponse:
    """ClusterAction, or Describe on each topic."""
    denied = []
    if not access.rights.may(Operation.CLUSTER_ACTION, CLUSTER, CLUSTER_NAME):
        denied = [each for each in request.topics if not access.may(DESCRIBE, TOPIC, each.topic)]
    request.topics = except_for(request.topics, denied)
    response: OffsetForLeaderEpochResponse = await access.pass_on(request)
    response.topics += [
        OffsetForLeaderTopicResult(
            topic=topic.topic,
            partitions=[
                OffsetForLeaderEpochEpochEndOffset(partition=each.partition, error_code=TOPIC_DENIED)
                for each in topic.partitions
            ],
        )
        for topic in denied
    ]
    return response


GUARDS: dict[int, Guard] = {
    ApiKey.FETCH: fetch,
    ApiKey.LIST_OFFSETS: list_offsets,
    ApiKey.OFFSET_FOR_LEADER_EPOCH: offset_for_leader_epoch,
}
