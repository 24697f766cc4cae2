"""SASL: authenticates a client, in the rounds that the mechanism requires.

A mechanism is a generator: it yields the client's messages and receives those of the broker. PLAIN sends user
and password at once. SCRAM (RFC 5802) sends no password: both sides prove that they know it, so the client
detects a broker that does not. OAUTHBEARER (RFC 7628) sends a token that the broker can verify.
"""

import base64
import binascii
import hashlib
import hmac
import re
import secrets
from collections.abc import Callable, Generator
from typing import Any, TypeAlias

from semel.client.errors import AuthenticationFailed, ErrorCode
from semel.client.net.security import Security
from semel.client.net.tokens import TokenEndpoint
from semel.wire.messages import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from semel.wire.schema import Request

Rounds: TypeAlias = Generator[bytes, bytes, None]

HANDSHAKE_VERSION = 1  # it is followed by SaslAuthenticate
NONCE_BYTES = 24
#: The minimum is that of Kafka. With fewer, a password is too easy to guess; with more, a broker could keep
#: a client busy.
ITERATIONS_MIN, ITERATIONS_MAX = 4_096, 1_000_000

_TOKEN = re.compile(r"[-_~+/.a-zA-Z0-9]+=*")


def authenticate(send: Callable[[Request, int | None], Any], security: Security, broker: str) -> int:
    """Authenticate; return the lifetime of the session in milliseconds, 0 if it is unlimited.

    `send` sends a request in the given version; None is the highest common one. AuthenticationFailed has the
    reason.
    """
    mechanism = security.mechanism or ""
    handshake: SaslHandshakeResponse = send(SaslHandshakeRequest(mechanism=mechanism), HANDSHAKE_VERSION)
    if handshake.error_code:
        if handshake.error_code != ErrorCode.UNSUPPORTED_SASL_MECHANISM:
            raise AuthenticationFailed(f"{broker} refused authentication (error {handshake.error_code}).")
        raise AuthenticationFailed(
            f"{broker} does not support sasl.mechanism {mechanism}; it has {', '.join(handshake.mechanisms)}."
        )
    rounds = rounds_of(security)
    message = next(rounds)
    while True:
        answer: SaslAuthenticateResponse = send(SaslAuthenticateRequest(auth_bytes=message), None)
        if answer.error_code:
            raise _rejected(security, broker, answer.error_message)
        try:
            message = rounds.send(bytes(answer.auth_bytes))
        except StopIteration:
            return answer.session_lifetime_ms
        except ValueError as error:
            raise AuthenticationFailed(f"{broker} is not trusted: {error}.") from None


def _rejected(security: Security, broker: str, message: str | None) -> AuthenticationFailed:
    reason = f" ({message.rstrip('.')})" if message else ""
    if security.mechanism != "OAUTHBEARER":
        return AuthenticationFailed(
            f"{broker} rejected user {security.username!r}{reason}. "
            "Check sasl.username, sasl.password and sasl.mechanism."
        )
    if isinstance(security.token, TokenEndpoint):
        security.token.forget()
    return AuthenticationFailed(
        f"{broker} rejected the token{reason}. Check that its issuer and audience are those of the broker."
    )


def rounds_of(security: Security, nonce: str | None = None) -> Rounds:
    """Return a generator of the client's messages, which raises ValueError if one of the broker is invalid.

    A token is fetched now: AuthenticationFailed or BrokerUnreachable if that fails.
    """
    if security.mechanism == "PLAIN":
        return _plain(security.username, security.password)
    if security.mechanism == "OAUTHBEARER":
        token = security.token() if security.token is not None else ""
        if not _TOKEN.fullmatch(token):
            raise AuthenticationFailed(
                "the token for OAUTHBEARER is missing, or has characters that no token has."
            )
        return _oauthbearer(token)
    digest = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}[security.mechanism or ""]
    nonce = nonce or base64.b64encode(secrets.token_bytes(NONCE_BYTES)).decode()
    return _scram(digest, security.username, security.password, nonce)


def _plain(username: str, password: str) -> Rounds:
    yield f"\0{username}\0{password}".encode()


def _oauthbearer(token: str) -> Rounds:
    refusal = yield f"n,,\x01auth=Bearer {token}\x01\x01".encode()
    if refusal:
        # The broker has sent the reason. It ends the exchange with an error when it receives this byte.
        yield b"\x01"
        raise ValueError("it refused the token, and then accepted it")


def _scram(digest: str, username: str, password: str, nonce: str) -> Rounds:
    name = username.replace("=", "=3D").replace(",", "=2C")
    first = f"n={name},r={nonce}"
    challenge = (yield f"n,,{first}".encode()).decode()
    values = _attributes(challenge)
    both, salt, iterations = values.get("r", ""), _decoded(values.get("s", "")), values.get("i", "")
    if not both.startswith(nonce) or both == nonce:
        raise ValueError("its answer does not match the request")
    if not (iterations.isascii() and iterations.isdigit()) or not salt:
        raise ValueError("it sent no salt or no iterations")
    if not ITERATIONS_MIN <= int(iterations) <= ITERATIONS_MAX:
        raise ValueError(f"it wants {iterations} iterations, not {ITERATIONS_MIN} to {ITERATIONS_MAX}")
    salted = hashlib.pbkdf2_hmac(digest, password.encode(), salt, int(iterations))
    bare = f"c={base64.b64encode(b'n,,').decode()},r={both}"
    signed = f"{first},{challenge},{bare}".encode()
    client_key = hmac.digest(salted, b"Client Key", digest)
    signature = hmac.digest(hashlib.new(digest, client_key).digest(), signed, digest)
    proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
    outcome = _attributes((yield f"{bare},p={base64.b64encode(proof).decode()}".encode()).decode())
    if "e" in outcome:
        raise ValueError(f"it reported {outcome['e']}")
    expected = hmac.digest(hmac.digest(salted, b"Server Key", digest), signed, digest)
    if not hmac.compare_digest(_decoded(outcome.get("v", "")), expected):
        raise ValueError("it does not know the password")


def _attributes(message: str) -> dict[str, str]:
    return {part[0]: part[2:] for part in message.split(",") if part[1:2] == "="}


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        return b""
