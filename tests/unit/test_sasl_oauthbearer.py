"""OAUTHBEARER on the broker's side: which tokens are valid, and where their keys come from."""

import asyncio
import base64
import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st
from joserfc import jwt
from joserfc.jwk import ECKey, Key, OctKey, OKPKey, RSAKey
from support.servers.web import WebServer

from semel.broker.clock import Clock
from semel.config import Settings
from semel.server.sasl import Authenticators, SaslExchange
from semel.server.sasl.oauthbearer import TOKEN_BYTES_MAX, oauth_problem
from semel.server.sasl.tokens import PAUSE_MS
from semel.wire.errors import ErrorCode
from semel.wire.messages import SaslAuthenticateResponse

T = TypeVar("T")
NOW = 1_700_000_000
RSA = RSAKey.generate_key(2048, {"kid": "rsa"})
OTHER_RSA = RSAKey.generate_key(2048, {"kid": "rsa"})
EC = ECKey.generate_key("P-256", {"kid": "ec"})
ED = OKPKey.generate_key("Ed25519", {"kid": "ed"})
SECRET = OctKey.generate_key(256, {"kid": "shared"})
CLAIMS = {"iss": "https://issuer", "aud": "semel", "sub": "alice", "exp": NOW + 600, "iat": NOW}
REFUSAL = b'{"status":"invalid_token"}'


async def beside(work: Callable[[], T]) -> T:
    return await asyncio.to_thread(work)


class Issuer:
    """The broker's settings, its clock, and a file with the keys of the issuer."""

    def __init__(self, folder: Path, *keys: Key, **settings: str | int) -> None:
        self.seconds = float(NOW)
        self.file = folder / "jwks.json"
        self.publish(*keys)
        self.settings: dict[str, Any] = {
            "sasl.enabled.mechanisms": "OAUTHBEARER",
            "sasl.oauthbearer.jwks.endpoint.url": self.file.as_uri(),
            "sasl.oauthbearer.expected.issuer": "https://issuer",
            "sasl.oauthbearer.expected.audience": "semel, other",
            "semel.oauthbearer.algorithms": "RS256,PS256,ES256,EdDSA,Ed25519",
            **{name.replace("_", "."): value for name, value in settings.items()},
        }
        clock = Clock(lambda: self.seconds, lambda: self.seconds)
        self.broker = Authenticators(
            Settings.of(self.settings), lambda *_: None, clock, beside, lambda: b"secret"
        )

    def publish(self, *keys: Key) -> None:
        self.file.write_text(json.dumps({"keys": [each.as_dict(private=False) for each in keys]}))

    def start(self) -> "Issuer":
        asyncio.run(self.broker.start())
        return self

    def ask(self, token: str) -> tuple[SaslExchange, SaslAuthenticateResponse]:
        return self.send(f"n,,\x01auth=Bearer {token}\x01\x01".encode())

    def send(self, message: bytes) -> tuple[SaslExchange, SaslAuthenticateResponse]:
        exchange = self.broker.exchange()
        exchange.handshake("OAUTHBEARER", 1)
        return exchange, asyncio.run(exchange.authenticate(message, 2))


def signed(
    key: Key = RSA, algorithm: str = "RS256", header: dict[str, Any] | None = None, **claims: Any
) -> str:
    """Return a valid token, with changes. A claim that is None is left out."""
    content = {name: value for name, value in (CLAIMS | claims).items() if value is not None}
    head = {"alg": algorithm, "kid": key.kid} | (header or {})
    head = {name: value for name, value in head.items() if value is not None}
    from semel.server.sasl.tokens import _Registry

    return jwt.encode(head, content, key, registry=_Registry((algorithm,)))


def unsigned(header: dict[str, Any], signature: bytes = b"", **claims: Any) -> str:
    parts = [json.dumps(header).encode(), json.dumps(CLAIMS | claims).encode(), signature]
    return ".".join(base64.urlsafe_b64encode(each).decode().rstrip("=") for each in parts)


