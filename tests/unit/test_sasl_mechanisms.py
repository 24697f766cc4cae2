"""PLAIN and SCRAM on the broker's side, against the client's side, the RFCs, and hostile bytes."""

import asyncio
import base64
import contextlib
import hashlib
import hmac
from collections.abc import Callable
from typing import Any, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.client.net.sasl import rounds_of
from semel.client.net.security import Security
from semel.core.security import users
from semel.core.security.users import (
    ITERATIONS_MIN,
    MECHANISMS,
    ScramCredential,
    credential_of_password,
    credential_of_salted,
    matches_password,
    user_problem,
)
from semel.server.sasl import plain
from semel.server.sasl.mechanism import Authenticated, AuthenticationFailed, Mechanism
from semel.server.sasl.plain import Plain
from semel.server.sasl.scram import Scram

T = TypeVar("T")
ALICE = {
    mechanism: credential_of_password("alice", mechanism, b"salt" * 4, ITERATIONS_MIN, "wonder=land,é")
    for mechanism in MECHANISMS
}


def lookup(user: str, mechanism: str) -> ScramCredential | None:
    return ALICE[mechanism] if user == "alice" else None


def nobody(user: str, mechanism: str) -> ScramCredential | None:
    return None


async def here(work: Callable[[], T]) -> T:
    return work()


def scram(
    mechanism: str = "SCRAM-SHA-256", credentials: Any = lookup, random: Any = lambda n: b"n" * n
) -> Scram:
    return Scram(mechanism, credentials, b"secret", random)


def converse(mechanism: Mechanism, security: Security) -> Authenticated:
    """Have both sides talk until one of them is convinced or not."""

    async def talk() -> Authenticated:
        rounds = rounds_of(security)
        said = next(rounds)
        while True:
            heard = await mechanism.step(said)
            if isinstance(heard, Authenticated):
                with pytest.raises(StopIteration):
                    rounds.send(heard.message)
                return heard
            said = rounds.send(heard)

    return asyncio.run(talk())


def step(mechanism: Mechanism, message: bytes) -> bytes | Authenticated:
    return asyncio.run(mechanism.step(message))


# Credentials.


def test_a_credential_shows_no_key() -> None:
    credential = ALICE["SCRAM-SHA-256"]
    for shown in (repr(credential), str(credential), f"{credential}", repr([credential])):
        assert "alice" in shown
        assert repr(credential.stored_key)[2:-1] not in shown
        assert "key" not in shown
        assert "salt" not in shown


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_password_matches_its_credential_only(mechanism: str) -> None:
    credential = ALICE[mechanism]
    assert matches_password(credential, "wonder=land,é")
    assert not matches_password(credential, "wonder=land")
    assert not matches_password(credential.but(stored_key=bytes(len(credential.stored_key))), "")


def test_a_credential_of_a_salted_password_is_that_of_the_password() -> None:
    salted = hashlib.pbkdf2_hmac("sha512", b"pw", b"salt", 5000)
    expected = credential_of_password("u", "SCRAM-SHA-512", b"salt", 5000, "pw")
    assert credential_of_salted("u", "SCRAM-SHA-512", b"salt", 5000, salted) == expected


@pytest.mark.parametrize(
    ("user", "reason"), [("", "empty"), ("a\0b", "NUL"), ("é" * 513, "longer"), ("\ud800", "UTF-8")]
)
def test_names_that_no_user_can_have(user: str, reason: str) -> None:
    assert reason in str(user_problem(user))


def test_names_that_users_have() -> None:
    assert [user_problem(name) for name in ("alice", "=,", "é" * 512, "*")] == [None] * 4


# PLAIN.


def test_plain_accepts_the_password_of_either_mechanism() -> None:
    for only in MECHANISMS:
        known = converse(
            Plain(
                lambda user, mechanism, only=only: lookup(user, mechanism) if mechanism == only else None,  # type: ignore[misc]  # a default: mypy infers no such lambda
                here,
            ),
            Security(mechanism="PLAIN", username="alice", password="wonder=land,é"),
        )
        assert known == Authenticated("User:alice", None, b"")


