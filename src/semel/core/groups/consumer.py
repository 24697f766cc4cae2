"""Consumer groups (KIP-848): the broker computes the assignment, and heartbeats carry it.

The *group epoch* is bumped when a member joins, leaves or changes its subscription, and when one of the
topics changes. The next heartbeat computes the *target assignment* for that epoch. Each member then moves
towards its part of the target with its own heartbeats (``targets``); its *member epoch* says how far it has
come.

A member with a wrong epoch is fenced: it drops its partitions and joins again with epoch 0. One mismatch is
accepted: the previous epoch together with no more than the assigned partitions, because then only an answer
was lost. An answer may also be lost while the epoch stays the same. So a heartbeat on another connection than
the last one is answered with the assignment; Kafka does this only if the member lists what it owns. Epoch 0
from a known member is a rejoin: the member owns nothing and starts again.

Static members: leaving with epoch -2 keeps the member's place and partitions until the session expires.
Another member id may take them over with epoch 0. As long as the old member has not left, that is refused
with UNRELEASED_INSTANCE_ID.

A classic group becomes a consumer group when a consumer member joins (``migration``). Its members go on with
the classic protocol until they are replaced (``classic_in_consumer``).

A ``ConsumerTurn`` is a consumer group and its session while one command is decided. It replaces values and
never changes them, so the state it read is unaffected; ``decision`` derives the facts by comparison. If the
last member of the consumer protocol leaves in this turn and only members of the classic protocol remain,
``decision`` makes the group a classic one (``migration``).
"""

from collections.abc import Collection
from typing import TYPE_CHECKING

from semel.core.facts import Put, SessionChanged
from semel.core.groups.assignors import ASSIGNORS
from semel.core.groups.classic_rebalance import ClassicTurn
from semel.core.groups.commands import (
    REGEX_REFRESH_MS,
    ConsumerAnswer,
    ConsumerHeartbeat,
    ReadSubscriptions,
    Subscriptions,
    TopicsNeeded,
)
from semel.core.groups.layered import drop, put
from semel.core.groups.migration import (
    NO_MIGRATION,
    Migration,
    called_back,
    known_topics,
    to_classic,
    to_consumer,
    why_not_consumer,
)
from semel.core.groups.model import (
    NO_ASSIGNMENT,
    NOTHING,
    ClassicGroup,
    ConsumerGroup,
    ConsumerMember,
    Group,
    MemberState,
)
from semel.core.groups.session import GroupSession, begin, has_room_for_session
from semel.core.groups.targets import reconcile, refresh, wanted_names, wanted_regexes
from semel.core.names import ID_CHARS_MAX
from semel.core.shares.group import ShareGroup
from semel.core.types import Answer, Decision, ErrorCode, Fact, GroupKey, Ticket

if TYPE_CHECKING:
    from semel.core.state import BrokerState


