"""The request context: what a handler knows of a request besides its body."""

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple, TypeAlias

from semel.broker.broker import Broker
from semel.broker.reads import unlimited


class CloseConnection(Exception):
    """Raised to close the connection instead of answering. The text is the reason, for the log."""


def _nothing() -> None:
    """The default of ``parked``: a request without a connection holds no bytes of a budget."""


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


Handler: TypeAlias = Callable[[Broker, Any, RequestContext], Awaitable[Any]]
"""Returns a coroutine, which the connection runs as a task, or a ``Promise``, which needs no task."""
