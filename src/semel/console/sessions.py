"""Keeps the sessions of the console: the principal, the credentials, and when the session was last used."""

import secrets
import time
from dataclasses import dataclass, field
from typing import TypeAlias

from semel.client import Security

COOKIE = "semel_console"

Identity: TypeAlias = tuple[str, Security | None]
"""Principal and credentials. Sessions with equal identities belong to one user."""


@dataclass(eq=False, slots=True)
class LoginSession:
    """A user of the console, and the security settings with which the console acts for them."""

    principal: str
    security: Security | None
    token: str = field(default="", repr=False)
    used: float = field(default_factory=time.monotonic)

    @property
    def identity(self) -> Identity:
        """Principal and credentials."""
        return self.principal, self.security


class Sessions:
    """The sessions of logged-in users. Bounded in number and in time."""

    def __init__(self, sessions_max: int, session_seconds: float) -> None:
        self._max = sessions_max
        self._seconds = session_seconds
        self._by_token: dict[str, LoginSession] = {}

    def begin(self, principal: str, security: Security) -> LoginSession:
        """Start a session with a new, unguessable token. First drops the sessions that `ended` drops."""
        self.ended()
        session = LoginSession(principal, security, secrets.token_urlsafe(32))
        self._by_token[session.token] = session
        return session

    def find(self, token: str) -> LoginSession | None:
        """Return the session of a cookie, and renew it; None if it is unknown or expired."""
        session = self._by_token.get(token)
        if session is None or time.monotonic() - session.used > self._seconds:
            return None
        session.used = time.monotonic()
        return session

    def has(self, identity: Identity) -> bool:
        """Whether there is a session with these credentials."""
        return any(each.identity == identity for each in self._by_token.values())

    def end(self, token: str) -> LoginSession | None:
        """Drop the session of a token, and return it."""
        return self._by_token.pop(token, None)

    def end_all(self, identity: Identity) -> list[LoginSession]:
        """Drop all sessions with these credentials, and return them."""
        over = [each for each in self._by_token.values() if each.identity == identity]
        for each in over:
            self._by_token.pop(each.token, None)
        return over

    def ended(self) -> list[LoginSession]:
        """Drop expired sessions, and the least recently used ones beyond the maximum.

        Returns them, so that the caller can close their connections.
        """
        now = time.monotonic()
        over = [each for each in self._by_token.values() if now - each.used > self._seconds]
        left = sorted(
            (each for each in self._by_token.values() if each not in over), key=lambda each: each.used
        )
        over += left[: max(0, len(left) - self._max)]
        for each in over:
            self._by_token.pop(each.token, None)
        return over
