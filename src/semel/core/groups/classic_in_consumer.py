"""Members of the classic protocol in a consumer group: JoinGroup, SyncGroup, Heartbeat, LeaveGroup.

A group has such members while it migrates from one protocol to the other (``migration``). The broker assigns
their partitions like those of all other members; they see their member epoch as the generation. JoinGroup is
one step of the member towards its target (``targets``) and is answered at once, without a leader. SyncGroup
returns what the member owns. Heartbeat answers REBALANCE_IN_PROGRESS when there is a reason to join again: a
new group epoch, partitions to revoke, or partitions that have become free.

A member that has to join again, or has joined and not synced, is removed after its rebalance timeout.
"""

from collections.abc import Mapping

from semel.core.groups import commands
from semel.core.groups.classic_rebalance import leaving_id, static_owners
from semel.core.groups.consumer import ConsumerTurn
from semel.core.groups.layered import drop, put
from semel.core.groups.migration import assignment_bytes, owned_in, subscription_of
from semel.core.groups.model import (
    CONSUMER_PROTOCOL,
    NO_ASSIGNMENT,
    ClassicPart,
    ConsumerGroup,
    ConsumerMember,
    MemberState,
)
from semel.core.groups.targets import owned_by_others, reconcile, refresh, wanted_names
from semel.core.types import PARKED, Decision, ErrorCode
from semel.wire.consumer_protocol import Subscription
from semel.wire.errors import ProtocolError


def join(turn: ConsumerTurn, command: commands.JoinGroup) -> Decision:
    """Let a member of the classic protocol join, or take its next step towards its target."""
    error = _check_join(turn, command)
    if error is not ErrorCode.NONE:
        return Decision(commands.Joined(error, command.member_id))
    try:
        subscription = subscription_of(command.protocols)
    except ProtocolError:
        return Decision(commands.Joined(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, command.member_id))
    needed = frozenset([*subscription.topics, *subscription.owned])
    if command.topics is None or not needed <= command.topics.keys():
        return Decision(commands.TopicsNeeded(needed | wanted_names(turn.group)))
    if not command.member_id and command.instance_id is None and command.requires_member_id:
        return _promise(turn, command)
    found = _find(turn, command, claims=any(subscription.owned.values()))
    if isinstance(found, ErrorCode):
        return Decision(commands.Joined(found, command.member_id))
    return _step(turn, command, subscription, found)


def _check_join(turn: ConsumerTurn, command: commands.JoinGroup) -> ErrorCode:
    group, session = turn.group, turn.session
    if command.protocol_type != CONSUMER_PROTOCOL or not command.protocols:
        return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    classic = sum(member.classic is not None for member in group.members.values())
    if not any(session.protocols.get(name, 0) == classic for name, _ in command.protocols):
        # Members of the classic protocol need one in common, or the group could not become classic again.
        return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    known = group.members.get(command.member_id)
    if known is None and len(group.members) >= command.members_max:
        return ErrorCode.GROUP_MAX_SIZE_REACHED
    size = sum(len(name) + len(metadata) for name, metadata in command.protocols)
    if session.metadata_bytes - (known.metadata_bytes if known else 0) + size > command.group_bytes_max:
        return ErrorCode.GROUP_MAX_SIZE_REACHED
    return ErrorCode.NONE


def _promise(turn: ConsumerTurn, command: commands.JoinGroup) -> Decision:
    if len(turn.session.promised) >= command.members_max:
        return Decision(commands.Joined(ErrorCode.GROUP_MAX_SIZE_REACHED, ""))
    deadline_ms = turn.now + command.session_timeout_ms
    turn.session = turn.session.but(
        promised=put(turn.session.promised, command.new_member_id, deadline_ms),
        next_deadline_ms=min(turn.session.next_deadline_ms, deadline_ms),
    )
    return turn.decision(commands.Joined(ErrorCode.MEMBER_ID_REQUIRED, command.new_member_id))


def _find(turn: ConsumerTurn, command: commands.JoinGroup, *, claims: bool) -> ConsumerMember | ErrorCode:
    """Return the joining member: a new one, a known one, or a static one that resumes its place."""
    member_id, group = command.member_id, turn.group
    if command.instance_id is None:
        if claims and member_id and member_id not in group.members and member_id not in turn.session.promised:
            # It was removed and has lost the partitions that it lists. With a new epoch it could commit them.
            return ErrorCode.UNKNOWN_MEMBER_ID
        known = group.members.get(member_id) or ConsumerMember(member_id or command.new_member_id)
        is_other = known.member_id in group.members and known.classic is None
        return ErrorCode.UNKNOWN_MEMBER_ID if is_other else known
    older = group.static_member(command.instance_id)
    if not member_id:
        if older is None:
            return ConsumerMember(command.new_member_id)
        member = turn.replace_static(older, command.new_member_id)
        return member.but(epoch=0, previous_epoch=0, state=MemberState.STABLE, revoking=NO_ASSIGNMENT)
    if older is None:
        return ErrorCode.UNKNOWN_MEMBER_ID
    return older if older.member_id == member_id else ErrorCode.FENCED_INSTANCE_ID


