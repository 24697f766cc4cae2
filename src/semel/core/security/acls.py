"""ACLs: Kafka's rules (`StandardAuthorizer`) as pure functions.

A binding allows or denies a principal an operation on the resources of a pattern. A request is decided by all
bindings that match its resource: the literal name, every prefix of it, and ``*``.

1. A super user may do everything.
2. A matching DENY forbids, whatever else matches.
3. A matching ALLOW allows. Read, Write, Delete and Alter imply Describe, and AlterConfigs implies
   DescribeConfigs: an ALLOW for them also allows the implied operation. A DENY has no such effect.
4. If no binding is about the resource at all, ``allow.everyone.if.no.acl.found`` decides. Otherwise the
   request is forbidden.

Rights: what one principal at one host may do. Decisions are remembered until an ACL changes.
"""

from collections.abc import Iterable, Iterator
from typing import Final

from semel.core.data import Data
from semel.wire.acls import Operation, PatternType, Permission, ResourceType

__all__ = ["Operation", "PatternType", "Permission", "ResourceType"]  # of other modules, but part of this one

ANYONE: Final = "User:*"
ANY_HOST: Final = "*"
ANY_NAME: Final = "*"
CLUSTER_NAME: Final = "kafka-cluster"
"""The name of the only resource of type CLUSTER."""
ANONYMOUS: Final = "User:ANONYMOUS"
"""The principal of a client that did not authenticate."""


IMPLYING: Final = {
    Operation.DESCRIBE: (Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER),
    Operation.DESCRIBE_CONFIGS: (Operation.ALTER_CONFIGS,),
}
"""The operations that are implied by others, and by which."""

OPERATIONS_OF: Final = {
    ResourceType.TOPIC: (
        Operation.READ,
        Operation.WRITE,
        Operation.CREATE,
        Operation.DESCRIBE,
        Operation.DELETE,
        Operation.ALTER,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
    ),
    ResourceType.GROUP: (
        Operation.READ,
        Operation.DESCRIBE,
        Operation.DELETE,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
    ),
    ResourceType.CLUSTER: (
        Operation.CREATE,
        Operation.CLUSTER_ACTION,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
        Operation.IDEMPOTENT_WRITE,
        Operation.ALTER,
        Operation.DESCRIBE,
    ),
    ResourceType.TRANSACTIONAL_ID: (Operation.DESCRIBE, Operation.WRITE, Operation.TWO_PHASE_COMMIT),
    ResourceType.DELEGATION_TOKEN: (Operation.DESCRIBE,),
    ResourceType.USER: (Operation.CREATE_TOKENS, Operation.DESCRIBE_TOKENS),
}
"""The operations that apply to each type of resource. Responses with authorized operations report these."""


class AclBinding(Data, order=True):
    """One rule."""

    resource_type: int
    pattern_type: int
    resource_name: str
    principal: str
    host: str
    operation: int
    permission: int


class AclFilter(Data):
    """Bindings to list or delete. None and ANY match everything."""

    resource_type: int
    pattern_type: int
    resource_name: str | None
    principal: str | None
    host: str | None
    operation: int
    permission: int

    @property
    def only(self) -> AclBinding | None:
        """The single binding that the filter can match; None if it can match several."""
        if (
            None in (self.resource_name, self.principal, self.host)
            or self.resource_type == ResourceType.ANY
            or self.pattern_type in (PatternType.ANY, PatternType.MATCH)
            or self.operation == Operation.ANY
            or self.permission == Permission.ANY
        ):
            return None
        return AclBinding(*self.values())

    def matches(self, binding: AclBinding) -> bool:
        """Whether the filter matches a binding."""
        return (
            self.resource_type in (ResourceType.ANY, binding.resource_type)
            and self._matches_name(binding)
            and self.principal in (None, binding.principal)
            and self.host in (None, binding.host)
            and self.operation in (Operation.ANY, binding.operation)
            and self.permission in (Permission.ANY, binding.permission)
        )

    def _matches_name(self, binding: AclBinding) -> bool:
        if self.pattern_type not in (PatternType.ANY, PatternType.MATCH, binding.pattern_type):
            return False
        if self.resource_name is None or self.resource_name == binding.resource_name:
            return True
        # MATCH finds all bindings that apply to a resource of this name.
        if self.pattern_type != PatternType.MATCH:
            return False
        if binding.pattern_type == PatternType.LITERAL:
            return binding.resource_name == ANY_NAME
        return self.resource_name.startswith(binding.resource_name)


