"""SCRAM users: list, add and remove them. The password itself is never sent (KIP-554)."""

import hashlib
import secrets
from dataclasses import dataclass

from semel.client.errors import check
from semel.client.net.cluster import Client
from semel.wire import messages as wire

MECHANISMS = {"SCRAM-SHA-256": 1, "SCRAM-SHA-512": 2}
ITERATIONS = 4_096
SALT_BYTES = 32


@dataclass(frozen=True, slots=True)
class ScramUser:
    """The credential of a user for one mechanism."""

    user: str
    mechanism: str
    iterations: int


class UserAdmin:
    """The SCRAM users of a cluster. Reached as `Admin(client).users`."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def list(self) -> list[ScramUser]:
        """Return all users, ordered by name and mechanism."""
        return _described(self._client, wire.DescribeUserScramCredentialsRequest(users=None))

    def has(self, user: str, *, mechanism: str = "SCRAM-SHA-256") -> bool:
        """Whether a user has a password for a mechanism."""
        found = _described(
            self._client, wire.DescribeUserScramCredentialsRequest(users=[wire.UserName(name=user)])
        )
        return mechanism in {credential.mechanism for credential in found}

    def put(
        self, user: str, password: str, *, mechanism: str = "SCRAM-SHA-256", iterations: int = ITERATIONS
    ) -> None:
        """Add a user, or change the password."""
        salt = secrets.token_bytes(SALT_BYTES)
        digest = {1: "sha256", 2: "sha512"}[MECHANISMS[mechanism]]
        change = wire.ScramCredentialUpsertion(
            name=user,
            mechanism=MECHANISMS[mechanism],
            iterations=iterations,
            salt=salt,
            salted_password=hashlib.pbkdf2_hmac(digest, password.encode(), salt, iterations),
        )
        self._alter(wire.AlterUserScramCredentialsRequest(upsertions=[change]), user)

    def remove(self, user: str, *, mechanism: str = "SCRAM-SHA-256") -> None:
        """Remove the credential of a user for a mechanism."""
        change = wire.ScramCredentialDeletion(name=user, mechanism=MECHANISMS[mechanism])
        self._alter(wire.AlterUserScramCredentialsRequest(deletions=[change]), user)

    def _alter(self, request: wire.AlterUserScramCredentialsRequest, user: str) -> None:
        response: wire.AlterUserScramCredentialsResponse = self._client.send(request)
        for result in response.results:
            check(result.error_code, f"the user {user!r} was not changed", result.error_message)


def _described(client: Client, request: wire.DescribeUserScramCredentialsRequest) -> list[ScramUser]:
    response: wire.DescribeUserScramCredentialsResponse = client.send(request)
    check(response.error_code, "the users could not be listed", response.error_message)
    names = {number: name for name, number in MECHANISMS.items()}
    return sorted(
        (
            ScramUser(result.user, names.get(info.mechanism, str(info.mechanism)), info.iterations)
            for result in response.results
            for info in result.credential_infos
        ),
        key=lambda credential: (credential.user, credential.mechanism),
    )
