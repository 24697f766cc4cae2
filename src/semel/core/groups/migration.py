"""Online migration of a group between the classic protocol and that of KIP-848, with its members.

*Upgrade*: the first heartbeat of a consumer member makes a classic group a consumer group. Its members stay,
with their assignments, and go on with JoinGroup, SyncGroup and Heartbeat (``classic_in_consumer``) until they
are replaced one by one. Epochs continue from the generation, so that a number which a client has seen is
never reused. A member owns the partitions that it was assigned and those that it listed as owned when it last
joined: in the middle of a rebalance, a cooperative member has not revoked those. Parked requests of the
classic group are answered so that their members join again and find the consumer group.

*Downgrade*: when the last member of the consumer protocol leaves, the group becomes classic again and begins
a rebalance. Until the next generation, each member keeps its own epoch: it still owns its partitions, may
commit, and hears of the rebalance. (Kafka answers ILLEGAL_GENERATION, and the member loses what it could not
commit.)

Committed offsets belong to the group id, so both directions keep them. A group is one value in the ledger, so
after a crash it is either unchanged or migrated.
"""

from collections.abc import Mapping
from typing import Final, TypeAlias

from semel.core.data import Data
from semel.core.groups import model
from semel.core.groups.classic_rebalance import select_protocol
from semel.core.groups.commands import Joined, Synced
from semel.core.groups.session import GroupSession
from semel.core.types import Answer, ErrorCode, Ticket
from semel.wire.consumer_protocol import (
    ENTRIES_MAX,
    Subscription,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    entries_in,
    subscription_version,
)
from semel.wire.errors import ProtocolError

Shapes = Mapping[str, model.TopicShape | None]
"""Topics as the caller looked them up; None for those that do not exist."""


TOPICS_MAX: Final = 10_000
"""Maximum number of topics to which a classic member of a consumer group may subscribe: the broker looks each
of them up."""


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
        """Whether a consumer group with this number of members may become a classic one."""
        return self.downgrade and 0 < members <= self.classic_members_max


NO_MIGRATION: Final = Migration(upgrade=False, downgrade=False)


def why_not_consumer(group: model.ClassicGroup, migration: Migration) -> str | None:
    """Return why a classic group with members cannot become a consumer group, or None if it can."""
    if not migration.upgrade:
        return "the online upgrade is disabled (group.consumer.migration.policy)"
    if group.protocol_type != model.CONSUMER_PROTOCOL:
        return "its members are not consumers"
    if len(group.members) > migration.consumer_members_max:
        return f"it has more than {migration.consumer_members_max} members (group.consumer.max.size)"
    try:
        _members(group)
    except ProtocolError as problem:
        return f"the metadata of its members cannot be used: {problem}"
    return None


def known_topics(group: model.ClassicGroup) -> frozenset[str]:
    """Return the topics that must be looked up before ``to_consumer``; none if the metadata is malformed."""
    names: set[str] = set()
    try:
        for _, subscription, partitions in _members(group):
            names.update(subscription.topics, subscription.owned, partitions)
    except ProtocolError:
        return frozenset()
    return frozenset(names)


def to_consumer(group: model.ClassicGroup, topics: Shapes) -> model.ConsumerGroup:
    """Return a classic group as a consumer group, with its members and their assignments.

    Its epoch is ahead of the epoch of its target, so that the next step computes a new target: the classic
    group may have been in the middle of a rebalance, or its leader about to notice a new partition.
    """
    members: dict[str, model.ConsumerMember] = {}
    names: set[str] = set()
    read = _members(group)
    owned = _owned(read, topics)
    for member, subscription, _ in read:
        assigned = owned[member.member_id]
        epoch = group.generation_of(member.member_id)
        names.update(subscription.topics)
        members[member.member_id] = model.ConsumerMember(
            member.member_id,
            member.instance_id,
            subscription.rack_id,
            member.client_id,
            member.client_host,
            member.rebalance_timeout_ms,
            tuple(sorted(set(subscription.topics))),
            epoch=epoch,
            previous_epoch=epoch,
            assigned=assigned,
            since={epoch: assigned} if assigned else {},
            classic=model.ClassicPart(member.session_timeout_ms, member.protocols),
        )
    return model.ConsumerGroup(
        group.group_id,
        epoch=group.generation + 1,
        target_epoch=group.generation,
        members=members,
        target={member.member_id: member.assigned for member in members.values()},
        topics={name: shape for name in sorted(names) if (shape := topics.get(name)) is not None},
    )


