"""The volatile part of a group: deadlines and parked requests.

Nothing in here is written to the ledger. After a restart a group has no session, and the first command that
touches it starts a new one (``begin``), with every deadline counted from then: live members notice nothing,
and dead ones are removed one timeout later than otherwise.

``next_deadline_ms`` is never later than the earliest deadline. It may be earlier: to keep a heartbeat cheap,
it moves one deadline and does not search for the new earliest one. When ``next_deadline_ms`` has passed, the
next tick does. Counts over the members are kept here for the same reason: a join must not visit all of them.
"""

from collections import Counter
from collections.abc import Collection, Mapping
from typing import Final, TypeAlias

from semel.core.data import Data
from semel.core.groups import model
from semel.core.groups.layered import drop, put
from semel.core.shares.group import ShareGroup, ShareMember
from semel.core.types import Ticket

Member: TypeAlias = model.ClassicMember | model.ConsumerMember | ShareMember

NEVER: Final = 2**63 - 1
NEW_MEMBER_TIMEOUT_MS: Final = 300_000
"""A member that waits for its first answer cannot heartbeat; it is given five minutes, as in Kafka."""


class GroupSession(Data):
    """The volatile part of a group. Each of the mappings is by member id."""

    deadlines: Mapping[str, int] = model.NOTHING
    """When a member is removed unless it is heard from. A member with a parked request has none, unless it is
    a newcomer."""
    next_deadline_ms: int = NEVER

    # Classic groups.
    joins: Mapping[str, Ticket] = model.NOTHING
    """JoinGroup requests that are parked until the rebalance completes."""
    syncs: Mapping[str, Ticket] = model.NOTHING
    """SyncGroup requests that are parked until the leader's arrives."""
    promised: Mapping[str, int] = model.NOTHING
    """Member ids that were handed out (KIP-394) and not yet used, with their expiry."""
    newcomers: Mapping[str, bool] = model.NOTHING
    """Members that wait for their first answer."""
    rebalance_deadline_ms: int = NEVER
    initial_delay_ms: int = 0
    initial_remaining_ms: int = -1
    """How much longer the initial delay may be extended; -1 when there is none."""
    grew: bool = False
    """Whether another member joined since the initial delay started or was extended."""
    sync_deadline_ms: int = NEVER
    unsynced: Mapping[str, bool] = model.NOTHING
    """Members that have not sent SyncGroup in this generation."""
    protocols: Mapping[str, int] = model.NOTHING
    """How many members support each classic protocol. Those that use the consumer protocol do not count."""

    metadata_bytes: int = 0
    """The size of all members' metadata."""

    # Consumer groups.
    rebalance_deadlines: Mapping[str, int] = model.NOTHING
    """When a member is removed unless it has taken its next step: revoked partitions, or, if it uses the
    classic protocol, sent JoinGroup or SyncGroup."""
    connections: Mapping[str, int] = model.NOTHING
    """The connection of each member's last heartbeat."""
    subscribed: frozenset[str] | None = None
    """The topics that members subscribe to by name; None if they must be collected from the members."""
    assigned_ms: int = -1
    """When the target assignment was last computed."""
    regexes_checked_ms: int = -1
    """When the group's regular expressions were last matched against all topics."""

    def heard(self, member_id: str, deadline_ms: int) -> "GroupSession":
        """Set the deadline of a member that was heard from."""
        return self.but(
            deadlines=put(self.deadlines, member_id, deadline_ms),
            next_deadline_ms=min(self.next_deadline_ms, deadline_ms),
        )

    def settled(self) -> "GroupSession":
        """Return the session with the exact next deadline."""
        earliest = min(
            self.rebalance_deadline_ms,
            self.sync_deadline_ms,
            min(self.deadlines.values(), default=NEVER),
            min(self.promised.values(), default=NEVER),
            min(self.rebalance_deadlines.values(), default=NEVER),
        )
        return self if earliest == self.next_deadline_ms else self.but(next_deadline_ms=earliest)

    def without(self, member_ids: Collection[str]) -> "GroupSession":
        """Remove everything about these members."""
        return self.but(
            deadlines=drop(self.deadlines, member_ids),
            joins=drop(self.joins, member_ids),
            syncs=drop(self.syncs, member_ids),
            promised=drop(self.promised, member_ids),
            newcomers=drop(self.newcomers, member_ids),
            unsynced=drop(self.unsynced, member_ids),
            rebalance_deadlines=drop(self.rebalance_deadlines, member_ids),
            connections=drop(self.connections, member_ids),
        )

    def counting(self, before: Member | None, after: Member | None) -> "GroupSession":
        """Update the counts after a member joined, changed or left."""
        protocols = self.protocols
        for member, step in ((before, -1), (after, 1)):
            for name in _protocols(member):
                protocols = put(protocols, name, protocols.get(name, 0) + step)
        size = (after.metadata_bytes if after else 0) - (before.metadata_bytes if before else 0)
        return self.but(protocols=protocols, metadata_bytes=self.metadata_bytes + size)

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing to remember, so that the group may be evicted."""
        return not (self.deadlines or self.joins or self.syncs or self.promised)


def _protocols(member: Member | None) -> set[str]:
    """Return the names of the classic protocols that a member supports."""
    spoken = member.classic if isinstance(member, model.ConsumerMember) else member
    return (
        {name for name, _ in spoken.protocols}
        if isinstance(spoken, model.ClassicMember | model.ClassicPart)
        else set()
    )


def has_room_for_session(sessions: Mapping[str, GroupSession], group_id: str, sessions_max: int) -> bool:
    """Whether this group may be active: it is already, or the limit is not reached."""
    return group_id in sessions or len(sessions) < sessions_max


def begin(group: model.Group | None, now: int, consumer_session_timeout_ms: int) -> GroupSession:
    """Start the session of a group that was just loaded: all its members get their full timeout."""
    if group is None or not group.members:
        return GroupSession()
    if isinstance(group, ShareGroup):
        return GroupSession(
            deadlines=dict.fromkeys(group.members, now + consumer_session_timeout_ms),
            metadata_bytes=sum(member.metadata_bytes for member in group.members.values()),
        ).settled()
    if isinstance(group, model.ConsumerGroup):
        return GroupSession(
            deadlines={
                member.member_id: now
                + (member.classic.session_timeout_ms if member.classic else consumer_session_timeout_ms)
                for member in group.members.values()
            },
            rebalance_deadlines={
                member.member_id: now + member.rebalance_timeout_ms
                for member in group.members.values()
                if member.state is model.MemberState.UNREVOKED
            },
            protocols=_count_protocols(group),
            metadata_bytes=sum(member.metadata_bytes for member in group.members.values()),
        ).settled()
    return _begin_classic(group, now)


def _count_protocols(group: model.ClassicGroup | model.ConsumerGroup) -> Counter[str]:
    return Counter(name for member in group.members.values() for name in _protocols(member))


def _begin_classic(group: model.ClassicGroup, now: int) -> GroupSession:
    session = GroupSession(
        deadlines={member.member_id: now + member.session_timeout_ms for member in group.members.values()},
        protocols=_count_protocols(group),
        metadata_bytes=sum(member.metadata_bytes for member in group.members.values()),
    )
    rebalance_timeout_ms = max(member.rebalance_timeout_ms for member in group.members.values())
    if group.state is model.ClassicState.PREPARING:
        session = session.but(rebalance_deadline_ms=now + rebalance_timeout_ms)
    elif group.state is model.ClassicState.COMPLETING:
        session = session.but(
            sync_deadline_ms=now + rebalance_timeout_ms, unsynced=dict.fromkeys(group.members, True)
        )
    return session.settled()
