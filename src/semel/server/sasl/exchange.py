"""The state machine of one connection's authentication: which messages it allows, and what they change.

    handshake required ──SaslHandshake──▶ rounds ──SaslAuthenticate…──▶ authenticated
                                            ▲                                 │
                                            └── SaslHandshake (KIP-368) ──────┘

Everything else leads to *failed*: the connection must be closed after the answer. After a handshake of
version 0 the rounds are raw bytes instead of requests.

A session ends when the client's credential expires or after ``connections.max.reauth.ms``, whichever is
first; with neither, it does not end. Before its end the client re-authenticates, as the same principal and
with the same mechanism. It keeps its principal meanwhile.
"""

from collections.abc import Callable
from enum import Enum
from typing import Final

from semel.broker.clock import Clock
from semel.server.sasl.mechanism import Authenticated, AuthenticationFailed, InvalidCredentials, Mechanism
from semel.wire.errors import ErrorCode
from semel.wire.messages import (
    ApiVersionsRequest,
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)

REAUTHENTICATION_PAUSE_MS: Final = 1_000
"""As in Kafka, so that a client cannot keep the broker busy by re-authenticating all the time."""

_AUTHENTICATION: Final = (SaslHandshakeRequest.api_key, SaslAuthenticateRequest.api_key)


class State(Enum):
    """What the broker expects next."""

    HANDSHAKE_REQUIRED = "handshake required"
    ROUNDS = "rounds"
    AUTHENTICATED = "authenticated"
    FAILED = "failed"


