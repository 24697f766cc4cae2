"""Administration of groups: list, describe and delete them, and set their offsets.

`consumer` groups (KIP-848) and `classic` ones look the same here; only the requests differ:
ConsumerGroupDescribe and DescribeGroups. Share groups (KIP-932) have functions of their own; `describe_group`
and `offsets_of` serve groups of any kind.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from semel.client.admin.group_offsets import NO_OFFSET, CommittedOffset, commit_offsets, fetch_offsets
from semel.client.consume.offsets import Partition
from semel.client.errors import ErrorCode, KafkaError, check
from semel.client.net.cluster import Client, ask_every_broker, by_topic
from semel.wire import messages as wire
from semel.wire.consumer_protocol import decode_assignment

CONSUMER_PROTOCOL = "consumer"
SHARE = "share"


@dataclass(frozen=True, slots=True)
class GroupListing:
    """An entry in the list of groups. State and kind are empty if an old broker does not report them."""

    group_id: str
    kind: str
    state: str
    protocol_type: str


@dataclass(frozen=True, slots=True)
class MemberInfo:
    """A member and its partitions."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    partitions: tuple[Partition, ...]


@dataclass(frozen=True, slots=True)
class GroupInfo:
    """A group and its members."""

    group_id: str
    kind: str
    state: str
    assignor: str
    members: tuple[MemberInfo, ...]


