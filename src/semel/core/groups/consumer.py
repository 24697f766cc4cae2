"""Consumer groups (KIP-848): the broker computes the assignment, and heartbeats carry it.

The *group epoch* is bumped when a member joins, leaves or changes its subscription, and when one of the
topics changes. The next heartbeat computes the *target assignment* for that epoch. Each member then moves
towards its part of the target with its own heartbeats (``reconcile``); its *member epoch* says how far it has
come.

A member with a wrong epoch is fenced: it drops its partitions and joins again with epoch 0. One mismatch is
accepted: the previous epoch together with no more than the assigned partitions, because then only an answer
was lost. Epoch 0 from a known member is a rejoin: the member owns nothing and starts again.

Static members: leaving with epoch -2 keeps the place (and the partitions) until the session expires; another
member id may take it over with epoch 0. Until the place is released, that is UNRELEASED_INSTANCE_ID.

An empty classic group becomes a consumer group when a consumer member joins; there is no online migration.
"""

from collections.abc import Collection
from typing import TYPE_CHECKING

from semel.core.facts import GroupChanged, SessionChanged
from semel.core.groups.assignors import ASSIGNORS
from semel.core.groups.commands import (
    REGEX_REFRESH_MS,
    ConsumerAnswer,
    ConsumerHeartbeat,
    ReadSubscriptions,
    Subscriptions,
)
from semel.core.groups.layered import drop, put
from semel.core.groups.model import (
    NO_ASSIGNMENT,
    NOTHING,
    ClassicGroup,
    ConsumerGroup,
    ConsumerMember,
    MemberState,
)
from semel.core.groups.reconcile import reconcile
from semel.core.groups.session import NEVER, Session, begin, has_room_for_session
from semel.core.groups.targets import refresh, wanted_names, wanted_regexes
from semel.core.names import ID_CHARS_MAX
from semel.core.share_group import ShareGroup
from semel.core.types import Decision, ErrorCode, Fact, GroupKey

if TYPE_CHECKING:
    from semel.core.state import BrokerState

JOIN = 0
LEAVE = -1
LEAVE_FOR_A_MOMENT = -2


class ConsumerTurn:
    """One command on a consumer group while it is decided. Replaces values and never changes them."""

    def __init__(
        self, group: ConsumerGroup, session: Session | None, now: int, session_timeout_ms: int
    ) -> None:
        self._group_before = group
        self._session_before = session
        self.group = group
        self.session = begin(group, now, session_timeout_ms) if session is None else session
        self.now = now

    def decision(self, answer: object) -> Decision:
        """Return the decision."""
        return Decision(answer, self.facts())

    def facts(self) -> tuple[Fact, ...]:
        """Return what changed."""
        facts: list[Fact] = []
        if self.group is not self._group_before and self.group != self._group_before:
            facts.append(GroupChanged(self.group))
        if self.session.is_idle:
            if self._session_before is not None:
                facts.append(SessionChanged(self.group.group_id, None))
        elif self.session is not self._session_before:
            facts.append(SessionChanged(self.group.group_id, self.session))
        return tuple(facts)

    def remove_members(self, member_ids: Collection[str]) -> None:
        """Remove members. Their partitions become free, and the next heartbeat sees a new epoch."""
        group = self.group
        members = drop(group.members, member_ids)
        self.group = group.but(
            epoch=group.epoch + 1,
            members=members,
            target=drop(group.target, member_ids),
            topics=group.topics if members else NOTHING,
            regex_matches=group.regex_matches if members else NOTHING,
            idle_since_ms=group.idle_since_ms if members else self.now,
        )
        session = self.session.without(member_ids).but(subscribed=None)
        for member_id in member_ids:
            session = session.counting(group.members.get(member_id), None)
        self.session = session

    def pass_time(self) -> None:
        """Remove members whose session expired, or that did not revoke partitions in time."""
        session = self.session
        lost = {each for each, deadline in session.deadlines.items() if deadline <= self.now}
        lost.update(each for each, deadline in session.revocations.items() if deadline <= self.now)
        if lost:
            self.remove_members(lost)
        self.session = self.session.settled()


def _refuse(error: ErrorCode, message: str) -> Decision:
    return Decision(ConsumerAnswer(error, message))


def decide_read_subscriptions(state: "BrokerState", command: ReadSubscriptions, now: int) -> Decision:
    """Return all subscriptions of a group's members."""
    group = state.groups[GroupKey(command.group_id)]
    if not isinstance(group, ConsumerGroup):
        return Decision(Subscriptions())
    session = state.sessions.get(command.group_id)
    is_due = session is None or now >= session.regexes_checked_ms + REGEX_REFRESH_MS
    facts: tuple[Fact, ...] = ()
    if session is not None and session.subscribed is None:
        session = session.but(subscribed=wanted_names(group))
        facts = (SessionChanged(command.group_id, session),)
    named = wanted_names(group) if session is None or session.subscribed is None else session.subscribed
    names = named.union(*group.regex_matches.values())
    return Decision(Subscriptions(names, wanted_regexes(group) if is_due else frozenset()), facts)


