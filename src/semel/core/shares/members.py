"""Membership of share groups (KIP-932): heartbeats, epochs, and the assignment of partitions to members.

A heartbeat joins (epoch 0), continues, or leaves (-1). The group epoch is bumped when a member joins, leaves
or changes its subscription, and when one of the topics changes; then the target assignment is computed at
once. A member with a wrong epoch is fenced and joins again. The member's previous epoch is accepted, because
then only an answer was lost.

The heartbeat that first sees a topic also adds the share-partitions of the group, in the same commit. So
every assigned partition has a share-partition, and no other process has to create it.

The simple assignor (KIP-932): give every partition members, and spread members evenly.

Members of a share group can have the same partition. If a topic has more subscribers than partitions, each
member gets one partition; otherwise each partition gets one member. Both are spread evenly. Members keep
their previous partitions as far as the balance allows.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING

from semel.core.facts import Put, SessionChanged
from semel.core.groups.commands import ConsumerAnswer
from semel.core.groups.layered import drop, put
from semel.core.groups.model import NO_ASSIGNMENT, NOTHING, Assignment, Owned, TopicShape
from semel.core.groups.session import GroupSession, begin, has_room_for_session
from semel.core.names import ID_CHARS_MAX
from semel.core.shares.group import ShareGroup, ShareMember
from semel.core.shares.partition import SharePartition
from semel.core.types import Command, Decision, ErrorCode, Fact, GroupKey, Key, ShareKey, TopicKey

if TYPE_CHECKING:
    from semel.core.state import BrokerState


def assign(
    wanted: Mapping[str, frozenset[str]], topics: Mapping[str, TopicShape], previous: Mapping[str, Assignment]
) -> dict[str, Assignment]:
    """Return the partitions of each member."""
    assigned: dict[str, set[Owned]] = {member_id: set() for member_id in wanted}
    for name, shape in topics.items():
        members = sorted(member_id for member_id, names in wanted.items() if name in names)
        if not members:
            continue
        if len(members) > shape.partitions:
            _spread_members(assigned, shape, members, previous)
        else:
            _spread_partitions(assigned, shape, members, previous)
    return {member_id: frozenset(each) for member_id, each in assigned.items()}


def _spread_members(
    assigned: dict[str, set[Owned]],
    shape: TopicShape,
    members: list[str],
    previous: Mapping[str, Assignment],
) -> None:
    """More members than partitions: give each member one; members per partition differ by one at most."""
    share, extra = divmod(len(members), shape.partitions)
    counts = [0] * shape.partitions
    waiting: list[str] = []
    for member_id in members:
        mine = _kept(previous, member_id, shape)
        fits = [index for index in mine if counts[index] < share]
        if not fits and extra > 0:
            fits = [index for index in mine if counts[index] == share]
            extra -= bool(fits)
        if fits:
            counts[fits[0]] += 1
            assigned[member_id].add((shape.topic_id, fits[0]))
        else:
            waiting.append(member_id)
    for member_id in waiting:
        index = min(range(shape.partitions), key=lambda each: (counts[each], each))
        counts[index] += 1
        assigned[member_id].add((shape.topic_id, index))


def _spread_partitions(
    assigned: dict[str, set[Owned]],
    shape: TopicShape,
    members: list[str],
    previous: Mapping[str, Assignment],
) -> None:
    """Enough partitions for all members: give each partition one; member loads differ by one at most."""
    share, extra = divmod(shape.partitions, len(members))
    free = dict.fromkeys(range(shape.partitions))
    room: dict[str, int] = {}
    for member_id in members:
        kept = [index for index in _kept(previous, member_id, shape) if index in free][: share + (extra > 0)]
        extra -= len(kept) > share
        room[member_id] = share - len(kept)
        for index in kept:
            del free[index]
            assigned[member_id].add((shape.topic_id, index))
    for member_id in members:
        for index in list(free)[: max(room[member_id], 0)]:
            del free[index]
            assigned[member_id].add((shape.topic_id, index))
    for member_id, index in zip((each for each in members if room[each] >= 0), list(free), strict=False):
        assigned[member_id].add((shape.topic_id, index))


def _kept(previous: Mapping[str, Assignment], member_id: str, shape: TopicShape) -> list[int]:
    mine = previous.get(member_id, NO_ASSIGNMENT)
    return sorted(
        index for topic_id, index in mine if topic_id == shape.topic_id and index < shape.partitions
    )


JOIN = 0
LEAVE = -1


class ShareHeartbeat(Command["ConsumerAnswer"]):
    """A member of a share group joins, heartbeats or leaves. The answer is ``ConsumerAnswer``."""

    group_id: str
    member_id: str
    epoch: int
    client_id: str = ""
    client_host: str = ""
    rack_id: str | None = None
    topic_names: tuple[str, ...] | None = None
    topics: Mapping[str, TopicShape | None] = NOTHING
    """The group's subscribed topics as the caller looked them up; None for topics that do not exist."""
    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 5_000
    members_max: int = 200
    member_bytes_max: int = 1_048_576
    group_bytes_max: int = 16_777_216
    sessions_max: int = 100_000

    def keys(self) -> Iterable[Key]:
        """The group."""
        return (GroupKey(self.group_id),)

    def more_keys(self, state: "BrokerState") -> Iterable[Key]:
        """The share-partitions to add, and their topics, which may have been deleted since."""
        group = state.groups[GroupKey(self.group_id)]
        shared = group.shared if isinstance(group, ShareGroup) else NOTHING
        keys: list[Key] = []
        for name, shape in self.topics.items():
            if shape is not None and shared.get(name) != shape:
                keys.append(TopicKey(name))
                keys += missing(self.group_id, shared.get(name), shape)
        return keys