@pytest.fixture
def issuer(tmp_path: Path) -> Issuer:
    return Issuer(tmp_path, RSA, EC, ED).start()


def refused(issuer: Issuer, token: str, caplog: pytest.LogCaptureFixture) -> str:
    """Have a token refused as RFC 7628 says; return the reason that the broker logs."""
    caplog.clear()
    exchange, answer = issuer.ask(token)
    assert (answer.error_code, answer.auth_bytes) == (0, REFUSAL)
    assert exchange.principal is None
    last = asyncio.run(exchange.authenticate(b"\x01", 2))
    assert last.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert last.error_message == REFUSAL.decode()
    assert exchange.is_failed
    assert exchange.failure is not None
    assert token not in caplog.text
    assert token not in exchange.failure.detail
    return exchange.failure.detail


@pytest.mark.parametrize(
    ("key", "algorithm"), [(RSA, "RS256"), (RSA, "PS256"), (EC, "ES256"), (ED, "EdDSA"), (ED, "Ed25519")]
)
def test_a_valid_token(issuer: Issuer, key: Key, algorithm: str) -> None:
    exchange, answer = issuer.ask(signed(key, algorithm))
    assert (answer.error_code, answer.auth_bytes) == (0, b"")
    assert answer.session_lifetime_ms == 600_000
    assert exchange.principal == "User:alice"
    assert exchange.expires_at == (NOW + 600) * 1000


def test_the_session_is_not_longer_than_connections_max_reauth_ms(tmp_path: Path) -> None:
    issuer = Issuer(tmp_path, RSA, connections_max_reauth_ms=60_000).start()
    assert issuer.ask(signed())[1].session_lifetime_ms == 60_000
    assert issuer.ask(signed(exp=NOW + 5))[1].session_lifetime_ms == 5_000


@pytest.mark.parametrize(
    "claims",
    [
        {"aud": ["a", "other"]},
        {"exp": NOW - 29},
        {"exp": NOW + 0.5},
        {"nbf": NOW + 29, "iat": NOW + 29},
        {"iat": None},
        {"scope": ["x"], "extra": {"y": 1}},
    ],
)
def test_other_valid_tokens(issuer: Issuer, claims: dict[str, Any]) -> None:
    exchange, answer = issuer.ask(signed(**claims))
    assert exchange.principal == "User:alice"
    assert answer.session_lifetime_ms >= 1


def test_another_claim_can_name_the_user(tmp_path: Path) -> None:
    issuer = Issuer(tmp_path, RSA, sasl_oauthbearer_sub_claim_name="client_id").start()
    assert issuer.ask(signed(client_id="app"))[0].principal == "User:app"


@pytest.mark.parametrize(
    ("claims", "reason"),
    [
        ({"exp": NOW - 30}, "it has expired"),
        ({"exp": None}, "no claim exp"),
        ({"exp": "soon"}, "exp is not a time"),
        ({"exp": True}, "exp is not a time"),
        ({"exp": 10**400}, "exp is not a time"),
        ({"exp": -1}, "exp is not a time"),
        ({"nbf": NOW + 31}, "not valid yet, by its claim nbf"),
        ({"iat": NOW + 31}, "not valid yet, by its claim iat"),
        ({"nbf": "x"}, "nbf is not a time"),
        ({"iss": "https://mallory"}, "iss is not"),
        ({"iss": None}, "iss is not"),
        ({"iss": ["https://issuer"]}, "iss is not"),
        ({"aud": "kafka"}, "aud has none of"),
        ({"aud": None}, "aud has none of"),
        ({"aud": [["semel"], 1]}, "aud has none of"),
        ({"sub": None}, "sub is not the name of a user"),
        ({"sub": " "}, "sub is not the name of a user"),
        ({"sub": 7}, "sub is not the name of a user"),
        ({"sub": "a\0b"}, "sub is not the name of a user"),
        ({"sub": "x" * 2000}, "sub is not the name of a user"),
    ],
)
def test_claims_that_are_refused(
    issuer: Issuer, caplog: pytest.LogCaptureFixture, claims: dict[str, Any], reason: str
) -> None:
    assert reason in refused(issuer, signed(**claims), caplog)


