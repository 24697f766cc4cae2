"""The keys that sign tokens: a JSON Web Key Set (RFC 7517) at a file or an HTTPS URL of the settings.

The set is read at startup, periodically, and when a token names a key that is not in it, because issuers
begin to use new keys at any time. Clients choose which keys tokens name, so tokens cause a read at most every
`PAUSE_MS`. If the set cannot be read again, the previous keys stay in use.
"""

import asyncio
import base64
import binascii
import json
import logging
from typing import Any, Final, NamedTuple

from cryptography.exceptions import UnsupportedAlgorithm
from joserfc.errors import JoseError
from joserfc.jwk import Key, import_key

from semel.broker.clock import Clock
from semel.server.logs import event
from semel.server.sasl.mechanism import RunBeside
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