def missing(group_id: str, known: TopicShape | None, shape: TopicShape) -> list[ShareKey]:
    """Return the share-partitions that a topic has and the group does not."""
    first = known.partitions if known is not None and known.topic_id == shape.topic_id else 0
    return [ShareKey(shape.topic_id, index, group_id) for index in range(first, shape.partitions)]


class ShareGroupTurn:
    """One command on a share group while it is decided. Replaces values and never changes them."""

    def __init__(
        self, group: ShareGroup, session: GroupSession | None, now: int, session_timeout_ms: int
    ) -> None:
        self._group_before = group
        self._session_before = session
        self.group = group
        self.session = begin(group, now, session_timeout_ms) if session is None else session
        self.now = now
        self.added: list[ShareKey] = []

    def decision(self, answer: object) -> Decision:
        """Return the decision."""
        return Decision(answer, self.facts())

    def facts(self) -> tuple[Fact, ...]:
        """Return what changed."""
        facts: list[Fact] = [Put(key, SharePartition(epoch=self.now)) for key in self.added]
        group = self.group
        if group != self._group_before:
            facts.append(Put.of(group))
        if self.session.is_idle:
            if self._session_before is not None:
                facts.append(SessionChanged(group.group_id, None))
        elif self.session is not self._session_before:
            facts.append(SessionChanged(group.group_id, self.session))
        return tuple(facts)

    def put_member(self, member: ShareMember) -> None:
        """Add a member, or replace it."""
        group = self.group
        self.session = self.session.counting(group.members.get(member.member_id), member)
        self.group = group.but(members=put(group.members, member.member_id, member))

    def remove_members(self, member_ids: Collection[str]) -> None:
        """Remove members, and assign their partitions to the others."""
        members = drop(self.group.members, member_ids)
        session = self.session.without(member_ids)
        for member_id in member_ids:
            session = session.counting(self.group.members.get(member_id), None)
        self.session = session
        self.group = self.group.but(
            members=members, idle_since_ms=self.group.idle_since_ms if members else self.now
        )
        self.assign(self.group.topics if members else NOTHING)

    def assign(self, topics: Mapping[str, TopicShape]) -> None:
        """Bump the group epoch and compute the target assignment."""
        group = self.group
        epoch = group.epoch + 1
        wanted = {each.member_id: frozenset(each.topic_names) for each in group.members.values()}
        self.group = group.but(
            epoch=epoch, target_epoch=epoch, topics=topics, target=assign(wanted, topics, group.target)
        )

    def pass_time(self) -> None:
        """Remove members whose session expired."""
        lost = {each for each, deadline in self.session.deadlines.items() if deadline <= self.now}
        if lost:
            self.remove_members(lost)
        self.session = self.session.settled()


def _refuse(error: ErrorCode, message: str) -> Decision:
    return Decision(ConsumerAnswer(error, message))


