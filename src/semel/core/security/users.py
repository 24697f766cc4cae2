"""Users that authenticate with SCRAM (RFC 5802): the stored credential, and how it verifies a password.

A credential does not contain the password. It suffices to verify a client that knows the password, and to
prove to this client that the broker knows the user. An attacker who reads a credential can try passwords
against it, but cannot authenticate with it.

The text of user and password is not normalised (no SASLprep), as in Kafka.
"""

import hashlib
import hmac
from typing import Final

from semel.core.data import Data

DIGESTS: Final = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
"""The hash function of each mechanism."""
MECHANISMS: Final = tuple(DIGESTS)

ITERATIONS_MIN: Final = 4_096
"""As in Kafka: with fewer, an attacker who has read the credential can guess the password too easily."""
ITERATIONS_MAX: Final = 16_384
"""As in Kafka: more would keep clients busy for too long."""
SALT_BYTES: Final = 32
"""The length of the salts that Semel's client generates. Other clients choose other lengths."""
USER_BYTES_MAX: Final = 1_024
"""Maximum length of a user name in UTF-8."""


class ScramCredential(Data):
    """A user's password for one mechanism, as the broker stores it."""

    user: str
    mechanism: str
    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: int

    def __repr__(self) -> str:
        """Without the keys, because values are logged and shown in tracebacks."""
        return f"ScramCredential(user={self.user!r}, mechanism={self.mechanism!r}, …)"

    __str__ = __repr__


def user_problem(user: str) -> str | None:
    """Return why this cannot be the name of a user, or None if it can."""
    if not user:
        return "the name of a user must not be empty"
    try:
        size = len(user.encode())
    except UnicodeEncodeError:
        return "the name of a user must be valid UTF-8"
    if size > USER_BYTES_MAX:
        return f"the name of a user must not be longer than {USER_BYTES_MAX} bytes"
    if "\0" in user:
        return "the name of a user must not contain the character NUL, which PLAIN cannot send"
    return None


def salted(mechanism: str, password: str, salt: bytes, iterations: int) -> bytes:
    """Return the salted password. Deliberately slow: it takes milliseconds."""
    return hashlib.pbkdf2_hmac(DIGESTS[mechanism], password.encode(), salt, iterations)


def credential_of_salted(
    user: str, mechanism: str, salt: bytes, iterations: int, salted_password: bytes
) -> ScramCredential:
    """Return the credential of a salted password, which is what clients send to create a user (KIP-554)."""
    digest = DIGESTS[mechanism]
    client_key = hmac.digest(salted_password, b"Client Key", digest)
    return ScramCredential(
        user=user,
        mechanism=mechanism,
        salt=salt,
        stored_key=hashlib.new(digest, client_key).digest(),
        server_key=hmac.digest(salted_password, b"Server Key", digest),
        iterations=iterations,
    )


def credential_of_password(
    user: str, mechanism: str, salt: bytes, iterations: int, password: str
) -> ScramCredential:
    """Return the credential of a password. Slow; see `salted`."""
    salted_password = salted(mechanism, password, salt, iterations)
    return credential_of_salted(user, mechanism, salt, iterations, salted_password)


def matches_password(credential: ScramCredential, password: str) -> bool:
    """Whether this is the user's password. Slow; the time taken reveals nothing about the password."""
    made = credential_of_password(
        credential.user, credential.mechanism, credential.salt, credential.iterations, password
    )
    return hmac.compare_digest(made.stored_key, credential.stored_key)
