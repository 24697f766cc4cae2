"""JoinGroup, SyncGroup, Heartbeat, LeaveGroup and timeouts of classic groups.

SyncGroup ends a rebalance: the leader's request carries all assignments, the other members wait for it.
Assignments are durable before any member gets one. So if the broker is killed right after, the group is
stable after the restart, and its members notice nothing.

**Joining and rejoining.** A member without an id is given one. A dynamic member must join again with this id
before it counts (KIP-394), so that a client that gave up waiting leaves no ghost member behind. A static
member (KIP-345) is identified by its instance id: when it rejoins without a member id it replaces its older
self, and a stable group does not rebalance.

A known member may send JoinGroup again, because it lost an answer or because it wants a rebalance. If nothing
changed, it gets the current generation. The leader of a stable group always gets a rebalance, since it may
have seen new partitions.

JoinGroup to a consumer group that has members is decided in ``classic_in_consumer``. An empty consumer group
becomes a classic one, and keeps its offsets.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from semel.core.groups import classic_in_consumer, classic_rebalance, commands
from semel.core.groups.consumer import ConsumerTurn
from semel.core.groups.layered import drop, put
from semel.core.groups.model import NOTHING, ClassicGroup, ClassicMember, ClassicState, ConsumerGroup
from semel.core.groups.session import NEVER, GroupSession, has_room_for_session
from semel.core.names import ID_CHARS_MAX, is_usable
from semel.core.shares.group import ShareGroup
from semel.core.types import PARKED, Decision, ErrorCode, GroupKey

if TYPE_CHECKING:
    from semel.core.state import BrokerState


def decide_join(state: "BrokerState", command: commands.JoinGroup, now: int) -> Decision:
    """Answer at once if no rebalance is needed, else park the request until it completes."""
    known = state.groups[GroupKey(command.group_id)]
    error = _check_request(command)
    if error is ErrorCode.NONE and isinstance(known, ShareGroup):
        error = ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    if error is ErrorCode.NONE and not has_room_for_session(
        state.sessions, command.group_id, command.sessions_max
    ):
        error = ErrorCode.COORDINATOR_NOT_AVAILABLE
    if error is not ErrorCode.NONE:
        return Decision(commands.Joined(error, command.member_id))
    if isinstance(known, ConsumerGroup) and known.members:
        session = state.sessions.get(command.group_id)
        timeout_ms = command.consumer_session_timeout_ms
        consumer = ConsumerTurn(known, session, now, timeout_ms, state.migration)
        return classic_in_consumer.join(consumer, command)
    group = classic_rebalance.as_classic(command.group_id, known)
    turn = classic_rebalance.ClassicTurn(group, state.sessions.get(command.group_id), now)
    if not _has_room(group, turn.session, command):
        # An existing member that is refused is removed, as its answer implies.
        if command.member_id in group.members:
            turn.remove_members((command.member_id,))
            turn.rebalance()
        return turn.decision(commands.Joined(ErrorCode.GROUP_MAX_SIZE_REACHED, ""))
    if not _fits(group, turn.session, command):
        return Decision(commands.Joined(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, command.member_id))
    if not command.member_id:
        return _join_without_id(turn, command)
    return _join_with_id(turn, command)


def _check_request(command: commands.JoinGroup) -> ErrorCode:
    if not is_usable(command.group_id):
        return ErrorCode.INVALID_GROUP_ID
    if len(command.member_id) > ID_CHARS_MAX or len(command.instance_id or "") > ID_CHARS_MAX:
        return ErrorCode.INVALID_REQUEST
    if not command.session_timeout_min_ms <= command.session_timeout_ms <= command.session_timeout_max_ms:
        return ErrorCode.INVALID_SESSION_TIMEOUT
    if _metadata_bytes(command) > command.member_bytes_max:
        return ErrorCode.INVALID_REQUEST
    return ErrorCode.NONE


def _metadata_bytes(command: commands.JoinGroup) -> int:
    return sum(len(name) + len(metadata) for name, metadata in command.protocols)


def _has_room(group: ClassicGroup, session: GroupSession, command: commands.JoinGroup) -> bool:
    # Promised ids count too, so that a client cannot fill the memory with them.
    if not command.member_id and len(session.promised) >= command.members_max:
        return False
    known = group.members.get(command.member_id)
    others_bytes = session.metadata_bytes - (known.metadata_bytes if known else 0)
    if others_bytes + _metadata_bytes(command) > command.group_bytes_max:
        return False
    if group.state is ClassicState.EMPTY:
        return True
    if group.state is ClassicState.PREPARING:
        return command.member_id in session.joins or len(session.joins) < command.members_max
    return command.member_id in group.members or len(group.members) < command.members_max


def _fits(group: ClassicGroup, session: GroupSession, command: commands.JoinGroup) -> bool:
    """Whether the member supports a protocol that all other members support too."""
    if not command.protocol_type or not command.protocols:
        return False
    if group.state is ClassicState.EMPTY or not group.members:
        return True
    known_to = session.protocols
    return command.protocol_type == group.protocol_type and any(
        known_to.get(name) == len(group.members) for name, _ in command.protocols
    )


def _member(command: commands.JoinGroup, member_id: str, assignment: bytes = b"") -> ClassicMember:
    return ClassicMember(
        member_id,
        command.instance_id,
        command.client_id,
        command.client_host,
        command.session_timeout_ms,
        command.rebalance_timeout_ms,
        command.protocols,
        assignment,
    )


def _join_without_id(turn: classic_rebalance.ClassicTurn, command: commands.JoinGroup) -> Decision:
    member_id = command.new_member_id
    if command.instance_id is not None:
        older = turn.group.static_member(command.instance_id)
        if older is not None:
            return _return_static(turn, command, older)
        return _add(turn, command, member_id)
    if not command.requires_member_id:
        return _add(turn, command, member_id)
    deadline_ms = turn.now + command.session_timeout_ms
    turn.session = turn.session.but(
        promised=put(turn.session.promised, member_id, deadline_ms),
        next_deadline_ms=min(turn.session.next_deadline_ms, deadline_ms),
    )
    return turn.decision(commands.Joined(ErrorCode.MEMBER_ID_REQUIRED, member_id))


def _add(turn: classic_rebalance.ClassicTurn, command: commands.JoinGroup, member_id: str) -> Decision:
    if not turn.group.members:
        turn.group = turn.group.but(protocol_type=command.protocol_type)
    turn.put_member(_member(command, member_id))
    turn.session = turn.session.but(
        newcomers=put(turn.session.newcomers, member_id, True), grew=turn.session.initial_remaining_ms >= 0
    )
    turn.park_join(member_id, command.ticket)
    turn.rebalance(command.initial_delay_ms)
    return turn.decision(PARKED, command.ticket)


def _return_static(
    turn: classic_rebalance.ClassicTurn, command: commands.JoinGroup, older: ClassicMember
) -> Decision:
    """Let a static member rejoin. A stable group stays as it is, unless the protocol would change."""
    member_id = command.new_member_id
    leader_before = turn.group.leader or ""
    turn.replace_static(older.member_id, _member(command, member_id, older.assignment))
    group = turn.group
    if group.state is ClassicState.STABLE and classic_rebalance.select_protocol(group) == group.protocol_name:
        turn.session = turn.session.heard(member_id, turn.now + command.session_timeout_ms)
        joined = turn.joined(member_id)
        if not command.can_skip_assignment:
            # A leader that cannot skip the assignment must not learn that it is the leader: it would compute
            # an assignment for which the group does not wait. As in Kafka, the answer names its old id as the
            # leader.
            joined = joined.but(leader=leader_before, members=())
        elif member_id == group.leader:
            joined = joined.but(skip_assignment=True)
        return turn.decision(joined)
    turn.park_join(member_id, command.ticket)
    turn.rebalance(command.initial_delay_ms)
    return turn.decision(PARKED, command.ticket)


def _join_with_id(turn: classic_rebalance.ClassicTurn, command: commands.JoinGroup) -> Decision:
    member_id = command.member_id
    group = turn.group
    if member_id in turn.session.promised:
        if command.instance_id is not None and group.static_member(command.instance_id) is not None:
            return Decision(commands.Joined(ErrorCode.FENCED_INSTANCE_ID, member_id))
        return _add(turn, command, member_id)
    error = classic_rebalance.check_member(group, member_id, command.instance_id)
    if error is not ErrorCode.NONE:
        return Decision(commands.Joined(error, member_id))
    member = group.members[member_id]
    is_same = member.protocols == command.protocols
    if group.state is ClassicState.COMPLETING and is_same:
        # The answer to its last JoinGroup was lost: send it again.
        turn.heard(member_id)
        return turn.decision(turn.joined(member_id))
    if group.state is ClassicState.STABLE and is_same and member_id != group.leader:
        turn.heard(member_id)
        return turn.decision(turn.joined(member_id))
    # Keep its member epoch: until the next generation it may commit with that.
    turn.put_member(_member(command, member_id, member.assignment).but(epoch=member.epoch))
    turn.park_join(member_id, command.ticket)
    turn.rebalance(command.initial_delay_ms)
    return turn.decision(PARKED, command.ticket)


def _turn(state: "BrokerState", group_id: str, now: int) -> classic_rebalance.ClassicTurn | None:
    group = state.groups[GroupKey(group_id)]
    session = state.sessions.get(group_id)
    if isinstance(group, ClassicGroup):
        return classic_rebalance.ClassicTurn(group, session, now)
    if group is None and session is not None:
        # No member has joined yet, but member ids were promised.
        return classic_rebalance.ClassicTurn(ClassicGroup(group_id), session, now)
    return None


def _consumer_turn(
    state: "BrokerState", command: commands.SyncGroup | commands.Heartbeat | commands.LeaveGroup, now: int
) -> ConsumerTurn | None:
    group = state.groups[GroupKey(command.group_id)]
    if not isinstance(group, ConsumerGroup):
        return None
    session = state.sessions.get(command.group_id)
    return ConsumerTurn(group, session, now, command.consumer_session_timeout_ms, state.migration)


def decide_sync(state: "BrokerState", command: commands.SyncGroup, now: int) -> Decision:
    """Answer with the member's assignment, or park the request until the leader sends it."""
    if (consumer := _consumer_turn(state, command, now)) is not None:
        return classic_in_consumer.sync(consumer, command)
    turn = _turn(state, command.group_id, now)
    error = _check_sync(turn, command)
    if error is not ErrorCode.NONE or turn is None:
        return Decision(commands.Synced(error))
    member_id = command.member_id
    if turn.group.state is ClassicState.STABLE:
        turn.session = turn.session.but(unsynced=drop(turn.session.unsynced, (member_id,)))
        if not turn.session.unsynced:
            turn.session = turn.session.but(sync_deadline_ms=NEVER)
        turn.heard(member_id)
        return turn.decision(_synced(turn, member_id))
    session = turn.session
    if member_id in session.syncs:
        turn.replies.append((session.syncs[member_id], commands.Synced(ErrorCode.REBALANCE_IN_PROGRESS)))
    turn.session = session.but(
        syncs=put(session.syncs, member_id, command.ticket),
        unsynced=drop(session.unsynced, (member_id,)),
        deadlines=drop(session.deadlines, (member_id,)),
    )
    if member_id == turn.group.leader:
        _assign(turn, command)
    return turn.decision(PARKED, command.ticket)