class Acls:
    """All bindings, indexed for decisions."""

    def __init__(self, bindings: Iterable[AclBinding] = ()) -> None:
        self._literal: dict[tuple[int, str], set[AclBinding]] = {}
        self._prefixed: dict[tuple[int, str], set[AclBinding]] = {}
        self._prefix_lengths: dict[int, dict[int, int]] = {}
        """For each resource type: the lengths of its prefixes, and the number of prefixes of each length."""
        for each in bindings:
            self.add(each)

    def __contains__(self, binding: AclBinding) -> bool:
        is_literal = binding.pattern_type == PatternType.LITERAL
        table = self._literal if is_literal else self._prefixed
        return binding in table.get((binding.resource_type, binding.resource_name), ())

    def __iter__(self) -> Iterator[AclBinding]:
        for table in (self._literal, self._prefixed):
            for bindings in table.values():
                yield from bindings

    def add(self, binding: AclBinding) -> None:
        """Add a binding; no change if it is there."""
        place = (binding.resource_type, binding.resource_name)
        if binding.pattern_type == PatternType.LITERAL:
            self._literal.setdefault(place, set()).add(binding)
            return
        if place not in self._prefixed:
            self._prefixed[place] = set()
            lengths = self._prefix_lengths.setdefault(binding.resource_type, {})
            lengths[len(binding.resource_name)] = lengths.get(len(binding.resource_name), 0) + 1
        self._prefixed[place].add(binding)

    def remove(self, binding: AclBinding) -> None:
        """Remove exactly this binding; no change if it is not there."""
        place = (binding.resource_type, binding.resource_name)
        is_literal = binding.pattern_type == PatternType.LITERAL
        table = self._literal if is_literal else self._prefixed
        bindings = table.get(place, set())
        bindings.discard(binding)
        if bindings or place not in table:
            return
        del table[place]
        if not is_literal:
            lengths = self._prefix_lengths[binding.resource_type]
            length = len(binding.resource_name)
            lengths[length] -= 1
            if not lengths[length]:
                del lengths[length]

    def about(self, resource_type: int, name: str) -> Iterator[AclBinding]:
        """Yield the bindings that apply to a resource."""
        yield from self._literal.get((resource_type, name), ())
        if name != ANY_NAME:
            yield from self._literal.get((resource_type, ANY_NAME), ())
        for length in self._prefix_lengths.get(resource_type, ()):
            if length <= len(name):
                yield from self._prefixed.get((resource_type, name[:length]), ())

    def allow(
        self,
        principal: str,
        host: str,
        operation: int,
        resource_type: int,
        name: str,
        *,
        if_none_found: bool = False,
    ) -> bool:
        """Whether a principal at a host may do an operation (rules 2 to 4)."""
        is_any_found = is_allowed = False
        implying = IMPLYING.get(Operation(operation), ())
        for binding in self.about(resource_type, name):
            is_any_found = True
            if binding.principal not in (principal, ANYONE) or binding.host not in (host, ANY_HOST):
                continue
            is_meant = binding.operation in (operation, Operation.ALL)
            if binding.permission == Permission.DENY:
                if is_meant:
                    return False
            elif is_meant or binding.operation in implying:
                is_allowed = True
        return is_allowed if is_any_found else if_none_found

    def allow_any(
        self,
        principal: str,
        host: str,
        operation: int,
        resource_type: int,
        *,
        if_none_found: bool = False,
    ) -> bool:
        """Whether the operation may be allowed on some resource of a type: for InitProducerId, on some topic.

        A pattern with an ALLOW counts unless a pattern with a DENY covers all of it.
        """
        bindings = [each for each in self if each.resource_type == resource_type]
        names = [each.resource_name for each in bindings if each.pattern_type == PatternType.LITERAL]
        if if_none_found and ANY_NAME not in names:
            return True
        meant = [
            each
            for each in bindings
            if each.principal in (principal, ANYONE)
            and each.host in (host, ANY_HOST)
            and each.operation in (operation, Operation.ALL)
        ]
        denied = [each for each in meant if each.permission == Permission.DENY]
        return any(
            not any(_covers(wide, each) for wide in denied)
            for each in meant
            if each.permission == Permission.ALLOW
        )


