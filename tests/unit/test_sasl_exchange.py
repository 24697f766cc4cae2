"""The authentication of one connection: order of messages, sessions, and authenticating again (KIP-368)."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.broker.clock import Clock
from semel.client.errors import AuthenticationFailed as ClientRefused
from semel.client.net.sasl import authenticate
from semel.client.net.security import Security
from semel.config import Settings
from semel.core.security.users import ScramCredential, credential_of_password
from semel.server.sasl import AuthenticationFailed, Authenticators, SaslExchange, State
from semel.server.sasl.mechanism import Authenticated
from semel.wire.errors import ErrorCode
from semel.wire.messages import SaslAuthenticateResponse, SaslHandshakeRequest, SaslHandshakeResponse
from semel.wire.schema import Request

T = TypeVar("T")
PRODUCE, API_VERSIONS, HANDSHAKE, AUTHENTICATE = 0, 18, 17, 36
ALL = "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512"
PASSWORDS = {"alice": "wonderland", "bob": "builder"}
USERS = {
    (user, mechanism): credential_of_password(user, mechanism, b"salt", 4096, password)
    for user, password in PASSWORDS.items()
    for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512")
}


class Time:
    def __init__(self) -> None:
        self.seconds = 1_700_000_000.0
        self.clock = Clock(lambda: self.seconds, lambda: self.seconds)

    def now(self) -> int:
        return self.clock.now()


async def here(work: Callable[[], T]) -> T:
    return work()


def lookup(user: str, mechanism: str) -> ScramCredential | None:
    return USERS.get((user, mechanism))


def server(time: Time | None = None, **settings: object) -> Authenticators:
    given_settings = Settings.of(
        {"sasl.enabled.mechanisms": ALL} | {k.replace("_", "."): v for k, v in settings.items()}
    )
    return Authenticators(given_settings, lookup, (time or Time()).clock, here, lambda: b"secret")


def plain(user: str = "alice", password: str | None = None) -> bytes:
    return f"\0{user}\0{password or PASSWORDS[user]}".encode()


def say(exchange: SaslExchange, message: bytes, version: int = 2) -> SaslAuthenticateResponse:
    return asyncio.run(exchange.authenticate(message, version))


def authenticated(time: Time | None = None, **settings: object) -> SaslExchange:
    exchange = server(time, **settings).exchange()
    exchange.handshake("PLAIN", 1)
    assert say(exchange, plain()).error_code == 0
    return exchange


def talk(exchange: SaslExchange, security: Security) -> int:
    """Have Semel's client authenticate; return the lifetime of the session."""

    def send(request: Request, version: int | None) -> SaslHandshakeResponse | SaslAuthenticateResponse:
        if isinstance(request, SaslHandshakeRequest):
            return exchange.handshake(request.mechanism, version or 0)
        return say(exchange, request.auth_bytes)  # type: ignore[attr-defined]

    return authenticate(send, security, "broker")


@pytest.mark.parametrize("mechanism", ALL.split(","))
def test_semels_client_authenticates(mechanism: str) -> None:
    exchange = server().exchange()
    assert exchange.state is State.HANDSHAKE_REQUIRED
    assert talk(exchange, Security(mechanism=mechanism, username="alice", password="wonderland")) == 0
    assert exchange.state is State.AUTHENTICATED
    assert (exchange.principal, exchange.mechanism, exchange.expires_at) == ("User:alice", mechanism, None)


@pytest.mark.parametrize("user", ["alice", "mallory"])
@pytest.mark.parametrize("mechanism", ALL.split(","))
def test_what_a_client_with_a_wrong_password_is_told(mechanism: str, user: str) -> None:
    exchange = server().exchange()
    told = {
        "PLAIN": "Authentication failed: Invalid username or password",
        "SCRAM-SHA-256": "Authentication failed during authentication due to invalid credentials with SASL "
        "mechanism SCRAM-SHA-256",
        "SCRAM-SHA-512": "Authentication failed during authentication due to invalid credentials with SASL "
        "mechanism SCRAM-SHA-512",
    }[mechanism]
    with pytest.raises(ClientRefused, match=told):
        talk(exchange, Security(mechanism=mechanism, username=user, password="x"))
    assert exchange.is_failed
    assert exchange.principal is None
    assert exchange.failure is not None
    # Somebody may have typed a password where the name belongs.
    assert (user in exchange.failure.detail) is (user == "alice")
    assert not exchange.allows(HANDSHAKE, 0)


