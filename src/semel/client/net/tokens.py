"""Tokens for OAUTHBEARER: from the token endpoint of an authorization server, or from a file.

The client identifies itself with id and secret (the client credentials grant, RFC 6749) and gets a token. All
connections share it until 80 % of its life have passed. A token file is read for each authentication; the
program that writes the file has to renew the token.

Errors name the setting. They never show the secret or a token.
"""

import base64
import binascii
import json
import threading
import time
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any
from urllib.parse import urlencode, urlsplit

from semel.client.errors import AuthenticationFailed, BrokerUnreachable
from semel.printable import printable
from semel.urls import UrlError, read_url, url_problem

ENDPOINT = "sasl.oauthbearer.token.endpoint.url"
CLIENT_ID = "sasl.oauthbearer.client.id"
CLIENT_SECRET = "sasl.oauthbearer.client.secret"
SCOPE = "sasl.oauthbearer.scope"

ANSWER_BYTES_MAX = 65_536
TOKEN_BYTES_MAX = 16_384
ENDPOINTS_MAX = 64
#: A token is replaced when this part of its life is over.
LIFE_PART = 0.8


class _Cache:
    """The token of an endpoint, shared by the connections of all threads."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.token = ""
        self.renew_at = self.ends_at = 0.0
        """By the monotonic clock."""


@dataclass(frozen=True, slots=True)
class TokenEndpoint:
    """Returns a valid token when it is called."""

    url: str
    client_id: str = ""
    client_secret: str = field(default="", repr=False)
    scope: str = ""
    _cache: _Cache = field(default_factory=_Cache, repr=False, compare=False)

    def __reduce__(self) -> tuple[Any, ...]:
        """Unpickle to the endpoint with these settings in the other process, so that it shares its token."""
        return token_endpoint, (self.url, self.client_id, self.client_secret, self.scope)

    def __call__(self) -> str:
        """Return a token. AuthenticationFailed if there is none, BrokerUnreachable if a retry may help."""
        if self.url.startswith("file:"):
            return self._read().decode(errors="replace").strip()
        cache = self._cache
        with cache.lock:
            if time.monotonic() < cache.renew_at:
                return cache.token
            asked_at = time.monotonic()
            try:
                token, life_s = self._fetch()
            except BrokerUnreachable:
                if time.monotonic() < cache.ends_at:
                    return cache.token
                raise
            cache.token, cache.ends_at = token, asked_at + life_s
            cache.renew_at = asked_at + life_s * LIFE_PART
            return token

    def forget(self) -> None:
        """Discard the token, so that the next call gets a new one: a broker has rejected it."""
        self._cache.renew_at = self._cache.ends_at = 0.0

    @property
    def _where(self) -> str:
        """The URL for a message: without the query, which may have a secret in it."""
        return printable(urlsplit(self.url)._replace(query="", fragment="").geturl())

    def _fetch(self) -> tuple[str, float]:
        """Return a new token, and for how many seconds it is valid; 0 if that is unknown."""
        form = {"grant_type": "client_credentials"} | ({"scope": self.scope} if self.scope else {})
        try:
            answer = json.loads(self._read(urlencode(form).encode()))
            token = answer["access_token"]
        except (ValueError, TypeError, KeyError, RecursionError):
            token = answer = None
        if not isinstance(token, str) or not token or len(token) > TOKEN_BYTES_MAX:
            raise AuthenticationFailed(f"{ENDPOINT} {self._where} answers without an access_token.")
        return token, _life_s(answer.get("expires_in"), token)

    def _read(self, body: bytes | None = None) -> bytes:
        identity = base64.b64encode(f"{self.client_id}:{self.client_secret}".encode()).decode()
        headers = {"Accept": "application/json", "Authorization": f"Basic {identity}"}
        try:
            return read_url(
                self.url,
                ANSWER_BYTES_MAX if body else TOKEN_BYTES_MAX,
                body=body,
                headers=headers if body else None,
            )
        except UrlError as error:
            if body is None:
                raise AuthenticationFailed(f"{ENDPOINT} {self._where} cannot be read: {error}.") from None
            if error.status is None or error.status >= 500 or error.status in (408, 429):
                raise BrokerUnreachable(f"{ENDPOINT} {self._where} gives no token: {error}.") from None
            hint = f"Check {CLIENT_ID}, {CLIENT_SECRET} and {SCOPE}."
            reason = f"{error}{_reason(error.body)}"
            raise AuthenticationFailed(f"{ENDPOINT} {self._where} gives no token: {reason}. {hint}") from None


@lru_cache(ENDPOINTS_MAX)
def token_endpoint(url: str, client_id: str, client_secret: str, scope: str) -> TokenEndpoint:
    """Return the endpoint with these settings, the same object each time. ValueError names an invalid one."""
    if problem := url_problem(url):
        raise ValueError(f"{ENDPOINT} {problem}")
    identity = {CLIENT_ID: client_id, CLIENT_SECRET: client_secret}
    for name, value in identity.items():
        if url.startswith("file:"):
            if value or scope:
                raise ValueError(f"{name if value else SCOPE} has no meaning for a file with a token")
        elif not value:
            raise ValueError(f"{ENDPOINT} needs {CLIENT_ID} and {CLIENT_SECRET}; {name} is missing")
    return TokenEndpoint(url, client_id, client_secret, scope)


def _life_s(expires_in: Any, token: str) -> float:
    """Return for how long a token is valid, by the server's answer or by the token; 0 if unknown."""
    try:
        if expires_in is not None:
            life_s = float(expires_in)
        else:
            payload = token.split(".")[1]
            claims = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
            life_s = float(claims["exp"]) - time.time()
    except (ValueError, TypeError, KeyError, IndexError, OverflowError, RecursionError, binascii.Error):
        return 0.0
    return max(0.0, life_s) if life_s < float("inf") else 0.0


def _reason(body: bytes) -> str:
    """Return the error of RFC 6749, section 5.2, which has no secrets in it."""
    try:
        answer = json.loads(body)
        words = [answer[name] for name in ("error", "error_description") if isinstance(answer.get(name), str)]
    except (ValueError, TypeError, AttributeError, RecursionError):
        return ""
    return f" ({printable(', '.join(words))[:300].rstrip('.')})" if words else ""
