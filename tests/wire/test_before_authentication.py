"""What a client may do before it has authenticated, and how often it may try (issue of every broker)."""

import socket
import struct
import time
from collections.abc import Iterator
from typing import Any

import pytest
from support.clients.raw import RawClient
from support.clocks import later

import semel
from semel.client import Admin, AuthenticationFailed, Client, Security
from semel.client.net import connection, sasl
from semel.client.net.sasl import rounds_of
from semel.server import listener
from semel.wire.errors import ErrorCode
from semel.wire.messages import (
    ApiVersionsRequest,
    MetadataRequest,
    SaslAuthenticateRequest,
    SaslHandshakeRequest,
)

USER, PASSWORD = "ann", "hush-hush"
MECHANISM = "SCRAM-SHA-256"


@pytest.fixture(scope="module")
def broker() -> Iterator[semel.Embedded]:
    settings = {
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256",
        "connection.failed.authentication.delay.ms": 300,
    }
    with semel.embedded(users={USER: PASSWORD, "eve": "eve"}, settings=settings) as broker:
        yield broker


@pytest.fixture
def raw(broker: semel.Embedded) -> Iterator[RawClient]:
    with RawClient(broker.bootstrap_servers) as client:
        yield client


def security(user: str = USER, password: str = PASSWORD, mechanism: str = MECHANISM) -> Security:
    who = {"sasl.mechanism": mechanism, "sasl.username": user, "sasl.password": password}
    return Security.of({"security.protocol": "SASL_PLAINTEXT", **who})


def is_closed(raw: RawClient) -> bool:
    try:
        return raw.receive_frame() is None
    except ConnectionResetError:
        return True


def authenticate(raw: RawClient, user: str = USER, password: str = PASSWORD) -> int:
    """By SCRAM; returns the error of the last answer."""
    assert raw.ask(SaslHandshakeRequest(mechanism=MECHANISM), 1).error_code == 0
    rounds = rounds_of(security(user, password))
    said = next(rounds)
    while True:
        answer = raw.ask(SaslAuthenticateRequest(auth_bytes=said), 2)
        if answer.error_code:
            return int(answer.error_code)
        try:
            said = rounds.send(bytes(answer.auth_bytes))
        except StopIteration:
            return 0


def test_only_three_apis_are_answered(raw: RawClient) -> None:
    assert raw.ask(ApiVersionsRequest(), 0).error_code == 0
    raw.send(MetadataRequest(topics=[]), 9)
    assert is_closed(raw)


def test_memory_before_authentication_cve_2022_34917(raw: RawClient, broker: semel.Embedded) -> None:
    """A frame of more than 64 KiB is refused by its length, before memory is taken for it."""
    raw.send_frame(b"")
    with RawClient(broker.bootstrap_servers) as other:
        other._socket.sendall(struct.pack(">i", 65_537))
        assert is_closed(other)
    with RawClient(broker.bootstrap_servers) as other:
        assert authenticate(other) == 0
        # The limits of an authenticated client are the usual ones.
        other.ask(MetadataRequest(topics=[]), 9)


def test_a_silent_client_is_closed(broker: semel.Embedded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "UNKNOWN_SECONDS_MAX", 0.2)
    with socket.create_connection(("127.0.0.1", broker.port)) as silent:
        silent.settimeout(10)
        assert silent.recv(1) == b""


def test_requests_in_between_end_the_exchange(raw: RawClient) -> None:
    assert raw.ask(SaslHandshakeRequest(mechanism=MECHANISM), 1).error_code == 0
    raw.send(MetadataRequest(topics=[]), 9)
    assert is_closed(raw)


def test_the_handshake_cannot_be_skipped(raw: RawClient) -> None:
    answer = raw.ask(SaslAuthenticateRequest(auth_bytes=b"\0ann\0hush-hush"), 2)
    assert answer.error_code == ErrorCode.ILLEGAL_SASL_STATE
    assert is_closed(raw)


def test_nobody_authenticates_twice(raw: RawClient) -> None:
    assert authenticate(raw) == 0
    answer = raw.ask(SaslAuthenticateRequest(auth_bytes=b"\0eve\0eve"), 2)
    assert answer.error_code == ErrorCode.ILLEGAL_SASL_STATE
    assert raw.ask(SaslHandshakeRequest(mechanism="PLAIN"), 1).error_code == ErrorCode.ILLEGAL_SASL_STATE
    assert raw.ask(MetadataRequest(topics=[]), 9).brokers


def test_an_unknown_mechanism_gets_the_list_and_is_closed(raw: RawClient) -> None:
    answer = raw.ask(SaslHandshakeRequest(mechanism="GSSAPI"), 1)
    assert answer.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM
    assert answer.mechanisms == ["PLAIN", "SCRAM-SHA-256"]
    assert is_closed(raw)


