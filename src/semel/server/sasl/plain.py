"""PLAIN (RFC 4616): the client sends user and password. Use it with TLS only.

The password is compared with the user's SCRAM credentials, of either mechanism, so no password is stored.
This takes milliseconds of hashing, which run outside of the event loop. For an unknown user the same work is
done with a made-up credential: neither the answer nor the time reveals whether a user exists, as long as
credentials have the usual number of iterations.
"""

import hashlib
from typing import Final

from semel.core.security.users import (
    DIGESTS,
    ITERATIONS_MIN,
    MECHANISMS,
    SALT_BYTES,
    USER_BYTES_MAX,
    ScramCredential,
    matches_password,
)
from semel.server.sasl.mechanism import (
    Authenticated,
    AuthenticationFailed,
    Credentials,
    RunBeside,
    principal_of,
    wrong_password,
)

NAME: Final = "PLAIN"
PASSWORD_BYTES_MAX: Final = 4_096

_WRONG: Final = "Authentication failed: Invalid username or password"


class Plain:
    """One authentication with PLAIN."""

    def __init__(self, credentials: Credentials, run_beside: RunBeside) -> None:
        self._credentials = credentials
        self._run_beside = run_beside

    async def step(self, message: bytes) -> Authenticated:
        """Verify user and password, which come in one message."""
        user, password = _read(message)
        known = [self._credentials(user, mechanism) for mechanism in MECHANISMS]
        compared = [
            credential or _made_up(mechanism) for credential, mechanism in zip(known, MECHANISMS, strict=True)
        ]
        matches = await self._run_beside(lambda: [matches_password(each, password) for each in compared])
        for mechanism, credential, is_match in zip(MECHANISMS, known, matches, strict=True):
            # Looked up again, because the user may have been removed while the password was hashed.
            if is_match and credential is not None and self._credentials(user, mechanism) == credential:
                return Authenticated(principal_of(user))
        raise AuthenticationFailed(_WRONG, wrong_password(user, is_known=any(known)))


def _read(message: bytes) -> tuple[str, str]:
    if len(message) > 2 * USER_BYTES_MAX + PASSWORD_BYTES_MAX + 2:
        raise AuthenticationFailed("Invalid SASL/PLAIN response: it is too long")
    try:
        parts = message.decode().split("\0")
    except UnicodeDecodeError:
        raise AuthenticationFailed("Invalid SASL/PLAIN response: it is not UTF-8") from None
    if len(parts) != 3:
        raise AuthenticationFailed(f"Invalid SASL/PLAIN response: expected 3 tokens, got {len(parts)}")
    acting_as, user, password = parts
    if not user:
        raise AuthenticationFailed("Authentication failed: username not specified")
    if not password:
        raise AuthenticationFailed("Authentication failed: password not specified")
    if len(user.encode()) > USER_BYTES_MAX or len(password.encode()) > PASSWORD_BYTES_MAX:
        raise AuthenticationFailed(_WRONG, "the name or the password is too long")
    # In Kafka up to 0.11.0.1, a client could act as another user here (CVE-2017-12610).
    if acting_as not in ("", user):
        raise AuthenticationFailed(
            "Authentication failed: Client requested an authorization id that is different from username"
        )
    return user, password


def _made_up(mechanism: str) -> ScramCredential:
    """Return a credential that no password matches: its key is zero, which is not the hash of a password."""
    size = hashlib.new(DIGESTS[mechanism]).digest_size
    return ScramCredential("", mechanism, bytes(SALT_BYTES), bytes(size), bytes(size), ITERATIONS_MIN)
