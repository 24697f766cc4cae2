"""Online migration of a group between the classic protocol and that of KIP-848, with its members.

*Up*: the first heartbeat of a consumer member makes a classic group a consumer group. Its members stay, with
their assignments, and go on with JoinGroup, SyncGroup and Heartbeat (``classic_in_consumer``) until they are
replaced one by one. Epochs continue from the generation, so that a number which a client has seen is never
reused. Requests that wait for the rebalance of the classic group get REBALANCE_IN_PROGRESS; their members
join again and find the consumer group.

*Down*: when the last member of the consumer protocol has gone, the others are a classic group again, which
begins a rebalance. Until its next generation, each member goes on with its own epoch: it still owns its
partitions, may commit, and hears of the rebalance. (Kafka answers ILLEGAL_GENERATION, and the member loses
what it could not commit.)

Committed offsets belong to the group's name, so both ways keep them. A group is one value in the ledger, so a
crash leaves it before or after the change.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from semel.core.data import Data
from semel.core.groups.classic_rebalance import select_protocol
from semel.core.groups.commands import Joined, Synced
from semel.core.groups.model import (
    CONSUMER_PROTOCOL,
    NO_ASSIGNMENT,
    Assignment,
    ClassicGroup,
    ClassicMember,
    ClassicPart,
    ClassicState,
    ConsumerGroup,
    ConsumerMember,
    TopicShape,
)
from semel.core.groups.session import Session
from semel.core.types import ErrorCode, Ticket
from semel.wire.consumer_protocol import (
    Subscription,
    decode_assignment,
    decode_subscription,
    encode_assignment,
)
from semel.wire.errors import ProtocolError

Shapes = Mapping[str, TopicShape | None]
"""Topics as the caller looked them up; None for those that do not exist."""


class Migration(Data):
    """Which changes of a group's protocol are allowed (``group.consumer.migration.policy``)."""

    upgrade: bool = True
    downgrade: bool = True
    classic_members_max: int = 10_000
    consumer_members_max: int = 10_000

    @classmethod
    def by_policy(cls, policy: str, classic_members_max: int, consumer_members_max: int) -> "Migration":
        """Return what a policy allows: bidirectional, upgrade, downgrade or disabled."""
        up, down = policy in ("bidirectional", "upgrade"), policy in ("bidirectional", "downgrade")
        return cls(up, down, classic_members_max, consumer_members_max)

    def may_downgrade(self, members: int) -> bool:
        """Whether a consumer group with so many members may become a classic one."""
        return self.downgrade and 0 < members <= self.classic_members_max


NO_MIGRATION: Final = Migration(upgrade=False, downgrade=False)


def why_not_consumer(group: ClassicGroup, migration: Migration) -> str | None:
    """Return why a classic group with members cannot become a consumer group, or None if it can."""
    if not migration.upgrade:
        return "the online upgrade is disabled (group.consumer.migration.policy)"
    if group.protocol_type != CONSUMER_PROTOCOL:
        return "its members are not consumers"
    if len(group.members) > migration.consumer_members_max:
        return f"it has more than {migration.consumer_members_max} members (group.consumer.max.size)"
    try:
        for _ in _members(group):
            pass
    except ProtocolError as problem:
        return f"the metadata of its members is malformed: {problem}"
    return None


def known_topics(group: ClassicGroup) -> frozenset[str]:
    """Return the topics that must be looked up before ``to_consumer``; none if the metadata is malformed."""
    names: set[str] = set()
    try:
        for _, subscription, partitions in _members(group):
            names.update(subscription.topics, partitions)
    except ProtocolError:
        return frozenset()
    return frozenset(names)