def test_exp_that_is_not_a_number_of_json(issuer: Issuer, caplog: pytest.LogCaptureFixture) -> None:
    for value in ("NaN", "Infinity", "1e999"):
        from joserfc import jws

        content = json.dumps(CLAIMS).replace(str(NOW + 600), value)
        token = jws.serialize_compact({"alg": "RS256", "kid": "rsa"}, content, RSA)
        assert "exp is not a time" in refused(issuer, token, caplog)


def test_a_token_signed_by_a_wrong_key(issuer: Issuer, caplog: pytest.LogCaptureFixture) -> None:
    assert refused(issuer, signed(OTHER_RSA), caplog) == "its signature is wrong"


def test_a_token_whose_claims_were_changed(issuer: Issuer, caplog: pytest.LogCaptureFixture) -> None:
    header, _, signature = signed().split(".")
    claims = unsigned({}, sub="admin").split(".")[1]
    assert refused(issuer, f"{header}.{claims}.{signature}", caplog) == "its signature is wrong"


@pytest.mark.parametrize("algorithm", ["none", "None", "NONE", "nOnE"])
def test_a_token_without_a_signature(
    issuer: Issuer, caplog: pytest.LogCaptureFixture, algorithm: str
) -> None:
    assert "its algorithm is not" in refused(issuer, unsigned({"alg": algorithm, "kid": "rsa"}), caplog)


def test_a_public_key_is_not_taken_for_a_secret(issuer: Issuer, caplog: pytest.LogCaptureFixture) -> None:
    """HS256 with the public key as the secret deceives verifiers that trust the header of the token."""
    import hashlib
    import hmac

    for secret in (
        RSA.as_pem(private=False),
        RSA.as_der(private=False),
        json.dumps(RSA.as_dict(private=False)).encode(),
    ):
        bare = unsigned({"alg": "HS256", "kid": "rsa"}).rpartition(".")[0]
        mac = hmac.digest(secret, bare.encode(), hashlib.sha256)
        token = f"{bare}.{base64.urlsafe_b64encode(mac).decode().rstrip('=')}"
        assert "its algorithm is not" in refused(issuer, token, caplog)