class SaslExchange:
    """The state of one connection. Pass messages one at a time, each after the answer to the previous one."""

    def __init__(
        self,
        mechanisms: tuple[str, ...],
        start: Callable[[str], Mechanism],
        clock: Clock,
        max_reauth_ms: int,
    ) -> None:
        """`start` begins an authentication with a mechanism."""
        self._mechanisms = mechanisms
        self._start = start
        self._clock = clock
        self._max_reauth_ms = max_reauth_ms
        self._mechanism: Mechanism | None = None
        self._is_raw = False
        self._is_busy = False
        self._again_at: int | None = None
        self._wrong_mechanism = ""
        self.state = State.HANDSHAKE_REQUIRED
        self.mechanism = ""
        """The name of the mechanism of the last handshake."""
        self.principal: str | None = None
        """The principal of the client; None before it has authenticated."""
        self.expires_at: int | None = None
        """When the session ends, by `Clock.now`; None if it does not end."""
        self.failure: AuthenticationFailed | None = None
        """Why the authentication failed, for the log."""

    @property
    def is_authenticated(self) -> bool:
        """Whether the client is authenticated. Also False while it re-authenticates."""
        return self.state is State.AUTHENTICATED

    @property
    def is_failed(self) -> bool:
        """Whether the connection must be closed after the answer."""
        return self.state is State.FAILED

    @property
    def expects_raw(self) -> bool:
        """Whether the next frame is not a request but a message for `raw`."""
        return self.state is State.ROUNDS and self._is_raw

    def allows(self, api_key: int, now: int) -> bool:
        """Whether a request may be served at a time of `Clock.now`. If not, the connection must be closed."""
        if self.state is State.AUTHENTICATED:
            return not self.is_expired(now) or api_key in _AUTHENTICATION
        return self.state is not State.FAILED and (
            api_key in _AUTHENTICATION or api_key == ApiVersionsRequest.api_key
        )

    def is_expired(self, now: int) -> bool:
        """Whether the session has ended. If so, only authentication requests may be served."""
        return self.expires_at is not None and now >= self.expires_at

    def handshake(self, mechanism: str, version: int) -> SaslHandshakeResponse:
        """Begin an authentication or a re-authentication."""
        if self.state is State.AUTHENTICATED and not self._may_reauthenticate():
            return SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE)
        if self.state not in (State.HANDSHAKE_REQUIRED, State.AUTHENTICATED) or self._is_busy:
            self._fail(AuthenticationFailed("SaslHandshake came in the middle of an authentication"))
            return SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE)
        offered = list(self._mechanisms)
        if mechanism not in self._mechanisms:
            self._fail(AuthenticationFailed("the mechanism of the client is not enabled"))
            return SaslHandshakeResponse(error_code=ErrorCode.UNSUPPORTED_SASL_MECHANISM, mechanisms=offered)
        if self.state is State.AUTHENTICATED:
            self._again_at = self._clock.now()
            self._wrong_mechanism = mechanism if mechanism != self.mechanism else ""
        if not self._wrong_mechanism:
            self.mechanism = mechanism
        self._mechanism = self._start(mechanism)
        self._is_raw = version == 0
        self.state = State.ROUNDS
        return SaslHandshakeResponse(mechanisms=offered)

    async def authenticate(self, auth_bytes: bytes, version: int) -> SaslAuthenticateResponse:
        """Process the client's message of one round. The lifetime is only encoded from version 1 on."""
        if self.state is State.AUTHENTICATED:
            return SaslAuthenticateResponse(
                error_code=ErrorCode.ILLEGAL_SASL_STATE,
                error_message="SaslAuthenticate request received after successful authentication",
            )
        if self.state is not State.ROUNDS or self._is_raw or self._is_busy:
            message = (
                "SaslAuthenticate needs a SaslHandshake of version 1 before it, and one answer at a time"
            )
            self._fail(AuthenticationFailed(message))
            return SaslAuthenticateResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE, error_message=message)
        try:
            answer, lifetime_ms = await self._step(auth_bytes)
        except AuthenticationFailed as error:
            return SaslAuthenticateResponse(
                error_code=ErrorCode.SASL_AUTHENTICATION_FAILED, error_message=self._told(error)
            )
        return SaslAuthenticateResponse(
            auth_bytes=answer, session_lifetime_ms=lifetime_ms if version > 0 else 0
        )

    async def raw(self, message: bytes) -> bytes:
        """Process a message after a handshake of version 0; the answer is sent even if it is empty.

        AuthenticationFailed: close the connection without an answer.
        """
        if not self.expects_raw or self._is_busy:
            error = AuthenticationFailed("a message came in the middle of another")
            self._fail(error)
            raise error
        answer, _ = await self._step(message)
        return answer

    async def _step(self, message: bytes) -> tuple[bytes, int]:
        assert self._mechanism is not None
        self._is_busy = True
        try:
            if self._wrong_mechanism:
                raise AuthenticationFailed(
                    f"SASL mechanism '{self._wrong_mechanism}' requested by client is not supported for "
                    f"re-authentication of mechanism '{self.mechanism}'"
                )
            answer = await self._mechanism.step(bytes(message))
            if isinstance(answer, bytes):
                return answer, 0
            return answer.message, self._accept(answer)
        except AuthenticationFailed as error:
            self._fail(error)
            raise
        finally:
            self._is_busy = False

    def _accept(self, known: Authenticated) -> int:
        """Begin the session; return its lifetime, 0 if it is unlimited."""
        if self.state is not State.ROUNDS:
            raise AuthenticationFailed("another message came in the middle of this one")
        if self.principal is not None and known.principal != self.principal:
            before, after = (each.replace(":", ".", 1) for each in (self.principal, known.principal))
            raise AuthenticationFailed(
                f"Cannot change principals during re-authentication from {before}: {after}"
            )
        limits = [self._max_reauth_ms] if self._max_reauth_ms else []
        if known.expires_ms is not None:
            limits.append(known.expires_ms - self._clock.time_of_day())
        # At least 1, because 0 means no end. With clock skew, an accepted token may have expired already.
        lifetime_ms = max(1, min(limits)) if limits else 0
        self.expires_at = self._clock.now() + lifetime_ms if limits else None
        self.principal = known.principal
        self._mechanism = None
        self.state = State.AUTHENTICATED
        return lifetime_ms

    def _may_reauthenticate(self) -> bool:
        """Whether the client may re-authenticate: as in Kafka, if the session ends, and not too often."""
        if self.expires_at is None:
            return False
        return self._again_at is None or self._clock.now() - self._again_at >= REAUTHENTICATION_PAUSE_MS

    def _told(self, error: AuthenticationFailed) -> str:
        """Return the error message for the client."""
        if not isinstance(error, InvalidCredentials):
            return str(error)
        which = "authentication" if self.principal is None else "re-authentication"
        return (
            f"Authentication failed during {which} due to invalid credentials with SASL mechanism "
            f"{self.mechanism}"
        )

    def _fail(self, error: AuthenticationFailed) -> None:
        self.failure = self.failure or error
        self._mechanism = None
        self.state = State.FAILED
