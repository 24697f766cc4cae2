"""ListGroups, DescribeGroups, DeleteGroups: the administration of groups."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import TypeVar

from semel.broker.broker import Broker
from semel.core.groups.commands import DeleteGroup, DescribeGroup
from semel.core.groups.model import ClassicGroup, ClassicState, Group
from semel.core.types import ErrorCode
from semel.handlers.context import Handler, RequestContext
from semel.handlers.leadership import coordination_error, owned
from semel.handlers.rights import CLUSTER, DELETE, DESCRIBE, GROUP, GROUP_DENIED, RequestRights, rights_of
from semel.store.contract import GroupSummary, StoreRefused
from semel.wire import messages as wire
from semel.wire.api_key import ApiKey

T = TypeVar("T", wire.DescribedGroup, wire.ConsumerGroupDescribeDescribedGroup, wire.DescribedShareGroup)


async def list_groups(
    broker: Broker, request: wire.ListGroupsRequest, context: RequestContext
) -> wire.ListGroupsResponse:
    """ListGroups v0–v5: every group of this coordinator, with or without members.

    Behaviour: filters by state and by type ignore case; an empty filter matches all groups. Clients ask every
        broker. Without Describe on the cluster, the list has the groups that may be described.
    Versions:  v3 flexible · v4 states · v5 types (KIP-848).
    """
    rights = rights_of(broker, request, context)
    is_for_all = rights.has(DESCRIBE, CLUSTER)
    states = {state.lower() for state in request.states_filter}
    types = {kind.lower() for kind in request.types_filter}
    listed: list[wire.ListedGroup] = []
    async for page in broker.listings.groups():
        for group in page:
            if not broker.ownership.coordinates(group.group_id):
                continue
            shown = _listed(group)
            if states and shown.group_state.lower() not in states:
                continue
            if types and shown.group_type not in types:
                continue
            if is_for_all or rights.has(DESCRIBE, GROUP, group.group_id):
                listed.append(shown)
    return wire.ListGroupsResponse(groups=listed)


def _listed(group: GroupSummary) -> wire.ListedGroup:
    return wire.ListedGroup(
        group_id=group.group_id,
        protocol_type=group.protocol_type,
        group_state=group.state or ClassicState.EMPTY.value,
        group_type=group.kind or "classic",
    )


async def describe_groups(
    broker: Broker, request: wire.DescribeGroupsRequest, context: RequestContext
) -> wire.DescribeGroupsResponse:
    """DescribeGroups v0–v6: classic groups and their members.

    Behaviour: a group that does not exist, or is a consumer group, is Dead; from v6 that is
        GROUP_ID_NOT_FOUND. A group of another coordinator is NOT_COORDINATOR. A repeated group is described
        once.
    Versions:  v3 authorized operations · v4 static members · v5 flexible · v6 GROUP_ID_NOT_FOUND
        (KIP-1043).
    Differs:   a group that has only assigned member ids so far (KIP-394) does not exist yet; in Kafka it is
        Empty.
    """
    rights = rights_of(broker, request, context)
    describe = partial(_described, version=context.version)
    return wire.DescribeGroupsResponse(
        groups=await describe_each(
            broker,
            rights,
            request.groups,
            describe,
            wire.DescribedGroup,
            has_operations=request.include_authorized_operations,
        )
    )


async def describe_each(
    broker: Broker,
    rights: RequestRights,
    group_ids: Iterable[str],
    describe: Callable[[str, Group | None], T],
    shown_as: type[T],
    *,
    has_operations: bool,
) -> list[T]:
    """Describe each group once, after those that may not be described.

    Groups of another coordinator are NOT_COORDINATOR.
    """
    allowed, refused = rights.split(dict.fromkeys(group_ids), partial(rights.group, DESCRIBE))
    described: list[T] = [shown_as(group_id=each, error_code=GROUP_DENIED) for each in refused]
    async for some in broker.slices.over(allowed):
        mine = owned(broker, some)
        groups: list[Group | None] = await broker.submit([DescribeGroup(group_id) for group_id in mine])
        found = dict(zip(mine, groups, strict=True))
        described += [
            describe(group_id, found[group_id])
            if group_id in found
            else shown_as(group_id=group_id, error_code=ErrorCode.NOT_COORDINATOR)
            for group_id in some
        ]
    for each in described if has_operations else ():
        if not each.error_code:
            each.authorized_operations = rights.operations(GROUP, each.group_id)
    return described


def _described(group_id: str, group: Group | None, version: int) -> wire.DescribedGroup:
    if not isinstance(group, ClassicGroup):
        described = wire.DescribedGroup(group_id=group_id, group_state="Dead")
        if version >= 6:
            described.error_code = ErrorCode.GROUP_ID_NOT_FOUND
            described.error_message = f"Group {group_id} not found."
        return described
    # The protocol and the members' metadata are meaningful only between two rebalances.
    is_stable = group.state is ClassicState.STABLE
    return wire.DescribedGroup(
        group_id=group_id,
        group_state=group.state_name,
        protocol_type=group.protocol_type,
        protocol_data=(group.protocol_name or "") if is_stable else "",
        members=[
            wire.DescribedGroupMember(
                member_id=member.member_id,
                group_instance_id=member.instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                member_metadata=member.metadata(group.protocol_name) if is_stable else b"",
                member_assignment=member.assignment,
            )
            for member in group.members.values()
        ],
    )


async def delete_groups(
    broker: Broker, request: wire.DeleteGroupsRequest, context: RequestContext
) -> wire.DeleteGroupsResponse:
    """DeleteGroups v0–v2: delete groups that have no members, with their offsets.

    Behaviour: NON_EMPTY_GROUP while the group has members; GROUP_ID_NOT_FOUND if it does not exist;
        NOT_COORDINATOR for a group of another coordinator.
    Versions:  v2 flexible.
    """
    rights = rights_of(broker, request, context)
    _, refused = rights.split(dict.fromkeys(request.groups_names), partial(rights.group, DELETE))
    denied = dict.fromkeys(refused)
    wanted = [
        (group_id, coordination_error(broker, group_id))
        for group_id in request.groups_names
        if group_id not in denied
    ]
    commands = [DeleteGroup(group_id) for group_id, error in wanted if not error]
    try:
        errors: list[ErrorCode] = await broker.ask_each(commands)
    except StoreRefused:
        errors = [ErrorCode.COORDINATOR_NOT_AVAILABLE] * len(commands)
    decided = iter(errors)
    return wire.DeleteGroupsResponse(
        results=[
            *(
                wire.DeletableGroupResult(group_id=group_id, error_code=error or next(decided))
                for group_id, error in wanted
            ),
            *(wire.DeletableGroupResult(group_id=each, error_code=GROUP_DENIED) for each in denied),
        ]
    )


HANDLERS: dict[int, Handler] = {
    ApiKey.DESCRIBE_GROUPS: describe_groups,
    ApiKey.LIST_GROUPS: list_groups,
    ApiKey.DELETE_GROUPS: delete_groups,
}
