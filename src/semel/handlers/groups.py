"""JoinGroup, SyncGroup, Heartbeat, LeaveGroup: turns classic group requests into commands.

Differences between request versions are resolved here, so the rules in ``semel.core.groups`` are independent
of versions. A join or a sync that has to wait is parked; the decision that ends the wait answers it. The
connection keeps the order of responses.

A group has one coordinator; every other broker answers NOT_COORDINATOR.

KIP-848 is in ``consumer_groups``, listing and deleting in ``group_admin``; ``HANDLERS`` here includes both.
Committed offsets are in ``offsets``.
"""

import uuid
from collections.abc import Callable
from typing import Final, TypeVar

from semel.broker.broker import Broker
from semel.core.groups.commands import (
    Heartbeat,
    Joined,
    JoinGroup,
    LeaveGroup,
    LeavingMember,
    Left,
    Synced,
    SyncGroup,
    TopicsNeeded,
)
from semel.core.types import AnyCommand, ErrorCode
from semel.handlers import consumer_groups, group_admin
from semel.handlers.consumer_groups import LOOKUPS_MAX, look_up
from semel.handlers.context import Handler, RequestContext
from semel.handlers.leadership import coordination_error, refused_by_store
from semel.handlers.rights import GROUP_DENIED, READ, rights_of
from semel.store.contract import StoreRefused
from semel.wire.api_key import ApiKey
from semel.wire.messages.groups import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    JoinGroupResponseMember,
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)

T = TypeVar("T")

KNOWN_AS_CHARS_MAX: Final = 255
"""The most characters of a client or instance id at the start of a new member id."""


async def _ask(
    broker: Broker,
    group_id: str,
    command: AnyCommand,
    refused: Callable[[ErrorCode], T],
    context: RequestContext,
) -> T:
    """Submit a command. The answer is ``refused(error)`` at the wrong coordinator or on a full disk."""
    if error := coordination_error(broker, group_id):
        return refused(error)
    promise = broker.submit((command,), context.parked)
    # The answer may take minutes. Drop the command, which may be large.
    del command
    try:
        answer: T = (await promise)[0]
    except StoreRefused:
        return refused(refused_by_store(broker, group_id))
    return answer


