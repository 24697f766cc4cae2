"""Authorization: a guard for each API, which checks rights before it calls the handler, as Kafka does.

The handlers know nothing of rights. With `semel.authorizer=acl` the server uses the table that `guarded`
makes of the handlers; without it no guard runs. A guard refuses a request; or it removes the denied parts,
has the handler process the rest, and adds the denied parts to the response. There is one module per family of
APIs; `access` is what they share, and `audit` writes denials to the log.
"""

from collections.abc import Awaitable, Mapping
from typing import Any, Final

from semel.broker.broker import Broker
from semel.handlers import HANDLERS
from semel.handlers.authorization import (
    cluster,
    configs,
    groups,
    metadata,
    offsets,
    producing,
    reading,
    shares,
    topics,
    transaction_admin,
    transactions,
)
from semel.handlers.authorization.access import Access, Guard
from semel.handlers.context import Handler, RequestContext
from semel.wire.api_key import ApiKey
from semel.wire.messages import APIS

GUARDS: Final[dict[int, Guard]] = {
    **producing.GUARDS,
    **reading.GUARDS,
    **metadata.GUARDS,
    **topics.GUARDS,
    **configs.GUARDS,
    **groups.GUARDS,
    **offsets.GUARDS,
    **transactions.GUARDS,
    **transaction_admin.GUARDS,
    **cluster.GUARDS,
    **shares.GUARDS,
}

FREE: Final = frozenset(
    {
        ApiKey.SASL_HANDSHAKE,
        ApiKey.API_VERSIONS,
        ApiKey.SASL_AUTHENTICATE,
        ApiKey.CREATE_DELEGATION_TOKEN,
        ApiKey.RENEW_DELEGATION_TOKEN,
        ApiKey.EXPIRE_DELEGATION_TOKEN,
        ApiKey.DESCRIBE_DELEGATION_TOKEN,
    }
)
"""APIs without a guard: SaslHandshake, ApiVersions and SaslAuthenticate, which come before the principal is
known, and the APIs of delegation tokens, which are always refused."""


def guarded(handlers: Mapping[int, Handler]) -> dict[int, Handler]:
    """Put each handler behind the guard of its API."""
    unguarded = handlers.keys() - GUARDS.keys() - FREE
    if unguarded:
        raise LookupError(f"no guard decides who may use API {sorted(unguarded)}")
    return {key: each if key in FREE else _behind(key, each) for key, each in handlers.items()}


def _behind(key: int, handler: Handler) -> Handler:
    guard = GUARDS[key]
    name = APIS[key].name

    def authorized(broker: Broker, request: Any, context: RequestContext) -> Awaitable[Any]:
        rights = broker.policies.rights(context.principal, context.client_host)
        if rights.are_all:
            return handler(broker, request, context)
        return guard(Access(name, broker, context, rights, handler), request)

    return authorized


guarded(HANDLERS)  # fails at import if an API has no guard
