"""Share groups (KIP-932): membership, and the delivery and acknowledgement of single records.

Version 0 of these APIs was the early access of Kafka 4.0, and no longer exists. Version 2 of
ShareFetch and ShareAcknowledge can renew acquisition locks (KIP-1222), and version 2 of ShareFetch can limit
the number of records strictly (KIP-1206).

Administrators describe, alter and delete the offsets of share groups.
"""

from semel.wire.api_key import ApiKey
from semel.wire.messages.groups import Assignment
from semel.wire.messages.produce import LeaderIdAndEpoch, NodeEndpoint
from semel.wire.schema import (
    Buffer,
    Request,
    Response,
    array,
    boolean,
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
class DescribeShareGroupOffsetsTopic:
    topic_name: str = string()
    partitions: list[int] = array("int32")


@struct
class DescribeShareGroupOffsetsGroup:
    group_id: str = string()
    topics: list[DescribeShareGroupOffsetsTopic] | None = array(DescribeShareGroupOffsetsTopic, nullable=True)


@request(ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS, versions="0-1", flexible=0)
class DescribeShareGroupOffsetsRequest(Request):
    """Share groups and topics to describe; null for all topics of a group."""

    groups: list[DescribeShareGroupOffsetsGroup] = array(DescribeShareGroupOffsetsGroup)


@struct
class DescribedShareGroupOffsetsPartition:
    partition_index: int = int32()
    start_offset: int = int64()
    leader_epoch: int = int32()
    lag: int = int64(versions="1+", default=-1)
    error_code: int = int16()
    error_message: str | None = string(nullable=True, default=None)


@struct
class DescribedShareGroupOffsetsTopic:
    topic_name: str = string()
    topic_id: bytes = uuid()
    partitions: list[DescribedShareGroupOffsetsPartition] = array(DescribedShareGroupOffsetsPartition)


@struct
class DescribedShareGroupOffsetsGroup:
    group_id: str = string()
    topics: list[DescribedShareGroupOffsetsTopic] = array(DescribedShareGroupOffsetsTopic)
    error_code: int = int16()
    error_message: str | None = string(nullable=True, default=None)


@response(ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS, versions="0-1", flexible=0)
class DescribeShareGroupOffsetsResponse(Response):
    """The start offset of each share-partition; 1 adds its lag (KIP-1226)."""

    throttle_time_ms: int = int32()
    groups: list[DescribedShareGroupOffsetsGroup] = array(DescribedShareGroupOffsetsGroup)


@struct
class AlterShareGroupOffsetsPartition:
    partition_index: int = int32()
    start_offset: int = int64()


@struct
class AlterShareGroupOffsetsTopic:
    topic_name: str = string()
    partitions: list[AlterShareGroupOffsetsPartition] = array(AlterShareGroupOffsetsPartition)


@request(ApiKey.ALTER_SHARE_GROUP_OFFSETS, versions="0", flexible=0)
class AlterShareGroupOffsetsRequest(Request):
    """Set the start offsets of a share group without members."""

    group_id: str = string()
    topics: list[AlterShareGroupOffsetsTopic] = array(AlterShareGroupOffsetsTopic)


@struct
class AlteredShareGroupOffsetsPartition:
    partition_index: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable=True, default=None)


@struct
class AlteredShareGroupOffsetsTopic:
    topic_name: str = string()
    topic_id: bytes = uuid()
    partitions: list[AlteredShareGroupOffsetsPartition] = array(AlteredShareGroupOffsetsPartition)


@response(ApiKey.ALTER_SHARE_GROUP_OFFSETS, versions="0", flexible=0)
class AlterShareGroupOffsetsResponse(Response):
    """Whether each start offset was set."""

    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable=True, default=None)
    responses: list[AlteredShareGroupOffsetsTopic] = array(AlteredShareGroupOffsetsTopic)


@struct
class DeleteShareGroupOffsetsTopic:
    topic_name: str = string()


