"""Leader elections, and moves of partitions to other brokers and directories.

Semel's brokers divide the partitions among themselves, so these requests change nothing. They are declared
because tools send them.
"""

from semel.wire.api_key import ApiKey
from semel.wire.schema import (
    Request,
    Response,
    array,
    boolean,
    int8,
    int16,
    int32,
    request,
    response,
    string,
    struct,
)


@struct
class AlterReplicaLogDirTopic:
    name: str = string()
    partitions: list[int] = array("int32")


@struct
class AlterReplicaLogDir:
    path: str = string()
    topics: list[AlterReplicaLogDirTopic] = array(AlterReplicaLogDirTopic)


@request(ApiKey.ALTER_REPLICA_LOG_DIRS, versions="1-2", flexible=2)
class AlterReplicaLogDirsRequest(Request):
    """The directories to move replicas to; 2 is flexible."""

    dirs: list[AlterReplicaLogDir] = array(AlterReplicaLogDir)


@struct
class AlterReplicaLogDirPartitionResult:
    partition_index: int = int32()
    error_code: int = int16()


@struct
class AlterReplicaLogDirTopicResult:
    topic_name: str = string()
    partitions: list[AlterReplicaLogDirPartitionResult] = array(AlterReplicaLogDirPartitionResult)


@response(ApiKey.ALTER_REPLICA_LOG_DIRS, versions="1-2", flexible=2)
class AlterReplicaLogDirsResponse(Response):
    """Whether each replica can be moved; 2 is flexible."""

    throttle_time_ms: int = int32()
    results: list[AlterReplicaLogDirTopicResult] = array(AlterReplicaLogDirTopicResult)


@struct
class ElectionTopicPartitions:
    topic: str = string()
    partitions: list[int] = array("int32")


@request(ApiKey.ELECT_LEADERS, versions="0-2", flexible=2)
class ElectLeadersRequest(Request):
    """Partitions to elect leaders for, None for all; 1 adds the type of election, 2 is flexible."""

    election_type: int = int8(versions="1+")
    topic_partitions: list[ElectionTopicPartitions] | None = array(ElectionTopicPartitions, nullable=True)
    timeout_ms: int = int32(default=60000)


@struct
class PartitionElectionResult:
    partition_id: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable=True)


@struct
class ReplicaElectionResult:
    topic: str = string()
    partition_result: list[PartitionElectionResult] = array(PartitionElectionResult)


@response(ApiKey.ELECT_LEADERS, versions="0-2", flexible=2)
class ElectLeadersResponse(Response):
    """The results of the elections; 1 adds an error for the whole request, 2 is flexible."""

    throttle_time_ms: int = int32()
    error_code: int = int16(versions="1+")
    replica_election_results: list[ReplicaElectionResult] = array(ReplicaElectionResult)


@struct
class ReassignablePartition:
    partition_index: int = int32()
    replicas: list[int] | None = array("int32", nullable=True, default=None)


@struct
class ReassignableTopic:
    name: str = string()
    partitions: list[ReassignablePartition] = array(ReassignablePartition)


@request(ApiKey.ALTER_PARTITION_REASSIGNMENTS, versions="0-1", flexible=0)
class AlterPartitionReassignmentsRequest(Request):
    """Brokers to move partitions to, None to cancel a move; 1 can forbid a new number of replicas."""

    timeout_ms: int = int32(default=60000)
    allow_replication_factor_change: bool = boolean(versions="1+", default=True)
    topics: list[ReassignableTopic] = array(ReassignableTopic)


@struct
class ReassignablePartitionResponse:
    partition_index: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable=True)


@struct
class ReassignableTopicResponse:
    name: str = string()
    partitions: list[ReassignablePartitionResponse] = array(ReassignablePartitionResponse)


@response(ApiKey.ALTER_PARTITION_REASSIGNMENTS, versions="0-1", flexible=0)
class AlterPartitionReassignmentsResponse(Response):
    """Whether each partition is being moved; 1 repeats `allow_replication_factor_change`."""

    throttle_time_ms: int = int32()
    allow_replication_factor_change: bool = boolean(versions="1+", default=True)
    error_code: int = int16()
    error_message: str | None = string(nullable=True)
    responses: list[ReassignableTopicResponse] = array(ReassignableTopicResponse)


@struct
class ListPartitionReassignmentsTopics:
    name: str = string()
    partition_indexes: list[int] = array("int32")


@request(ApiKey.LIST_PARTITION_REASSIGNMENTS, versions="0-0", flexible=0)
class ListPartitionReassignmentsRequest(Request):
    """Partitions to list the moves of, None for all."""

    timeout_ms: int = int32(default=60000)
    topics: list[ListPartitionReassignmentsTopics] | None = array(
        ListPartitionReassignmentsTopics, nullable=True
    )


@struct
class OngoingPartitionReassignment:
    partition_index: int = int32()
    replicas: list[int] = array("int32")
    adding_replicas: list[int] = array("int32")
    removing_replicas: list[int] = array("int32")


@struct
class OngoingTopicReassignment:
    name: str = string()
    partitions: list[OngoingPartitionReassignment] = array(OngoingPartitionReassignment)


@response(ApiKey.LIST_PARTITION_REASSIGNMENTS, versions="0-0", flexible=0)
class ListPartitionReassignmentsResponse(Response):
    """The moves in progress."""

    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable=True)
    topics: list[OngoingTopicReassignment] = array(OngoingTopicReassignment)
