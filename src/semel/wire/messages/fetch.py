"""Fetch, and the two APIs that look up offsets: ListOffsets and OffsetForLeaderEpoch.

A Fetch response carries the bytes of chunks without a copy, and the list of aborted transactions that a
read-committed consumer skips. Version 7 added sessions, in which a client names only the partitions that
changed; version 13 replaced topic names with topic ids.
"""

from semel.wire.api_key import ApiKey
from semel.wire.messages.produce import LeaderIdAndEpoch, NodeEndpoint
from semel.wire.schema import (
    Buffer,
    Request,
    Response,
    array,
    int8,
    int16,
    int32,
    int64,
    nested,
    records,
    request,
    response,
    string,
    struct,
    uuid,
)


@struct
class ReplicaState:
    replica_id: int = int32(default=-1)
    replica_epoch: int = int64(default=-1)


@struct
class FetchPartition:
    partition: int = int32()
    current_leader_epoch: int = int32(versions="9+", default=-1)
    fetch_offset: int = int64()
    last_fetched_epoch: int = int32(versions="12+", default=-1)
    log_start_offset: int = int64(versions="5+", default=-1)
    partition_max_bytes: int = int32()
    replica_directory_id: bytes = uuid(versions="17+", tag=0)
    high_watermark: int = int64(versions="18+", tag=1, default=9223372036854775807)


@struct
class FetchTopic:
    topic: str = string(versions="4-12")
    topic_id: bytes = uuid(versions="13+")
    partitions: list[FetchPartition] = array(FetchPartition)


@struct
class ForgottenTopic:
    topic: str = string(versions="7-12")
    topic_id: bytes = uuid(versions="13+")
    partitions: list[int] = array("int32")


@request(ApiKey.FETCH, versions="4-18", flexible=12)
class FetchRequest(Request):
    """Partitions and offsets to read; 7 adds sessions, 9 leader epochs, 12 is flexible, 13 has topic ids."""

    cluster_id: str | None = string(versions="12+", nullable=True, tag=0, default=None)
    replica_id: int = int32(versions="4-14", default=-1)
    replica_state: ReplicaState = nested(ReplicaState, versions="15+", tag=1)
    max_wait_ms: int = int32()
    min_bytes: int = int32()
    max_bytes: int = int32(default=2147483647)
    isolation_level: int = int8()
    session_id: int = int32(versions="7+")
    session_epoch: int = int32(versions="7+", default=-1)
    topics: list[FetchTopic] = array(FetchTopic)
    forgotten_topics_data: list[ForgottenTopic] = array(ForgottenTopic, versions="7+")
    rack_id: str = string(versions="11+")


@struct
class EpochEndOffset:
    epoch: int = int32(default=-1)
    end_offset: int = int64(default=-1)


@struct
class SnapshotId:
    end_offset: int = int64(default=-1)
    epoch: int = int32(default=-1)


@struct
class AbortedTransaction:
    producer_id: int = int64()
    first_offset: int = int64()


@struct
class PartitionData:
    partition_index: int = int32()
    error_code: int = int16()
    high_watermark: int = int64()
    last_stable_offset: int = int64(default=-1)
    log_start_offset: int = int64(versions="5+", default=-1)
    diverging_epoch: EpochEndOffset = nested(EpochEndOffset, versions="12+", tag=0)
    current_leader: LeaderIdAndEpoch = nested(LeaderIdAndEpoch, versions="12+", tag=1)
    snapshot_id: SnapshotId = nested(SnapshotId, versions="12+", tag=2)
    aborted_transactions: list[AbortedTransaction] | None = array(AbortedTransaction, nullable=True)
    preferred_read_replica: int = int32(versions="11+", default=-1)
    records: Buffer | None = records()


@struct
class FetchableTopicResponse:
    topic: str = string(versions="4-12")
    topic_id: bytes = uuid(versions="13+")
    partitions: list[PartitionData] = array(PartitionData)


@response(ApiKey.FETCH, versions="4-18", flexible=12)
class FetchResponse(Response):
    """Record batches by partition, and aborted transactions; 7 adds sessions, 13 topic ids, 16 endpoints."""

    throttle_time_ms: int = int32()
    error_code: int = int16(versions="7+")
    session_id: int = int32(versions="7+")
    responses: list[FetchableTopicResponse] = array(FetchableTopicResponse)
    node_endpoints: list[NodeEndpoint] = array(NodeEndpoint, versions="16+", tag=0)


@struct
class ListOffsetsPartition:
    partition_index: int = int32()
    current_leader_epoch: int = int32(versions="4+", default=-1)
    timestamp: int = int64()


@struct
class ListOffsetsTopic:
    name: str = string()
    partitions: list[ListOffsetsPartition] = array(ListOffsetsPartition)


@request(ApiKey.LIST_OFFSETS, versions="1-11", flexible=6)
class ListOffsetsRequest(Request):
    """Offsets by timestamp, or first and last; 2 adds the isolation level, 4 leader epochs, 10 a timeout."""

    replica_id: int = int32()
    isolation_level: int = int8(versions="2+")
    topics: list[ListOffsetsTopic] = array(ListOffsetsTopic)
    timeout_ms: int = int32(versions="10+")


@struct
class ListOffsetsPartitionResponse:
    partition_index: int = int32()
    error_code: int = int16()
    timestamp: int = int64(default=-1)
    offset: int = int64(default=-1)
    leader_epoch: int = int32(versions="4+", default=-1)


@struct
class ListOffsetsTopicResponse:
    name: str = string()
    partitions: list[ListOffsetsPartitionResponse] = array(ListOffsetsPartitionResponse)


@response(ApiKey.LIST_OFFSETS, versions="1-11", flexible=6)
class ListOffsetsResponse(Response):
    """The requested offsets, with the leader epoch from 4 on."""

    throttle_time_ms: int = int32(versions="2+")
    topics: list[ListOffsetsTopicResponse] = array(ListOffsetsTopicResponse)


@struct
class OffsetForLeaderPartition:
    partition: int = int32()
    current_leader_epoch: int = int32(default=-1)
    leader_epoch: int = int32()


@struct
class OffsetForLeaderTopic:
    topic: str = string()
    partitions: list[OffsetForLeaderPartition] = array(OffsetForLeaderPartition)


@request(ApiKey.OFFSET_FOR_LEADER_EPOCH, versions="2-4", flexible=4)
class OffsetForLeaderEpochRequest(Request):
    """Where a leader epoch ended; 3 adds the replica id, 4 is flexible."""

    replica_id: int = int32(versions="3+", default=-2)
    topics: list[OffsetForLeaderTopic] = array(OffsetForLeaderTopic)


@struct
class OffsetForLeaderEpochEpochEndOffset:
    error_code: int = int16()
    partition: int = int32()
    leader_epoch: int = int32(default=-1)
    end_offset: int = int64(default=-1)


@struct
class OffsetForLeaderTopicResult:
    topic: str = string()
    partitions: list[OffsetForLeaderEpochEpochEndOffset] = array(OffsetForLeaderEpochEpochEndOffset)


@response(ApiKey.OFFSET_FOR_LEADER_EPOCH, versions="2-4", flexible=4)
class OffsetForLeaderEpochResponse(Response):
    """The end offset of each requested epoch."""

    throttle_time_ms: int = int32()
    topics: list[OffsetForLeaderTopicResult] = array(OffsetForLeaderTopicResult)
