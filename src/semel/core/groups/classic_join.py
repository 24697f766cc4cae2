"""JoinGroup: how a member joins and rejoins a classic group.

A member without an id is given one. A dynamic member must join again with this id before it counts (KIP-394),
so that a client that gave up waiting leaves no ghost member behind. A static member (KIP-345) is identified
by its instance id: when it rejoins without a member id it replaces its older self, and a stable group does
not rebalance.

A known member may send JoinGroup again, because it lost an answer or because it wants a rebalance. If nothing
changed, it gets the current generation. The leader of a stable group always gets a rebalance, since it may
have seen new partitions.

JoinGroup to a consumer group that has members is decided in ``classic_in_consumer``. An empty consumer group
becomes a classic one, and keeps its offsets.
"""

from typing import TYPE_CHECKING

from semel.core.groups import classic_in_consumer
from semel.core.groups.classic_rebalance import (
    ClassicTurn,
    as_classic,
    check_member,
    select_protocol,
)
from semel.core.groups.commands import Joined, JoinGroup
from semel.core.groups.consumer_turn import ConsumerTurn
from semel.core.groups.layered import put
from semel.core.groups.model import ClassicGroup, ClassicMember, ClassicState, ConsumerGroup
from semel.core.groups.session import Session, has_room_for_session
from semel.core.names import ID_CHARS_MAX, is_usable
from semel.core.shares.group import ShareGroup
from semel.core.types import PARKED, Decision, ErrorCode, GroupKey

if TYPE_CHECKING:
    from semel.core.state import BrokerState


def decide_join(state: "BrokerState", command: JoinGroup, now: int) -> Decision:
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
        return Decision(Joined(error, command.member_id))
    if isinstance(known, ConsumerGroup) and known.members:
        session = state.sessions.get(command.group_id)
        timeout_ms = command.consumer_session_timeout_ms
        consumer = ConsumerTurn(known, session, now, timeout_ms, state.migration)
        return classic_in_consumer.join(consumer, command)
    group = as_classic(command.group_id, known)
    turn = ClassicTurn(group, state.sessions.get(command.group_id), now)
    if not _has_room(group, turn.session, command):
        # An existing member that is refused is removed, as its answer implies.
        if command.member_id in group.members:
            turn.remove_members((command.member_id,))
            turn.rebalance()
        return turn.decision(Joined(ErrorCode.GROUP_MAX_SIZE_REACHED, ""))
    if not _fits(group, turn.session, command):
        return Decision(Joined(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, command.member_id))
    if not command.member_id:
        return _join_without_id(turn, command)
    return _join_with_id(turn, command)


def _check_request(command: JoinGroup) -> ErrorCode:
    if not is_usable(command.group_id):
        return ErrorCode.INVALID_GROUP_ID
    if len(command.member_id) > ID_CHARS_MAX or len(command.instance_id or "") > ID_CHARS_MAX:
        return ErrorCode.INVALID_REQUEST
    if not command.session_timeout_min_ms <= command.session_timeout_ms <= command.session_timeout_max_ms:
        return ErrorCode.INVALID_SESSION_TIMEOUT
    if _metadata_bytes(command) > command.member_bytes_max:
        return ErrorCode.INVALID_REQUEST
    return ErrorCode.NONE


def _metadata_bytes(command: JoinGroup) -> int:
    return sum(len(name) + len(metadata) for name, metadata in command.protocols)


def _has_room(group: ClassicGroup, session: Session, command: JoinGroup) -> bool:
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


def _fits(group: ClassicGroup, session: Session, command: JoinGroup) -> bool:
    """Whether the member supports a protocol that all other members support too."""
    if not command.protocol_type or not command.protocols:
        return False
    if group.state is ClassicState.EMPTY or not group.members:
        return True
    known_to = session.protocols
    return command.protocol_type == group.protocol_type and any(
        known_to.get(name) == len(group.members) for name, _ in command.protocols
    )


def _member(command: JoinGroup, member_id: str, assignment: bytes = b"") -> ClassicMember:
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


def _join_without_id(turn: ClassicTurn, command: JoinGroup) -> Decision:
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
    return turn.decision(Joined(ErrorCode.MEMBER_ID_REQUIRED, member_id))


def _add(turn: ClassicTurn, command: JoinGroup, member_id: str) -> Decision:
    if not turn.group.members:
        turn.group = turn.group.but(protocol_type=command.protocol_type)
    turn.put_member(_member(command, member_id))
    turn.session = turn.session.but(
        newcomers=put(turn.session.newcomers, member_id, True), grew=turn.session.initial_remaining_ms >= 0
    )
    turn.park_join(member_id, command.ticket)
    turn.rebalance(command.initial_delay_ms)
    return turn.decision(PARKED, command.ticket)


def _return_static(turn: ClassicTurn, command: JoinGroup, older: ClassicMember) -> Decision:
    """Let a static member rejoin. A stable group stays as it is, unless the protocol would change."""
    member_id = command.new_member_id
    leader_before = turn.group.leader or ""
    turn.replace_static(older.member_id, _member(command, member_id, older.assignment))
    group = turn.group
    if group.state is ClassicState.STABLE and select_protocol(group) == group.protocol_name:
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


def _join_with_id(turn: ClassicTurn, command: JoinGroup) -> Decision:
    member_id = command.member_id
    group = turn.group
    if member_id in turn.session.promised:
        if command.instance_id is not None and group.static_member(command.instance_id) is not None:
            return Decision(Joined(ErrorCode.FENCED_INSTANCE_ID, member_id))
        return _add(turn, command, member_id)
    error = check_member(group, member_id, command.instance_id)
    if error is not ErrorCode.NONE:
        return Decision(Joined(error, member_id))
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
