"""DescribeAcls, CreateAcls, DeleteAcls. The rules are in `semel.core.security.acls`."""

from ipaddress import ip_address
from itertools import groupby

from semel.broker.broker import Broker
from semel.core.security.acls import (
    ANY_HOST,
    CLUSTER_NAME,
    AclBinding,
    AclFilter,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)
from semel.core.security.policies import AddAcl, ConfirmPolicies, RemoveAcl
from semel.core.types import ErrorCode
from semel.handlers.context import Handler, RequestContext
from semel.handlers.rights import ALTER, CLUSTER_DENIED, DESCRIBE, MESSAGES, rights_of
from semel.store.contract import StoreRefused
from semel.wire import messages as wire
from semel.wire.api_key import ApiKey
from semel.wire.schema import Request

NO_AUTHORIZER = "No Authorizer is configured. Start the broker with semel.authorizer=acl."
NAME_CHARS_MAX = 1_000
"""The longest name of a resource, principal or host. Kafka's own names are shorter."""
FILTERS_MAX = 100
"""The most filters per request that scan all ACLs."""
SCANNED_AT_ONCE = 2_000
_CONCRETE = (
    (ResourceType, "resource_type"),
    (PatternType, "pattern_type"),
    (Operation, "operation"),
    (Permission, "permission"),
)


async def describe_acls(
    broker: Broker, request: wire.DescribeAclsRequest, context: RequestContext
) -> wire.DescribeAclsResponse:
    """DescribeAcls v1–v3: the ACLs that match a filter.

    Behaviour: SECURITY_DISABLED without an authorizer. Right: Describe Cluster.
    """
    if refusal := _refusal(broker, request, context, DESCRIBE):
        error, message = refusal
        return wire.DescribeAclsResponse(error_code=error, error_message=message)
    wanted = _filter(request)
    if problem := _filter_problem(wanted):
        return wire.DescribeAclsResponse(error_code=ErrorCode.INVALID_REQUEST, error_message=problem)
    found = await _found(broker, wanted)
    resources = [
        wire.DescribeAclsResource(
            resource_type=resource_type,
            pattern_type=pattern_type,
            resource_name=name,
            acls=[
                wire.AclDescription(
                    principal=each.principal,
                    host=each.host,
                    operation=each.operation,
                    permission_type=each.permission,
                )
                for each in bindings
            ],
        )
        for (resource_type, pattern_type, name), bindings in groupby(found, lambda each: each.values()[:3])
    ]
    return wire.DescribeAclsResponse(error_message=None, resources=resources)


async def create_acls(
    broker: Broker, request: wire.CreateAclsRequest, context: RequestContext
) -> wire.CreateAclsResponse:
    """CreateAcls v1–v3: add ACLs. Adding an existing ACL changes nothing, so clients can retry.

    Behaviour: each ACL succeeds or fails on its own. SECURITY_DISABLED without an authorizer. Right: Alter
        Cluster.
    """
    if refusal := _refusal(broker, request, context, ALTER):
        result = wire.AclCreationResult(error_code=refusal[0], error_message=refusal[1])
        return wire.CreateAclsResponse(results=[result] * len(request.creations))
    bindings = [_binding(each) for each in request.creations]
    problems = [_problem(each) for each in bindings]
    known = broker.policies.acls
    good = [each for each, problem in zip(bindings, problems, strict=True) if problem is None]
    wanted = list(dict.fromkeys(good))
    new = [each for each in wanted if each not in known]
    has_room = broker.policies.has_room(len(new))
    error, message = ErrorCode.NONE, None
    if not has_room:
        error, message = ErrorCode.POLICY_VIOLATION, "There are too many policies (semel.policies.max)."
    elif wanted:
        try:
            # Submit existing ACLs too: other brokers must have them before this request is answered.
            await broker.ask_each([AddAcl(each) for each in wanted])
        except StoreRefused as refused:
            error, message = ErrorCode.KAFKA_STORAGE_ERROR, refused.client_message
    return wire.CreateAclsResponse(
        results=[
            wire.AclCreationResult(error_code=error, error_message=message)
            if problem is None
            else wire.AclCreationResult(error_code=ErrorCode.INVALID_REQUEST, error_message=problem)
            for problem in problems
        ]
    )


