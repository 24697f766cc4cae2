"""Authorization: a guard for each API, which checks rights before it calls the handler, as Kafka does.

The handlers know nothing of rights. With `semel.authorizer=acl` the server uses the table that `guarded`
makes of the handlers; without it no guard runs. A guard refuses a request; or it removes the denied parts,
has the handler process the rest, and adds the denied parts to the response. There is one module per family of
APIs; `access` is what they share, and `audit` writes denials to the log.
"""

from collections.abc import Awaitable, Mapping
from typing import Any, Final

from semel.broker.broker import Broker
from semel.handlers.authorization import (
    producing,
    reading,
)
from semel.handlers.authorization.access import Access, Guard
from semel.handlers.context import Handler, RequestContext
from semel.wire.messages import APIS

GUARDS: Final[dict[int, Guard]] = {
    **producing.GUARDS,
    **reading.GUARDS,
}


def guarded(handlers: Mapping[int, Handler]) -> dict[int, Handler]:
    """Put handlers behind the guards of their APIs. Handlers without one ask for rights themselves."""
    return {key: _behind(key, each) if key in GUARDS else each for key, each in handlers.items()}


def _behind(key: int, handler: Handler) -> Handler:
    guard = GUARDS[key]
    name = APIS[key].name

    def authorized(broker: Broker, request: Any, context: RequestContext) -> Awaitable[Any]:
        rights = broker.policies.rights(context.principal, context.client_host)
        if rights.are_all:
            return handler(broker, request, context)
        return guard(Access(name, broker, context, rights, handler), request)

    return authorized
