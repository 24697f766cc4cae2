"""Kafka's metadata quorum, and the removal of brokers from a cluster.

Semel has no quorum: the ledger holds the metadata. The requests are declared because tools send them.
"""

from semel.wire.api_key import ApiKey
from semel.wire.schema import (
    Request,
    Response,
    array,
    boolean,
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
