"""SASL authentication: choice of a mechanism, then as many rounds as the mechanism needs.

The mechanism defines the content of the rounds; here it is bytes, which are never logged.
"""

from semel.wire.api_key import ApiKey
from semel.wire.schema import Request, Response, array, bytes_, int16, int64, request, response, string


@request(ApiKey.SASL_HANDSHAKE, versions="0-1", flexible=None)
class SaslHandshakeRequest(Request):
    """The client's mechanism; version 0 is followed by raw tokens, version 1 by SaslAuthenticate."""

    mechanism: str = string()


@response(ApiKey.SASL_HANDSHAKE, versions="0-1", flexible=None)
class SaslHandshakeResponse(Response):
    """Whether the mechanism is enabled, and the enabled mechanisms."""

    error_code: int = int16()
    mechanisms: list[str] = array("string")


@request(ApiKey.SASL_AUTHENTICATE, versions="0-2", flexible=2)
class SaslAuthenticateRequest(Request):
    """The client's message of one round."""

    auth_bytes: bytes = bytes_()


@response(ApiKey.SASL_AUTHENTICATE, versions="0-2", flexible=2)
class SaslAuthenticateResponse(Response):
    """The broker's message of that round; 1 adds the lifetime of the session."""

    error_code: int = int16()
    error_message: str | None = string(nullable=True)
    auth_bytes: bytes = bytes_()
    session_lifetime_ms: int = int64(versions="1+")