class GroupAdmin:
    """Groups of a cluster. Reached as `Admin(client).groups`."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def all(self) -> list[GroupListing]:
        """List all groups, ordered by id. All brokers are queried, since each lists only its own."""
        found: dict[str, GroupListing] = {}
        for response in ask_every_broker(self._client, wire.ListGroupsRequest(), "groups"):
            for group in response.groups:
                found[group.group_id] = GroupListing(
                    group.group_id, group.group_type.lower(), group.group_state, group.protocol_type
                )
        return [found[group_id] for group_id in sorted(found)]

    def describe(self, group_id: str) -> GroupInfo:
        """Return a group and its members. KafkaError if it does not exist."""
        if self._client.serves(wire.ConsumerGroupDescribeRequest.api_key):
            request = wire.ConsumerGroupDescribeRequest(group_ids=[group_id])
            response: wire.ConsumerGroupDescribeResponse = self._client.ask_coordinator(
                group_id, request, lambda answer: [answer.groups[0].error_code]
            )
            (group,) = response.groups
            if group.error_code != ErrorCode.GROUP_ID_NOT_FOUND:
                check(group.error_code, f"group {group_id!r} cannot be described", group.error_message)
                members = tuple(
                    MemberInfo(
                        member.member_id,
                        member.instance_id,
                        member.client_id,
                        member.client_host,
                        _partitions(member.assignment),
                    )
                    for member in group.members
                )
                return GroupInfo(group_id, "consumer", group.group_state, group.assignor_name, members)
        return self._describe_classic(group_id)

    def _describe_classic(self, group_id: str) -> GroupInfo:
        response: wire.DescribeGroupsResponse = self._client.ask_coordinator(
            group_id,
            wire.DescribeGroupsRequest(groups=[group_id]),
            lambda answer: [answer.groups[0].error_code],
        )
        (group,) = response.groups
        code = ErrorCode.GROUP_ID_NOT_FOUND if group.group_state == "Dead" else group.error_code
        what = (
            f"there is no group {group_id!r}"
            if code == ErrorCode.GROUP_ID_NOT_FOUND
            else f"group {group_id!r}"
        )
        check(code, what, None if code == ErrorCode.GROUP_ID_NOT_FOUND else group.error_message)
        return GroupInfo(group_id, "classic", group.group_state, group.protocol_data, _classic_members(group))

    def delete(self, *group_ids: str) -> None:
        """Delete groups and their offsets. They must have no members."""
        for group_id in group_ids:
            response: wire.DeleteGroupsResponse = self._client.ask_coordinator(
                group_id,
                wire.DeleteGroupsRequest(groups_names=[group_id]),
                lambda answer: [result.error_code for result in answer.results],
            )
            for result in response.results:
                check(result.error_code, f"group {result.group_id!r} was not deleted")

    def offsets(
        self, group_id: str, partitions: Iterable[Partition] | None = None
    ) -> dict[Partition, CommittedOffset]:
        """Return the committed offsets of a group, for these partitions or for all."""
        return fetch_offsets(self._client, group_id, partitions, require_stable=False)

    def set_offsets(self, group_id: str, offsets: Mapping[Partition, int]) -> None:
        """Set committed offsets of a group, which must have no members."""
        commit_offsets(self._client, group_id, offsets)

    def delete_offsets(self, group_id: str, partitions: Iterable[Partition]) -> None:
        """Delete the committed offsets of a group on these partitions."""
        topics = [
            wire.OffsetDeleteRequestTopic(
                name=name,
                partitions=[wire.OffsetDeleteRequestPartition(partition_index=number) for number in numbers],
            )
            for name, numbers in by_topic(partitions).items()
        ]
        response: wire.OffsetDeleteResponse = self._client.ask_coordinator(
            group_id,
            wire.OffsetDeleteRequest(group_id=group_id, topics=topics),
        )
        check(response.error_code, f"the offsets of group {group_id!r} were not deleted")
        for answer in response.topics:
            for result in answer.partitions:
                check(
                    result.error_code,
                    f"the offset of {group_id!r} on {answer.name}/{result.partition_index} was not deleted",
                )


def _partitions(
    assignment: wire.ConsumerGroupDescribeAssignment | wire.DescribedShareGroupAssignment,
) -> tuple[Partition, ...]:
    return tuple(
        (topic.topic_name, partition)
        for topic in assignment.topic_partitions
        for partition in topic.partitions
    )


def _classic_members(group: wire.DescribedGroup) -> tuple[MemberInfo, ...]:
    # Only consumers use this format; other protocol types (Connect, for one) have their own.
    is_consumer = group.protocol_type == CONSUMER_PROTOCOL
    return tuple(
        MemberInfo(
            member.member_id,
            member.group_instance_id,
            member.client_id,
            member.client_host,
            tuple(
                (topic, partition)
                for topic, partitions in decode_assignment(member.member_assignment).items()
                for partition in partitions
            )
            if is_consumer
            else (),
        )
        for member in group.members
    )


def describe_share_group(client: Client, group_id: str) -> GroupInfo:
    """Return a share group and its members. KafkaError if it does not exist."""
    response: wire.ShareGroupDescribeResponse = client.ask_coordinator(
        group_id,
        wire.ShareGroupDescribeRequest(group_ids=[group_id]),
        lambda answer: [answer.groups[0].error_code],
    )
    (group,) = response.groups
    check(group.error_code, f"share group {group_id!r} cannot be described", group.error_message)
    members = tuple(
        MemberInfo(
            member.member_id, None, member.client_id, member.client_host, _partitions(member.assignment)
        )
        for member in group.members
    )
    return GroupInfo(group_id, SHARE, group.group_state, group.assignor_name, members)


def share_offsets(client: Client, group_id: str) -> dict[Partition, int]:
    """Return, for each partition, the first offset that a share group has not settled."""
    request = wire.DescribeShareGroupOffsetsRequest(
        groups=[wire.DescribeShareGroupOffsetsGroup(group_id=group_id, topics=None)]
    )
    response: wire.DescribeShareGroupOffsetsResponse = client.ask_coordinator(
        group_id, request, lambda answer: [answer.groups[0].error_code]
    )
    (group,) = response.groups
    if group.error_code == ErrorCode.GROUP_ID_NOT_FOUND:
        return {}
    check(group.error_code, f"the offsets of share group {group_id!r} could not be read", group.error_message)
    return {
        (topic.topic_name, partition.partition_index): partition.start_offset
        for topic in group.topics
        for partition in topic.partitions
        if not partition.error_code and partition.start_offset != NO_OFFSET
    }


def describe_group(client: Client, group_id: str, kind: str = "") -> GroupInfo:
    """Describe a group of any kind, looked up if `kind` is empty. KafkaError if it does not exist."""
    if kind == SHARE:
        return describe_share_group(client, group_id)
    try:
        return GroupAdmin(client).describe(group_id)
    except KafkaError as error:
        listed = {listing.group_id: listing.kind for listing in GroupAdmin(client).all()}
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
    topics: dict[str, wire.AlterShareGroupOffsetsTopic] = {}
    for (name, partition), offset in offsets.items():
        topic = topics.setdefault(name, wire.AlterShareGroupOffsetsTopic(topic_name=name))
        topic.partitions.append(
            wire.AlterShareGroupOffsetsPartition(partition_index=partition, start_offset=offset)
        )
    response: wire.AlterShareGroupOffsetsResponse = client.ask_coordinator(
        group_id,
        wire.AlterShareGroupOffsetsRequest(group_id=group_id, topics=list(topics.values())),
    )
    check(
        response.error_code, f"the offsets of share group {group_id!r} were not moved", response.error_message
    )
    for answer in response.responses:
        for result in answer.partitions:
            where = f"{answer.topic_name}/{result.partition_index}"
            what = f"the offset of {group_id!r} on {where} was not moved"
            check(result.error_code, what, result.error_message)
