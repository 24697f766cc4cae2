"""Verifies tokens: JSON Web Tokens (RFC 7519) that are signed by the configured issuer for this broker.

A token is only compared with the settings and with the keys. Nothing that it names is read:
no URL, no certificate and no key of its header. A client that chooses what a broker reads could read its
files and reach its network (CVE-2025-27817).

The keys are a JSON Web Key Set (RFC 7517) at a file or an HTTPS URL of the settings. The set is read at
startup, periodically, and when a token names a key that is not in it, because issuers begin to use new keys
at any time. Clients choose which keys tokens name, so tokens cause a read at most every `PAUSE_MS`. If the
set cannot be read again, the previous keys stay in use.
"""

import asyncio
import base64
import binascii
import json
import logging
from typing import Any, Final, NamedTuple

from cryptography.exceptions import UnsupportedAlgorithm
from joserfc import jws, jwt
from joserfc.errors import JoseError, UnsupportedAlgorithmError
from joserfc.jwk import Key, import_key
from joserfc.jws import JWSRegistry

from semel.broker.clock import Clock
from semel.config import Settings
from semel.core.security.users import user_problem
from semel.server.logs import event
from semel.server.sasl.mechanism import RunBeside
from semel.server.sasl.oauthbearer import TOKEN_BYTES_MAX, TokenRefused, VerifiedToken, listed
from semel.urls import UrlError, read_url

log = logging.getLogger("semel.server")

SETTING: Final = "sasl.oauthbearer.jwks.endpoint.url"
SIZE_MAX: Final = 1 << 20
PAUSE_MS: Final = 10_000
"""The shortest time between two reads, however many tokens name unknown keys."""
CANDIDATES_MAX: Final = 4
"""The most keys that are tried for one token. No issuer has more keys of the same name."""

RSA_BITS_MIN: Final = 2_048
SECRET_BYTES_MIN: Final = 32
_TYPES: Final = {"RS": "RSA", "PS": "RSA", "ES": "EC", "Ed": "OKP", "HS": "oct"}
_PUBLIC: Final = {
    "RSA": ("n", "e"),
    "EC": ("crv", "x", "y"),
    "OKP": ("crv", "x"),
    "oct": ("k",),
}
"""The members that define a key. Private members and certificates are not even read."""


class _SigningKey(NamedTuple):
    name: str | None
    algorithm: str | None
    kind: str
    key: Key


class TokenKeys:
    """The keys that are in use."""

    def __init__(
        self, url: str, algorithms: tuple[str, ...], refresh_ms: int, clock: Clock, wait_beside: RunBeside
    ) -> None:
        self._url = url
        self._kinds = {_TYPES[name[:2]] for name in algorithms}
        self._refresh_ms = refresh_ms
        self._clock = clock
        self._wait_beside = wait_beside
        self._keys: tuple[_SigningKey, ...] = ()
        self._tried_at = self._read_at = 0
        self._lock = asyncio.Lock()

    async def start(self) -> None:
        """Read the keys; ValueError if there are none."""
        try:
            self._keys = await self._read()
        except (UrlError, ValueError) as error:
            raise ValueError(f"{SETTING} cannot be used: {error}") from None

    async def refresh(self) -> None:
        """Read the keys again if it is time."""
        if self._clock.now() - self._read_at >= self._refresh_ms:
            await self.look_again()

    async def look_again(self) -> None:
        """Read the keys again, unless that was tried within the last `PAUSE_MS`."""
        # A task that waited for the lock finds that the keys have just been read.
        async with self._lock:
            if self._clock.now() - self._tried_at < PAUSE_MS:
                return
            try:
                self._keys = await self._read()
            except (UrlError, ValueError) as error:
                event(
                    log, logging.ERROR, "the keys of tokens cannot be read, the old ones stay", detail=error
                )

    def candidates(self, name: str | None, algorithm: str) -> list[Key]:
        """Return the keys that may have signed a token. Without a name there must be exactly one."""
        kind = _TYPES.get(algorithm[:2])
        fitting = [each for each in self._keys if each.kind == kind and each.algorithm in (None, algorithm)]
        if name is None:
            return [each.key for each in fitting] if len(fitting) == 1 else []
        return [each.key for each in fitting if each.name == name][:CANDIDATES_MAX]

    async def _read(self) -> tuple[_SigningKey, ...]:
        self._tried_at = self._clock.now()
        keys = await self._wait_beside(lambda: _keys_of(read_url(self._url, SIZE_MAX), self._kinds))
        self._read_at = self._clock.now()
        return keys


def _keys_of(content: bytes, kinds: set[str]) -> tuple[_SigningKey, ...]:
    try:
        members = json.loads(content)["keys"]
    except (ValueError, TypeError, KeyError, RecursionError):
        members = None
    if not isinstance(members, list):
        raise ValueError("it is not a JSON Web Key Set")
    if "oct" in kinds and any(_text(each, "kty") != "oct" for each in members):
        raise ValueError(
            "it has public keys, but the algorithms of semel.oauthbearer.algorithms need secret ones"
        )
    found = tuple(key for each in members if (key := _key_of(each, kinds)) is not None)
    if not found:
        raise ValueError("it has no key that semel.oauthbearer.algorithms can use")
    return found


def _key_of(member: Any, kinds: set[str]) -> _SigningKey | None:
    """Return a key, or None if it cannot verify tokens: sets also have keys for other purposes."""
    kind = _text(member, "kty")
    if kind not in kinds or _text(member, "use") not in (None, "sig"):
        return None
    made = {name: text for name in _PUBLIC[kind] if (text := _text(member, name)) is not None}
    if not _is_strong(kind, made):
        return None
    try:
        key = import_key({"kty": kind, **made})
    except (JoseError, UnsupportedAlgorithm, ValueError, KeyError, TypeError):
        return None
    return _SigningKey(_text(member, "kid"), _text(member, "alg"), kind, key)


def _is_strong(kind: str, made: dict[str, str]) -> bool:
    """Whether an RSA key or a secret is long enough. The curves of other keys are always strong enough."""
    least = {"RSA": ("n", RSA_BITS_MIN // 8), "oct": ("k", SECRET_BYTES_MIN)}.get(kind)
    if least is None:
        return True
    name, size = least
    try:
        text = made.get(name, "")
        return len(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)).lstrip(b"\0")) >= size
    except (binascii.Error, ValueError):
        return False


def _text(member: Any, name: str) -> str | None:
    value = member.get(name) if isinstance(member, dict) else None
    return value if isinstance(value, str) else None


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
