"""OAUTHBEARER (RFC 7628, KIP-255, KIP-768): the client sends a token that an issuer has signed.

`tokens` verifies it. If the broker refuses a token, it sends a JSON message, the client answers with a byte
1, and then the authentication fails: RFC 7628 lets a client read the reason this way.
"""

import difflib
import logging
import re
from typing import Final, NamedTuple, Protocol

from semel.config import Settings
from semel.rate_limit import RateLimit
from semel.server.logs import event
from semel.server.sasl.mechanism import (
    Authenticated,
    AuthenticationFailed,
    InvalidCredentials,
    principal_of,
)
from semel.urls import url_problem

log = logging.getLogger("semel.server")

NAME: Final = "OAUTHBEARER"
TOKEN_BYTES_MAX: Final = 16_384
MESSAGE_BYTES_MAX: Final = TOKEN_BYTES_MAX + 4_096
"""The size limit of a token with its extensions."""

PUBLIC_KEY_ALGORITHMS: Final = (
    *("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    *("ES256", "ES384", "ES512", "Ed25519", "EdDSA"),
)
SHARED_KEY_ALGORITHMS: Final = ("HS256", "HS384", "HS512")

_FAILED: Final = '{"status":"invalid_token"}'
_KVSEP: Final = "\x01"
_HEADER: Final = re.compile(r"n,(?:a=(?P<acting_as>(?:[^=,\0\x01]|=2C|=3D)+))?,")
_PAIR: Final = re.compile(r"(?P<key>[A-Za-z]+)=(?P<value>[!-~ \t\r\n]+)")
_AUTH: Final = re.compile(r"(?P<scheme>\w+) +(?P<token>[-_~+/.a-zA-Z0-9]+=*)")


class TokenRefused(Exception):
    """The token is not valid; the text says why, for the broker's log only."""


class VerifiedToken(NamedTuple):
    """The user and the expiry of a valid token."""

    user: str
    expires_ms: int


class Verifier(Protocol):
    """Verifies tokens."""

    async def verify(self, token: str) -> VerifiedToken:
        """Return the user and the expiry of a token; TokenRefused if the token is not valid."""


class OAuthBearer:
    """One authentication with OAUTHBEARER."""

    def __init__(self, verifier: Verifier, limit: RateLimit) -> None:
        """``limit`` limits log lines; all connections share it."""
        self._verifier = verifier
        self._limit = limit
        self._refused: str | None = None

    async def step(self, message: bytes) -> bytes | Authenticated:
        """Verify the token of the first message. A second message only follows a refused token."""
        if self._refused is not None:
            raise AuthenticationFailed(_FAILED, self._refused)
        acting_as, token = _read(message)
        try:
            verified = await self._verifier.verify(token)
        except TokenRefused as error:
            self._refused = str(error)
            if (suppressed := self._limit.suppressed("token")) is not None:
                event(log, logging.WARNING, "a token was refused", reason=error, suppressed=suppressed)
            return _FAILED.encode()
        if acting_as not in ("", verified.user):
            raise AuthenticationFailed(
                "Authentication failed: Client requested an authorization id that is different from the "
                "token's principal name"
            )
        return Authenticated(principal_of(verified.user), verified.expires_ms)


def _read(message: bytes) -> tuple[str, str]:
    """Return the authorization id, which may be empty, and the token. Extensions are accepted and ignored."""
    if len(message) > MESSAGE_BYTES_MAX:
        raise InvalidCredentials("the message is too long")
    try:
        header, *pairs = message.decode().split(_KVSEP)
    except UnicodeDecodeError:
        raise InvalidCredentials("the message is not UTF-8") from None
    read = _HEADER.fullmatch(header)
    if read is None or len(pairs) < 2 or pairs[-2:] != ["", ""]:
        raise InvalidCredentials("the message is malformed")
    found: dict[str, str] = {}
    for pair in pairs[:-2]:
        parts = _PAIR.fullmatch(pair)
        if parts is None or parts["key"] in found:
            raise InvalidCredentials("the message has a malformed or repeated extension")
        found[parts["key"]] = parts["value"]
    auth = _AUTH.fullmatch(found.get("auth", ""))
    if auth is None or auth["scheme"].lower() != "bearer":
        raise InvalidCredentials("the message has no bearer token")
    acting_as = (read["acting_as"] or "").replace("=2C", ",").replace("=3D", "=")
    return acting_as, auth["token"]


def oauth_problem(settings: Settings) -> str | None:
    """Return why OAUTHBEARER cannot be offered with these settings, or None if it can."""
    needed = {
        "sasl.oauthbearer.expected.issuer": settings.sasl_oauthbearer_expected_issuer,
        "sasl.oauthbearer.expected.audience": settings.sasl_oauthbearer_expected_audience,
        "semel.oauthbearer.algorithms": settings.semel_oauthbearer_algorithms,
        "sasl.oauthbearer.jwks.endpoint.url": settings.sasl_oauthbearer_jwks_endpoint_url,
        "sasl.oauthbearer.sub.claim.name": settings.sasl_oauthbearer_sub_claim_name,
    }
    for name, value in needed.items():
        if not listed(value):
            return f"the mechanism OAUTHBEARER needs the setting {name}"
    if problem := url_problem(settings.sasl_oauthbearer_jwks_endpoint_url.strip()):
        return f"sasl.oauthbearer.jwks.endpoint.url {problem}"
    return _algorithms_problem(listed(settings.semel_oauthbearer_algorithms))


def listed(text: str) -> tuple[str, ...]:
    """Split a setting that is a list."""
    return tuple(each.strip() for each in text.split(",") if each.strip())


def _algorithms_problem(names: tuple[str, ...]) -> str | None:
    setting = "semel.oauthbearer.algorithms"
    known = (*PUBLIC_KEY_ALGORITHMS, *SHARED_KEY_ALGORITHMS)
    for name in names:
        if name.lower() == "none":
            return f"{setting} must not have none: anybody can make a token without a signature"
        if name not in known:
            near = difflib.get_close_matches(name.upper(), known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"
            return f"{setting} has an unknown algorithm {name!r}; {hint}"
    shared = [name for name in names if name in SHARED_KEY_ALGORITHMS]
    if shared and len(shared) < len(names):
        return (
            f"{setting} has {shared[0]}, which needs a secret key, together with algorithms for public keys; "
            "anybody could sign with a public key that is taken for a secret"
        )
    return None