@request(ApiKey.DELETE_SHARE_GROUP_OFFSETS, versions="0", flexible=0)
class DeleteShareGroupOffsetsRequest(Request):
    """Topics to delete the offsets of, in a share group without members."""

    group_id: str = string()
    topics: list[DeleteShareGroupOffsetsTopic] = array(DeleteShareGroupOffsetsTopic)


@struct
class DeletedShareGroupOffsetsTopic:
    topic_name: str = string()
    topic_id: bytes = uuid()
    error_code: int = int16()
    error_message: str | None = string(nullable=True, default=None)


@response(ApiKey.DELETE_SHARE_GROUP_OFFSETS, versions="0", flexible=0)
class DeleteShareGroupOffsetsResponse(Response):
    """Whether the offsets of each topic were deleted."""

    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable=True, default=None)
    responses: list[DeletedShareGroupOffsetsTopic] = array(DeletedShareGroupOffsetsTopic)


@request(ApiKey.SHARE_GROUP_HEARTBEAT, versions="1", flexible=0)
class ShareGroupHeartbeatRequest(Request):
    """Join a share group (epoch 0), stay a member, or leave (-1)."""

    group_id: str = string()
    member_id: str = string()
    member_epoch: int = int32()
    rack_id: str | None = string(nullable=True, default=None)
    subscribed_topic_names: list[str] | None = array("string", nullable=True, default=None)


@response(ApiKey.SHARE_GROUP_HEARTBEAT, versions="1", flexible=0)
class ShareGroupHeartbeatResponse(Response):
    """The epoch of the member, and its partitions when they changed."""

    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable=True, default=None)
    member_id: str | None = string(nullable=True, default=None)
    member_epoch: int = int32()
    heartbeat_interval_ms: int = int32()
    assignment: Assignment | None = nested(Assignment, nullable=True, default=None)


@request(ApiKey.SHARE_GROUP_DESCRIBE, versions="1", flexible=0)
class ShareGroupDescribeRequest(Request):
    """Share groups to describe."""

    group_ids: list[str] = array("string")
    include_authorized_operations: bool = boolean()


@struct
class DescribedShareGroupTopicPartitions:
    topic_id: bytes = uuid()
    topic_name: str = string()
    partitions: list[int] = array("int32")


@struct
class DescribedShareGroupAssignment:
    topic_partitions: list[DescribedShareGroupTopicPartitions] = array(DescribedShareGroupTopicPartitions)


@struct
class DescribedShareGroupMember:
    member_id: str = string()
    rack_id: str | None = string(nullable=True, default=None)
    member_epoch: int = int32()
    client_id: str = string()
    client_host: str = string()
    subscribed_topic_names: list[str] = array("string")
    assignment: DescribedShareGroupAssignment = nested(DescribedShareGroupAssignment)


@struct
class DescribedShareGroup:
    error_code: int = int16()
    error_message: str | None = string(nullable=True, default=None)
    group_id: str = string()
    group_state: str = string()
    group_epoch: int = int32()
    assignment_epoch: int = int32()
    assignor_name: str = string()
    members: list[DescribedShareGroupMember] = array(DescribedShareGroupMember)
    authorized_operations: int = int32(default=-2147483648)


@response(ApiKey.SHARE_GROUP_DESCRIBE, versions="1", flexible=0)
class ShareGroupDescribeResponse(Response):
    """Epochs, members and assignments of each group."""

    throttle_time_ms: int = int32()
    groups: list[DescribedShareGroup] = array(DescribedShareGroup)


@struct
class AcknowledgementBatch:
    first_offset: int = int64()
    last_offset: int = int64()
    acknowledge_types: list[int] = array("int8")


@struct
class ShareFetchPartition:
    partition_index: int = int32()
    acknowledgement_batches: list[AcknowledgementBatch] = array(AcknowledgementBatch)


