"""SyncGroup, Heartbeat, LeaveGroup and timeouts of classic groups.

SyncGroup ends a rebalance: the leader's request carries all assignments, the other members wait for it.
Assignments are durable before any member gets one. So if the broker is killed right after, the group is
stable after the restart, and its members notice nothing.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from semel.core.groups import classic_in_consumer
from semel.core.groups.classic_rebalance import ClassicTurn, check_member, leaving_id, static_owners
from semel.core.groups.commands import Heartbeat, LeaveGroup, LeavingMember, Left, Synced, SyncGroup
from semel.core.groups.consumer_turn import ConsumerTurn
from semel.core.groups.layered import drop, put
from semel.core.groups.model import NOTHING, ClassicGroup, ClassicState, ConsumerGroup
from semel.core.groups.session import NEVER
from semel.core.types import PARKED, Decision, ErrorCode, GroupKey

if TYPE_CHECKING:
    from semel.core.state import BrokerState


def _turn(state: "BrokerState", group_id: str, now: int) -> ClassicTurn | None:
    group = state.groups[GroupKey(group_id)]
    session = state.sessions.get(group_id)
    if isinstance(group, ClassicGroup):
        return ClassicTurn(group, session, now)
    if group is None and session is not None:
        # No member has joined yet, but member ids were promised.
        return ClassicTurn(ClassicGroup(group_id), session, now)
    return None


def _consumer_turn(
    state: "BrokerState", command: SyncGroup | Heartbeat | LeaveGroup, now: int
) -> ConsumerTurn | None:
    group = state.groups[GroupKey(command.group_id)]
    if not isinstance(group, ConsumerGroup):
        return None
    session = state.sessions.get(command.group_id)
    return ConsumerTurn(group, session, now, command.consumer_session_timeout_ms, state.migration)


def decide_sync(state: "BrokerState", command: SyncGroup, now: int) -> Decision:
    """Answer with the member's assignment, or park the request until the leader sends it."""
    if (consumer := _consumer_turn(state, command, now)) is not None:
        return classic_in_consumer.sync(consumer, command)
    turn = _turn(state, command.group_id, now)
    error = _check_sync(turn, command)
    if error is not ErrorCode.NONE or turn is None:
        return Decision(Synced(error))
    member_id = command.member_id
    if turn.group.state is ClassicState.STABLE:
        turn.session = turn.session.but(unsynced=drop(turn.session.unsynced, (member_id,)))
        if not turn.session.unsynced:
            turn.session = turn.session.but(sync_deadline_ms=NEVER)
        turn.heard(member_id)
        return turn.decision(_synced(turn, member_id))
    session = turn.session
    if member_id in session.syncs:
        turn.replies.append((session.syncs[member_id], Synced(ErrorCode.REBALANCE_IN_PROGRESS)))
    turn.session = session.but(
        syncs=put(session.syncs, member_id, command.ticket),
        unsynced=drop(session.unsynced, (member_id,)),
        deadlines=drop(session.deadlines, (member_id,)),
    )
    if member_id == turn.group.leader:
        _assign(turn, command)
    return turn.decision(PARKED, command.ticket)


def _check_sync(turn: ClassicTurn | None, command: SyncGroup) -> ErrorCode:
    if not command.group_id:
        return ErrorCode.INVALID_GROUP_ID
    if turn is None:
        return ErrorCode.UNKNOWN_MEMBER_ID
    group = turn.group
    error = check_member(group, command.member_id, command.instance_id)
    if error is not ErrorCode.NONE:
        return error
    if command.generation != group.generation_of(command.member_id):
        return ErrorCode.ILLEGAL_GENERATION
    if group.state is ClassicState.PREPARING:
        # Checked before the protocol: after a downgrade from a consumer group the member may know another.
        return ErrorCode.REBALANCE_IN_PROGRESS
    if command.protocol_type not in (None, group.protocol_type):
        return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    if command.protocol_name not in (None, group.protocol_name):
        return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    return ErrorCode.NONE


