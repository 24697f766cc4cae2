"""The interface of the SASL mechanisms: their steps and their outcome.

A mechanism takes the client's messages one by one, and answers each with a message until it has authenticated
the client. A new mechanism object is made for each authentication.
"""

from collections.abc import Awaitable, Callable
from typing import NamedTuple, Protocol, TypeVar

from semel.core.security.users import ScramCredential

T = TypeVar("T")

Credentials = Callable[[str, str], ScramCredential | None]
"""Looks up a user's credential for a SCRAM mechanism. Called for each authentication, never cached."""


class RunBeside(Protocol):
    """Runs slow work outside of the event loop."""

    def __call__(self, work: Callable[[], T], /) -> Awaitable[T]:
        """Return what the work returns; raise what it raises."""


class Authenticated(NamedTuple):
    """The outcome of a successful authentication."""

    principal: str
    """The principal as in ACLs, such as ``User:alice``."""
    expires_ms: int | None = None
    """The time of day when the client's credential expires; None if it does not."""
    message: bytes = b""
    """The last message to the client."""


class AuthenticationFailed(Exception):
    """The client could not prove its identity, or its messages are malformed.

    The text is sent to the client, so it does not reveal whether a user exists. `detail` is for the broker's
    log. Neither contains a secret.
    """

    def __init__(self, message: str, detail: str = "") -> None:
        super().__init__(message)
        self.detail = detail or message


def wrong_password(user: str, *, is_known: bool) -> str:
    """Return the detail for the log, without unknown user names: users type passwords there by mistake."""
    return f"wrong password of user {user!r}" if is_known else "there is no such user"


class InvalidCredentials(AuthenticationFailed):
    """A failure for which `exchange` sends the client a fixed message. Only the log gets the reason."""

    def __init__(self, detail: str) -> None:
        super().__init__("invalid credentials", detail)


class Mechanism(Protocol):
    """One authentication in progress."""

    async def step(self, message: bytes) -> bytes | Authenticated:
        """Process a message of the client; return the answer, or the outcome. Raises AuthenticationFailed."""


def principal_of(user: str) -> str:
    """Return a user as a principal of ACLs and quotas."""
    return f"User:{user}"