def test_before_authentication_only_three_requests_are_allowed() -> None:
    exchange = server().exchange()
    for _ in range(2):
        assert [key for key in range(100) if exchange.allows(key, 0)] == [
            HANDSHAKE,
            API_VERSIONS,
            AUTHENTICATE,
        ]
        assert not exchange.is_authenticated
        exchange.handshake("PLAIN", 1)
    exchange = authenticated()
    assert all(exchange.allows(key, 0) for key in range(100))


def test_an_unsupported_mechanism_is_answered_with_the_list() -> None:
    exchange = server().exchange()
    answer = exchange.handshake("GSSAPI", 1)
    assert (answer.error_code, answer.mechanisms) == (ErrorCode.UNSUPPORTED_SASL_MECHANISM, ALL.split(","))
    assert exchange.is_failed


def test_a_disabled_mechanism_is_unsupported() -> None:
    exchange = server(sasl_enabled_mechanisms="SCRAM-SHA-512").exchange()
    assert exchange.handshake("PLAIN", 1).error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM


def test_a_message_without_a_handshake_fails() -> None:
    exchange = server().exchange()
    assert say(exchange, plain()).error_code == ErrorCode.ILLEGAL_SASL_STATE
    assert exchange.is_failed
    assert exchange.handshake("PLAIN", 1).error_code == ErrorCode.ILLEGAL_SASL_STATE
    assert say(exchange, plain()).error_code == ErrorCode.ILLEGAL_SASL_STATE
    assert exchange.principal is None


def test_a_second_handshake_in_the_middle_fails() -> None:
    exchange = server().exchange()
    exchange.handshake("SCRAM-SHA-256", 1)
    assert exchange.handshake("PLAIN", 1).error_code == ErrorCode.ILLEGAL_SASL_STATE
    assert exchange.is_failed


def test_a_message_while_another_is_hashed_fails() -> None:
    """Otherwise the second could replace the first while it is verified."""

    async def main() -> None:
        started, go = asyncio.Event(), asyncio.Event()

        async def beside(work: Callable[[], T]) -> T:
            started.set()
            await go.wait()
            return work()

        settings = Settings.of({"sasl.enabled.mechanisms": "PLAIN"})
        exchange = Authenticators(settings, lookup, Time().clock, beside, lambda: b"secret").exchange()
        exchange.handshake("PLAIN", 1)
        first = asyncio.create_task(exchange.authenticate(plain(), 2))
        await started.wait()
        assert (await exchange.authenticate(plain("bob"), 2)).error_code == ErrorCode.ILLEGAL_SASL_STATE
        go.set()
        assert (await first).error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert exchange.is_failed
        assert exchange.principal is None

    asyncio.run(main())


def test_a_removed_user_cannot_authenticate_again(monkeypatch: pytest.MonkeyPatch) -> None:
    authenticators = server()
    exchange = authenticators.exchange()
    exchange.handshake("PLAIN", 1)
    assert say(exchange, plain()).error_code == 0
    monkeypatch.delitem(USERS, ("alice", "SCRAM-SHA-256"))
    monkeypatch.delitem(USERS, ("alice", "SCRAM-SHA-512"))
    exchange = authenticators.exchange()
    exchange.handshake("PLAIN", 1)
    assert say(exchange, plain()).error_code == ErrorCode.SASL_AUTHENTICATION_FAILED


# Raw messages, after a handshake of version 0.


def test_raw_messages() -> None:
    exchange = server().exchange()
    assert not exchange.expects_raw
    exchange.handshake("PLAIN", 0)
    assert exchange.expects_raw
    assert asyncio.run(exchange.raw(plain())) == b""
    assert exchange.principal == "User:alice"
    assert not exchange.expects_raw