def _assign(turn: ClassicTurn, command: SyncGroup) -> None:
    """Apply the assignments of the leader: the group becomes stable, and parked requests are answered."""
    turn.group = turn.group.but(
        state=ClassicState.STABLE,
        members={
            member_id: member.but(assignment=command.assignments.get(member_id, b""))
            for member_id, member in turn.group.members.items()
        },
    )
    session = turn.session
    deadlines = dict(session.deadlines)
    for member_id, ticket in session.syncs.items():
        turn.replies.append((ticket, _synced(turn, member_id)))
        deadlines[member_id] = turn.now + turn.group.members[member_id].session_timeout_ms
    turn.session = session.but(
        syncs={},
        deadlines=deadlines,
        sync_deadline_ms=session.sync_deadline_ms if session.unsynced else NEVER,
    ).settled()


def _synced(turn: ClassicTurn, member_id: str) -> Synced:
    group = turn.group
    return Synced(
        ErrorCode.NONE, group.protocol_type, group.protocol_name, group.members[member_id].assignment
    )


def decide_heartbeat(state: "BrokerState", command: Heartbeat, now: int) -> Decision:
    """Extend the session of a member; answer REBALANCE_IN_PROGRESS if it must rejoin."""
    if not command.group_id:
        return Decision(ErrorCode.INVALID_GROUP_ID)
    if (consumer := _consumer_turn(state, command, now)) is not None:
        return classic_in_consumer.heartbeat(consumer, command)
    turn = _turn(state, command.group_id, now)
    if turn is None:
        return Decision(ErrorCode.UNKNOWN_MEMBER_ID)
    error = check_member(turn.group, command.member_id, command.instance_id)
    if error is ErrorCode.NONE and command.generation != turn.group.generation_of(command.member_id):
        error = ErrorCode.ILLEGAL_GENERATION
    if error is not ErrorCode.NONE:
        return Decision(error)
    turn.heard(command.member_id)
    is_joining = turn.group.state is ClassicState.PREPARING
    return turn.decision(ErrorCode.REBALANCE_IN_PROGRESS if is_joining else ErrorCode.NONE)


def decide_leave(state: "BrokerState", command: LeaveGroup, now: int) -> Decision:
    """Remove members, with one rebalance for all of them."""
    if not command.group_id:
        return Decision(Left(ErrorCode.INVALID_GROUP_ID))
    if (consumer := _consumer_turn(state, command, now)) is not None:
        return classic_in_consumer.leave(consumer, command)
    turn = _turn(state, command.group_id, now)
    if turn is None:
        return Decision(
            Left(ErrorCode.NONE, tuple((each, ErrorCode.UNKNOWN_MEMBER_ID) for each in command.members))
        )
    members_before = turn.group.members
    owners = static_owners(turn.group)
    left = tuple((each, _remove(turn, each, owners)) for each in command.members)
    if turn.group.members is not members_before:
        turn.rebalance()
    turn.complete_if_all_joined()
    return turn.decision(Left(ErrorCode.NONE, left))


def _remove(turn: ClassicTurn, leaving: LeavingMember, owners: Mapping[str, str]) -> ErrorCode:
    if leaving.member_id in turn.session.promised:
        turn.session = turn.session.without((leaving.member_id,))
        return ErrorCode.NONE
    member_id = leaving_id(turn.group, leaving, owners)
    if isinstance(member_id, ErrorCode):
        return member_id
    turn.remove_members((member_id,))
    return ErrorCode.NONE


def pass_time(turn: ClassicTurn) -> None:
    """Expire what is overdue: sessions, promised ids, and the phases of a rebalance."""
    session = turn.session
    overdue = [each for each, deadline in session.promised.items() if deadline <= turn.now]
    if overdue:
        turn.session = turn.session.without(overdue)
    lost = [each for each, deadline in session.deadlines.items() if deadline <= turn.now]
    if session.sync_deadline_ms <= turn.now:
        lost = list(dict.fromkeys([*lost, *session.unsynced]))
        turn.session = turn.session.but(sync_deadline_ms=NEVER, unsynced=NOTHING)
    if lost:
        turn.remove_members(lost)
        turn.rebalance()
    elif overdue:
        turn.complete_if_all_joined()
    if turn.session.rebalance_deadline_ms <= turn.now:
        if turn.session.initial_remaining_ms >= 0:
            turn.end_initial_delay()
        else:
            turn.complete_join()
    turn.session = turn.session.settled()