async def join_group(broker: Broker, request: JoinGroupRequest, context: RequestContext) -> JoinGroupResponse:
    """JoinGroup v0–v9: become a member of a classic group, or take part in its rebalance.

    Behaviour: waits until all members have joined or the rebalance timeout has passed. An empty group waits
        group.initial.rebalance.delay.ms for more members. The leader gets the list of members. In a consumer
        group (KIP-848) the broker assigns the partitions; a member that joins there is answered at once,
        without a leader.
    Versions:  v1 rebalance timeout · v4 MEMBER_ID_REQUIRED (KIP-394) · v5 static members (KIP-345) · v6
        flexible · v7 protocol type · v8 reason · v9 skip assignment (KIP-814).
    """
    # Before version 7 an absent protocol is an empty name.
    no_protocol = None if context.version >= 7 else ""
    if not rights_of(broker, request, context).group(READ, request.group_id):
        return JoinGroupResponse(error_code=GROUP_DENIED, protocol_name=no_protocol)

    def refused(error: ErrorCode) -> Joined:
        return Joined(error, request.member_id)

    error = coordination_error(broker, request.group_id)
    if error or await broker.has_room_for_group(request.group_id):
        joined = await _joined(broker, _join(broker, request, context), refused, context)
    else:
        joined = refused(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    return JoinGroupResponse(
        error_code=joined.error,
        generation_id=joined.generation,
        protocol_type=joined.protocol_type,
        protocol_name=no_protocol if joined.protocol_name is None else joined.protocol_name,
        leader=joined.leader,
        skip_assignment=joined.skip_assignment,
        member_id=joined.member_id,
        members=[
            JoinGroupResponseMember(
                member_id=each.member_id, group_instance_id=each.instance_id, metadata=each.metadata
            )
            for each in joined.members
        ],
    )


async def _joined(
    broker: Broker, command: JoinGroup, refused: Callable[[ErrorCode], Joined], context: RequestContext
) -> Joined:
    """Join; look topics up if the group turns out to be a consumer group."""
    group_id = command.group_id
    answer = await _ask(broker, group_id, command, refused, context)
    for _ in range(LOOKUPS_MAX):
        if not isinstance(answer, TopicsNeeded):
            return answer
        topics = await look_up(broker, answer.names)
        # The first ticket was used up by the answer.
        command = command.but(topics=topics, ticket=broker.new_ticket())
        answer = await _ask(broker, group_id, command, refused, context)
    return refused(ErrorCode.COORDINATOR_NOT_AVAILABLE) if isinstance(answer, TopicsNeeded) else answer


def _join(broker: Broker, request: JoinGroupRequest, context: RequestContext) -> JoinGroup:
    settings = broker.settings
    rebalance_timeout_ms = request.rebalance_timeout_ms
    if context.version == 0 or rebalance_timeout_ms < 0:
        rebalance_timeout_ms = request.session_timeout_ms
    known_as = request.group_instance_id or context.client_id or ""
    protocols = tuple((each.name, each.metadata) for each in request.protocols)
    # If the group accepts the member, it keeps the protocols.
    request.protocols = []
    return JoinGroup(
        group_id=request.group_id,
        member_id=request.member_id,
        instance_id=request.group_instance_id,
        protocol_type=request.protocol_type,
        protocols=protocols,
        session_timeout_ms=request.session_timeout_ms,
        rebalance_timeout_ms=rebalance_timeout_ms,
        client_id=context.client_id or "",
        client_host=f"/{context.client_host}",
        ticket=broker.new_ticket(),
        new_member_id=f"{known_as[:KNOWN_AS_CHARS_MAX]}-{uuid.uuid4()}",
        requires_member_id=context.version >= 4,
        can_skip_assignment=context.version >= 9,
        session_timeout_min_ms=settings.group_min_session_timeout_ms,
        session_timeout_max_ms=settings.group_max_session_timeout_ms,
        initial_delay_ms=settings.group_initial_rebalance_delay_ms,
        members_max=settings.group_max_size,
        member_bytes_max=settings.semel_group_member_bytes_max,
        group_bytes_max=settings.semel_group_bytes_max,
        sessions_max=settings.semel_entities_max,
        consumer_session_timeout_ms=_consumer_session_ms(broker, request.group_id),
    )


def _consumer_session_ms(broker: Broker, group_id: str) -> int:
    return broker.policies.configs.group(group_id).session_timeout_ms


async def sync_group(broker: Broker, request: SyncGroupRequest, context: RequestContext) -> SyncGroupResponse:
    """SyncGroup v0–v5: the leader sends the assignments, every member gets its own.

    Behaviour: waits for the leader. Assignments are durable before any member gets one.
    Versions:  v3 static members · v4 flexible · v5 protocol type and name are required and checked.
    """
    if context.version >= 5 and (request.protocol_type is None or request.protocol_name is None):
        return SyncGroupResponse(error_code=ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    if not rights_of(broker, request, context).group(READ, request.group_id):
        return SyncGroupResponse(error_code=GROUP_DENIED)
    synced = await _ask(broker, request.group_id, _sync(broker, request), Synced, context)
    return SyncGroupResponse(
        error_code=synced.error,
        protocol_type=synced.protocol_type,
        protocol_name=synced.protocol_name,
        assignment=synced.assignment,
    )


def _sync(broker: Broker, request: SyncGroupRequest) -> SyncGroup:
    assignments = {each.member_id: each.assignment for each in request.assignments}
    request.assignments = []
    return SyncGroup(
        group_id=request.group_id,
        generation=request.generation_id,
        member_id=request.member_id,
        instance_id=request.group_instance_id,
        protocol_type=request.protocol_type,
        protocol_name=request.protocol_name,
        assignments=assignments,
        ticket=broker.new_ticket(),
        consumer_session_timeout_ms=_consumer_session_ms(broker, request.group_id),
    )


async def heartbeat(broker: Broker, request: HeartbeatRequest, context: RequestContext) -> HeartbeatResponse:
    """Heartbeat v0–v4: keeps a member of a classic group alive.

    Behaviour: REBALANCE_IN_PROGRESS makes the member rejoin. Nothing is written to the ledger.
    Versions:  v3 static members · v4 flexible.
    """
    if not rights_of(broker, request, context).group(READ, request.group_id):
        return HeartbeatResponse(error_code=GROUP_DENIED)
    command = Heartbeat(
        request.group_id,
        request.generation_id,
        request.member_id,
        request.group_instance_id,
        _consumer_session_ms(broker, request.group_id),
    )
    return HeartbeatResponse(error_code=await _ask(broker, request.group_id, command, ErrorCode, context))


async def leave_group(
    broker: Broker, request: LeaveGroupRequest, context: RequestContext
) -> LeaveGroupResponse:
    """LeaveGroup v0–v5: members leave a classic group.

    Behaviour: one rebalance for all leaving members. An instance id alone suffices to remove a static member.
    Versions:  v3 several members · v4 flexible · v5 reason.
    """
    if not rights_of(broker, request, context).group(READ, request.group_id):
        return LeaveGroupResponse(error_code=GROUP_DENIED)
    leaving: tuple[LeavingMember, ...] = (LeavingMember(request.member_id),)
    if context.version >= 3:
        leaving = tuple(LeavingMember(each.member_id, each.group_instance_id) for each in request.members)
    command = LeaveGroup(request.group_id, leaving, _consumer_session_ms(broker, request.group_id))
    left = await _ask(broker, request.group_id, command, Left, context)
    if context.version < 3:
        return LeaveGroupResponse(error_code=left.error or left.members[0][1])
    return LeaveGroupResponse(
        error_code=left.error,
        members=[
            MemberResponse(member_id=each.member_id, group_instance_id=each.instance_id, error_code=error)
            for each, error in left.members
        ],
    )


HANDLERS: dict[int, Handler] = {
    ApiKey.JOIN_GROUP: join_group,
    ApiKey.HEARTBEAT: heartbeat,
    ApiKey.LEAVE_GROUP: leave_group,
    ApiKey.SYNC_GROUP: sync_group,
    **group_admin.HANDLERS,
    **consumer_groups.HANDLERS,
}