def test_raw_messages_that_fail_have_no_answer() -> None:
    exchange = server().exchange()
    exchange.handshake("PLAIN", 0)
    with pytest.raises(AuthenticationFailed):
        asyncio.run(exchange.raw(b"nonsense"))
    assert exchange.is_failed
    with pytest.raises(AuthenticationFailed):
        asyncio.run(exchange.raw(plain()))


def test_raw_and_requests_do_not_mix() -> None:
    exchange = server().exchange()
    exchange.handshake("PLAIN", 0)
    assert say(exchange, plain()).error_code == ErrorCode.ILLEGAL_SASL_STATE
    exchange = server().exchange()
    exchange.handshake("PLAIN", 1)
    with pytest.raises(AuthenticationFailed):
        asyncio.run(exchange.raw(plain()))
    assert exchange.is_failed


# Sessions.


def test_without_a_limit_a_session_does_not_end_and_is_not_renewed() -> None:
    exchange = authenticated()
    assert exchange.expires_at is None
    assert not exchange.is_expired(1 << 60)
    assert exchange.handshake("PLAIN", 1).error_code == ErrorCode.ILLEGAL_SASL_STATE
    assert say(exchange, plain()).error_code == ErrorCode.ILLEGAL_SASL_STATE
    assert exchange.is_authenticated, "the connection stays usable"


def test_connections_max_reauth_ms_ends_a_session() -> None:
    time = Time()
    exchange = server(time, connections_max_reauth_ms=60_000).exchange()
    exchange.handshake("PLAIN", 1)
    assert say(exchange, plain()).session_lifetime_ms == 60_000
    assert exchange.expires_at == time.now() + 60_000
    assert exchange.allows(PRODUCE, time.now() + 59_999)
    assert exchange.is_expired(time.now() + 60_000)
    assert [key for key in range(100) if exchange.allows(key, time.now() + 60_000)] == [
        HANDSHAKE,
        AUTHENTICATE,
    ]


def test_version_0_does_not_carry_the_lifetime_but_the_session_ends() -> None:
    exchange = server(connections_max_reauth_ms=60_000).exchange()
    exchange.handshake("PLAIN", 1)
    assert say(exchange, plain(), version=0).session_lifetime_ms == 0
    assert exchange.expires_at is not None


@pytest.mark.parametrize(
    ("limit_ms", "token_ms", "lifetime_ms"),
    [
        (0, None, 0),
        (0, 5_000, 5_000),
        (9_000, 5_000, 5_000),
        (3_000, 5_000, 3_000),
        (9_000, None, 9_000),
        (0, -5, 1),
    ],
)
def test_a_session_ends_with_the_credential_or_the_limit(
    limit_ms: int, token_ms: int | None, lifetime_ms: int
) -> None:
    time = Time()
    day = time.clock.time_of_day()

    class Known:
        async def step(self, _: bytes) -> Authenticated:
            return Authenticated("User:x", None if token_ms is None else day + token_ms)

    exchange = SaslExchange(("X",), lambda _: Known(), time.clock, limit_ms)
    exchange.handshake("X", 1)
    assert say(exchange, b"").session_lifetime_ms == lifetime_ms
    assert exchange.expires_at == (time.now() + lifetime_ms if lifetime_ms else None)


def test_authenticating_again_continues_the_session() -> None:
    time = Time()
    exchange = authenticated(time, connections_max_reauth_ms=60_000)
    first_end = exchange.expires_at
    time.seconds += 50
    assert exchange.handshake("PLAIN", 1).error_code == 0
    assert exchange.principal == "User:alice", "it keeps its principal meanwhile"
    assert not exchange.allows(PRODUCE, time.now())
    assert say(exchange, plain()).session_lifetime_ms == 60_000
    assert exchange.expires_at == (first_end or 0) + 50_000
    assert exchange.allows(PRODUCE, time.now())


def test_authenticating_again_is_possible_after_the_end() -> None:
    time = Time()
    exchange = authenticated(time, connections_max_reauth_ms=60_000)
    time.seconds += 100
    assert exchange.handshake("PLAIN", 1).error_code == 0
    assert say(exchange, plain()).error_code == 0


