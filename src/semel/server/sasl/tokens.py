"""Verifies tokens: JSON Web Tokens (RFC 7519) that are signed by the configured issuer for this broker.

A token is only compared with the settings and with the keys of `token_keys`. Nothing that it names is read:
no URL, no certificate and no key of its header. A client that chooses what a broker reads could read its
files and reach its network (CVE-2025-27817).
"""

from typing import Any, Final

from joserfc import jws, jwt
from joserfc.errors import JoseError, UnsupportedAlgorithmError
from joserfc.jwk import Key
from joserfc.jws import JWSRegistry

from semel.broker.clock import Clock
from semel.config import Settings
from semel.core.security.users import user_problem
from semel.server.sasl.mechanism import RunBeside
from semel.server.sasl.oauthbearer import TOKEN_BYTES_MAX, TokenRefused, VerifiedToken, listed
from semel.server.sasl.token_keys import TokenKeys

_LAST_SECOND: Final = 253_402_300_799
"""The end of the year 9999. A greater number is not a time."""
_WRONG: Final = (JoseError, ValueError, TypeError, KeyError, AttributeError, RecursionError)
"""The exceptions that a malformed token can cause in the library and in the JSON decoder."""


class TokenVerifier:
    """Verifies tokens with the settings of this broker, and the keys of the issuer."""

    def __init__(self, settings: Settings, clock: Clock, wait_beside: RunBeside) -> None:
        algorithms = listed(settings.semel_oauthbearer_algorithms)
        self._registry = _Registry(algorithms)
        self._issuer = settings.sasl_oauthbearer_expected_issuer.strip()
        self._audiences = frozenset(listed(settings.sasl_oauthbearer_expected_audience))
        self._user_claim = settings.sasl_oauthbearer_sub_claim_name.strip()
        self._skew = settings.sasl_oauthbearer_clock_skew_seconds
        self._clock = clock
        self.keys = TokenKeys(
            settings.sasl_oauthbearer_jwks_endpoint_url.strip(),
            algorithms,
            settings.sasl_oauthbearer_jwks_endpoint_refresh_ms,
            clock,
            wait_beside,
        )

    async def verify(self, token: str) -> VerifiedToken:
        """Return the user and the expiry of a valid token; TokenRefused says why it is not valid."""
        if len(token) > TOKEN_BYTES_MAX:
            raise TokenRefused(f"it is longer than {TOKEN_BYTES_MAX} bytes")
        algorithm, name = self._header(token)
        candidates = self.keys.candidates(name, algorithm)
        if not candidates:
            await self.keys.look_again()
            candidates = self.keys.candidates(name, algorithm)
        if not candidates:
            raise TokenRefused("no key of the issuer goes with it")
        return self._checked(self._claims(token, candidates))

    def _header(self, token: str) -> tuple[str, str | None]:
        """Return the algorithm, which must be an allowed one, and the name of the key."""
        if token.count(".") != 2:
            raise TokenRefused("it is not a signed JSON Web Token")
        try:
            header = jws.extract_compact(token.encode(), registry=self._registry).headers()
            algorithm, name = header["alg"], header.get("kid")
        except _WRONG:
            raise TokenRefused("its header is malformed") from None
        if "crit" in header:
            raise TokenRefused("it has critical extensions")
        if not isinstance(algorithm, str) or algorithm not in self._registry.names:
            raise TokenRefused("its algorithm is not one of semel.oauthbearer.algorithms")
        if name is not None and not isinstance(name, str):
            raise TokenRefused("its header is malformed")
        return algorithm, name

    def _claims(self, token: str, candidates: list[Key]) -> dict[str, Any]:
        for key in candidates:
            try:
                return jwt.decode(token, key, registry=self._registry).claims
            except _WRONG:
                continue
        raise TokenRefused("its signature is wrong")

    def _checked(self, claims: dict[str, Any]) -> VerifiedToken:
        now = self._clock.time_of_day() / 1000
        ends = _moment(claims, "exp")
        if ends is None:
            raise TokenRefused("it has no claim exp")
        if ends + self._skew <= now:
            raise TokenRefused("it has expired")
        for name in ("nbf", "iat"):
            begins = _moment(claims, name)
            if begins is not None and begins - self._skew > now:
                raise TokenRefused(f"it is not valid yet, by its claim {name}")
        if claims.get("iss") != self._issuer:
            raise TokenRefused("its claim iss is not sasl.oauthbearer.expected.issuer")
        meant = claims.get("aud")
        audiences = meant if isinstance(meant, list) else [meant]
        if not any(isinstance(each, str) and each in self._audiences for each in audiences):
            raise TokenRefused("its claim aud has none of sasl.oauthbearer.expected.audience")
        user = claims.get(self._user_claim)
        if not isinstance(user, str) or not user.strip() or user_problem(user):
            raise TokenRefused(f"its claim {self._user_claim} is not the name of a user")
        return VerifiedToken(user, int(ends * 1000))


class _Registry(JWSRegistry):
    """The allowed algorithms, and size limits that tokens of real issuers do not reach."""

    max_header_length = 8_192
    max_payload_length = TOKEN_BYTES_MAX
    max_signature_length = 2_048

    def __init__(self, names: tuple[str, ...]) -> None:
        # Header parameters that are unknown here must be ignored (RFC 7515, section 4).
        super().__init__(algorithms=names, strict_check_header=False)
        self.names = frozenset(names)

    def get_alg(self, name: str) -> Any:
        """Return an allowed algorithm. The library would warn about EdDSA, which issuers still use."""
        if name not in self.names:
            raise UnsupportedAlgorithmError("the algorithm is not allowed")
        return self.algorithms[name]


def _moment(claims: dict[str, Any], name: str) -> float | None:
    """Return a time in seconds since 1970, or None without the claim."""
    value = claims.get(name)
    if value is None:
        return None
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 <= value <= _LAST_SECOND:
        raise TokenRefused(f"its claim {name} is not a time")
    return float(value)
