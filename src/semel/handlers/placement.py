"""ElectLeaders, AlterPartitionReassignments, ListPartitionReassignments, AlterReplicaLogDirs.

Every partition has one replica, at its owner, and the brokers of a cluster divide partitions by themselves
(``broker.shard_ownership``). So no election is ever needed and no request can move a partition. A request to
move a partition to where it is succeeds.
"""

from collections.abc import Iterable
from typing import Final

from semel.broker.broker import Broker
from semel.core.types import ErrorCode, PartitionKey, Topic
from semel.handlers.context import Handler, RequestContext
from semel.handlers.rights import ALTER, CLUSTER_DENIED, DESCRIBE, MESSAGES, rights_of
from semel.wire import messages as wire
from semel.wire.api_key import ApiKey

PREFERRED: Final = 0
UNCLEAN: Final = 1

Answer = tuple[ErrorCode, str | None]

_DENIED: Final[Answer] = (CLUSTER_DENIED, MESSAGES[CLUSTER_DENIED])
_UNKNOWN: Final[Answer] = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "There is no such partition.")
_NOT_NEEDED: Final[Answer] = (ErrorCode.ELECTION_NOT_NEEDED, "The partition has its only leader.")
_NOT_MOVED: Final = (
    "Partitions are not moved by request: brokers divide them by themselves. 'semel cluster drain' has a "
    "broker give away all that it leads."
)


async def elect_leaders(
    broker: Broker, request: wire.ElectLeadersRequest, context: RequestContext
) -> wire.ElectLeadersResponse:
    """ElectLeaders v0–v2: no election of any kind is needed.

    Behaviour: ELECTION_NOT_NEEDED for a partition that has a leader. A partition whose broker has gone gets a
        leader by itself; until then it is PREFERRED_LEADER_NOT_AVAILABLE, or ELIGIBLE_LEADERS_NOT_AVAILABLE
        for an unclean election, which clients retry. A request for all partitions gets an empty response: as
        in Kafka, partitions that need no election are left out. An unknown kind of election is
        INVALID_REQUEST.
    Versions:  v1 kinds of elections, an error for all · v2 flexible.
    """
    is_allowed = rights_of(broker, request, context).cluster(ALTER)
    if is_allowed and request.election_type not in (PREFERRED, UNCLEAN):
        return wire.ElectLeadersResponse(error_code=ErrorCode.INVALID_REQUEST)
    wanted = request.topic_partitions or []
    topics = await _topics(broker, (each.topic for each in wanted if is_allowed))
    is_unclean = request.election_type == UNCLEAN
    results = []
    for each in wanted:
        elected = []
        for index in each.partitions:
            error, message = _DENIED
            if is_allowed:
                error, message = _election(broker, topics[each.topic], index, is_unclean=is_unclean)
            elected.append(
                wire.PartitionElectionResult(partition_id=index, error_code=error, error_message=message)
            )
        results.append(wire.ReplicaElectionResult(topic=each.topic, partition_result=elected))
    return wire.ElectLeadersResponse(
        error_code=ErrorCode.NONE if is_allowed else CLUSTER_DENIED, replica_election_results=results
    )


async def _topics(broker: Broker, names: Iterable[str]) -> dict[str, Topic | None]:
    return await broker.catalog.topics(dict.fromkeys(names))


def _election(broker: Broker, topic: Topic | None, index: int, *, is_unclean: bool) -> Answer:
    if topic is None or not 0 <= index < topic.partitions:
        return _UNKNOWN
    if broker.ownership.leader(PartitionKey(topic.topic_id, index)).node_id >= 0:
        return _NOT_NEEDED
    error = (
        ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE if is_unclean else ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
    )
    return error, "The broker of the partition has gone; another takes its place by itself."


async def alter_partition_reassignments(
    broker: Broker, request: wire.AlterPartitionReassignmentsRequest, context: RequestContext
) -> wire.AlterPartitionReassignmentsResponse:
    """AlterPartitionReassignments v0–v1: a partition stays where it is.

    Behaviour: moving a partition to the broker that leads it succeeds and changes nothing. Moving it
        elsewhere, or to several brokers, is INVALID_REPLICA_ASSIGNMENT. Cancelling a move is always
        NO_REASSIGNMENT_IN_PROGRESS.
    Versions:  v1 whether the number of replicas may change, which it cannot.
    """
    is_allowed = rights_of(broker, request, context).cluster(ALTER)
    topics = await _topics(broker, (each.name for each in request.topics if is_allowed))
    responses = []
    for each in request.topics:
        partitions = []
        for part in each.partitions:
            error, message = _DENIED
            if is_allowed:
                error, message = _reassignment(broker, topics[each.name], part)
            partitions.append(
                wire.ReassignablePartitionResponse(
                    partition_index=part.partition_index, error_code=error, error_message=message
                )
            )
        responses.append(wire.ReassignableTopicResponse(name=each.name, partitions=partitions))
    if not is_allowed:
        return wire.AlterPartitionReassignmentsResponse(
            error_code=CLUSTER_DENIED, error_message=MESSAGES[CLUSTER_DENIED], responses=responses
        )
    return wire.AlterPartitionReassignmentsResponse(
        allow_replication_factor_change=request.allow_replication_factor_change,
        error_message=None,
        responses=responses,
    )


