"""Holds what the sender of one request may do, and passes the request on to the handler.

A guard gets an ``Access`` and the request. It answers the denied parts and passes the rest on to the handler.
"""

from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final, TypeAlias, TypeVar

from semel.broker.broker import Broker
from semel.core.security.acls import CLUSTER_NAME, Operation, ResourceType
from semel.core.security.rights import Rights
from semel.core.types import ErrorCode
from semel.handlers.context import Handler, RequestContext
from semel.handlers.rights import _log_denial

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
        _log_denial(self.broker, self.context, self.api, operation, resource_type, name)

    def pass_on(self, request: Any) -> Awaitable[Any]:
        """Have the handler answer the request, or its remaining parts."""
        return self.handler(self.broker, request, self.context)


Guard: TypeAlias = Callable[[Access, Any], Awaitable[Any]]
"""Returns a coroutine or a ``Promise``, like a handler."""


def except_for(items: Iterable[T], others: Iterable[T]) -> list[T]:
    """The items that are not in ``others``, compared by identity: messages have no hash."""
    identities = set(map(id, others))
    return [each for each in items if id(each) not in identities]