def to_consumer(group: ClassicGroup, topics: Shapes) -> ConsumerGroup:
    """Return a classic group as a consumer group, with its members and their assignments.

    Its epoch is ahead of its target, so that the next step computes one: the classic group may have been in
    the middle of a rebalance, or its leader about to notice a new partition.
    """
    members: dict[str, ConsumerMember] = {}
    taken: set[tuple[bytes, int]] = set()
    names: set[str] = set()
    for member, subscription, partitions in _members(group):
        # A partition has one owner in a consumer group. Assignors of clients may see it differently.
        assigned = owned_in(partitions, topics) - taken
        taken |= assigned
        names.update(subscription.topics)
        members[member.member_id] = ConsumerMember(
            member.member_id,
            member.instance_id,
            subscription.rack_id,
            member.client_id,
            member.client_host,
            member.rebalance_timeout_ms,
            tuple(sorted(set(subscription.topics))),
            epoch=group.generation,
            previous_epoch=group.generation,
            assigned=assigned,
            since={group.generation: assigned} if assigned else {},
            classic=ClassicPart(member.session_timeout_ms, member.protocols),
        )
    return ConsumerGroup(
        group.group_id,
        epoch=group.generation + 1,
        target_epoch=group.generation,
        members=members,
        target={member.member_id: member.assigned for member in members.values()},
        topics={name: shape for name in sorted(names) if (shape := topics.get(name)) is not None},
    )


def called_back(session: Session | None) -> list[tuple[Ticket, Any]]:
    """Return the answers to the requests that wait for the rebalance of a classic group."""
    if session is None:
        return []
    again = ErrorCode.REBALANCE_IN_PROGRESS
    joins = [(ticket, Joined(again, member_id)) for member_id, ticket in session.joins.items()]
    return [*joins, *((ticket, Synced(again)) for ticket in session.syncs.values())]


def to_classic(group: ConsumerGroup) -> ClassicGroup:
    """Return a consumer group as a classic one. All its members speak the classic protocol."""
    members: dict[str, ClassicMember] = {}
    for member in group.members.values():
        assert member.classic is not None
        members[member.member_id] = ClassicMember(
            member.member_id,
            member.instance_id,
            member.client_id,
            member.client_host,
            member.classic.session_timeout_ms,
            member.rebalance_timeout_ms,
            member.classic.protocols,
            assignment_bytes(group, member.classic, group.target.get(member.member_id, NO_ASSIGNMENT)),
            member.epoch,
        )
    classic = ClassicGroup(
        group.group_id,
        ClassicState.STABLE,
        group.epoch,
        CONSUMER_PROTOCOL,
        leader=next(iter(members)),
        members=members,
    )
    return classic.but(protocol_name=select_protocol(classic))


def assignment_bytes(group: ConsumerGroup, classic: ClassicPart, owned: Assignment) -> bytes:
    """Encode an assignment for a member of the classic protocol, in the version that it speaks itself."""
    names = {shape.topic_id: name for name, shape in group.topics.items()}
    partitions: dict[str, list[int]] = {}
    for topic_id, partition in owned:
        if topic_id in names:
            partitions.setdefault(names[topic_id], []).append(partition)
    return encode_assignment(partitions, decode_subscription(classic.protocols[0][1]).version)


def owned_in(partitions: Mapping[str, list[int]], topics: Shapes) -> Assignment:
    """Return those of these partitions that exist."""
    found: set[tuple[bytes, int]] = set()
    for name, numbers in partitions.items():
        shape = topics.get(name)
        if shape is not None:
            found.update((shape.topic_id, each) for each in numbers if 0 <= each < shape.partitions)
    return frozenset(found)


def _members(group: ClassicGroup) -> Iterator[tuple[ClassicMember, Subscription, dict[str, list[int]]]]:
    """The members, what they subscribe to and what they were assigned. ProtocolError if malformed."""
    # Most members of a group send the same bytes.
    read: dict[bytes, Subscription] = {}
    for member in group.members.values():
        # Every protocol of a member carries the same subscription.
        metadata = member.metadata(group.protocol_name) or (
            member.protocols[0][1] if member.protocols else b""
        )
        if metadata not in read:
            read[metadata] = decode_subscription(metadata)
        yield member, read[metadata], decode_assignment(member.assignment)
