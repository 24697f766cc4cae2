"""The request context: what a handler knows of a request besides its body."""

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple, Protocol, TypeAlias

from semel.broker.broker import Broker
from semel.broker.reads.reads import unlimited
from semel.core.security.acls import ANONYMOUS


class CloseConnection(Exception):
    """Raised to close the connection instead of answering. The text is the reason, for the log."""


def _nothing() -> None:
    """The default of ``parked``: a request without a connection holds no bytes of a budget."""


class Throttle(Protocol):
    """The quotas of the client. Responses tell the client how long to wait."""

    @property
    def is_idle(self) -> bool:
        """Whether there are no quotas at all. Then the other methods need not be called."""

    def fetch_bytes_max(self) -> int | None:
        """The most bytes that a Fetch response may have; None if there is no limit."""

    def may_send(self, size: int) -> bool:
        """Whether a Fetch response may contain its records. Only allowed records are counted."""

    def may_change(self, partitions: int, *, strict: bool) -> bool:
        """Whether this many partitions may be created or deleted; if not, THROTTLING_QUOTA_EXCEEDED."""


class Unthrottled:
    """For requests without a connection."""

    is_idle = True

    def fetch_bytes_max(self) -> int | None:
        """No limit."""
        return None

    def may_send(self, size: int) -> bool:
        """Always."""
        return True

    def may_change(self, partitions: int, *, strict: bool) -> bool:
        """Always."""
        return True


class RequestContext(NamedTuple):
    """The client, the version and the listener of a request."""

    version: int
    client_id: str | None
    client_host: str
    listener: str
    connection_id: int
    parked: Callable[[], None] = _nothing
    """Call it when the request is parked and no longer references its bytes."""
    reserve: Callable[[int], Awaitable[None]] = unlimited
    """Waits until the given number of bytes may be read for the response."""
    principal: str = ANONYMOUS
    """Who sent the request, as ACLs name it: User:alice."""
    throttle: Throttle = Unthrottled()


Handler: TypeAlias = Callable[[Broker, Any, RequestContext], Awaitable[Any]]  # Any: the messages of its API
"""Returns a coroutine, which the connection runs as a task, or a ``Promise``, which needs no task."""
