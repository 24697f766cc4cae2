"""Rights: what the sender of a request may do, and the record of what it was denied.

A handler asks in its first lines, in Kafka's order. Its questions name an operation and a resource:
``rights.topic(WRITE, name)``, ``rights.cluster(ALTER)``. ``rights.split`` divides the items of a request into
the allowed ones, which the handler processes, and the refused ones, which it adds to its response. Without an
authorizer, and for super users, every answer is yes and nothing is looked up.

A denied request is counted once, and each resource that was denied is one line on the logger ``semel.audit``.
A line has a constant sentence and fields, like those of `semel.server.logs`, which this layer may not import.
A client can cause any number of lines, so they are limited: one line per principal, API and resource in ten
seconds, and at most a hundred lines per principal. The next line of the principal carries the number of lines
that were suppressed. The memory for this is bounded.
"""

import logging
from collections.abc import Callable, Iterable
from typing import ClassVar, Final, TypeVar

from semel.broker.broker import Broker
from semel.core.security.acls import CLUSTER_NAME, OPERATIONS_OF, Operation, ResourceType
from semel.core.types import ErrorCode
from semel.handlers.context import RequestContext
from semel.wire.messages import APIS
from semel.wire.schema import Request

log = logging.getLogger("semel.audit")

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")

READ: Final = Operation.READ
WRITE: Final = Operation.WRITE
CREATE: Final = Operation.CREATE
DELETE: Final = Operation.DELETE
ALTER: Final = Operation.ALTER
DESCRIBE: Final = Operation.DESCRIBE
CLUSTER_ACTION: Final = Operation.CLUSTER_ACTION
DESCRIBE_CONFIGS: Final = Operation.DESCRIBE_CONFIGS
ALTER_CONFIGS: Final = Operation.ALTER_CONFIGS

TOPIC: Final = ResourceType.TOPIC
GROUP: Final = ResourceType.GROUP
CLUSTER: Final = ResourceType.CLUSTER
TRANSACTIONAL_ID: Final = ResourceType.TRANSACTIONAL_ID

TOPIC_DENIED: Final = ErrorCode.TOPIC_AUTHORIZATION_FAILED
GROUP_DENIED: Final = ErrorCode.GROUP_AUTHORIZATION_FAILED
CLUSTER_DENIED: Final = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
ID_DENIED: Final = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED

MESSAGES: Final = {
    TOPIC_DENIED: "Topic authorization failed.",
    GROUP_DENIED: "Group authorization failed.",
    CLUSTER_DENIED: "Cluster authorization failed.",
    ID_DENIED: "Transactional Id authorization failed.",
}
"""Kafka's error messages, for responses that have a field for one."""

PERIOD_MS: Final = 10_000
LINES_MAX: Final = 100
"""Lines per principal and period, whatever the number of resources that it names."""
REMEMBERED_MAX: Final = 1_000
"""The most lines, and principals, that are remembered. The oldest are forgotten; a line may then recur."""
NAME_CHARS_MAX: Final = 249
"""The longest name in a line, and of a topic. Names from requests may have 32,767 characters."""

_ALL_OPERATIONS: Final = {
    kind: sum(1 << each for each in operations) for kind, operations in OPERATIONS_OF.items()
}


class RequestRights:
    """The rights of one request. This class grants them all: to super users, and without an authorizer."""

    __slots__ = ()

    are_all: ClassVar[bool] = True
    """Whether everything is allowed. Saves the work of finding out what to ask for."""

    def has(self, operation: Operation, resource_type: ResourceType, name: str = CLUSTER_NAME) -> bool:
        """Whether an operation on a resource is allowed; a denial is not recorded.

        For what a response leaves out, and for the first of two rights of which one is enough.
        """
        return True

    def may(self, operation: Operation, resource_type: ResourceType, name: str) -> bool:
        """Whether an operation on a resource is allowed; records a denial."""
        return True

    def topic(self, operation: Operation, name: str) -> bool:
        """``may``, for a topic."""
        return self.may(operation, TOPIC, name)

    def topics(self, operation: Operation, names: Iterable[str]) -> bool:
        """``may``, for all these topics."""
        return self.are_all or all(self.may(operation, TOPIC, each) for each in names)

    def group(self, operation: Operation, group_id: str) -> bool:
        """``may``, for a group."""
        return self.may(operation, GROUP, group_id)

    def transactional_id(self, operation: Operation, name: str) -> bool:
        """``may``, for a transactional id."""
        return self.may(operation, TRANSACTIONAL_ID, name)

    def cluster(self, operation: Operation) -> bool:
        """``may``, for the cluster."""
        return self.may(operation, CLUSTER, CLUSTER_NAME)

    def any_topic(self, operation: Operation) -> bool:
        """Whether an operation is allowed on some topic; a denial is not recorded."""
        return True

    def split(self, items: Iterable[T], may: Callable[[T], bool]) -> tuple[list[T], list[T]]:
        """The items that are allowed, and those that are refused."""
        return list(items), []

    def operations(self, resource_type: ResourceType, name: str = CLUSTER_NAME) -> int:
        """The allowed operations as a bit field, for the authorized operations of a response."""
        return _ALL_OPERATIONS[resource_type]

    def now(self) -> "RequestRights":
        """The rights at this moment. They may have changed while the request waited."""
        return self


