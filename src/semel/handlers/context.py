"""What a handler knows of a request besides its body."""

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple, TypeAlias

from semel.broker.broker import Broker
from semel.broker.reads import unlimited


class CloseConnection(Exception):
    """The only right answer is to close the connection; the text says why, for the log."""


def _nothing() -> None:
    """Nothing is charged for a request that comes from no connection."""


class RequestContext(NamedTuple):
    """Who asks, in which version, through which door."""

    version: int
    client_id: str | None
    client_host: str
    listener: str
    connection_id: int
    parked: Callable[[], None] = _nothing
    """To be called when the request waits for other clients and keeps none of its bytes."""
    reserve: Callable[[int], Awaitable[None]] = unlimited
    """Waits until so many bytes may be read for the response."""


Handler: TypeAlias = Callable[[Broker, Any, RequestContext], Awaitable[Any]]
"""Returns a coroutine, which the connection runs as a task, or a ``Promise``, which needs none."""