def _step(
    turn: ConsumerTurn, command: commands.JoinGroup, subscription: Subscription, found: ConsumerMember
) -> Decision:
    assert command.topics is not None
    before = turn.group.members.get(found.member_id)
    member = found.but(
        instance_id=command.instance_id,
        rack_id=subscription.rack_id,
        client_id=command.client_id,
        client_host=command.client_host,
        rebalance_timeout_ms=command.rebalance_timeout_ms,
        topic_names=tuple(sorted(set(subscription.topics))),
        topic_regex=None,
        assignor=None,
        classic=ClassicPart(command.session_timeout_ms, command.protocols),
    )
    turn.put_member(before, member)
    if turn.must_become_classic:
        # The last member of the consumer protocol rejoined with the classic one.
        classic = turn.become_classic()
        classic.park_join(member.member_id, command.ticket)
        classic.rebalance()
        return classic.decision(PARKED, command.ticket)
    is_changed = before is None or member.topic_names != before.topic_names or before.topic_regex is not None
    refresh(turn, command.topics, {}, before, member, is_changed=is_changed)
    settled = reconcile(turn.group, member, owned_in(subscription.owned, command.topics))
    turn.put_member(member, settled)
    turn.session = turn.session.but(promised=drop(turn.session.promised, (settled.member_id,)))
    turn.heard(settled.member_id, command.session_timeout_ms)
    turn.start_rebalance_deadline(settled)
    return turn.decision(
        commands.Joined(
            ErrorCode.NONE,
            settled.member_id,
            settled.epoch,
            CONSUMER_PROTOCOL,
            command.protocols[0][0],
        )
    )


def _member(
    group: ConsumerGroup, member_id: str, instance_id: str | None
) -> tuple[ConsumerMember, ClassicPart] | ErrorCode:
    """Return the member with this id, if it uses the classic protocol and owns its instance id."""
    if instance_id is not None:
        owner = group.static_member(instance_id)
        if owner is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if owner.member_id != member_id:
            return ErrorCode.FENCED_INSTANCE_ID
    member = group.members.get(member_id)
    if member is None or member.classic is None:
        return ErrorCode.UNKNOWN_MEMBER_ID
    return member, member.classic


def sync(turn: ConsumerTurn, command: commands.SyncGroup) -> Decision:
    """Return what the member owns."""
    found = _member(turn.group, command.member_id, command.instance_id)
    if isinstance(found, ErrorCode):
        return Decision(commands.Synced(found))
    member, classic = found
    if command.generation != member.epoch:
        return Decision(commands.Synced(ErrorCode.ILLEGAL_GENERATION))
    names = [None, *(name for name, _ in classic.protocols)]
    if command.protocol_type not in (None, CONSUMER_PROTOCOL) or command.protocol_name not in names:
        # Accept any of its protocols: when the group was classic, it may have chosen another than the first.
        return Decision(commands.Synced(ErrorCode.INCONSISTENT_GROUP_PROTOCOL))
    if turn.group.epoch > member.epoch and member.state is not MemberState.UNREVOKED:
        _request_rejoin(turn, member)
        return turn.decision(commands.Synced(ErrorCode.REBALANCE_IN_PROGRESS))
    turn.clear_rebalance_deadline(member.member_id)
    turn.heard(member.member_id, classic.session_timeout_ms)
    owned = assignment_bytes(turn.group, classic, member.assigned)
    return turn.decision(
        commands.Synced(
            ErrorCode.NONE, CONSUMER_PROTOCOL, command.protocol_name or classic.protocols[0][0], owned
        )
    )


def heartbeat(turn: ConsumerTurn, command: commands.Heartbeat) -> Decision:
    """Extend the session of a member; answer REBALANCE_IN_PROGRESS if it must join again."""
    found = _member(turn.group, command.member_id, command.instance_id)
    if isinstance(found, ErrorCode):
        return Decision(found)
    member, classic = found
    if command.generation != member.epoch:
        return Decision(ErrorCode.ILLEGAL_GENERATION)
    turn.heard(member.member_id, classic.session_timeout_ms)
    if not _must_rejoin(turn.group, member):
        return turn.decision(ErrorCode.NONE)
    _request_rejoin(turn, member)
    return turn.decision(ErrorCode.REBALANCE_IN_PROGRESS)


def _must_rejoin(group: ConsumerGroup, member: ConsumerMember) -> bool:
    if member.epoch < group.epoch or member.state is MemberState.UNREVOKED:
        return True
    if member.state is MemberState.STABLE:
        return False
    missing = group.target.get(member.member_id, NO_ASSIGNMENT) - member.assigned
    return missing.isdisjoint(owned_by_others(group, member.member_id))


def _request_rejoin(turn: ConsumerTurn, member: ConsumerMember) -> None:
    if member.member_id not in turn.session.rebalance_deadlines:
        turn.start_rebalance_deadline(member)


def leave(turn: ConsumerTurn, command: commands.LeaveGroup) -> Decision:
    """Remove members of the classic protocol."""
    owners = static_owners(turn.group)
    left = tuple((each, _remove(turn, each, owners)) for each in command.members)
    return turn.decision(commands.Left(ErrorCode.NONE, left))


def _remove(turn: ConsumerTurn, leaving: commands.LeavingMember, owners: Mapping[str, str]) -> ErrorCode:
    member_id = leaving_id(turn.group, leaving, owners)
    if isinstance(member_id, ErrorCode):
        return member_id
    if turn.group.members[member_id].classic is None:
        return ErrorCode.UNKNOWN_MEMBER_ID
    turn.remove_members((member_id,))
    return ErrorCode.NONE