class _CheckedRights(RequestRights):
    """The rights that ACLs grant."""

    __slots__ = ("_api_key", "_broker", "_context", "_is_counted", "_known")

    are_all = False

    def __init__(self, broker: Broker, api_key: int, context: RequestContext) -> None:
        self._broker = broker
        self._api_key = api_key
        self._context = context
        self._known = broker.policies.rights(context.principal, context.client_host)
        self._is_counted = False

    def has(self, operation: Operation, resource_type: ResourceType, name: str = CLUSTER_NAME) -> bool:
        return self._known.may(operation, resource_type, name)

    def may(self, operation: Operation, resource_type: ResourceType, name: str) -> bool:
        if self._known.may(operation, resource_type, name):
            return True
        if not self._is_counted:
            self._is_counted = True
            self._broker.metrics.denied_requests += 1
        _log_denial(self._broker, self._context, APIS[self._api_key].name, operation, resource_type, name)
        return False

    def any_topic(self, operation: Operation) -> bool:
        return self._known.may_any(operation, TOPIC)

    def split(self, items: Iterable[T], may: Callable[[T], bool]) -> tuple[list[T], list[T]]:
        allowed: list[T] = []
        refused: list[T] = []
        for each in items:
            (allowed if may(each) else refused).append(each)
        return allowed, refused

    def operations(self, resource_type: ResourceType, name: str = CLUSTER_NAME) -> int:
        return self._known.operations(resource_type, name)

    def now(self) -> RequestRights:
        self._known = self._broker.policies.rights(self._context.principal, self._context.client_host)
        return self


_ALL: Final = RequestRights()


def rights_of(broker: Broker, request: Request, context: RequestContext) -> RequestRights:
    """What the sender of a request may do."""
    policies = broker.policies
    if not policies.has_authorizer or policies.rights(context.principal, context.client_host).are_all:
        return _ALL
    return _CheckedRights(broker, request.api_key, context)


class _Lines:
    """The lines that one broker has written in the last period."""

    def __init__(self) -> None:
        self._written: dict[tuple[str, ...], int] = {}
        """When a line was written."""
        self._principals: dict[str, tuple[int, int]] = {}
        """When the period of a principal began, and how many lines it has had."""
        self._suppressed: dict[str, int] = {}

    def suppressed(self, principal: str, line: tuple[str, ...], now: int) -> int | None:
        """None if this line must not be written, else the number of lines suppressed since the last one."""
        began, lines = self._principals.get(principal, (now, 0))
        if now - began >= PERIOD_MS:
            began, lines = now, 0
        written = self._written.get(line)
        if lines >= LINES_MAX or (written is not None and now - written < PERIOD_MS):
            _remember(self._suppressed, principal, self._suppressed.get(principal, 0) + 1)
            return None
        _remember(self._principals, principal, (began, lines + 1))
        _remember(self._written, line, now)
        return self._suppressed.pop(principal, 0)


def _remember(known: dict[K, V], key: K, value: V) -> None:
    known.pop(key, None)
    if len(known) >= REMEMBERED_MAX:
        del known[next(iter(known))]
    known[key] = value


def _lines(broker: Broker) -> _Lines:
    return _Lines()


def _log_denial(
    broker: Broker,
    context: RequestContext,
    api: str,
    operation: Operation,
    resource_type: ResourceType,
    name: str,
) -> None:
    """Log that an operation on a resource was denied, unless the line is suppressed."""
    lines = broker.kept(_lines)
    name = name[:NAME_CHARS_MAX]
    line = (context.principal, api, operation.name, resource_type.name, name)
    suppressed = lines.suppressed(context.principal, line, broker.now())
    if suppressed is None:
        return
    fields = {
        "principal": context.principal,
        "client": context.client_host,
        "client_id": context.client_id,
        "listener": context.listener,
        "api": api,
        "version": context.version,
        "operation": operation.name,
        "resource_type": resource_type.name,
        "resource": name,
        "suppressed": suppressed,
    }
    log.info("denied", extra={"fields": fields})
