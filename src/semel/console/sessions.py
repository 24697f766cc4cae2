"""Sessions: who looks at the console, with which credentials, and until when."""

import secrets
import time
from dataclasses import dataclass, field
from typing import TypeAlias

from semel.client import Security

COOKIE = "semel_console"

Identity: TypeAlias = tuple[str, Security | None]
"""Who acts, and how they prove it: sessions that agree in both are one user."""


@dataclass(eq=False, slots=True)
class Session:
    """A person who uses the console, and the security settings with which it acts for them."""

    principal: str
    security: Security | None
    token: str = field(default="", repr=False)
    used: float = field(default_factory=time.monotonic)

    @property
    def identity(self) -> Identity:
        """Who acts, and how they prove it."""
        return self.principal, self.security


class Sessions:
    """The sessions of those who logged in. Bounded in number and in time."""

    def __init__(self, sessions_max: int, session_seconds: float) -> None:
        self._max = sessions_max
        self._seconds = session_seconds
        self._by_token: dict[str, Session] = {}

    def begin(self, principal: str, security: Security) -> Session:
        """Start a session with a new, unguessable token. The session unused for longest makes room."""
        self.ended()
        session = Session(principal, security, secrets.token_urlsafe(32))
        self._by_token[session.token] = session
        return session

    def find(self, token: str) -> Session | None:
        """Return the session of a cookie, and note that it is used."""
        session = self._by_token.get(token)
        if session is None or time.monotonic() - session.used > self._seconds:
            return None
        session.used = time.monotonic()
        return session

    def has(self, identity: Identity) -> bool:
        """Whether somebody with these credentials is logged in."""
        return any(each.identity == identity for each in self._by_token.values())

    def end(self, token: str) -> Session | None:
        """Forget a session."""
        return self._by_token.pop(token, None)

    def end_all(self, identity: Identity) -> list[Session]:
        """Forget all sessions with these credentials, and return them."""
        over = [each for each in self._by_token.values() if each.identity == identity]
        for each in over:
            self._by_token.pop(each.token, None)
        return over

    def ended(self) -> list[Session]:
        """Forget the sessions that are over, and return them so that their connections can be closed."""
        now = time.monotonic()
        over = [each for each in self._by_token.values() if now - each.used > self._seconds]
        left = sorted(
            (each for each in self._by_token.values() if each not in over), key=lambda each: each.used
        )
        over += left[: max(0, len(left) - self._max)]
        for each in over:
            self._by_token.pop(each.token, None)
        return over