def _reassignment(broker: Broker, topic: Topic | None, part: wire.ReassignablePartition) -> Answer:
    if topic is None or not 0 <= part.partition_index < topic.partitions:
        return _UNKNOWN
    if part.replicas is None:
        return ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, None
    leader = broker.ownership.leader(PartitionKey(topic.topic_id, part.partition_index)).node_id
    if part.replicas == [leader]:
        return ErrorCode.NONE, None
    if len(part.replicas) != 1:
        return ErrorCode.INVALID_REPLICA_ASSIGNMENT, "A partition has exactly one replica. " + _NOT_MOVED
    return ErrorCode.INVALID_REPLICA_ASSIGNMENT, _NOT_MOVED


async def list_partition_reassignments(
    broker: Broker, request: wire.ListPartitionReassignmentsRequest, context: RequestContext
) -> wire.ListPartitionReassignmentsResponse:
    """ListPartitionReassignments v0: always empty, because no request moves partitions between nodes.

    Behaviour: an empty list for every request.
    Versions:  v0.
    """
    if rights_of(broker, request, context).cluster(DESCRIBE):
        return wire.ListPartitionReassignmentsResponse(error_message=None)
    return wire.ListPartitionReassignmentsResponse(
        error_code=CLUSTER_DENIED,
        error_message=MESSAGES[CLUSTER_DENIED],
        topics=[
            wire.OngoingTopicReassignment(
                name=topic.name,
                partitions=[
                    wire.OngoingPartitionReassignment(partition_index=index)
                    for index in topic.partition_indexes
                ],
            )
            for topic in request.topics or ()
        ],
    )


async def alter_replica_log_dirs(
    broker: Broker, request: wire.AlterReplicaLogDirsRequest, context: RequestContext
) -> wire.AlterReplicaLogDirsResponse:
    """AlterReplicaLogDirs v1–v2: there is one directory, and all partitions are in it.

    Behaviour: moving a partition to that directory succeeds and changes nothing. Any other directory is
        LOG_DIR_NOT_FOUND. A partition that another broker leads is REPLICA_NOT_AVAILABLE.
    Versions:  v2 flexible.
    """
    if not rights_of(broker, request, context).cluster(ALTER):
        return wire.AlterReplicaLogDirsResponse(
            results=[
                _moved(topic.name, ((index, CLUSTER_DENIED) for index in topic.partitions))
                for each in request.dirs
                for topic in each.topics
            ]
        )
    topics = await _topics(broker, (topic.name for each in request.dirs for topic in each.topics))
    errors: dict[str, dict[int, ErrorCode]] = {}
    for each in request.dirs:
        for topic in each.topics:
            of_topic = errors.setdefault(topic.name, {})
            for index in topic.partitions:
                of_topic[index] = _move(broker, each.path, topics[topic.name], index)
    return wire.AlterReplicaLogDirsResponse(
        results=[_moved(name, of_topic.items()) for name, of_topic in errors.items()]
    )


def _moved(name: str, errors: Iterable[tuple[int, ErrorCode]]) -> wire.AlterReplicaLogDirTopicResult:
    return wire.AlterReplicaLogDirTopicResult(
        topic_name=name,
        partitions=[
            wire.AlterReplicaLogDirPartitionResult(partition_index=index, error_code=error)
            for index, error in errors
        ],
    )


def _move(broker: Broker, path: str, topic: Topic | None, index: int) -> ErrorCode:
    if path != broker.directory:
        return ErrorCode.LOG_DIR_NOT_FOUND
    if topic is None or not 0 <= index < topic.partitions:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    is_here = broker.ownership.leads(PartitionKey(topic.topic_id, index))
    return ErrorCode.NONE if is_here else ErrorCode.REPLICA_NOT_AVAILABLE


HANDLERS: dict[int, Handler] = {
    ApiKey.ALTER_REPLICA_LOG_DIRS: alter_replica_log_dirs,
    ApiKey.ELECT_LEADERS: elect_leaders,
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: alter_partition_reassignments,
    ApiKey.LIST_PARTITION_REASSIGNMENTS: list_partition_reassignments,
}
