"""Holds what the sender of one request may do, and passes the request on to the handler.

A guard gets an ``Access`` and the request. It answers the denied parts and passes the rest on to the handler.

Audit of denied requests: one line on the logger ``semel.audit`` for each resource that was denied.

A line has a constant sentence and fields, like those of `semel.server.logs`, which this layer may not import.
A client can cause any number of lines, so they are limited: one line per principal, API and resource in ten
seconds, and at most a hundred lines per principal. The next line of the principal carries the number of lines
that were suppressed. The memory for this is bounded.
"""

import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final, TypeAlias, TypeVar
from weakref import WeakKeyDictionary

from semel.broker.broker import Broker
from semel.core.security.acls import CLUSTER_NAME, Operation, ResourceType
from semel.core.security.rights import Rights
from semel.core.types import ErrorCode
from semel.handlers.context import Handler, RequestContext

log = logging.getLogger("semel.audit")

K = TypeVar("K")
V = TypeVar("V")

PERIOD_MS: Final = 10_000
LINES_MAX: Final = 100
"""Lines per principal and period, whatever the number of resources that it names."""
REMEMBERED_MAX: Final = 1_000
"""The most lines, and principals, that are remembered. The oldest are forgotten; a line may then recur."""
NAME_CHARS_MAX: Final = 249
"""The longest name in a line, and of a topic. Names from requests may have 32,767 characters."""


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


# By broker, and dropped together with it.
_LINES: WeakKeyDictionary[Broker, _Lines] = WeakKeyDictionary()


def denied(
    broker: Broker,
    context: RequestContext,
    api: str,
    operation: Operation,
    resource_type: ResourceType,
    name: str,
) -> None:
    """Log that an operation on a resource was denied, unless the line is suppressed."""
    lines = _LINES.get(broker)
    if lines is None:
        lines = _LINES[broker] = _Lines()
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


T = TypeVar("T")

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


class Access:
    """The rights of the principal that sent a request, and the handler of its API."""

    __slots__ = ("_is_counted", "api", "broker", "context", "handler", "rights")

    def __init__(
        self, api: str, broker: Broker, context: RequestContext, rights: Rights, handler: Handler
    ) -> None:
        self.api = api
        self.broker = broker
        self.context = context
        self.rights = rights
        self.handler = handler
        self._is_counted = False

    def may(self, operation: Operation, resource_type: ResourceType, name: str) -> bool:
        """Whether this is allowed; records a denial. ``rights.may`` checks without recording."""
        if self.rights.may(operation, resource_type, name):
            return True
        self.deny(operation, resource_type, name)
        return False

    def may_cluster(self, operation: Operation) -> bool:
        """Like ``may``, for the cluster."""
        return self.may(operation, CLUSTER, CLUSTER_NAME)

    def may_now(self, operation: Operation, resource_type: ResourceType, name: str) -> bool:
        """Like ``may``, with the current rights, which may have changed while the request waited."""
        self.rights = self.broker.policies.rights(self.context.principal, self.context.client_host)
        return self.may(operation, resource_type, name)

    def deny(self, operation: Operation, resource_type: ResourceType, name: str) -> None:
        """Record a denial. A request is counted once, whatever the number of its denied parts."""
        if not self._is_counted:
            self._is_counted = True
            self.broker.metrics.denied_requests += 1
        denied(self.broker, self.context, self.api, operation, resource_type, name)

    def pass_on(self, request: Any) -> Awaitable[Any]:
        """Have the handler answer the request, or its remaining parts."""
        return self.handler(self.broker, request, self.context)


Guard: TypeAlias = Callable[[Access, Any], Awaitable[Any]]
"""Returns a coroutine or a ``Promise``, like a handler."""


def except_for(items: Iterable[T], others: Iterable[T]) -> list[T]:
    """The items that are not in ``others``, compared by identity: messages have no hash."""
    identities = set(map(id, others))
    return [each for each in items if id(each) not in identities]
