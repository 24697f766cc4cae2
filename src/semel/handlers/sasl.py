"""SaslHandshake and SaslAuthenticate on listeners without SASL.

Listeners with SASL answer these requests themselves (`semel.server.listener`).
"""

from semel.broker.broker import Broker
from semel.core.types import ErrorCode
from semel.handlers.context import Handler, RequestContext
from semel.wire.api_key import ApiKey
from semel.wire.messages import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)


async def sasl_handshake(
    broker: Broker, request: SaslHandshakeRequest, context: RequestContext
) -> SaslHandshakeResponse:
    """SaslHandshake v0–v1: choose a mechanism.

    Behaviour: ILLEGAL_SASL_STATE on a listener without SASL; otherwise the enabled mechanisms.
    """
    return SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE)


async def sasl_authenticate(
    broker: Broker, request: SaslAuthenticateRequest, context: RequestContext
) -> SaslAuthenticateResponse:
    """SaslAuthenticate v0–v2: one round of a mechanism.

    Behaviour: ILLEGAL_SASL_STATE on a listener without SASL, and after authentication unless the session can
        expire (KIP-368). SASL_AUTHENTICATION_FAILED after a short delay, then the connection is closed.
    """
    return SaslAuthenticateResponse(
        error_code=ErrorCode.ILLEGAL_SASL_STATE, error_message="this listener does not authenticate clients"
    )


HANDLERS: dict[int, Handler] = {
    ApiKey.SASL_HANDSHAKE: sasl_handshake,
    ApiKey.SASL_AUTHENTICATE: sasl_authenticate,
}