def decide_heartbeat(state: "BrokerState", command: ShareHeartbeat, now: int) -> Decision:
    """Let a member join, heartbeat or leave, and return its assignment."""
    problem = _problem(command)
    if problem:
        return _refuse(ErrorCode.INVALID_REQUEST, problem)
    known = state.groups[GroupKey(command.group_id)]
    if known is not None and not isinstance(known, ShareGroup):
        return _refuse(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {command.group_id} is not a share group.")
    if known is None and command.epoch != JOIN:
        return _refuse(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {command.group_id} not found.")
    session = state.sessions.get(command.group_id)
    turn = ShareGroupTurn(known or ShareGroup(command.group_id), session, now, command.session_timeout_ms)
    member = turn.group.members.get(command.member_id)
    if command.epoch == LEAVE:
        if member is None:
            return _unknown(command)
        turn.remove_members((command.member_id,))
        return turn.decision(ConsumerAnswer(ErrorCode.NONE, None, command.member_id, LEAVE))
    if not has_room_for_session(state.sessions, command.group_id, command.sessions_max):
        return _refuse(ErrorCode.COORDINATOR_NOT_AVAILABLE, "Too many groups have members.")
    return _unwelcome(turn, command, member) or _live(state, turn, command, member)


def _problem(command: ShareHeartbeat) -> str | None:
    """Return the message for a request that is invalid in any group state."""
    names = {"MemberId": command.member_id, "GroupId": command.group_id, "RackId": command.rack_id}
    for name, value in names.items():
        if value is not None and not value.strip():
            return f"{name} can't be empty."
        if value is not None and len(value) > ID_CHARS_MAX:
            return f"{name} is longer than {ID_CHARS_MAX} characters."
    if command.epoch < LEAVE:
        return "MemberEpoch is invalid."
    if command.epoch == JOIN and not command.topic_names:
        return "SubscribedTopicNames must be set in first request."
    return None


def _unknown(command: ShareHeartbeat) -> Decision:
    return _refuse(
        ErrorCode.UNKNOWN_MEMBER_ID,
        f"Member {command.member_id} is not a member of group {command.group_id}.",
    )


def _unwelcome(turn: ShareGroupTurn, command: ShareHeartbeat, member: ShareMember | None) -> Decision | None:
    """Refuse a member if the group has no room for it, or if its epoch is wrong."""
    if member is None:
        if command.epoch != JOIN:
            return _unknown(command)
        if len(turn.group.members) >= command.members_max:
            return _refuse(
                ErrorCode.GROUP_MAX_SIZE_REACHED,
                f"The share group has reached its maximum capacity of {command.members_max} members.",
            )
    elif command.epoch not in (JOIN, member.epoch, member.previous_epoch):
        return _refuse(
            ErrorCode.FENCED_MEMBER_EPOCH,
            f"The member has epoch {member.epoch} here, and sent {command.epoch}: it must rejoin.",
        )
    size = sum(map(len, command.topic_names or ()))
    if size > command.member_bytes_max:
        return _refuse(
            ErrorCode.INVALID_REQUEST,
            f"A member's topic names take {size} bytes; the limit is {command.member_bytes_max}.",
        )
    others = turn.session.metadata_bytes - (member.metadata_bytes if member else 0)
    if others + size > command.group_bytes_max:
        return _refuse(
            ErrorCode.GROUP_MAX_SIZE_REACHED,
            f"The topic names of a group's members are limited to {command.group_bytes_max} bytes.",
        )
    return None


def _live(
    state: "BrokerState", turn: ShareGroupTurn, command: ShareHeartbeat, before: ShareMember | None
) -> Decision:
    member = before or ShareMember(command.member_id)
    names = member.topic_names if command.topic_names is None else tuple(sorted(set(command.topic_names)))
    updated = member.but(
        rack_id=command.rack_id if command.rack_id is not None else member.rack_id,
        client_id=command.client_id,
        client_host=command.client_host,
        topic_names=names,
    )
    is_changed = before is None or names != before.topic_names
    if updated != before:
        turn.put_member(updated)
    topics = _topics(turn.group, command)
    _share(state, turn, topics)
    if is_changed or topics != turn.group.topics:
        turn.assign(topics)
    settled = updated
    target: Assignment = turn.group.target.get(updated.member_id, frozenset())
    if updated.epoch != turn.group.target_epoch or command.epoch == JOIN:
        previous = 0 if command.epoch == JOIN else updated.epoch
        settled = updated.but(epoch=turn.group.target_epoch, previous_epoch=previous, assigned=target)
        if settled != updated:
            turn.put_member(settled)
    turn.session = turn.session.heard(updated.member_id, turn.now + command.session_timeout_ms)
    is_told = (
        command.epoch == JOIN
        or command.topic_names is not None
        or before is None
        or settled.assigned != before.assigned
        or command.epoch != settled.epoch
    )
    answer = ConsumerAnswer(
        ErrorCode.NONE,
        None,
        settled.member_id,
        settled.epoch,
        command.heartbeat_interval_ms,
        settled.assigned if is_told else None,
    )
    return turn.decision(answer)


def _topics(group: ShareGroup, command: ShareHeartbeat) -> dict[str, TopicShape]:
    """Return the subscribed topics that exist, as far as the caller has looked them up."""
    names = sorted(frozenset().union(*(each.topic_names for each in group.members.values())))
    found: dict[str, TopicShape] = {}
    for name in names:
        shape = command.topics[name] if name in command.topics else group.topics.get(name)
        if shape is not None:
            found[name] = shape
    return found


def _share(state: "BrokerState", turn: ShareGroupTurn, topics: dict[str, TopicShape]) -> None:
    """Add missing share-partitions. Topics that were deleted since are dropped, so they are not assigned."""
    shared = dict(turn.group.shared)
    for name, shape in list(topics.items()):
        if shared.get(name) == shape:
            continue
        topic = state.topics.get(TopicKey(name))
        if topic is None or topic.topic_id != shape.topic_id or topic.partitions < shape.partitions:
            # Deleted since the caller looked it up. The next heartbeat sees that.
            del topics[name]
            continue
        keys = missing(turn.group.group_id, shared.get(name), shape)
        turn.added += [key for key in keys if state.shares[key] is None]
        shared[name] = shape
    if shared != turn.group.shared:
        turn.group = turn.group.but(shared=shared)