@pytest.mark.parametrize(
    ("message", "told"),
    [
        (b"\0alice\0wrong", "Authentication failed: Invalid username or password"),
        (b"\0bob\0wonder", "Authentication failed: Invalid username or password"),
        (b"\0\0password", "Authentication failed: username not specified"),
        (b"\0alice\0", "Authentication failed: password not specified"),
        (b"alice\0secret", "Invalid SASL/PLAIN response: expected 3 tokens, got 2"),
        (b"\0alice\0pass\0word", "Invalid SASL/PLAIN response: expected 3 tokens, got 4"),
        (b"", "Invalid SASL/PLAIN response: expected 3 tokens, got 1"),
        (b"\0\xff\0x", "Invalid SASL/PLAIN response: it is not UTF-8"),
        (b"\0alice\0" + b"x" * 5000, "Authentication failed: Invalid username or password"),
        (b"\0" + b"u" * 1025 + b"\0x", "Authentication failed: Invalid username or password"),
        (b"\0alice\0" + b"x" * 70_000, "Invalid SASL/PLAIN response: it is too long"),
    ],
)
def test_plain_refuses(message: bytes, told: str) -> None:
    with pytest.raises(AuthenticationFailed) as failed:
        step(Plain(lookup, here), message)
    assert str(failed.value) == told
    assert "wonder" not in failed.value.detail


def test_cve_2017_12610_plain_does_not_let_a_client_act_as_another_user() -> None:
    assert step(Plain(lookup, here), "alice\0alice\0wonder=land,é".encode()) == Authenticated("User:alice")
    with pytest.raises(AuthenticationFailed, match="authorization id"):
        step(Plain(lookup, here), "admin\0alice\0wonder=land,é".encode())


def test_plain_does_the_same_work_for_a_user_that_does_not_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    hashed: list[tuple[str, int]] = []

    def matches(credential: ScramCredential, password: str) -> bool:
        hashed.append((credential.mechanism, credential.iterations))
        return matches_password(credential, password)

    monkeypatch.setattr(plain, "matches_password", matches)
    for message in (b"\0alice\0wrong", b"\0bob\0wrong", "\0alice\0wonder=land,é".encode()):
        hashed.clear()
        with contextlib.suppress(AuthenticationFailed):
            step(Plain(lookup, here), message)
        assert hashed == [(mechanism, ITERATIONS_MIN) for mechanism in MECHANISMS]


def test_plain_hashes_beside_the_event_loop() -> None:
    import threading

    ran: list[threading.Thread] = []

    async def beside(work: Callable[[], T]) -> T:
        def run() -> T:
            ran.append(threading.current_thread())
            return work()

        return await asyncio.to_thread(run)

    converse(Plain(lookup, beside), Security(mechanism="PLAIN", username="alice", password="wonder=land,é"))
    assert ran
    assert threading.main_thread() not in ran


def test_a_user_removed_while_the_password_is_hashed_is_refused() -> None:
    users_now = dict(ALICE)

    async def beside(work: Callable[[], T]) -> T:
        done = work()
        users_now.clear()
        return done

    with pytest.raises(AuthenticationFailed):
        step(Plain(lambda _, mechanism: users_now.get(mechanism), beside), "\0alice\0wonder=land,é".encode())


# SCRAM.


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("user", ["alice", "a=b,c", "=2C", "zoë"])
def test_scram_with_our_client(mechanism: str, user: str) -> None:
    credential = credential_of_password(user, mechanism, b"0123456789", 5000, "pa=ss,ö")
    known = converse(
        scram(mechanism, lambda name, _: credential if name == user else None),
        Security(mechanism=mechanism, username=user, password="pa=ss,ö"),
    )
    assert known.principal == f"User:{user}"
    assert known.expires_ms is None


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize(("user", "password"), [("alice", "wrong"), ("bob", "wonder=land,é")])
def test_scram_fails_at_the_end_with_the_same_words(mechanism: str, user: str, password: str) -> None:
    with pytest.raises(AuthenticationFailed, match=r"^invalid credentials$"):
        converse(scram(mechanism), Security(mechanism=mechanism, username=user, password=password))