def test_authenticating_again_as_somebody_else_fails() -> None:
    exchange = authenticated(connections_max_reauth_ms=60_000)
    exchange.handshake("PLAIN", 1)
    answer = say(exchange, plain("bob"))
    assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert (
        answer.error_message == "Cannot change principals during re-authentication from User.alice: User.bob"
    )
    assert exchange.is_failed
    assert exchange.principal == "User:alice"


def test_authenticating_again_with_another_mechanism_fails() -> None:
    exchange = authenticated(connections_max_reauth_ms=60_000)
    assert exchange.handshake("SCRAM-SHA-256", 1).error_code == 0
    answer = say(exchange, b"n,,n=alice,r=abc")
    assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert answer.error_message == (
        "SASL mechanism 'SCRAM-SHA-256' requested by client is not supported for re-authentication of "
        "mechanism 'PLAIN'"
    )
    assert exchange.is_failed


def test_authenticating_again_with_a_wrong_password_fails() -> None:
    time = Time()
    exchange = server(time, connections_max_reauth_ms=60_000).exchange()
    talk(exchange, Security(mechanism="SCRAM-SHA-256", username="alice", password="wonderland"))
    with pytest.raises(ClientRefused):
        talk(exchange, Security(mechanism="SCRAM-SHA-256", username="alice", password="x"))


def test_authenticating_again_more_than_once_a_second_is_refused() -> None:
    time = Time()
    exchange = authenticated(time, connections_max_reauth_ms=60_000)
    exchange.handshake("PLAIN", 1)
    say(exchange, plain())
    time.seconds += 0.5
    assert exchange.handshake("PLAIN", 1).error_code == ErrorCode.ILLEGAL_SASL_STATE
    assert exchange.is_authenticated
    time.seconds += 0.5
    assert exchange.handshake("PLAIN", 1).error_code == 0


# Settings.


@pytest.mark.parametrize(
    ("mechanisms", "message"),
    [
        ("", r"sasl.enabled.mechanisms .*PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER"),
        (
            "SCRAM-SHA-265",
            r"sasl.enabled.mechanisms .*'SCRAM-SHA-265'.* SCRAM-SHA-256",
        ),
        ("plain", " PLAIN"),
        ("PLAIN,GSSAPI", "'GSSAPI'"),
        ("OAUTHBEARER", r"OAUTHBEARER .*sasl.oauthbearer.expected.issuer"),
    ],
)
def test_settings_that_are_refused(mechanisms: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        server(sasl_enabled_mechanisms=mechanisms)


def test_a_mechanism_that_is_named_twice_is_offered_once() -> None:
    assert server(sasl_enabled_mechanisms="PLAIN, PLAIN ,SCRAM-SHA-256,").mechanisms == (
        "PLAIN",
        "SCRAM-SHA-256",
    )


def test_without_tokens_nothing_is_read() -> None:
    # None of the keys' sources is configured, so reading any of them would raise.
    authenticators = server()
    assert "OAUTHBEARER" not in authenticators.mechanisms
    asyncio.run(authenticators.start())
    asyncio.run(authenticators.refresh())


# Hostile clients.

STEPS = st.one_of(
    st.tuples(st.just("handshake"), st.sampled_from([*ALL.split(","), "", "X" * 99]), st.integers(0, 1)),
    st.tuples(st.just("authenticate"), st.binary(max_size=60), st.integers(0, 2)),
    st.tuples(st.just("authenticate"), st.just(b"n,,n=alice,r=abc"), st.integers(0, 2)),
    st.tuples(st.just("raw"), st.binary(max_size=60), st.integers(0, 1)),
)


@given(steps=st.lists(STEPS, max_size=8))
def test_no_order_of_hostile_messages_authenticates(steps: list[tuple[str, object, int]]) -> None:
    exchange = server().exchange()
    for kind, content, version in steps:
        had_failed = exchange.is_failed
        if kind == "handshake":
            assert isinstance(content, str)
            error = exchange.handshake(content, version).error_code
        elif kind == "authenticate":
            assert isinstance(content, bytes)
            error = say(exchange, content, version).error_code
        else:
            assert isinstance(content, bytes)
            try:
                asyncio.run(exchange.raw(content))
                error = 0
            except AuthenticationFailed:
                error = -1
        assert exchange.principal is None
        assert exchange.is_failed == bool(error)
        assert not had_failed or error
