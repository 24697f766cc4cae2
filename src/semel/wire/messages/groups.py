"""Consumer groups: the classic protocol, the consumer protocol of KIP-848, and the administration of both.

In the classic protocol members join, the leader assigns partitions, all members sync, and heartbeats keep the
membership; subscriptions and assignments are bytes, defined by `consumer_protocol`. In the consumer protocol
one heartbeat request does all of this, and the coordinator assigns partitions.
"""

from semel.wire.api_key import ApiKey
from semel.wire.schema import (
    Request,
    Response,
    array,
    boolean,
    bytes_,
    int8,
    int16,
    int32,
    nested,
    request,
    response,
    string,
    struct,
    uuid,
)


@struct
class JoinGroupRequestProtocol:
    name: str = string()
    metadata: bytes = bytes_()


@request(ApiKey.JOIN_GROUP, versions="0-9", flexible=6)
class JoinGroupRequest(Request):
    """A member joins a group; 4 requires a second request with the given id, 5 adds static members."""

    group_id: str = string()
    session_timeout_ms: int = int32()
    rebalance_timeout_ms: int = int32(versions="1+", default=-1)
    member_id: str = string()
    group_instance_id: str | None = string(versions="5+", nullable=True, default=None)
    protocol_type: str = string()
    protocols: list[JoinGroupRequestProtocol] = array(JoinGroupRequestProtocol)
    reason: str | None = string(versions="8+", nullable=True, default=None)


@struct
class JoinGroupResponseMember:
    member_id: str = string()
    group_instance_id: str | None = string(versions="5+", nullable=True, default=None)
    metadata: bytes = bytes_()


@response(ApiKey.JOIN_GROUP, versions="0-9", flexible=6)
class JoinGroupResponse(Response):
    """The generation of the group; its leader also gets the members."""

    throttle_time_ms: int = int32(versions="2+")
    error_code: int = int16()
    generation_id: int = int32(default=-1)
    protocol_type: str | None = string(versions="7+", nullable=True, default=None)
    protocol_name: str | None = string(nullable="7+")
    leader: str = string()
    skip_assignment: bool = boolean(versions="9+")
    member_id: str = string()
    members: list[JoinGroupResponseMember] = array(JoinGroupResponseMember)


@struct
class SyncGroupRequestAssignment:
    member_id: str = string()
    assignment: bytes = bytes_()


@request(ApiKey.SYNC_GROUP, versions="0-5", flexible=4)
class SyncGroupRequest(Request):
    """The leader's assignments, or a member's request for its own; 3 adds static members, 5 the protocol."""

    group_id: str = string()
    generation_id: int = int32()
    member_id: str = string()
    group_instance_id: str | None = string(versions="3+", nullable=True, default=None)
    protocol_type: str | None = string(versions="5+", nullable=True, default=None)
    protocol_name: str | None = string(versions="5+", nullable=True, default=None)
    assignments: list[SyncGroupRequestAssignment] = array(SyncGroupRequestAssignment)


@response(ApiKey.SYNC_GROUP, versions="0-5", flexible=4)
class SyncGroupResponse(Response):
    """The assignment of the member."""

    throttle_time_ms: int = int32(versions="1+")
    error_code: int = int16()
    protocol_type: str | None = string(versions="5+", nullable=True, default=None)
    protocol_name: str | None = string(versions="5+", nullable=True, default=None)
    assignment: bytes = bytes_()


@request(ApiKey.HEARTBEAT, versions="0-4", flexible=4)
class HeartbeatRequest(Request):
    """A member is alive."""

    group_id: str = string()
    generation_id: int = int32()
    member_id: str = string()
    group_instance_id: str | None = string(versions="3+", nullable=True, default=None)


@response(ApiKey.HEARTBEAT, versions="0-4", flexible=4)
class HeartbeatResponse(Response):
    """Whether the group is unchanged for the member."""

    throttle_time_ms: int = int32(versions="1+")
    error_code: int = int16()


@struct
class MemberIdentity:
    member_id: str = string()
    group_instance_id: str | None = string(nullable=True, default=None)
    reason: str | None = string(versions="5+", nullable=True, default=None)


@request(ApiKey.LEAVE_GROUP, versions="0-5", flexible=4)
class LeaveGroupRequest(Request):
    """Members leave: one up to version 2, a list from 3 on."""

    group_id: str = string()
    member_id: str = string(versions="0-2")
    members: list[MemberIdentity] = array(MemberIdentity, versions="3+")


@struct
class MemberResponse:
    member_id: str = string()
    group_instance_id: str | None = string(nullable=True)
    error_code: int = int16()


@response(ApiKey.LEAVE_GROUP, versions="0-5", flexible=4)
class LeaveGroupResponse(Response):
    """Whether each member left."""

    throttle_time_ms: int = int32(versions="1+")
    error_code: int = int16()
    members: list[MemberResponse] = array(MemberResponse, versions="3+")


@struct
class TopicPartitions:
    topic_id: bytes = uuid()
    partitions: list[int] = array("int32")


@request(ApiKey.CONSUMER_GROUP_HEARTBEAT, versions="0-1", flexible=0)
class ConsumerGroupHeartbeatRequest(Request):
    """The heartbeat of a KIP-848 member, with its changes; 1 adds subscriptions by pattern."""

    group_id: str = string()
    member_id: str = string()
    member_epoch: int = int32()
    instance_id: str | None = string(nullable=True, default=None)
    rack_id: str | None = string(nullable=True, default=None)
    rebalance_timeout_ms: int = int32(default=-1)
    subscribed_topic_names: list[str] | None = array("string", nullable=True, default=None)
    subscribed_topic_regex: str | None = string(versions="1+", nullable=True, default=None)
    server_assignor: str | None = string(nullable=True, default=None)
    topic_partitions: list[TopicPartitions] | None = array(TopicPartitions, nullable=True)


