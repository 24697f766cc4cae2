"""ACLs: list, add and remove them.

    admin.acls.add(Acl.allow("User:billing", "READ", topic="orders"))
    admin.acls.list(principal="User:billing")

Operations and resource types are named as in Kafka's tools, in capitals. Resource names are literal;
``is_prefix`` makes them prefixes.
"""

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Self, TypeVar

from semel.client.errors import check
from semel.client.net.cluster import Client
from semel.wire import messages as wire
from semel.wire.acls import Operation, PatternType, Permission, ResourceType

CLUSTER_NAME = "kafka-cluster"
ANY = "*"
Word = TypeVar("Word", bound=IntEnum)


@dataclass(frozen=True, slots=True, order=True)
class Acl:
    """An ACL: allows or denies a principal, from a host, an operation on a resource."""

    resource_type: str
    resource_name: str
    pattern_type: str
    principal: str
    host: str
    operation: str
    permission: str

    @classmethod
    def of(
        cls,
        principal: str,
        operation: str,
        *,
        topic: str | None = None,
        group: str | None = None,
        transactional_id: str | None = None,
        is_cluster: bool = False,
        is_prefix: bool = False,
        host: str = ANY,
        is_denied: bool = False,
    ) -> Self:
        """Return an ACL for one resource. ValueError unless exactly one resource is named."""
        named = {
            "TOPIC": topic,
            "GROUP": group,
            "TRANSACTIONAL_ID": transactional_id,
            "CLUSTER": CLUSTER_NAME if is_cluster else None,
        }
        given = [(kind, name) for kind, name in named.items() if name is not None]
        if len(given) != 1:
            raise ValueError("name one resource: a topic, a group, a transactional id, or the cluster")
        ((kind, name),) = given
        return cls(
            kind,
            name,
            "PREFIXED" if is_prefix else "LITERAL",
            principal,
            host,
            word(Operation, operation).name,
            "DENY" if is_denied else "ALLOW",
        )


class AclAdmin:
    """The ACLs of a cluster. Reached as `Admin(client).acls`."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def add(self, *acls: Acl) -> None:
        """Add ACLs. Adding an ACL that exists changes nothing."""
        creations = [
            wire.AclCreation(
                resource_type=ResourceType[acl.resource_type],
                resource_name=acl.resource_name,
                resource_pattern_type=PatternType[acl.pattern_type],
                principal=acl.principal,
                host=acl.host,
                operation=Operation[acl.operation],
                permission_type=Permission[acl.permission],
            )
            for acl in acls
        ]
        response: wire.CreateAclsResponse = self._client.send(wire.CreateAclsRequest(creations=creations))
        for acl, result in zip(acls, response.results, strict=True):
            what = f"{acl.operation} on {acl.resource_type} {acl.resource_name!r} for {acl.principal}"
            check(result.error_code, f"the ACL {what} was not added", result.error_message)

    def list(
        self,
        *,
        principal: str | None = None,
        resource_type: str = "ANY",
        resource_name: str | None = None,
        pattern_type: str = "ANY",
        operation: str = "ANY",
        permission: str = "ANY",
        host: str | None = None,
    ) -> Sequence[Acl]:
        """Return the matching ACLs, sorted. Pattern type MATCH finds all that apply to a resource name."""
        request = wire.DescribeAclsRequest(
            resource_type_filter=word(ResourceType, resource_type),
            resource_name_filter=resource_name,
            pattern_type_filter=word(PatternType, pattern_type),
            principal_filter=principal,
            host_filter=host,
            operation=word(Operation, operation),
            permission_type=word(Permission, permission),
        )
        response: wire.DescribeAclsResponse = self._client.send(request)
        check(response.error_code, "the ACLs could not be listed", response.error_message)
        return sorted(
            Acl(
                ResourceType(resource.resource_type).name,
                resource.resource_name,
                PatternType(resource.pattern_type).name,
                acl.principal,
                acl.host,
                Operation(acl.operation).name,
                Permission(acl.permission_type).name,
            )
            for resource in response.resources
            for acl in resource.acls
        )

    def remove(self, acls: Iterable[Acl]) -> Sequence[Acl]:
        """Remove exactly these ACLs; return those that existed."""
        wanted = tuple(acls)
        filters = [
            wire.DeleteAclsFilter(
                resource_type_filter=ResourceType[acl.resource_type],
                resource_name_filter=acl.resource_name,
                pattern_type_filter=PatternType[acl.pattern_type],
                principal_filter=acl.principal,
                host_filter=acl.host,
                operation=Operation[acl.operation],
                permission_type=Permission[acl.permission],
            )
            for acl in wanted
        ]
        response: wire.DeleteAclsResponse = self._client.send(wire.DeleteAclsRequest(filters=filters))
        removed = []
        for acl, result in zip(wanted, response.filter_results, strict=True):
            check(result.error_code, "an ACL was not removed", result.error_message)
            for match in result.matching_acls:
                check(match.error_code, "an ACL was not removed", match.error_message)
            removed += [acl] if result.matching_acls else []
        return removed


def word(kind: type[Word], text: str) -> Word:
    """Return the member with this name, ignoring case, "-" and "_". ValueError suggests the nearest name."""
    name = text.strip().upper().replace("-", "_")
    spelled = {member.name.replace("_", ""): member for member in kind}
    found = spelled.get(name.replace("_", ""))
    if found is None:
        names = [member.name for member in kind if member.value > 0]
        near = difflib.get_close_matches(name, names, n=1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(names)}"
        raise ValueError(f"{text!r} is not known; {hint}")
    return found
