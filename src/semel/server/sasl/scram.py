"""SCRAM-SHA-256 and SCRAM-SHA-512 (RFC 5802, RFC 7677), without channel binding.

Neither side sends a password: the client proves that it knows the password, and the broker that it knows the
user. For an unknown user the broker makes up a challenge, with the same salt each time, and rejects the proof
with the same message as for a wrong password.

The limits are Kafka's: no channel binding (the first message starts with ``n``), no normalisation of names
except the escapes of ``=`` and ``,``. Delegation tokens (the extension ``tokenauth``) are refused. Unlike in
Kafka, the final message must have exactly the nonce of this exchange (CVE-2024-56128) and repeat the header
of the first.
"""

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Callable
from typing import Final, NamedTuple

from semel.core.security.users import DIGESTS, ITERATIONS_MIN, SALT_BYTES, ScramCredential, user_problem
from semel.server.sasl.mechanism import (
    Authenticated,
    AuthenticationFailed,
    Credentials,
    InvalidCredentials,
    principal_of,
    wrong_password,
)

MESSAGE_BYTES_MAX: Final = 8_192
NONCE_BYTES: Final = 24

_NAME: Final = r"(?:[^=,\0]|=2C|=3D)+"
_EXTENSIONS: Final = r"(?:,[A-Za-z]+=[^,\0]+)*"
# Linear in the message: every repetition ends at a character that it excludes.
_FIRST: Final = re.compile(
    rf"(?P<header>n,(?:a=(?P<acting_as>{_NAME}))?,)"
    rf"(?P<bare>n=(?P<user>{_NAME}),r=(?P<nonce>[!-+\--~]+)(?P<extensions>{_EXTENSIONS}))"
)
_LAST: Final = re.compile(
    rf"(?P<bare>c=(?P<header>[A-Za-z0-9/+=]+),r=(?P<nonce>[!-+\--~]+){_EXTENSIONS}),p=(?P<proof>[A-Za-z0-9/+=]+)"
)


class _Challenged(NamedTuple):
    """The state after the first round."""

    user: str
    header: str
    client_first: str
    nonce: str
    server_first: str
    credential: ScramCredential | None
    compared: ScramCredential
    """The credential, or a made-up one."""


class Scram:
    """One authentication with SCRAM."""

    def __init__(
        self, mechanism: str, credentials: Credentials, secret: bytes, random: Callable[[int], bytes]
    ) -> None:
        """Made-up salts are derived from ``secret``; ``random`` is the source of the nonce."""
        self._mechanism = mechanism
        self._digest = DIGESTS[mechanism]
        self._credentials = credentials
        self._secret = secret
        self._random = random
        self._challenged: _Challenged | None = None

    async def step(self, message: bytes) -> bytes | Authenticated:
        """Answer the first message with a challenge, and the second with the broker's signature."""
        text = _text(message)
        if self._challenged is None:
            self._challenged = self._challenge(text)
            return self._challenged.server_first.encode()
        return self._verify(text, self._challenged)

    def _challenge(self, text: str) -> _Challenged:
        first = _FIRST.fullmatch(text)
        if first is None:
            raise InvalidCredentials("the first message is malformed or asks for channel binding")
        user = _unescaped(first["user"])
        if first["acting_as"] is not None and _unescaped(first["acting_as"]) != user:
            raise AuthenticationFailed(
                "Authentication failed: Client requested an authorization id that is different from username"
            )
        if "tokenauth=true" in first["extensions"].lower().split(","):
            raise AuthenticationFailed("Authentication failed: delegation tokens are not supported")
        if problem := user_problem(user):
            raise InvalidCredentials(problem)
        credential = self._credentials(user, self._mechanism)
        shown = credential or self._made_up(user)
        nonce = first["nonce"] + base64.b64encode(self._random(NONCE_BYTES)).decode()
        salt = base64.b64encode(shown.salt).decode()
        return _Challenged(
            user=user,
            header=first["header"],
            client_first=first["bare"],
            nonce=nonce,
            server_first=f"r={nonce},s={salt},i={shown.iterations}",
            credential=credential,
            compared=shown,
        )

    def _verify(self, text: str, asked: _Challenged) -> Authenticated:
        last = _LAST.fullmatch(text)
        if last is None:
            raise InvalidCredentials("the final message is malformed")
        if not hmac.compare_digest(last["nonce"], asked.nonce):
            raise InvalidCredentials("the nonce of the final message is not the one of this exchange")
        if _decoded(last["header"]) != asked.header.encode():
            raise InvalidCredentials("the final message does not repeat the header of the first")
        signed = f"{asked.client_first},{asked.server_first},{last['bare']}".encode()
        proof, compared = _decoded(last["proof"]), asked.compared
        signature = hmac.digest(compared.stored_key, signed, self._digest)
        if len(proof) != len(signature):
            raise InvalidCredentials("the proof of the final message has a wrong length")
        client_key = bytes(theirs ^ ours for theirs, ours in zip(proof, signature, strict=True))
        made = hashlib.new(self._digest, client_key).digest()
        is_proven = hmac.compare_digest(made, compared.stored_key)
        # Looked up again, because the user may have been removed or changed since the challenge.
        is_current = self._credentials(asked.user, self._mechanism) == asked.credential
        if not is_proven or asked.credential is None or not is_current:
            raise InvalidCredentials(wrong_password(asked.user, is_known=asked.credential is not None))
        verifier = hmac.digest(asked.credential.server_key, signed, self._digest)
        return Authenticated(principal_of(asked.user), message=b"v=" + base64.b64encode(verifier))

    def _made_up(self, user: str) -> ScramCredential:
        """Return the made-up credential of an unknown user: the same each time, like that of a user."""
        salt = hmac.digest(self._secret, f"{self._mechanism}:{user}".encode(), "sha256")[:SALT_BYTES]
        key = bytes(hashlib.new(self._digest).digest_size)
        return ScramCredential(user, self._mechanism, salt, key, key, ITERATIONS_MIN)


def _text(message: bytes) -> str:
    if len(message) > MESSAGE_BYTES_MAX:
        raise InvalidCredentials("the message is too long")
    try:
        return message.decode()
    except UnicodeDecodeError:
        raise InvalidCredentials("the message is not UTF-8") from None


def _unescaped(name: str) -> str:
    return name.replace("=2C", ",").replace("=3D", "=")


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        return b""
