"""ListGroups, DescribeGroups, DeleteGroups: the administration of groups."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Final, TypeVar

from semel.broker.broker import Broker
from semel.core.groups.commands import DeleteGroup, DescribeGroup
from semel.core.groups.model import ClassicGroup, ClassicState, Group
from semel.core.types import ErrorCode
from semel.handlers.context import Handler, RequestContext
from semel.handlers.leadership import coordination_error, owned
from semel.store.contract import GroupSummary, StoreRefused
from semel.wire.api_key import ApiKey
from semel.wire.messages.groups import (
    DeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribedGroup,
    DescribedGroupMember,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    ListedGroup,
    ListGroupsRequest,
    ListGroupsResponse,
)

T = TypeVar("T")

ALL_OPERATIONS: Final = 1 << 3 | 1 << 6 | 1 << 8 | 1 << 10 | 1 << 11
"""READ, DELETE, DESCRIBE, DESCRIBE_CONFIGS and ALTER_CONFIGS: all operations on a group. With ACLs, the guard
leaves only the allowed ones."""
NO_OPERATIONS: Final = -(2**31)
"""The value when the request does not ask for authorized operations."""


async def list_groups(
    broker: Broker, request: ListGroupsRequest, context: RequestContext
) -> ListGroupsResponse:
    """ListGroups v0–v5: every group of this coordinator, with or without members.

    Behaviour: filters by state and by type ignore case; an empty filter matches all groups. Clients ask every
        broker.
    Versions:  v3 flexible · v4 states · v5 types (KIP-848).
    """
    states = {state.lower() for state in request.states_filter}
    types = {kind.lower() for kind in request.types_filter}
    listed: list[ListedGroup] = []
    async for page in broker.listings.groups():
        for group in page:
            if not broker.ownership.coordinates(group.group_id):
                continue
            shown = _listed(group)
            if states and shown.group_state.lower() not in states:
                continue
            if types and shown.group_type not in types:
                continue
            listed.append(shown)
    return ListGroupsResponse(groups=listed)


def _listed(group: GroupSummary) -> ListedGroup:
    return ListedGroup(
        group_id=group.group_id,
        protocol_type=group.protocol_type,
        group_state=group.state or ClassicState.EMPTY.value,
        group_type=group.kind or "classic",
    )


async def describe_groups(
    broker: Broker, request: DescribeGroupsRequest, context: RequestContext
) -> DescribeGroupsResponse:
    """DescribeGroups v0–v6: classic groups and their members.

    Behaviour: a group that does not exist, or is a consumer group, is Dead; from v6 that is
        GROUP_ID_NOT_FOUND. A group of another coordinator is NOT_COORDINATOR. A repeated group is described
        once.
    Versions:  v3 authorized operations · v4 static members · v5 flexible · v6 GROUP_ID_NOT_FOUND
        (KIP-1043).
    Differs:   a group that has only assigned member ids so far (KIP-394) does not exist yet; in Kafka it is
        Empty.
    """
    operations = ALL_OPERATIONS if request.include_authorized_operations else NO_OPERATIONS
    describe = partial(_described, version=context.version, operations=operations)
    return DescribeGroupsResponse(
        groups=await describe_each(broker, request.groups, describe, or_else=DescribedGroup)
    )


async def describe_each(
    broker: Broker,
    group_ids: Iterable[str],
    describe: Callable[[str, Group | None], T],
    or_else: Callable[..., T],
) -> list[T]:
    """Describe each group once; those of another coordinator are NOT_COORDINATOR."""
    described: list[T] = []
    async for some in broker.slices.over(list(dict.fromkeys(group_ids))):
        mine = owned(broker, some)
        groups: list[Group | None] = await broker.submit([DescribeGroup(group_id) for group_id in mine])
        found = dict(zip(mine, groups, strict=True))
        described += [
            describe(group_id, found[group_id])
            if group_id in found
            else or_else(group_id=group_id, error_code=ErrorCode.NOT_COORDINATOR)
            for group_id in some
        ]
    return described


def _described(group_id: str, group: Group | None, version: int, operations: int) -> DescribedGroup:
    if not isinstance(group, ClassicGroup):
        described = DescribedGroup(group_id=group_id, group_state="Dead", authorized_operations=operations)
        if version >= 6:
            described.authorized_operations = NO_OPERATIONS
            described.error_code = ErrorCode.GROUP_ID_NOT_FOUND
            described.error_message = f"Group {group_id} not found."
        return described
    # The protocol and the members' metadata are meaningful only between two rebalances.
    is_stable = group.state is ClassicState.STABLE
    return DescribedGroup(
        group_id=group_id,
        group_state=group.state_name,
        protocol_type=group.protocol_type,
        protocol_data=(group.protocol_name or "") if is_stable else "",
        members=[
            DescribedGroupMember(
                member_id=member.member_id,
                group_instance_id=member.instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                member_metadata=member.metadata(group.protocol_name) if is_stable else b"",
                member_assignment=member.assignment,
            )
            for member in group.members.values()
        ],
        authorized_operations=operations,
    )


async def delete_groups(
    broker: Broker, request: DeleteGroupsRequest, context: RequestContext
) -> DeleteGroupsResponse:
    """DeleteGroups v0–v2: delete groups that have no members, with their offsets.

    Behaviour: NON_EMPTY_GROUP while the group has members; GROUP_ID_NOT_FOUND if it does not exist;
        NOT_COORDINATOR for a group of another coordinator.
    Versions:  v2 flexible.
    """
    refused = [(group_id, coordination_error(broker, group_id)) for group_id in request.groups_names]
    commands = [DeleteGroup(group_id) for group_id, error in refused if not error]
    try:
        errors: list[ErrorCode] = await broker.ask_each(commands)
    except StoreRefused:
        errors = [ErrorCode.COORDINATOR_NOT_AVAILABLE] * len(commands)
    decided = iter(errors)
    return DeleteGroupsResponse(
        results=[
            DeletableGroupResult(group_id=group_id, error_code=error or next(decided))
            for group_id, error in refused
        ]
    )


HANDLERS: dict[int, Handler] = {
    ApiKey.DESCRIBE_GROUPS: describe_groups,
    ApiKey.LIST_GROUPS: list_groups,
    ApiKey.DELETE_GROUPS: delete_groups,
}