class ConsumerTurn:
    """One command on a consumer group while it is decided."""

    def __init__(
        self,
        group: ConsumerGroup,
        session: GroupSession | None,
        now: int,
        session_timeout_ms: int,
        migration: Migration = NO_MIGRATION,
    ) -> None:
        self._group_before: Group = group
        self._session_before = session
        self.group = group
        self.session = begin(group, now, session_timeout_ms) if session is None else session
        self.now = now
        self.migration = migration
        self.replies: list[tuple[Ticket, Answer]] = []
        self._has_lost_members = False

    def convert_from(self, group: Group, session: GroupSession | None) -> None:
        """Set the state before this turn: a group of another protocol that was converted, and its session."""
        self._group_before, self._session_before = group, session

    def decision(self, answer: object) -> Decision:
        """Return the decision."""
        if self.must_become_classic:
            classic = self.become_classic()
            classic.rebalance()
            return classic.decision(answer)
        return Decision(answer, self.facts(), replies=tuple(self.replies))

    def facts(self) -> tuple[Fact, ...]:
        """Return what changed."""
        facts: list[Fact] = []
        if self.group is not self._group_before and self.group != self._group_before:
            facts.append(Put.of(self.group))
        if self.session.is_idle:
            if self._session_before is not None:
                facts.append(SessionChanged(self.group.group_id, None))
        elif self.session is not self._session_before:
            facts.append(SessionChanged(self.group.group_id, self.session))
        return tuple(facts)

    # Members.

    def put_member(self, before: ConsumerMember | None, member: ConsumerMember) -> None:
        """Add a member, or replace the one with the same id."""
        if before is not None and before.classic is None and member.classic is not None:
            # It uses the classic protocol from now on.
            self._has_lost_members = True
        if member != before:
            self.session = self.session.counting(before, member)
            self.group = self.group.but(members=put(self.group.members, member.member_id, member))

    def replace_static(self, older: ConsumerMember, member_id: str) -> ConsumerMember:
        """Give the place and partitions of a static member to its new id."""
        group = self.group
        member = older.but(member_id=member_id)
        target = dict(drop(group.target, (older.member_id,)))
        if older.member_id in group.target:
            target[member_id] = group.target[older.member_id]
        members = put(drop(group.members, (older.member_id,)), member_id, member)
        self.group = group.but(members=members, target=target)
        self.session = self.session.without((older.member_id,)).counting(older, member)
        self._has_lost_members = True
        return member

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
        self._has_lost_members = True

    def pass_time(self) -> None:
        """Remove members whose session expired, or that did not take their next step in time."""
        session = self.session
        # Member ids may be promised to clients that join with the classic protocol.
        overdue = [each for each, deadline in session.promised.items() if deadline <= self.now]
        if overdue:
            self.session = session.without(overdue)
        lost = {each for each, deadline in session.deadlines.items() if deadline <= self.now}
        lost.update(each for each, deadline in session.rebalance_deadlines.items() if deadline <= self.now)
        if lost:
            self.remove_members(lost)
        self.session = self.session.settled()

    # Deadlines.

    def heard(self, member_id: str, session_timeout_ms: int) -> None:
        """Extend the session of a member."""
        self.session = self.session.heard(member_id, self.now + session_timeout_ms)

    def note_connection(self, member_id: str, connection_id: int) -> bool:
        """Record the connection of a heartbeat. Returns whether it differs from that of the previous one."""
        if self.session.connections.get(member_id) == connection_id:
            return False
        connections = put(self.session.connections, member_id, connection_id)
        self.session = self.session.but(connections=connections)
        return True

    def start_rebalance_deadline(self, member: ConsumerMember) -> None:
        """Give a member its rebalance timeout for its next step."""
        deadline_ms = self.now + member.rebalance_timeout_ms
        self.session = self.session.but(
            rebalance_deadlines=put(self.session.rebalance_deadlines, member.member_id, deadline_ms),
            next_deadline_ms=min(self.session.next_deadline_ms, deadline_ms),
        )

    def clear_rebalance_deadline(self, member_id: str) -> None:
        """Clear the rebalance deadline of a member, which took its step."""
        deadlines = drop(self.session.rebalance_deadlines, (member_id,))
        if deadlines is not self.session.rebalance_deadlines:
            self.session = self.session.but(rebalance_deadlines=deadlines)

    # The way to the classic protocol.

    @property
    def must_become_classic(self) -> bool:
        """Whether only members of the classic protocol remain, and the policy allows a downgrade."""
        members = self.group.members
        return (
            self._has_lost_members
            and self.migration.may_downgrade(len(members))
            and all(member.classic is not None for member in members.values())
        )

    def become_classic(self) -> ClassicTurn:
        """Make the group a classic one. The caller starts its rebalance."""
        classic = ClassicTurn(to_classic(self.group), None, self.now)
        classic.convert_from(self._group_before, self._session_before)
        classic.replies.extend(self.replies)
        return classic


JOIN = 0
LEAVE = -1
LEAVE_FOR_A_MOMENT = -2


def _refuse(error: ErrorCode, message: str) -> Decision:
    return Decision(ConsumerAnswer(error, message))


def decide_read_subscriptions(state: "BrokerState", command: ReadSubscriptions, now: int) -> Decision:
    """Return the subscribed topics of a group, and the regular expressions that are due to be matched."""
    group = state.groups[GroupKey(command.group_id)]
    if isinstance(group, ClassicGroup) and command.may_upgrade and state.migration.upgrade:
        return Decision(Subscriptions(known_topics(group)))
    if not isinstance(group, ConsumerGroup):
        return Decision(Subscriptions())
    session = state.sessions.get(command.group_id)
    is_due = session is None or now >= session.regexes_checked_ms + REGEX_REFRESH_MS
    regexes = wanted_regexes(group) if is_due else frozenset()
    facts: tuple[Fact, ...] = ()
    if session is not None and (session.subscribed is None or regexes):
        # This caller matches the expressions for all members: other heartbeats need not do so meanwhile.
        checked_ms = now if regexes else session.regexes_checked_ms
        subscribed = wanted_names(group) if session.subscribed is None else session.subscribed
        session = session.but(subscribed=subscribed, regexes_checked_ms=checked_ms)
        facts = (SessionChanged(command.group_id, session),)
    named = wanted_names(group) if session is None or session.subscribed is None else session.subscribed
    names = named.union(*group.regex_matches.values())
    return Decision(Subscriptions(names, regexes), facts)


def decide_consumer_heartbeat(state: "BrokerState", command: ConsumerHeartbeat, now: int) -> Decision:
    """Let a member join, heartbeat or leave, and return its assignment."""
    if wrong := problem(command):
        return _refuse(ErrorCode.INVALID_REQUEST, wrong)
    if command.assignor is not None and command.assignor not in ASSIGNORS:
        supported = ", ".join(ASSIGNORS)
        return _refuse(
            ErrorCode.UNSUPPORTED_ASSIGNOR,
            f"ServerAssignor {command.assignor} is not supported. Supported assignors: {supported}.",
        )
    turn = _turn(state, command, now)
    if isinstance(turn, Decision):
        return turn
    if command.epoch < JOIN:
        return _leave(turn, command)
    if not has_room_for_session(state.sessions, command.group_id, command.sessions_max):
        return _refuse(ErrorCode.COORDINATOR_NOT_AVAILABLE, "Too many groups have members.")
    return _live(turn, command)