@struct
class ShareFetchTopic:
    topic_id: bytes = uuid()
    partitions: list[ShareFetchPartition] = array(ShareFetchPartition)


@struct
class ForgottenShareTopic:
    topic_id: bytes = uuid()
    partitions: list[int] = array("int32")


@request(ApiKey.SHARE_FETCH, versions="1-2", flexible=0)
class ShareFetchRequest(Request):
    """Acquire records of the session's partitions, and acknowledge earlier ones."""

    group_id: str | None = string(nullable=True, default=None)
    member_id: str | None = string(nullable=True)
    share_session_epoch: int = int32()
    max_wait_ms: int = int32()
    min_bytes: int = int32()
    max_bytes: int = int32(default=2147483647)
    max_records: int = int32()
    batch_size: int = int32()
    share_acquire_mode: int = int8(versions="2+")
    is_renew_ack: bool = boolean(versions="2+")
    topics: list[ShareFetchTopic] = array(ShareFetchTopic)
    forgotten_topics_data: list[ForgottenShareTopic] = array(ForgottenShareTopic)


@struct
class AcquiredRecords:
    first_offset: int = int64()
    last_offset: int = int64()
    delivery_count: int = int16()


@struct
class SharePartitionData:
    partition_index: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable=True, default=None)
    acknowledge_error_code: int = int16()
    acknowledge_error_message: str | None = string(nullable=True, default=None)
    current_leader: LeaderIdAndEpoch = nested(LeaderIdAndEpoch)
    records: Buffer = records(nullable=False)
    acquired_records: list[AcquiredRecords] = array(AcquiredRecords)


@struct
class ShareFetchTopicResponse:
    topic_id: bytes = uuid()
    partitions: list[SharePartitionData] = array(SharePartitionData)


@response(ApiKey.SHARE_FETCH, versions="1-2", flexible=0)
class ShareFetchResponse(Response):
    """Batches, and the records in them that the member has acquired."""

    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable=True, default=None)
    acquisition_lock_timeout_ms: int = int32()
    responses: list[ShareFetchTopicResponse] = array(ShareFetchTopicResponse)
    node_endpoints: list[NodeEndpoint] = array(NodeEndpoint)


@struct
class ShareAcknowledgePartition:
    partition_index: int = int32()
    acknowledgement_batches: list[AcknowledgementBatch] = array(AcknowledgementBatch)


@struct
class ShareAcknowledgeTopic:
    topic_id: bytes = uuid()
    partitions: list[ShareAcknowledgePartition] = array(ShareAcknowledgePartition)


@request(ApiKey.SHARE_ACKNOWLEDGE, versions="1-2", flexible=0)
class ShareAcknowledgeRequest(Request):
    """Acknowledge acquired records without fetching more."""

    group_id: str | None = string(nullable=True, default=None)
    member_id: str | None = string(nullable=True)
    share_session_epoch: int = int32()
    is_renew_ack: bool = boolean(versions="2+")
    topics: list[ShareAcknowledgeTopic] = array(ShareAcknowledgeTopic)


@struct
class ShareAcknowledgeAnswer:
    partition_index: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable=True, default=None)
    current_leader: LeaderIdAndEpoch = nested(LeaderIdAndEpoch)


@struct
class ShareAcknowledgeTopicResponse:
    topic_id: bytes = uuid()
    partitions: list[ShareAcknowledgeAnswer] = array(ShareAcknowledgeAnswer)


@response(ApiKey.SHARE_ACKNOWLEDGE, versions="1-2", flexible=0)
class ShareAcknowledgeResponse(Response):
    """Whether the acknowledgements of each partition were accepted."""

    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable=True, default=None)
    acquisition_lock_timeout_ms: int = int32(versions="2+")
    responses: list[ShareAcknowledgeTopicResponse] = array(ShareAcknowledgeTopicResponse)
    node_endpoints: list[NodeEndpoint] = array(NodeEndpoint)