async def delete_acls(
    broker: Broker, request: wire.DeleteAclsRequest, context: RequestContext
) -> wire.DeleteAclsResponse:
    """DeleteAcls v1–v3: remove the ACLs that match filters, and only those.

    Behaviour: an ACL that several filters match is listed by each of them. Right: Alter Cluster.
    """
    if refusal := _refusal(broker, request, context, ALTER):
        result = wire.DeleteAclsFilterResult(error_code=refusal[0], error_message=refusal[1])
        return wire.DeleteAclsResponse(filter_results=[result] * len(request.filters))
    filters = [_filter(each) for each in request.filters]
    problems = [_filter_problem(each) for each in filters]
    if sum(each.only is None for each in filters) > FILTERS_MAX:
        result = wire.DeleteAclsFilterResult(
            error_code=ErrorCode.POLICY_VIOLATION,
            error_message=f"More than {FILTERS_MAX} filters that may match several ACLs.",
        )
        return wire.DeleteAclsResponse(filter_results=[result] * len(filters))
    if broker.member is not None:
        try:
            # Another broker may have added matching ACLs whose notices have not arrived yet.
            await broker.policies.load()
        except StoreRefused as refused:
            failed = wire.DeleteAclsFilterResult(
                error_code=ErrorCode.KAFKA_STORAGE_ERROR, error_message=refused.client_message
            )
            return wire.DeleteAclsResponse(filter_results=[failed] * len(filters))
    found = [
        [] if problem else await _found(broker, wanted)
        for wanted, problem in zip(filters, problems, strict=True)
    ]
    error, message = ErrorCode.NONE, None
    doomed = dict.fromkeys(each for some in found for each in some)
    try:
        # ConfirmPolicies, because matching ACLs that are gone here may still exist at other brokers.
        await broker.ask_each([*map(RemoveAcl, doomed), ConfirmPolicies()])
    except StoreRefused as refused:
        error, message = ErrorCode.KAFKA_STORAGE_ERROR, refused.client_message
    return wire.DeleteAclsResponse(
        filter_results=[
            wire.DeleteAclsFilterResult(
                error_code=ErrorCode.NONE if problem is None else ErrorCode.INVALID_REQUEST,
                error_message=problem,
                matching_acls=[_matching(each, error, message) for each in some],
            )
            for some, problem in zip(found, problems, strict=True)
        ]
    )


def _refusal(
    broker: Broker, request: Request, context: RequestContext, operation: Operation
) -> tuple[ErrorCode, str] | None:
    """The error and its message: there are no ACLs without an authorizer, or the client lacks the right."""
    if not broker.policies.has_authorizer:
        return ErrorCode.SECURITY_DISABLED, NO_AUTHORIZER
    if rights_of(broker, request, context).cluster(operation):
        return None
    return CLUSTER_DENIED, MESSAGES[CLUSTER_DENIED]


async def _found(broker: Broker, wanted: AclFilter) -> list[AclBinding]:
    """The ACLs that match a filter, in order."""
    acls = broker.policies.acls
    if (only := wanted.only) is not None:
        return [only] if only in acls else []
    found: list[AclBinding] = []
    async for some in broker.slices.over(list(acls), SCANNED_AT_ONCE):
        found += [each for each in some if wanted.matches(each)]
    return sorted(found)


def _filter(asked: wire.DescribeAclsRequest | wire.DeleteAclsFilter) -> AclFilter:
    return AclFilter(
        asked.resource_type_filter,
        asked.pattern_type_filter,
        asked.resource_name_filter,
        asked.principal_filter,
        None if asked.host_filter is None else _normal_host(asked.host_filter),
        asked.operation,
        asked.permission_type,
    )


def _filter_problem(wanted: AclFilter) -> str | None:
    for kind, name in _CONCRETE:
        if getattr(wanted, name) not in set(kind) - {0}:
            return f"The filter has an unknown {name.replace('_', ' ')}"
    return None


def _binding(asked: wire.AclCreation) -> AclBinding:
    return AclBinding(
        asked.resource_type,
        asked.resource_pattern_type,
        asked.resource_name,
        asked.principal,
        _normal_host(asked.host),
        asked.operation,
        asked.permission_type,
    )


def _normal_host(host: str) -> str:
    """Write an IP address as connections have it; return anything else unchanged."""
    return _address(host) or host


def _address(host: str) -> str | None:
    try:
        return str(ip_address(host))
    except ValueError:
        return None


def _problem(binding: AclBinding) -> str | None:
    """The reason why an ACL cannot be added."""
    abstract = {0, 1, PatternType.MATCH}
    for kind, name in _CONCRETE:
        value = getattr(binding, name)
        if value not in set(kind) or value in (abstract if kind is PatternType else (0, 1)):
            return f"An ACL needs a concrete {name.replace('_', ' ')}"
    if binding.resource_type == ResourceType.CLUSTER and binding.resource_name != CLUSTER_NAME:
        return f"The only valid name for the CLUSTER resource is {CLUSTER_NAME}"
    if not binding.resource_name:
        return "Invalid empty resource name"
    if max(len(binding.resource_name), len(binding.principal), len(binding.host)) > NAME_CHARS_MAX:
        return f"A name is longer than {NAME_CHARS_MAX} characters"
    if binding.host != ANY_HOST and _address(binding.host) is None:
        return f"The host {binding.host!r} is neither * nor an IP address, so the ACL would never apply"
    principal_type, _, name = binding.principal.partition(":")
    if not (principal_type and name):
        return f"The principal {binding.principal!r} is not like User:alice"
    return None


def _matching(binding: AclBinding, error: ErrorCode, message: str | None) -> wire.DeleteAclsMatchingAcl:
    return wire.DeleteAclsMatchingAcl(
        error_code=error,
        error_message=message,
        resource_type=binding.resource_type,
        resource_name=binding.resource_name,
        pattern_type=binding.pattern_type,
        principal=binding.principal,
        host=binding.host,
        operation=binding.operation,
        permission_type=binding.permission,
    )


HANDLERS: dict[int, Handler] = {
    ApiKey.DESCRIBE_ACLS: describe_acls,
    ApiKey.CREATE_ACLS: create_acls,
    ApiKey.DELETE_ACLS: delete_acls,
}