def _turn(state: "BrokerState", command: ConsumerHeartbeat, now: int) -> ConsumerTurn | Decision:
    """Begin a turn on the group, which a joining member may create or convert; or refuse the command."""
    group_id = command.group_id
    group = state.groups[GroupKey(group_id)]
    session = state.sessions.get(group_id)
    timeout_ms = command.session_timeout_ms
    if isinstance(group, ConsumerGroup):
        return ConsumerTurn(group, session, now, timeout_ms, state.migration)
    if group is None and command.epoch != JOIN:
        return _refuse(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} does not exist.")
    if isinstance(group, ClassicGroup) and command.epoch != JOIN and state.migration.upgrade:
        # It was a member before the group became classic, and may join again unless its instance id is taken.
        # Clients treat GROUP_ID_NOT_FOUND as fatal.
        is_fenced = group.static_member(command.instance_id) is not None
        error = ErrorCode.FENCED_INSTANCE_ID if is_fenced else ErrorCode.UNKNOWN_MEMBER_ID
        return _refuse(error, f"Group {group_id} is a classic group by now.")
    if isinstance(group, ShareGroup) or command.epoch != JOIN:
        return _refuse(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} is not a consumer group.")
    if group is None:
        return ConsumerTurn(ConsumerGroup(group_id), None, now, timeout_ms, state.migration)
    reason = why_not_consumer(group, state.migration) if group.members else None
    if reason is not None:
        message = f"The classic group {group_id} cannot become a consumer group: {reason}."
        return _refuse(ErrorCode.GROUP_ID_NOT_FOUND, message)
    needed = known_topics(group) if group.members else frozenset()
    if not needed <= command.topics.keys():
        # The group has changed since the caller read it. Partitions of unknown topics would lose their owner.
        return Decision(TopicsNeeded(needed))
    turn = ConsumerTurn(to_consumer(group, command.topics), None, now, timeout_ms, state.migration)
    turn.convert_from(group, session)
    turn.replies.extend(called_back(turn.group, session))
    for member_id in session.joins if session else ():
        turn.start_rebalance_deadline(turn.group.members[member_id])
    return turn


def problem(command: ConsumerHeartbeat) -> str | None:
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
        turn.put_member(member, away)
        turn.clear_rebalance_deadline(away.member_id)
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
    member = group.members.get(command.member_id)
    # A member of the classic protocol that changes to this protocol joins as a new member.
    return ErrorCode.UNKNOWN_MEMBER_ID if member is None or member.classic else ErrorCode.NONE


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
    turn.put_member(before, updated)
    refresh(turn, command.topics, command.regex_matches, before, updated, is_changed=is_changed)
    settled = reconcile(turn.group, updated, command.owned)
    turn.put_member(updated, settled)
    _keep_deadlines(turn, command, before, settled)
    is_full = command.epoch == JOIN or (
        command.rebalance_timeout_ms != -1
        and (command.topic_names is not None or command.topic_regex is not None)
        and command.owned is not None
    )
    is_another = turn.note_connection(command.member_id, command.connection_id)
    is_told = is_full or is_another or before is None or settled.assigned != before.assigned
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
    """Return the joining member: a new one, a known one that rejoins, or a static one that returns."""
    group = turn.group
    member = group.members.get(command.member_id) or ConsumerMember(command.member_id)
    older = group.static_member(command.instance_id)
    if older is not None and older.member_id != command.member_id:
        # A member of the classic protocol does not announce that it will return, so it is replaced at once.
        if older.epoch != LEAVE_FOR_A_MOMENT and older.classic is None:
            return ErrorCode.UNRELEASED_INSTANCE_ID
        if command.member_id in group.members:
            # Another member has this id already, and would be overwritten.
            return ErrorCode.INVALID_REQUEST
        member = turn.replace_static(older, command.member_id)
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
        classic=None,
    )


def _keep_deadlines(
    turn: ConsumerTurn, command: ConsumerHeartbeat, before: ConsumerMember | None, member: ConsumerMember
) -> None:
    turn.heard(member.member_id, command.session_timeout_ms)
    if member.state is not MemberState.UNREVOKED:
        turn.clear_rebalance_deadline(member.member_id)
    elif (
        before is None
        or before.state is not MemberState.UNREVOKED
        or before.epoch != member.epoch
        or member.member_id not in turn.session.rebalance_deadlines
    ):
        turn.start_rebalance_deadline(member)
    if command.regex_matches and turn.group.regex_matches.keys() <= command.regex_matches.keys():
        turn.session = turn.session.but(regexes_checked_ms=turn.now)
