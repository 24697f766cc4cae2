"""Leader elections, and moves of partitions to other brokers and directories.

Semel's brokers divide the partitions among themselves, so these requests change nothing. They are declared
because tools send them.

The same applies to the removal of brokers, and to Kafka's metadata quorum. Semel has no quorum: the ledger
holds the metadata.
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
    int64,
    request,
    response,
    string,
    struct,
    uint16,
    uuid,
)


@struct
class QuorumPartitionRequest:
    partition_index: int = int32()


@struct
class QuorumTopicRequest:
    topic_name: str = string()
    partitions: list[QuorumPartitionRequest] = array(QuorumPartitionRequest)


@request(ApiKey.DESCRIBE_QUORUM, versions="0-2", flexible=0)
class DescribeQuorumRequest(Request):
    """Partitions to describe; the versions differ only in the response."""

    topics: list[QuorumTopicRequest] = array(QuorumTopicRequest)


@struct
class QuorumReplica:
    replica_id: int = int32()
    replica_directory_id: bytes = uuid(versions="2+")
    log_end_offset: int = int64()
    last_fetch_timestamp: int = int64(versions="1+", default=-1)
    last_caught_up_timestamp: int = int64(versions="1+", default=-1)


@struct
class QuorumPartitionResponse:
    partition_index: int = int32()
    error_code: int = int16()
    error_message: str | None = string(versions="2+", nullable=True)
    leader_id: int = int32()
    leader_epoch: int = int32()
    high_watermark: int = int64()
    current_voters: list[QuorumReplica] = array(QuorumReplica)
    observers: list[QuorumReplica] = array(QuorumReplica)


@struct
class QuorumTopicResponse:
    topic_name: str = string()
    partitions: list[QuorumPartitionResponse] = array(QuorumPartitionResponse)


@struct
class QuorumListener:
    name: str = string()
    host: str = string()
    port: int = uint16()


@struct
class QuorumNode:
    node_id: int = int32()
    listeners: list[QuorumListener] = array(QuorumListener)


@response(ApiKey.DESCRIBE_QUORUM, versions="0-2", flexible=0)
class DescribeQuorumResponse(Response):
    """Leader, voters and observers; 1 adds fetch times, 2 error messages and addresses."""

    error_code: int = int16()
    error_message: str | None = string(versions="2+", nullable=True)
    topics: list[QuorumTopicResponse] = array(QuorumTopicResponse)
    nodes: list[QuorumNode] = array(QuorumNode, versions="2+")


@request(ApiKey.UNREGISTER_BROKER, versions="0-0", flexible=0)
class UnregisterBrokerRequest(Request):
    """A broker to remove from the cluster."""

    broker_id: int = int32()


@response(ApiKey.UNREGISTER_BROKER, versions="0-0", flexible=0)
class UnregisterBrokerResponse(Response):
    """Whether it was removed."""

    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable=True)


@struct
class AddRaftVoterListener:
    name: str = string()
    host: str = string()
    port: int = uint16()


@request(ApiKey.ADD_RAFT_VOTER, versions="0-1", flexible=0)
class AddRaftVoterRequest(Request):
    """A voter to add to the quorum; 1 chooses when the request is acknowledged."""

    cluster_id: str | None = string(nullable=True)
    timeout_ms: int = int32()
    voter_id: int = int32()
    voter_directory_id: bytes = uuid()
    listeners: list[AddRaftVoterListener] = array(AddRaftVoterListener)
    ack_when_committed: bool = boolean(versions="1+", default=True)


@response(ApiKey.ADD_RAFT_VOTER, versions="0-1", flexible=0)
class AddRaftVoterResponse(Response):
    """Whether it was added."""

    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable=True)


@request(ApiKey.REMOVE_RAFT_VOTER, versions="0-0", flexible=0)
class RemoveRaftVoterRequest(Request):
    """A voter to remove from the quorum."""

    cluster_id: str | None = string(nullable=True)
    voter_id: int = int32()
    voter_directory_id: bytes = uuid()


@response(ApiKey.REMOVE_RAFT_VOTER, versions="0-0", flexible=0)
class RemoveRaftVoterResponse(Response):
    """Whether it was removed."""

    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable=True)


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