def _covers(wide: AclBinding, narrow: AclBinding) -> bool:
    """Whether every resource of the narrow pattern is also one of the wide pattern."""
    if wide.pattern_type == PatternType.LITERAL:
        is_same = wide.resource_name == narrow.resource_name and narrow.pattern_type == PatternType.LITERAL
        return is_same or wide.resource_name == ANY_NAME
    is_any = narrow.pattern_type == PatternType.LITERAL and narrow.resource_name == ANY_NAME
    return not is_any and narrow.resource_name.startswith(wide.resource_name)


REMEMBERED_MAX: Final = 1_000
"""Decisions remembered for one principal. When there are more, all are forgotten and decided again."""
NAME_CHARS_MAX: Final = 249
"""Longer names cannot be those of topics. Decisions about them are not remembered."""
ANY_OF_THEM: Final = "\0" * (NAME_CHARS_MAX + 1)
"""The name under which ``may_any`` remembers its decisions: too long to be that of a remembered resource."""


class Rights:
    """The rights of a principal. Without ``acls`` it may do everything."""

    __slots__ = ("_acls", "_host", "_if_none_found", "_known", "_principal")

    def __init__(self, acls: Acls | None, principal: str, host: str, *, if_none_found: bool = False) -> None:
        self._acls = acls
        self._principal = principal
        self._host = host
        self._if_none_found = if_none_found
        self._known: dict[tuple[int, int, str], bool] = {}

    @property
    def are_all(self) -> bool:
        """Whether everything is allowed: to a super user, or because there is no authorizer."""
        return self._acls is None

    def may(self, operation: Operation, resource_type: ResourceType, name: str) -> bool:
        """Whether an operation on a resource is allowed."""
        if self._acls is None:
            return True
        question = (operation, resource_type, name)
        answer = self._known.get(question)
        if answer is None:
            answer = self._acls.allow(
                self._principal, self._host, *question, if_none_found=self._if_none_found
            )
            if len(name) <= NAME_CHARS_MAX:
                self._remember(question, answer)
        return answer

    def may_any(self, operation: Operation, resource_type: ResourceType) -> bool:
        """Whether an operation is allowed on any resource of a type."""
        if self._acls is None:
            return True
        question = (operation, resource_type, ANY_OF_THEM)
        answer = self._known.get(question)
        if answer is None:
            answer = self._acls.allow_any(
                self._principal, self._host, operation, resource_type, if_none_found=self._if_none_found
            )
            self._remember(question, answer)
        return answer

    def _remember(self, question: tuple[int, int, str], answer: bool) -> None:
        if len(self._known) >= REMEMBERED_MAX:
            self._known.clear()
        self._known[question] = answer

    def operations(self, resource_type: ResourceType, name: str) -> int:
        """Return the allowed operations as a bit field, for the authorized operations of a response."""
        return sum(1 << each for each in OPERATIONS_OF[resource_type] if self.may(each, resource_type, name))