def _owned(read: "list[_Read]", topics: Shapes) -> dict[str, model.Assignment]:
    """Return what each member owns. A partition has one owner, even if a client's assignor gave it two."""
    taken: set[tuple[bytes, int]] = set()
    owned: dict[str, model.Assignment] = {}
    for member, _, partitions in read:
        owned[member.member_id] = owned_in(partitions, topics) - taken
        taken |= owned[member.member_id]
    for member, subscription, _ in read:
        # A member listed these when it joined. A partition that was assigned to another since is not its own.
        still = owned_in(subscription.owned, topics) - taken
        owned[member.member_id] |= still
        taken |= still
    return owned


def called_back(group: model.ConsumerGroup, session: GroupSession | None) -> list[tuple[Ticket, Answer]]:
    """Return the answers to the requests that were parked while the group was classic.

    A JoinGroup is answered with the epoch that the member already has, a SyncGroup with
    REBALANCE_IN_PROGRESS: not every client expects that error from JoinGroup.
    """
    if session is None:
        return []
    joins: list[tuple[Ticket, Answer]] = []
    for member_id, ticket in session.joins.items():
        member = group.members[member_id]
        assert member.classic is not None
        name = member.classic.protocols[0][0]
        joins.append((ticket, Joined(ErrorCode.NONE, member_id, member.epoch, model.CONSUMER_PROTOCOL, name)))
    again = Synced(ErrorCode.REBALANCE_IN_PROGRESS)
    return [*joins, *((ticket, again) for ticket in session.syncs.values())]


def to_classic(group: model.ConsumerGroup) -> model.ClassicGroup:
    """Return a consumer group as a classic one. All its members use the classic protocol."""
    members: dict[str, model.ClassicMember] = {}
    for member in group.members.values():
        assert member.classic is not None
        members[member.member_id] = model.ClassicMember(
            member.member_id,
            member.instance_id,
            member.client_id,
            member.client_host,
            member.classic.session_timeout_ms,
            member.rebalance_timeout_ms,
            member.classic.protocols,
            # What it owns, not its target: if the group is upgraded again before the member rejoins, the
            # upgrade reads this.
            assignment_bytes(group, member.classic, member.assigned | member.revoking),
            member.epoch,
        )
    classic = model.ClassicGroup(
        group.group_id,
        model.ClassicState.STABLE,
        group.epoch,
        model.CONSUMER_PROTOCOL,
        leader=next(iter(members)),
        members=members,
    )
    return classic.but(protocol_name=select_protocol(classic))


def assignment_bytes(
    group: model.ConsumerGroup, classic: model.ClassicPart, owned: model.Assignment
) -> bytes:
    """Encode an assignment for a member of the classic protocol, in the version of its subscription."""
    names = {shape.topic_id: name for name, shape in group.topics.items()}
    partitions: dict[str, list[int]] = {}
    for topic_id, partition in owned:
        if topic_id in names:
            partitions.setdefault(names[topic_id], []).append(partition)
    return encode_assignment(partitions, subscription_version(classic.protocols[0][1]))


def owned_in(partitions: Mapping[str, list[int]], topics: Shapes) -> model.Assignment:
    """Return those of these partitions that exist."""
    found: set[tuple[bytes, int]] = set()
    for name, numbers in partitions.items():
        shape = topics.get(name)
        if shape is not None:
            found.update((shape.topic_id, each) for each in numbers if 0 <= each < shape.partitions)
    return frozenset(found)


def subscription_of(protocols: tuple[tuple[str, bytes], ...]) -> Subscription:
    """Read what a member subscribes to. Raises ProtocolError if it is malformed or has too many topics."""
    # Every protocol of a member carries the same subscription.
    subscription = decode_subscription(protocols[0][1] if protocols else b"")
    if len(subscription.topics) > TOPICS_MAX:
        raise ProtocolError(f"a subscription to more than {TOPICS_MAX} topics")
    return subscription


def _members(group: model.ClassicGroup) -> "list[_Read]":
    """Read the metadata of all members. Raises ProtocolError if it is malformed or has too many entries."""
    # Most members of a group send the same bytes.
    read: dict[bytes, Subscription] = {}
    found: list[_Read] = []
    entries = 0
    for member in group.members.values():
        metadata = member.protocols[0][1] if member.protocols else b""
        if metadata not in read:
            read[metadata] = subscription_of(member.protocols)
            entries += read[metadata].entries
        assigned = decode_assignment(member.assignment)
        entries += entries_in(assigned)
        if entries > ENTRIES_MAX:
            raise ProtocolError(f"more than {ENTRIES_MAX} topics and partitions in all subscriptions")
        found.append((member, read[metadata], assigned))
    return found


_Read: TypeAlias = tuple[model.ClassicMember, Subscription, dict[str, list[int]]]
"""A member, what it subscribes to, and what it was assigned."""