@struct
class Assignment:
    topic_partitions: list[TopicPartitions] = array(TopicPartitions)


@response(ApiKey.CONSUMER_GROUP_HEARTBEAT, versions="0-1", flexible=0)
class ConsumerGroupHeartbeatResponse(Response):
    """The epoch of the member, and its partitions when they changed."""

    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable=True, default=None)
    member_id: str | None = string(nullable=True, default=None)
    member_epoch: int = int32()
    heartbeat_interval_ms: int = int32()
    assignment: Assignment | None = nested(Assignment, nullable=True, default=None)


@request(ApiKey.DESCRIBE_GROUPS, versions="0-6", flexible=5)
class DescribeGroupsRequest(Request):
    """Classic groups to describe; 3 adds authorized operations, 5 is flexible."""

    groups: list[str] = array("string")
    include_authorized_operations: bool = boolean(versions="3+")


@struct
class DescribedGroupMember:
    member_id: str = string()
    group_instance_id: str | None = string(versions="4+", nullable=True, default=None)
    client_id: str = string()
    client_host: str = string()
    member_metadata: bytes = bytes_()
    member_assignment: bytes = bytes_()


@struct
class DescribedGroup:
    error_code: int = int16()
    error_message: str | None = string(versions="6+", nullable=True, default=None)
    group_id: str = string()
    group_state: str = string()
    protocol_type: str = string()
    protocol_data: str = string()
    members: list[DescribedGroupMember] = array(DescribedGroupMember)
    authorized_operations: int = int32(versions="3+", default=-2147483648)


@response(ApiKey.DESCRIBE_GROUPS, versions="0-6", flexible=5)
class DescribeGroupsResponse(Response):
    """State, protocol and members of each group; 6 adds a message to the error."""

    throttle_time_ms: int = int32(versions="1+")
    groups: list[DescribedGroup] = array(DescribedGroup)


@request(ApiKey.LIST_GROUPS, versions="0-5", flexible=3)
class ListGroupsRequest(Request):
    """All groups; 4 filters by state, 5 by type."""

    states_filter: list[str] = array("string", versions="4+")
    types_filter: list[str] = array("string", versions="5+")


@struct
class ListedGroup:
    group_id: str = string()
    protocol_type: str = string()
    group_state: str = string(versions="4+")
    group_type: str = string(versions="5+")


@response(ApiKey.LIST_GROUPS, versions="0-5", flexible=3)
class ListGroupsResponse(Response):
    """The ids of the groups, with state from 4 on and type from 5 on."""

    throttle_time_ms: int = int32(versions="1+")
    error_code: int = int16()
    groups: list[ListedGroup] = array(ListedGroup)


@request(ApiKey.DELETE_GROUPS, versions="0-2", flexible=2)
class DeleteGroupsRequest(Request):
    """Groups without members to delete."""

    groups_names: list[str] = array("string")


@struct
class DeletableGroupResult:
    group_id: str = string()
    error_code: int = int16()


@response(ApiKey.DELETE_GROUPS, versions="0-2", flexible=2)
class DeleteGroupsResponse(Response):
    """Whether each group was deleted."""

    throttle_time_ms: int = int32()
    results: list[DeletableGroupResult] = array(DeletableGroupResult)


@request(ApiKey.CONSUMER_GROUP_DESCRIBE, versions="0-1", flexible=0)
class ConsumerGroupDescribeRequest(Request):
    """KIP-848 groups to describe."""

    group_ids: list[str] = array("string")
    include_authorized_operations: bool = boolean()


@struct
class ConsumerGroupDescribeTopicPartitions:
    topic_id: bytes = uuid()
    topic_name: str = string()
    partitions: list[int] = array("int32")


@struct
class ConsumerGroupDescribeAssignment:
    topic_partitions: list[ConsumerGroupDescribeTopicPartitions] = array(ConsumerGroupDescribeTopicPartitions)


@struct
class Member:
    member_id: str = string()
    instance_id: str | None = string(nullable=True, default=None)
    rack_id: str | None = string(nullable=True, default=None)
    member_epoch: int = int32()
    client_id: str = string()
    client_host: str = string()
    subscribed_topic_names: list[str] = array("string")
    subscribed_topic_regex: str | None = string(nullable=True, default=None)
    assignment: ConsumerGroupDescribeAssignment = nested(ConsumerGroupDescribeAssignment)
    target_assignment: ConsumerGroupDescribeAssignment = nested(ConsumerGroupDescribeAssignment)
    member_type: int = int8(versions="1+", default=-1)


@struct
class ConsumerGroupDescribeDescribedGroup:
    error_code: int = int16()
    error_message: str | None = string(nullable=True, default=None)
    group_id: str = string()
    group_state: str = string()
    group_epoch: int = int32()
    assignment_epoch: int = int32()
    assignor_name: str = string()
    members: list[Member] = array(Member)
    authorized_operations: int = int32(default=-2147483648)


@response(ApiKey.CONSUMER_GROUP_DESCRIBE, versions="0-1", flexible=0)
class ConsumerGroupDescribeResponse(Response):
    """Epochs, members and assignments of each group; 1 adds the type of a member."""

    throttle_time_ms: int = int32()
    groups: list[ConsumerGroupDescribeDescribedGroup] = array(ConsumerGroupDescribeDescribedGroup)