def test_an_algorithm_that_is_not_configured(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    issuer = Issuer(tmp_path, RSA, EC, semel_oauthbearer_algorithms="ES256").start()
    assert "its algorithm is not" in refused(issuer, signed(), caplog)
    assert issuer.ask(signed(EC, "ES256"))[0].principal == "User:alice"


def test_a_key_is_used_for_its_own_algorithm_only(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    changes: list[dict[str, Any]] = [{"alg": "PS256"}, {"use": "enc"}]
    for parameters in changes:
        key = RSAKey.import_key(RSA.as_dict(private=True) | parameters)
        issuer = Issuer(tmp_path, key, EC).start()
        assert refused(issuer, signed(), caplog) == "no key of the issuer goes with it"


def test_tokens_signed_with_a_shared_secret(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    issuer = Issuer(tmp_path, semel_oauthbearer_algorithms="HS256")
    issuer.file.write_text(json.dumps({"keys": [SECRET.as_dict()]}))
    issuer.start()
    assert issuer.ask(signed(SECRET, "HS256"))[0].principal == "User:alice"
    assert "its algorithm is not" in refused(issuer, signed(), caplog)


def test_cve_2025_27817_nothing_that_a_token_names_is_read(
    issuer: Issuer, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []

    def read_url(url: str, _: Any) -> bytes:
        read.append(url)
        return b"{}"

    monkeypatch.setattr("semel.server.sasl.tokens.read_url", read_url)
    mine = OTHER_RSA.as_dict(private=False)
    for header in (
        {"jku": "https://mallory/keys"},
        {"jku": "http://mallory/keys", "kid": "unknown"},
        {"x5u": "https://mallory/certificate"},
        {"jwk": mine},
        {"jwk": mine, "kid": None},
    ):
        refused(issuer, signed(OTHER_RSA, header=header), caplog)
    assert set(read) <= {issuer.settings["sasl.oauthbearer.jwks.endpoint.url"]}
    # A token of the issuer may have them.
    assert issuer.ask(signed(header={"jku": "https://mallory/keys"}))[0].principal == "User:alice"


def test_critical_extensions_are_refused(issuer: Issuer, caplog: pytest.LogCaptureFixture) -> None:
    token = unsigned({"alg": "RS256", "kid": "rsa", "crit": ["b64"], "b64": False})
    refused(issuer, token, caplog)


def test_unknown_header_parameters_are_ignored(issuer: Issuer) -> None:
    assert issuer.ask(signed(header={"nonce": "x", "x5t": "y", "typ": "at+jwt"}))[0].principal == "User:alice"


def test_a_deeply_nested_header(issuer: Issuer, caplog: pytest.LogCaptureFixture) -> None:
    header = base64.urlsafe_b64encode(b"[" * 6_000).decode()
    assert refused(issuer, f"{header}.e30.e30", caplog) == "its header is malformed"


def test_a_huge_token(issuer: Issuer, caplog: pytest.LogCaptureFixture) -> None:
    fits = signed(filler="x" * 11_000)
    assert len(fits) < TOKEN_BYTES_MAX
    assert issuer.ask(fits)[0].principal == "User:alice"
    assert "longer than 16384 bytes" in refused(issuer, signed(filler="x" * 13_000), caplog)
    exchange, answer = issuer.ask("x" * 30_000)
    assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert exchange.is_failed


# Keys.


def test_a_token_without_the_name_of_a_key(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    issuer = Issuer(tmp_path, RSA, EC).start()
    assert issuer.ask(signed(header={"kid": None}))[0].principal == "User:alice"
    issuer.publish(RSA, RSAKey.generate_key(2048, {"kid": "second"}))
    issuer.start()
    assert refused(issuer, signed(header={"kid": None}), caplog) == "no key of the issuer goes with it"


def test_a_new_key_is_found_at_once(issuer: Issuer) -> None:
    new = RSAKey.generate_key(2048, {"kid": "new"})
    issuer.publish(new)
    issuer.seconds += PAUSE_MS / 1000
    assert issuer.ask(signed(new))[0].principal == "User:alice"


def test_unknown_keys_cannot_make_the_broker_read_all_the_time(
    issuer: Issuer, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    from semel.server.sasl import tokens

    read: list[str] = []

    def reading(url: str, size_max: int) -> bytes:
        read.append(url)
        return issuer.file.read_bytes()

    monkeypatch.setattr(tokens, "read_url", reading)
    for _ in range(5):
        refused(issuer, signed(header={"kid": "unknown"}), caplog)
    assert read == [], "the keys were read a moment ago"
    issuer.seconds += PAUSE_MS / 1000
    for _ in range(5):
        refused(issuer, signed(header={"kid": "unknown"}), caplog)
    assert len(read) == 1


def test_tokens_that_come_together_wait_for_one_read(issuer: Issuer, monkeypatch: pytest.MonkeyPatch) -> None:
    from semel.server.sasl import tokens

    new = ECKey.generate_key("P-256", {"kid": "new"})
    issuer.publish(new)
    issuer.seconds += PAUSE_MS / 1000
    read: list[str] = []

    def read_url(url: str, _: Any) -> bytes:
        read.append(url)
        return issuer.file.read_bytes()

    monkeypatch.setattr(tokens, "read_url", read_url)
    message = f"n,,\x01auth=Bearer {signed(new, 'ES256')}\x01\x01".encode()

    async def main() -> list[str | None]:
        exchanges = [issuer.broker.exchange() for _ in range(5)]
        for each in exchanges:
            each.handshake("OAUTHBEARER", 1)
        await asyncio.gather(*(each.authenticate(message, 2) for each in exchanges))
        return [each.principal for each in exchanges]

    assert asyncio.run(main()) == ["User:alice"] * 5
    assert len(read) == 1


def test_keys_are_read_again_periodically(issuer: Issuer, caplog: pytest.LogCaptureFixture) -> None:
    issuer.publish(EC)
    issuer.seconds += 3_599
    asyncio.run(issuer.broker.refresh())
    assert issuer.ask(signed(exp=NOW + 9_999))[0].principal == "User:alice"
    issuer.seconds += 1
    asyncio.run(issuer.broker.refresh())
    assert refused(issuer, signed(exp=NOW + 9_999), caplog) == "no key of the issuer goes with it"


@pytest.mark.parametrize(
    "content", [None, b"", b"[]", b'{"keys":[]}', b'{"keys":5}', b"[" * 100_000, b" " * (2 << 20)]
)
def test_keys_that_cannot_be_read_again_stay_in_use(
    issuer: Issuer, caplog: pytest.LogCaptureFixture, content: bytes | None
) -> None:
    issuer.file.unlink() if content is None else issuer.file.write_bytes(content)
    issuer.seconds += 3_600
    with caplog.at_level(logging.ERROR):
        asyncio.run(issuer.broker.refresh())
    assert "the keys of tokens cannot be read, the old ones stay" in caplog.text
    assert issuer.ask(signed(exp=NOW + 9_999))[0].principal == "User:alice"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "No such file"),
        ("{}", "JSON Web Key Set"),
        ("nonsense", "JSON Web Key Set"),
        (
            '{"keys":[7, null, {"kty":"RSA","n":"AQAB","e":"AQAB"}, {"kty":"EC"}, {"kty":["RSA"]}]}',
            "key",
        ),
        (" " * ((1 << 20) + 1), "1048576"),
    ],
)
def test_without_keys_the_broker_does_not_start(tmp_path: Path, content: str | None, reason: str) -> None:
    issuer = Issuer(tmp_path, RSA)
    issuer.file.unlink() if content is None else issuer.file.write_text(content)
    with pytest.raises(ValueError, match=rf"sasl.oauthbearer.jwks.endpoint.url .*{reason}"):
        issuer.start()


def test_a_weak_key_is_not_used(tmp_path: Path) -> None:
    from cryptography.hazmat.primitives.asymmetric.rsa import generate_private_key

    numbers = generate_private_key(65537, 1024).public_key().public_numbers()
    text = base64.urlsafe_b64encode(numbers.n.to_bytes(128, "big")).decode().rstrip("=")
    issuer = Issuer(tmp_path, RSA)
    issuer.file.write_text(json.dumps({"keys": [{"kty": "RSA", "n": text, "e": "AQAB"}]}))
    with pytest.raises(ValueError, match="key"):
        issuer.start()


def test_secret_algorithms_with_public_keys_do_not_start(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"semel.oauthbearer"):
        Issuer(tmp_path, RSA, semel_oauthbearer_algorithms="HS256").start()


# Settings.


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("sasl.oauthbearer.expected.issuer", " ", "needs the setting sasl.oauthbearer.expected.issuer"),
        ("sasl.oauthbearer.expected.audience", ",", "needs the setting sasl.oauthbearer.expected.audience"),
        ("semel.oauthbearer.algorithms", "", "needs the setting semel.oauthbearer.algorithms"),
        ("sasl.oauthbearer.jwks.endpoint.url", "", "needs the setting sasl.oauthbearer.jwks.endpoint.url"),
        ("sasl.oauthbearer.sub.claim.name", "", "needs the setting sasl.oauthbearer.sub.claim.name"),
        ("semel.oauthbearer.algorithms", "RS256,none", "must not have none"),
        ("semel.oauthbearer.algorithms", "RS265", "unknown algorithm 'RS265'; did you mean RS256?"),
        ("semel.oauthbearer.algorithms", "HS256,RS256", "has HS256, which needs a secret key"),
        ("sasl.oauthbearer.jwks.endpoint.url", "http://issuer/keys", "must be an https:// URL"),
        ("sasl.oauthbearer.jwks.endpoint.url", "ftp://issuer/keys", "must be an https:// or file:// URL"),
        ("sasl.oauthbearer.jwks.endpoint.url", "/etc/keys", "must be an https:// or file:// URL"),
        ("sasl.oauthbearer.jwks.endpoint.url", "https:///keys", "has no host"),
        ("sasl.oauthbearer.jwks.endpoint.url", "file://host/keys", "must be file:///path"),
        ("sasl.oauthbearer.jwks.endpoint.url", "https://a:b@host/", "must not contain a user or a password"),
        ("sasl.oauthbearer.jwks.endpoint.url", "https://[host", "is not a valid URL"),
        ("sasl.oauthbearer.jwks.endpoint.url", "http://127.0.0.1.nip.io/", "must be an https:// URL"),
    ],
)
def test_settings_that_are_refused(tmp_path: Path, name: str, value: str, problem: str) -> None:
    settings = Issuer(tmp_path, RSA).settings
    assert oauth_problem(Settings.of(settings)) is None
    assert problem in str(oauth_problem(Settings.of(settings | {name: value})))


# The message.


@pytest.mark.parametrize(
    "message",
    [
        "n,a=alice,\x01auth=Bearer {}\x01\x01",
        "n,,\x01auth=bearer   {}\x01\x01",
        "n,,\x01host=x\x01auth=Bearer {}\x01port=1\x01\x01",
    ],
)
def test_messages_that_are_accepted(issuer: Issuer, message: str) -> None:
    assert issuer.send(message.format(signed()).encode())[0].principal == "User:alice"


@pytest.mark.parametrize(
    "message",
    [
        "",
        "\x01",
        "y,,\x01auth=Bearer {}\x01\x01",
        "p=x,,\x01auth=Bearer {}\x01\x01",
        "n,,\x01auth=Bearer {}\x01",
        "n,,\x01auth=Basic {}\x01\x01",
        "n,,\x01auth={}\x01\x01",
        "n,,\x01auth=Bearer {} x\x01\x01",
        "n,,\x01\x01",
        "n,,auth=Bearer {}\x01\x01",
        "n,,\x01auth=Bearer {}\x01auth=Bearer {}\x01\x01",
        "n,,\x01auth=Bearer {}\x01x=é\x01\x01",
        "n,,\x01auth=Bearer {}\x01\x01\x01",
    ],
)
def test_messages_that_are_refused(issuer: Issuer, message: str) -> None:
    exchange, answer = issuer.send(message.replace("{}", signed()).encode())
    assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert answer.error_message == (
        "Authentication failed during authentication due to invalid credentials with SASL "
        "mechanism OAUTHBEARER"
    )
    assert exchange.is_failed


def test_a_client_cannot_act_as_another_user(issuer: Issuer) -> None:
    exchange, answer = issuer.send(f"n,a=admin,\x01auth=Bearer {signed()}\x01\x01".encode())
    assert "different from the token's principal name" in str(answer.error_message)
    assert exchange.is_failed


def test_after_a_refusal_a_valid_token_is_too_late(issuer: Issuer) -> None:
    exchange, _ = issuer.ask(signed(OTHER_RSA))
    answer = asyncio.run(exchange.authenticate(f"n,,\x01auth=Bearer {signed()}\x01\x01".encode(), 2))
    assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert exchange.principal is None


def test_refused_tokens_are_logged_a_few_times(issuer: Issuer, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(20):
        issuer.ask(signed(OTHER_RSA))
    assert caplog.text.count("a token was refused") == 5


SEGMENTS = st.one_of(
    st.text("abcAB012-_", max_size=20),
    st.sampled_from(
        [*signed().split("."), base64.urlsafe_b64encode(b"[" * 3000).decode(), "e30", "bnVsbA", ""]
    ),
    st.dictionaries(
        st.sampled_from(["alg", "kid", "crit", "typ", "jwk", "jku", "b64", "x5c"]),
        st.sampled_from(["RS256", "ES256", "rsa", 1, None, [], {}, ["b64"], True]),
    ).map(lambda header: base64.urlsafe_b64encode(json.dumps(header).encode()).decode().rstrip("=")),
)


@given(segments=st.lists(SEGMENTS, min_size=1, max_size=5), prefix=st.sampled_from(["n,,", "n,a=x,", "x"]))
def test_hostile_tokens_are_refused(
    tmp_path_factory: pytest.TempPathFactory, segments: list[str], prefix: str
) -> None:
    global _issuer
    if _issuer is None:
        _issuer = Issuer(tmp_path_factory.mktemp("keys"), RSA, EC).start()
    if segments == signed().split("."):
        return
    exchange, _ = _issuer.send(f"{prefix}\x01auth=Bearer {'.'.join(segments)}\x01\x01".encode())
    assert exchange.principal is None or ".".join(segments) == signed()


@given(message=st.binary(max_size=300))
def test_hostile_bytes_are_refused(tmp_path_factory: pytest.TempPathFactory, message: bytes) -> None:
    global _issuer
    if _issuer is None:
        _issuer = Issuer(tmp_path_factory.mktemp("keys"), RSA, EC).start()
    exchange, _ = _issuer.send(message)
    assert exchange.principal is None


_issuer: Issuer | None = None


# Keys over HTTP.


@pytest.fixture
def web() -> Iterator[WebServer]:
    with WebServer("/keys") as made:
        made.headers = {"Content-Type": "application/json"}
        yield made


def test_keys_of_a_web_server(tmp_path: Path, web: WebServer) -> None:
    web.answer = {"keys": [RSA.as_dict(private=False)]}
    issuer = Issuer(tmp_path, RSA, sasl_oauthbearer_jwks_endpoint_url=web.url).start()
    assert issuer.ask(signed())[0].principal == "User:alice"
    assert len(web.asked) == 1


@pytest.mark.parametrize(
    ("status", "size", "reason"),
    [(404, 0, " 404"), (500, 10, " 500"), (200, 2 << 20, "1048576")],
)
def test_web_servers_without_keys(
    tmp_path: Path, web: WebServer, status: int, size: int, reason: str
) -> None:
    web.status, web.answer = status, b" " * size
    with pytest.raises(ValueError, match=reason):
        Issuer(tmp_path, RSA, sasl_oauthbearer_jwks_endpoint_url=web.url).start()


def test_redirects_are_not_followed(tmp_path: Path, web: WebServer) -> None:
    web.status, web.headers = 302, {"Location": (tmp_path / "jwks.json").as_uri()}
    with pytest.raises(ValueError, match=r" 302 "):
        Issuer(tmp_path, RSA, sasl_oauthbearer_jwks_endpoint_url=web.url).start()
    web.headers = {"Location": web.url}
    with pytest.raises(ValueError, match=r" 302 "):
        Issuer(tmp_path, RSA, sasl_oauthbearer_jwks_endpoint_url=web.url).start()
    assert len(web.asked) == 2


def test_a_web_server_that_is_away_leaves_the_keys(
    tmp_path: Path, web: WebServer, caplog: pytest.LogCaptureFixture
) -> None:
    web.answer = {"keys": [RSA.as_dict(private=False)]}
    issuer = Issuer(tmp_path, RSA, sasl_oauthbearer_jwks_endpoint_url=web.url).start()
    web.status = 503
    issuer.seconds += 3_600
    asyncio.run(issuer.broker.refresh())
    assert "cannot be read" in caplog.text
    assert issuer.ask(signed(exp=NOW + 9_999))[0].principal == "User:alice"
    web.status = 200
    issuer.seconds += PAUSE_MS / 1000
    asyncio.run(issuer.broker.refresh())
    assert len(web.asked) == 3, "it is tried again soon"