def _check_sync(turn: classic_rebalance.ClassicTurn | None, command: commands.SyncGroup) -> ErrorCode:
    if not command.group_id:
        return ErrorCode.INVALID_GROUP_ID
    if turn is None:
        return ErrorCode.UNKNOWN_MEMBER_ID
    group = turn.group
    error = classic_rebalance.check_member(group, command.member_id, command.instance_id)
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


def _assign(turn: classic_rebalance.ClassicTurn, command: commands.SyncGroup) -> None:
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


def _synced(turn: classic_rebalance.ClassicTurn, member_id: str) -> commands.Synced:
    group = turn.group
    return commands.Synced(
        ErrorCode.NONE, group.protocol_type, group.protocol_name, group.members[member_id].assignment
    )


def decide_heartbeat(state: "BrokerState", command: commands.Heartbeat, now: int) -> Decision:
    """Extend the session of a member; answer REBALANCE_IN_PROGRESS if it must rejoin."""
    if not command.group_id:
        return Decision(ErrorCode.INVALID_GROUP_ID)
    if (consumer := _consumer_turn(state, command, now)) is not None:
        return classic_in_consumer.heartbeat(consumer, command)
    turn = _turn(state, command.group_id, now)
    if turn is None:
        return Decision(ErrorCode.UNKNOWN_MEMBER_ID)
    error = classic_rebalance.check_member(turn.group, command.member_id, command.instance_id)
    if error is ErrorCode.NONE and command.generation != turn.group.generation_of(command.member_id):
        error = ErrorCode.ILLEGAL_GENERATION
    if error is not ErrorCode.NONE:
        return Decision(error)
    turn.heard(command.member_id)
    is_joining = turn.group.state is ClassicState.PREPARING
    return turn.decision(ErrorCode.REBALANCE_IN_PROGRESS if is_joining else ErrorCode.NONE)