def decide_consumer_heartbeat(state: "BrokerState", command: ConsumerHeartbeat, now: int) -> Decision:
    """Let a member join, heartbeat or leave, and return its assignment."""
    problem = _problem(command)
    if problem:
        return _refuse(ErrorCode.INVALID_REQUEST, problem)
    if command.assignor is not None and command.assignor not in ASSIGNORS:
        supported = ", ".join(ASSIGNORS)
        return _refuse(
            ErrorCode.UNSUPPORTED_ASSIGNOR,
            f"ServerAssignor {command.assignor} is not supported. Supported assignors: {supported}.",
        )
    known = state.groups[GroupKey(command.group_id)]
    session = state.sessions.get(command.group_id)
    if not isinstance(known, ConsumerGroup):
        if command.epoch != JOIN or isinstance(known, ShareGroup) or (known is not None and known.members):
            what = "does not exist" if known is None else "is not a consumer group"
            return _refuse(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {command.group_id} {what}.")
        known, session = _as_consumer(command.group_id, known), None
    turn = ConsumerTurn(known, session, now, command.session_timeout_ms)
    if command.epoch < JOIN:
        return _leave(turn, command)
    if not has_room_for_session(state.sessions, command.group_id, command.sessions_max):
        return _refuse(ErrorCode.COORDINATOR_NOT_AVAILABLE, "Too many groups have members.")
    return _live(turn, command)


def _as_consumer(group_id: str, group: ClassicGroup | None) -> ConsumerGroup:
    if group is None:
        return ConsumerGroup(group_id)
    # Epochs continue from the generation, so that a number which a client has seen is never reused.
    return ConsumerGroup(group_id, epoch=group.generation, target_epoch=group.generation)


def _problem(command: ConsumerHeartbeat) -> str | None:
    """Return the message for a request that is invalid in any group state."""
    empty = {
        "MemberId": command.member_id,
        "GroupId": command.group_id,
        "InstanceId": command.instance_id,
        "RackId": command.rack_id,
    }
    for name, value in empty.items():
        if value is not None and not value.strip():
            return f"{name} can't be empty."
        if value is not None and len(value) > ID_CHARS_MAX:
            return f"{name} is longer than {ID_CHARS_MAX} characters."
    if command.epoch < LEAVE_FOR_A_MOMENT:
        return "MemberEpoch is invalid."
    if command.epoch == LEAVE_FOR_A_MOMENT and command.instance_id is None:
        return "InstanceId can't be null."
    if command.epoch != JOIN:
        return None
    if command.rebalance_timeout_ms == -1:
        return "RebalanceTimeoutMs must be provided in first request."
    if command.owned is None or command.owned:
        return "TopicPartitions must be empty when (re-)joining."
    if command.topic_names is None and command.topic_regex is None:
        return "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining."
    return None


def _leave(turn: ConsumerTurn, command: ConsumerHeartbeat) -> Decision:
    error = _check_identity(turn.group, command)
    if error is not ErrorCode.NONE:
        return _refuse(error, f"Member {command.member_id} cannot leave.")
    member = turn.group.members[command.member_id]
    if command.epoch == LEAVE_FOR_A_MOMENT:
        away = member.but(epoch=LEAVE_FOR_A_MOMENT, state=MemberState.STABLE, revoking=NO_ASSIGNMENT)
        turn.group = turn.group.but(members=put(turn.group.members, away.member_id, away))
        turn.session = turn.session.but(revocations=drop(turn.session.revocations, (away.member_id,)))
    else:
        turn.remove_members((command.member_id,))
    return turn.decision(ConsumerAnswer(ErrorCode.NONE, None, command.member_id, command.epoch))


def _check_identity(group: ConsumerGroup, command: ConsumerHeartbeat) -> ErrorCode:
    """Check that this is a member, and the owner of its instance id."""
    if command.instance_id is not None:
        owner = group.static_member(command.instance_id)
        if owner is not None and owner.member_id != command.member_id:
            return ErrorCode.FENCED_INSTANCE_ID
        if owner is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
    return ErrorCode.NONE if command.member_id in group.members else ErrorCode.UNKNOWN_MEMBER_ID


def _live(turn: ConsumerTurn, command: ConsumerHeartbeat) -> Decision:
    if command.member_id not in turn.group.members and len(turn.group.members) >= command.members_max:
        return _refuse(
            ErrorCode.GROUP_MAX_SIZE_REACHED,
            f"The consumer group has reached its maximum capacity of {command.members_max} members.",
        )
    found = _join(turn, command) if command.epoch == JOIN else _continue(turn.group, command)
    if isinstance(found, ErrorCode):
        return _refuse(found, f"The member epoch or id was refused: {found.name}.")
    before = turn.group.members.get(command.member_id)
    updated = _updated(found, command)
    refused = _too_large(turn, command, before, updated)
    if refused is not None:
        return refused
    is_changed = (
        before is None or updated.topic_names != found.topic_names or updated.topic_regex != found.topic_regex
    )
    if updated != before:
        turn.session = turn.session.counting(before, updated)
        turn.group = turn.group.but(members=put(turn.group.members, updated.member_id, updated))
    refresh(turn, command, before, updated, is_changed=is_changed)
    settled = reconcile(turn.group, updated, command.owned)
    if settled != turn.group.members[command.member_id]:
        turn.group = turn.group.but(members=put(turn.group.members, settled.member_id, settled))
    _keep_deadlines(turn, command, before, settled)
    is_full = command.epoch == JOIN or (
        command.rebalance_timeout_ms != -1
        and (command.topic_names is not None or command.topic_regex is not None)
        and command.owned is not None
    )
    is_told = is_full or before is None or settled.assigned != before.assigned
    return turn.decision(
        ConsumerAnswer(
            ErrorCode.NONE,
            None,
            settled.member_id,
            settled.epoch,
            command.heartbeat_interval_ms,
            settled.assigned if is_told else None,
        )
    )


def _too_large(
    turn: ConsumerTurn, command: ConsumerHeartbeat, before: ConsumerMember | None, updated: ConsumerMember
) -> Decision | None:
    """Refuse a member whose metadata exceeds its own limit, or that of the group."""
    size = updated.metadata_bytes
    if size > command.member_bytes_max:
        problem = f"A member's topic names take {size} bytes; the limit is {command.member_bytes_max}."
        return _refuse(ErrorCode.INVALID_REQUEST, problem)
    if (
        turn.session.metadata_bytes - (before.metadata_bytes if before else 0) + size
        > command.group_bytes_max
    ):
        problem = f"The topic names of a group's members are limited to {command.group_bytes_max} bytes."
        return _refuse(ErrorCode.GROUP_MAX_SIZE_REACHED, problem)
    return None


def _join(turn: ConsumerTurn, command: ConsumerHeartbeat) -> ConsumerMember | ErrorCode:
    """A new member, a known one that starts again, or a static one that resumes its place."""
    group = turn.group
    member = group.members.get(command.member_id) or ConsumerMember(command.member_id)
    older = group.static_member(command.instance_id)
    if older is not None and older.member_id != command.member_id:
        if older.epoch != LEAVE_FOR_A_MOMENT:
            return ErrorCode.UNRELEASED_INSTANCE_ID
        member = older.but(member_id=command.member_id)
        members = put(drop(group.members, (older.member_id,)), member.member_id, member)
        target = dict(drop(group.target, (older.member_id,)))
        if older.member_id in group.target:
            target[member.member_id] = group.target[older.member_id]
        turn.group = group.but(members=members, target=target)
        turn.session = turn.session.without((older.member_id,)).counting(older, member)
    return member.but(epoch=0, previous_epoch=0, state=MemberState.STABLE, revoking=NO_ASSIGNMENT)


def _continue(group: ConsumerGroup, command: ConsumerHeartbeat) -> ConsumerMember | ErrorCode:
    error = _check_identity(group, command)
    if error is not ErrorCode.NONE:
        return error
    member = group.members[command.member_id]
    if command.epoch == member.epoch:
        return member
    is_answer_lost = (
        command.epoch < member.epoch
        and command.epoch == member.previous_epoch
        and command.owned is not None
        and command.owned <= member.assigned
    )
    return member if is_answer_lost else ErrorCode.FENCED_MEMBER_EPOCH


def _updated(member: ConsumerMember, command: ConsumerHeartbeat) -> ConsumerMember:
    """Update the member from the fields that this heartbeat sets."""
    names = member.topic_names
    if command.topic_names is not None:
        names = tuple(sorted(set(command.topic_names)))
    return member.but(
        instance_id=command.instance_id if command.instance_id is not None else member.instance_id,
        rack_id=command.rack_id if command.rack_id is not None else member.rack_id,
        client_id=command.client_id,
        client_host=command.client_host,
        rebalance_timeout_ms=(
            command.rebalance_timeout_ms
            if command.rebalance_timeout_ms != -1
            else member.rebalance_timeout_ms
        ),
        topic_names=names,
        # An empty expression ends the subscription by expression.
        topic_regex=(command.topic_regex or None) if command.topic_regex is not None else member.topic_regex,
        assignor=command.assignor if command.assignor is not None else member.assignor,
    )


def _keep_deadlines(
    turn: ConsumerTurn, command: ConsumerHeartbeat, before: ConsumerMember | None, member: ConsumerMember
) -> None:
    session = turn.session.heard(member.member_id, turn.now + command.session_timeout_ms)
    revocations = session.revocations
    if member.state is not MemberState.UNREVOKED:
        revocations = drop(revocations, (member.member_id,))
    elif (
        before is None
        or before.state is not MemberState.UNREVOKED
        or before.epoch != member.epoch
        or member.member_id not in revocations
    ):
        revocations = put(revocations, member.member_id, turn.now + member.rebalance_timeout_ms)
    if command.regex_matches:
        session = session.but(regexes_checked_ms=turn.now)
    if revocations is not session.revocations:
        earliest = min(session.next_deadline_ms, revocations.get(member.member_id, NEVER))
        session = session.but(revocations=revocations, next_deadline_ms=earliest)
    turn.session = session
