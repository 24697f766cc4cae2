"""Administration of share groups (KIP-932), and functions for groups of any kind."""

from collections.abc import Mapping

from semel.client.admin.group_offsets import CommittedOffset
from semel.client.admin.groups import GroupAdmin, GroupInfo, MemberInfo
from semel.client.consume.offsets import Partition
from semel.client.errors import ErrorCode, KafkaError, check
from semel.client.net.cluster import Client
from semel.wire.messages.share_offsets import (
    AlterShareGroupOffsetsPartition,
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsResponse,
    AlterShareGroupOffsetsTopic,
    DescribeShareGroupOffsetsGroup,
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsResponse,
)
from semel.wire.messages.shares import ShareGroupDescribeRequest, ShareGroupDescribeResponse

NO_OFFSET = -1
SHARE = "share"


def describe_share_group(client: Client, group_id: str) -> GroupInfo:
    """Return a share group and its members. KafkaError if it does not exist."""
    response: ShareGroupDescribeResponse = client.ask_coordinator(
        group_id,
        ShareGroupDescribeRequest(group_ids=[group_id]),
        lambda answer: [answer.groups[0].error_code],
    )
    (group,) = response.groups
    check(group.error_code, f"share group {group_id!r} cannot be described", group.error_message)
    members = tuple(
        MemberInfo(
            each.member_id,
            None,
            each.client_id,
            each.client_host,
            tuple(
                (topic.topic_name, partition)
                for topic in each.assignment.topic_partitions
                for partition in topic.partitions
            ),
        )
        for each in group.members
    )
    return GroupInfo(group_id, "share", group.group_state, group.assignor_name, members)


def share_offsets(client: Client, group_id: str) -> dict[Partition, int]:
    """Return, for each partition, the first offset that a share group has not settled."""
    request = DescribeShareGroupOffsetsRequest(
        groups=[DescribeShareGroupOffsetsGroup(group_id=group_id, topics=None)]
    )
    response: DescribeShareGroupOffsetsResponse = client.ask_coordinator(
        group_id, request, lambda answer: [answer.groups[0].error_code]
    )
    (group,) = response.groups
    if group.error_code == ErrorCode.GROUP_ID_NOT_FOUND:
        return {}
    check(group.error_code, f"the offsets of share group {group_id!r} could not be read", group.error_message)
    return {
        (topic.topic_name, each.partition_index): each.start_offset
        for topic in group.topics
        for each in topic.partitions
        if not each.error_code and each.start_offset != NO_OFFSET
    }


def describe_group(client: Client, group_id: str, kind: str = "") -> GroupInfo:
    """Describe a group of any kind, looked up if `kind` is empty. KafkaError if it does not exist."""
    if kind == SHARE:
        return describe_share_group(client, group_id)
    try:
        return GroupAdmin(client).describe(group_id)
    except KafkaError as error:
        listed = {each.group_id: each.kind for each in GroupAdmin(client).all()}
        if error.code is not ErrorCode.GROUP_ID_NOT_FOUND or listed.get(group_id) != SHARE:
            raise
        return describe_share_group(client, group_id)


def offsets_of(client: Client, group_id: str, kind: str) -> dict[Partition, CommittedOffset]:
    """Return the committed offsets of a group; for a share group, its first offsets that are not settled."""
    if kind == SHARE:
        return {key: CommittedOffset(offset) for key, offset in share_offsets(client, group_id).items()}
    return GroupAdmin(client).offsets(group_id)


def set_share_offsets(client: Client, group_id: str, offsets: Mapping[Partition, int]) -> None:
    """Set the start offsets of a share group, which must have no members."""
    topics: dict[str, AlterShareGroupOffsetsTopic] = {}
    for (name, partition), offset in offsets.items():
        topic = topics.setdefault(name, AlterShareGroupOffsetsTopic(topic_name=name))
        topic.partitions.append(
            AlterShareGroupOffsetsPartition(partition_index=partition, start_offset=offset)
        )
    response: AlterShareGroupOffsetsResponse = client.ask_coordinator(
        group_id,
        AlterShareGroupOffsetsRequest(group_id=group_id, topics=list(topics.values())),
        lambda answer: [answer.error_code],
    )
    check(
        response.error_code, f"the offsets of share group {group_id!r} were not moved", response.error_message
    )
    for answer in response.responses:
        for each in answer.partitions:
            where = f"{answer.topic_name}/{each.partition_index}"
            check(each.error_code, f"the offset of {group_id!r} on {where} was not moved", each.error_message)