def decide_leave(state: "BrokerState", command: commands.LeaveGroup, now: int) -> Decision:
    """Remove members, with one rebalance for all of them."""
    if not command.group_id:
        return Decision(commands.Left(ErrorCode.INVALID_GROUP_ID))
    if (consumer := _consumer_turn(state, command, now)) is not None:
        return classic_in_consumer.leave(consumer, command)
    turn = _turn(state, command.group_id, now)
    if turn is None:
        return Decision(
            commands.Left(
                ErrorCode.NONE, tuple((each, ErrorCode.UNKNOWN_MEMBER_ID) for each in command.members)
            )
        )
    members_before = turn.group.members
    owners = classic_rebalance.static_owners(turn.group)
    left = tuple((each, _remove(turn, each, owners)) for each in command.members)
    if turn.group.members is not members_before:
        turn.rebalance()
    turn.complete_if_all_joined()
    return turn.decision(commands.Left(ErrorCode.NONE, left))


def _remove(
    turn: classic_rebalance.ClassicTurn, leaving: commands.LeavingMember, owners: Mapping[str, str]
) -> ErrorCode:
    if leaving.member_id in turn.session.promised:
        turn.session = turn.session.without((leaving.member_id,))
        return ErrorCode.NONE
    member_id = classic_rebalance.leaving_id(turn.group, leaving, owners)
    if isinstance(member_id, ErrorCode):
        return member_id
    turn.remove_members((member_id,))
    return ErrorCode.NONE


def pass_time(turn: classic_rebalance.ClassicTurn) -> None:
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