def test_scram_of_rfc_7677() -> None:
    credential = credential_of_password(
        "user", "SCRAM-SHA-256", base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ=="), 4096, "pencil"
    )
    server = scram(credentials=lambda *_: credential)
    step(server, b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO")
    # The nonce of the example has characters that ours does not have.
    nonce = "rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
    assert server._challenged is not None
    server._challenged = server._challenged._replace(
        nonce=nonce, server_first=f"r={nonce},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    )
    known = step(server, f"c=biws,r={nonce},p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=".encode())
    assert known == Authenticated("User:user", None, b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=")


def test_scram_of_rfc_5802_with_its_hash(monkeypatch: pytest.MonkeyPatch) -> None:
    """RFC 5802 has an example with SHA-1, which is not offered; the arithmetic is the same."""
    monkeypatch.setitem(users.DIGESTS, "SCRAM-SHA-1", "sha1")
    credential = credential_of_password(
        "user", "SCRAM-SHA-1", base64.b64decode("QSXCR+Q6sek8bf92"), 4096, "pencil"
    )
    server = scram("SCRAM-SHA-1", lambda *_: credential)
    step(server, b"n,,n=user,r=fyko+d2lbbFgONRv9qkxdawL")
    nonce = "fyko+d2lbbFgONRv9qkxdawL3rfcNHYJY1ZVvWVs7j"
    assert server._challenged is not None
    server._challenged = server._challenged._replace(
        nonce=nonce, server_first=f"r={nonce},s=QSXCR+Q6sek8bf92,i=4096"
    )
    known = step(server, f"c=biws,r={nonce},p=v0X8v3Bz2T0CJGbJQyF0X+HI4Ts=".encode())
    assert known == Authenticated("User:user", None, b"v=rmF9pqV8S7suAoZWja4dJRkFsKQ=")


def final(challenge: bytes, nonce: str | None = None, header: str = "biws", extra: str = "") -> bytes:
    """Return the right final message of alice, with one thing changed."""
    text = challenge.decode()
    nonce = nonce if nonce is not None else text.split(",")[0][2:]
    bare = f"c={header},r={nonce}{extra}"
    signed = f"n=alice,r=abc,{text},{bare}".encode()
    salted = hashlib.pbkdf2_hmac("sha256", "wonder=land,é".encode(), b"salt" * 4, ITERATIONS_MIN)
    key = hmac.digest(salted, b"Client Key", "sha256")
    signature = hmac.digest(hashlib.sha256(key).digest(), signed, "sha256")
    proof = bytes(a ^ b for a, b in zip(key, signature, strict=True))
    return f"{bare},p={base64.b64encode(proof).decode()}".encode()


def challenge_of(server: Scram) -> bytes:
    heard = step(server, b"n,,n=alice,r=abc")
    assert isinstance(heard, bytes)
    return heard


def test_scram_ignores_extensions() -> None:
    server = scram()
    assert isinstance(step(server, final(challenge_of(server), extra=",x=y")), Authenticated)


@pytest.mark.parametrize(
    "change", [lambda n: "xyz" + n, lambda n: n[3:], lambda n: n + "x", lambda n: "abc", str.upper]
)
def test_cve_2024_56128_the_final_nonce_must_be_exactly_the_servers(change: Callable[[str], str]) -> None:
    server = scram()
    challenge = challenge_of(server)
    nonce = challenge.decode().split(",")[0][2:]
    with pytest.raises(AuthenticationFailed) as failed:
        step(server, final(challenge, nonce=change(nonce)))
    assert "nonce" in failed.value.detail


def test_scram_the_final_message_repeats_the_header() -> None:
    server = scram()
    with pytest.raises(AuthenticationFailed) as failed:
        step(server, final(challenge_of(server), header=base64.b64encode(b"n,a=admin,").decode()))
    assert "header" in failed.value.detail


@pytest.mark.parametrize("proof", [b"", b"AAAA", b"A" * 44, b"===="])
def test_scram_refuses_wrong_proofs(proof: bytes) -> None:
    server = scram()
    right = final(challenge_of(server))
    with pytest.raises(AuthenticationFailed):
        step(server, right[: right.index(b",p=") + 3] + proof)


@pytest.mark.parametrize(
    "first",
    [
        b"y,,n=alice,r=abc",
        b"p=tls-unique,,n=alice,r=abc",
        b"n,,m=ext,n=alice,r=abc",
        b"n,,n=,r=abc",
        b"n,,n=al=ice,r=abc",
        b"n,,n=alice,r=",
        b"n,,n=alice,r=a b",
        b"n,,n=alice",
        b"n,,n=al\0ice,r=abc",
        b"n,,n=alice,r=abc,",
        b"n=alice,r=abc",
        b"",
        b"\xff",
        b"n,,n=" + b"a" * 2000 + b",r=abc",
        b"n,,n=alice,r=" + b"a" * 9000,
    ],
)
def test_scram_refuses_a_first_message(first: bytes) -> None:
    with pytest.raises(AuthenticationFailed, match="credentials"):
        step(scram(), first)


def test_cve_2017_12610_scram_does_not_let_a_client_act_as_another_user() -> None:
    assert isinstance(step(scram(), b"n,a=alice,n=alice,r=abc"), bytes)
    with pytest.raises(AuthenticationFailed, match="authorization id"):
        step(scram(), b"n,a=admin,n=alice,r=abc")


def test_scram_refuses_delegation_tokens() -> None:
    for value in ("true", "TRUE"):
        with pytest.raises(AuthenticationFailed, match="delegation tokens"):
            step(scram(), f"n,,n=alice,r=abc,tokenauth={value}".encode())
    assert isinstance(step(scram(), b"n,,n=alice,r=abc,tokenauth=false"), bytes)


def test_scram_challenges_an_unknown_user_like_a_known_one() -> None:
    def parts(server: Scram, user: str) -> tuple[str, str, str]:
        heard = step(server, f"n,,n={user},r=abc".encode())
        assert isinstance(heard, bytes)
        nonce, salt, iterations = heard.decode().split(",")
        return nonce, salt, iterations

    real, made = parts(scram(), "alice"), parts(scram(), "bob")
    assert real[0] == made[0]
    assert real[2] == made[2] == "i=4096"
    assert parts(scram(), "bob") == made, "asking twice says nothing"
    assert parts(scram(), "carol")[1] != made[1]
    assert parts(scram("SCRAM-SHA-512"), "bob")[1] != made[1]
    assert len(base64.b64decode(made[1][2:])) == users.SALT_BYTES


def test_no_proof_makes_a_user_who_does_not_exist_authentic() -> None:
    """The stored key of a made-up credential is all zeros: even a client that knows that gets nowhere."""
    server = scram(credentials=nobody)
    with pytest.raises(AuthenticationFailed):
        step(server, final(challenge_of(server)))


def test_a_user_removed_after_the_challenge_is_refused() -> None:
    users_now: dict[str, ScramCredential] = dict(ALICE)
    server = scram(credentials=lambda _, mechanism: users_now.get(mechanism))
    challenge = challenge_of(server)
    users_now.clear()
    with pytest.raises(AuthenticationFailed):
        step(server, final(challenge))


def test_each_exchange_has_its_own_nonce() -> None:
    import secrets

    assert challenge_of(scram(random=secrets.token_bytes)) != challenge_of(scram(random=secrets.token_bytes))


def test_a_client_refuses_a_broker_that_asks_for_a_billion_iterations() -> None:
    rounds = rounds_of(Security(mechanism="SCRAM-SHA-256", username="alice", password="x"), "abc")
    next(rounds)
    with pytest.raises(ValueError, match="1000000000"):
        rounds.send(b"r=abcdef,s=c2FsdA==,i=1000000000")


# Hostile bytes.

PIECES = st.sampled_from(
    [b"n", b",", b"=", b"a=", b"n=alice", b"r=", b"abc", b"c=biws", b"p=", b"\0", b"=2C", b"\xc3"]
)
MESSAGES = st.one_of(st.binary(max_size=200), st.lists(PIECES, max_size=30).map(b"".join))
MADE: dict[str, Callable[[], Mechanism]] = {
    "PLAIN": lambda: Plain(nobody, here),
    "SCRAM-SHA-256": scram,
    "SCRAM-SHA-512": lambda: scram("SCRAM-SHA-512"),
}


@pytest.mark.parametrize("name", list(MADE))
@given(messages=st.lists(MESSAGES, min_size=1, max_size=3))
def test_hostile_messages_fail_and_nothing_else(name: str, messages: list[bytes]) -> None:
    mechanism = MADE[name]()
    try:
        for message in messages:
            assert not isinstance(step(mechanism, message), Authenticated)
    except AuthenticationFailed:
        pass


@given(tail=MESSAGES)
def test_hostile_final_messages_of_scram_fail(tail: bytes) -> None:
    server = scram()
    right = final(challenge_of(server))
    with pytest.raises(AuthenticationFailed):
        step(server, right[:20] + tail)


def test_expressions_take_linear_time() -> None:
    for message in (
        b"n,," + b"a=" * 4000,
        b"n,,n=" + b"=2C" * 300 + b",r=" + b",x=y" * 1500,
        b"n,a=" + b"x" * 8000,
    ):
        with pytest.raises(AuthenticationFailed):
            step(scram(), message)
    server = scram()
    challenge_of(server)
    with pytest.raises(AuthenticationFailed):
        step(server, b"c=biws,r=a" + b",p=A" * 2000)
