"""Authentication: which mechanism, then as many rounds of it as it takes.

The content of the rounds is the mechanism's own; here it is bytes, which are never shown in a log.
"""

from semel.wire.schema import (
    Request,
    Response,
    array,
    bytes_,
    int16,
    int64,
    request,
    response,
    string,
)


@request(17, versions="0-1", flexible=None)
class SaslHandshakeRequest(Request):
    """The mechanism that the client wants; after 0 raw tokens follow, after 1 SaslAuthenticate."""

    mechanism: str = string()


@response(17, versions="0-1", flexible=None)
class SaslHandshakeResponse(Response):
    """Whether the mechanism is known, and which ones are."""

    error_code: int = int16()
    mechanisms: list[str] = array("string")


@request(36, versions="0-2", flexible=2)
class SaslAuthenticateRequest(Request):
    """What the client says in one round."""

    auth_bytes: bytes = bytes_()


@response(36, versions="0-2", flexible=2)
class SaslAuthenticateResponse(Response):
    """What the broker says in that round; 1 adds how long the session lasts."""

    error_code: int = int16()
    error_message: str | None = string(nullable=True)
    auth_bytes: bytes = bytes_()
    session_lifetime_ms: int = int64(versions="1+")