def test_a_failure_is_answered_late_and_then_closed(raw: RawClient) -> None:
    started = time.monotonic()
    assert authenticate(raw, password="guessed") == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert time.monotonic() - started >= 0.3
    assert is_closed(raw)


def test_the_end_of_a_refused_connection_does_not_come_with_the_answer(
    raw: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """kafka-python drops the answer otherwise, and tries again for half a minute without saying why."""
    monkeypatch.setattr(listener, "REFUSED_SECONDS", 600.0)
    assert authenticate(raw, password="guessed") == ErrorCode.SASL_AUTHENTICATION_FAILED
    raw.send(MetadataRequest(topics=[]), 9)
    raw._socket.settimeout(0.2)
    with pytest.raises(TimeoutError):  # neither an end nor an answer
        raw.receive_frame()


def test_pipelined_guesses_do_not_shorten_the_delay(raw: RawClient) -> None:
    assert raw.ask(SaslHandshakeRequest(mechanism="PLAIN"), 1).error_code == 0
    started = time.monotonic()
    for _ in range(5):
        raw.send(SaslAuthenticateRequest(auth_bytes=b"\0ann\0guessed"), 2)
    assert raw.receive_frame() is not None
    assert time.monotonic() - started >= 0.3
    assert is_closed(raw), "one guess for each connection"


def test_raw_tokens_after_the_handshake_of_version_0(raw: RawClient) -> None:
    """As clients of Kafka 0.10 send them."""
    assert raw.ask(SaslHandshakeRequest(mechanism="PLAIN"), 0).error_code == 0
    raw.send_frame(f"\0{USER}\0{PASSWORD}".encode())
    assert raw.receive_frame() == b""
    assert raw.ask(MetadataRequest(topics=[]), 9).brokers


def test_raw_tokens_that_are_wrong_close_the_connection(raw: RawClient) -> None:
    assert raw.ask(SaslHandshakeRequest(mechanism="PLAIN"), 0).error_code == 0
    raw.send_frame(b"\0ann\0guessed")
    assert is_closed(raw)


def test_impersonation_by_authzid_cve_2017_12610(raw: RawClient) -> None:
    assert raw.ask(SaslHandshakeRequest(mechanism="PLAIN"), 1).error_code == 0
    answer = raw.ask(SaslAuthenticateRequest(auth_bytes=b"ann\0eve\0eve"), 2)
    assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED


def test_a_user_cannot_switch_in_reauthentication() -> None:
    settings = {"connections.max.reauth.ms": 60_000}
    with semel.embedded(users={USER: PASSWORD, "eve": "eve"}, settings=settings) as broker:
        with RawClient(broker.bootstrap_servers) as raw:
            assert authenticate(raw) == 0
            assert authenticate(raw) == 0, "the same user may"
        with RawClient(broker.bootstrap_servers) as raw:
            assert authenticate(raw, "eve", "eve") == 0
            assert authenticate(raw) == ErrorCode.SASL_AUTHENTICATION_FAILED
            assert is_closed(raw)


def test_a_session_that_has_ended_is_closed_at_the_next_request() -> None:
    settings = {"connections.max.reauth.ms": 60_000}
    with (
        semel.embedded(users={USER: PASSWORD}, settings=settings) as broker,
        RawClient(broker.bootstrap_servers) as raw,
    ):
        assert authenticate(raw) == 0
        broker.advance(50)
        assert raw.ask(MetadataRequest(topics=[]), 9).brokers
        broker.advance(10)
        raw.send(MetadataRequest(topics=[]), 9)
        assert is_closed(raw)


def test_clients_with_a_session_that_ends_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """`semel.client` connects again, or authenticates again, before it is over."""
    settings = {"connections.max.reauth.ms": 60_000}
    authenticated: list[Security] = []

    def noted(send: Any, security: Security, where: str) -> int:
        authenticated.append(security)
        return sasl.authenticate(send, security, where)

    monkeypatch.setattr(connection, "authenticate", noted)
    with (
        semel.embedded(users={USER: PASSWORD}, settings=settings) as broker,
        Client(broker.bootstrap_servers, security=security()) as client,
    ):
        for number in range(4):
            assert client.describe().nodes
            assert len(authenticated) == number + 1
            broker.advance(59)
            monkeypatch.setattr(connection, "time", later(59 * (number + 1)))


def test_who_may_not_connect_is_told_once(broker: semel.Embedded) -> None:
    with (
        Client(broker.bootstrap_servers, security=security(password="guessed")) as client,
        pytest.raises(AuthenticationFailed, match="'ann'"),
    ):
        Admin(client).topics.all()
