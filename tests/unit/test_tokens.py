"""Tokens of Semel's client: from an endpoint or a file, cached, and never shown."""

import asyncio
import base64
import dataclasses
import json
import pickle
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import pytest
from joserfc import jwt
from joserfc.jwk import ECKey
from support.servers.web import WebServer

from semel.broker.clock import Clock
from semel.client.errors import AuthenticationFailed, BrokerUnreachable
from semel.client.net import tokens
from semel.client.net.sasl import authenticate, rounds_of
from semel.client.net.security import Security
from semel.client.net.tokens import TokenEndpoint, token_endpoint
from semel.config import Settings
from semel.server.sasl import Authenticators, SaslExchange
from semel.wire.messages import SaslHandshakeRequest
from semel.wire.schema import Request

T = TypeVar("T")
SECRET = "hush-hush"
OAUTH = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "OAUTHBEARER"}
IDENTITY = {"sasl.oauthbearer.client.id": "app", "sasl.oauthbearer.client.secret": SECRET}
URL = {"sasl.oauthbearer.token.endpoint.url": "https://issuer/token"}


class Endpoint(WebServer):
    """An authorization server with one answer."""

    def __init__(self) -> None:
        super().__init__("/token")
        self.answer = {"access_token": "first", "token_type": "Bearer", "expires_in": 100}

    def source(self, scope: str = "") -> TokenEndpoint:
        return TokenEndpoint(self.url, "app", SECRET, scope)


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    with Endpoint() as made:
        yield made


class Ticking:
    """A clock to set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(tokens, "time", self)

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return self.now


# The endpoint.


def test_the_request_is_that_of_the_client_credentials_grant(endpoint: Endpoint) -> None:
    assert endpoint.source("read write")() == "first"
    ((headers, form),) = endpoint.asked
    assert form == {"grant_type": ["client_credentials"], "scope": ["read write"]}
    assert base64.b64decode(headers["Authorization"].removeprefix("Basic ")).decode() == f"app:{SECRET}"
    assert headers["Content-Type"] == "application/x-www-form-urlencoded"


def test_without_a_scope_none_is_sent(endpoint: Endpoint) -> None:
    endpoint.source()()
    assert "scope" not in endpoint.asked[0][1]


def test_a_token_is_used_for_80_percent_of_its_life(
    endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, source = Ticking(monkeypatch), endpoint.source()
    assert source() == "first"
    endpoint.answer = {"access_token": "second", "expires_in": "100"}
    clock.now += 79
    assert source() == "first"
    clock.now += 2
    assert source() == "second"
    assert source() == "second"
    assert len(endpoint.asked) == 2


def test_a_token_says_itself_how_long_it_lives(endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, source = Ticking(monkeypatch), endpoint.source()
    payload = base64.urlsafe_b64encode(b'{"exp": 1100}').decode().rstrip("=")
    endpoint.answer = {"access_token": f"e30.{payload}.x"}
    source()
    clock.now += 79
    source()
    assert len(endpoint.asked) == 1
    clock.now += 2
    source()
    assert len(endpoint.asked) == 2


@pytest.mark.parametrize("life", [None, "x", -5, 0, [], "NaN", "Infinity"])
def test_a_token_of_unknown_life_is_not_kept(endpoint: Endpoint, life: Any) -> None:
    endpoint.answer = {"access_token": "opaque", "expires_in": life}
    source = endpoint.source()
    assert source() == source() == "opaque"
    assert len(endpoint.asked) == 2


def test_threads_share_one_token(endpoint: Endpoint) -> None:
    source = endpoint.source()
    endpoint.delay_s = 0.05
    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(lambda _: source(), range(32))) == {"first"}
    assert len(endpoint.asked) == 1


def test_connections_with_equal_settings_share_one_token(endpoint: Endpoint) -> None:
    settings = OAUTH | IDENTITY | {"sasl.oauthbearer.token.endpoint.url": endpoint.url}
    first, second = Security.of(settings), Security.of(settings)
    assert first == second
    assert hash(first) == hash(second)
    copied = pickle.loads(pickle.dumps(first))
    for each in (first, second, copied):
        assert each.token is not None
        assert each.token() == "first"
    assert len(endpoint.asked) == 1


def test_an_endpoint_that_is_away_does_not_end_a_valid_token(
    endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, source = Ticking(monkeypatch), endpoint.source()
    source()
    endpoint.status = 503
    clock.now += 90
    assert source() == "first"
    clock.now += 11
    with pytest.raises(BrokerUnreachable, match=r"sasl.oauthbearer.token.endpoint.url http.* 503"):
        source()


@pytest.mark.parametrize("status", [429, 500, 503])
def test_errors_after_which_a_retry_may_help(endpoint: Endpoint, status: int) -> None:
    endpoint.status = status
    with pytest.raises(BrokerUnreachable) as error:
        endpoint.source()()
    assert SECRET not in str(error.value)


def test_an_endpoint_that_does_not_answer() -> None:
    with Endpoint() as made:
        pass
    with pytest.raises(BrokerUnreachable, match=r"sasl.oauthbearer.token.endpoint.url"):
        made.source()()


@pytest.mark.parametrize(
    ("status", "answer", "reason"),
    [
        (
            401,
            {"error": "invalid_client", "error_description": "no such\x1b client."},
            "invalid_client, no such",
        ),
        (400, {"error": "invalid_scope"}, "invalid_scope"),
        (403, b"<html>", " 403"),
        (404, b"[" * 5000, " 404"),
        (200, b"<html>", "access_token"),
        (200, {"access_token": 7}, "access_token"),
        (200, {"access_token": ""}, "access_token"),
        (200, {"access_token": "x" * 20_000}, "access_token"),
        (200, {}, "access_token"),
        (200, [], "access_token"),
        (200, b"[" * 60_000, "access_token"),
    ],
)
def test_errors_after_which_no_retry_helps(endpoint: Endpoint, status: int, answer: Any, reason: str) -> None:
    endpoint.status, endpoint.answer = status, answer
    with pytest.raises(AuthenticationFailed, match=reason) as error:
        endpoint.source()()
    assert str(error.value).startswith("sasl.oauthbearer.token.endpoint.url")
    assert SECRET not in str(error.value)
    assert "\x1b" not in str(error.value)


def test_an_answer_that_is_too_long(endpoint: Endpoint) -> None:
    endpoint.answer = b" " * 200_000
    with pytest.raises(BrokerUnreachable, match="65536"):
        endpoint.source()()


def test_an_answer_that_does_not_come(monkeypatch: pytest.MonkeyPatch, endpoint: Endpoint) -> None:
    from semel import urls

    monkeypatch.setattr(
        tokens, "read_url", lambda *args, **kw: urls.read_url(*args, **{**kw, "timeout_s": 0.2})
    )
    hang = threading.Event()
    monkeypatch.setattr(endpoint, "asked", _Hanging(hang))
    with pytest.raises(BrokerUnreachable):
        endpoint.source()()
    hang.set()


class _Hanging(list[Any]):
    def __init__(self, until: threading.Event) -> None:
        super().__init__()
        self._until = until

    def append(self, _: Any) -> None:
        self._until.wait(60)


def test_a_redirect_does_not_get_the_secret(endpoint: Endpoint) -> None:
    with Endpoint() as other:
        for status in (302, 307, 308):
            endpoint.status, endpoint.headers = status, {"Location": other.url}
            with pytest.raises(AuthenticationFailed, match=f" {status} "):
                endpoint.source()()
        assert other.asked == []


def test_a_proxy_does_not_get_the_secret(endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    assert endpoint.source()() == "first"


# A file.


def test_a_file_is_read_each_time(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("one\n")
    security = Security.of(OAUTH | {"sasl.oauthbearer.token.endpoint.url": file.as_uri()})
    assert security.token is not None
    assert security.token() == "one"
    file.write_text("two")
    assert security.token() == "two"


@pytest.mark.parametrize(("content", "reason"), [(None, "No such file"), (b"x" * 17_000, "16384")])
def test_files_that_cannot_be_read(tmp_path: Path, content: bytes | None, reason: str) -> None:
    file = tmp_path / "token"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(AuthenticationFailed, match=rf"sasl.oauthbearer.token.endpoint.url file:.* {reason}"):
        TokenEndpoint(file.as_uri())()


# Settings.


def jaas(options: str, module: str = "oauthbearer.OAuthBearerLoginModule") -> dict[str, str]:
    return {"sasl.jaas.config": f"org.apache.kafka.common.security.{module} required {options};"}


@pytest.mark.parametrize(
    "identity",
    [
        IDENTITY,
        jaas(f'clientId="app" clientSecret="{SECRET}"'),
        jaas('clientId="app"') | {"sasl.oauthbearer.client.secret": SECRET},
        jaas("") | IDENTITY,
    ],
)
def test_where_the_identity_may_be(identity: dict[str, str]) -> None:
    security = Security.of(OAUTH | URL | identity)
    assert security.token == TokenEndpoint("https://issuer/token", "app", SECRET)
    assert security.mechanism == "OAUTHBEARER"


def test_the_scope_is_in_either_place_too() -> None:
    identity = jaas(f'clientId=app clientSecret={SECRET} scope="a b"')
    assert Security.of(OAUTH | URL | identity).token == TokenEndpoint(
        "https://issuer/token", "app", SECRET, "a b"
    )


def test_secrets_are_not_shown() -> None:
    security = Security.of(OAUTH | URL | IDENTITY)
    assert SECRET not in repr(security)
    assert SECRET not in repr(security.token)
    assert "app" in repr(security.token)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (IDENTITY, "OAUTHBEARER needs sasl.oauthbearer.token.endpoint.url"),
        (URL, "sasl.oauthbearer.client.id is missing"),
        (URL | {"sasl.oauthbearer.client.id": "app"}, "sasl.oauthbearer.client.secret"),
        (URL | IDENTITY | jaas("clientId=other"), "not both"),
        (
            URL | IDENTITY | {"sasl.username": "ann"},
            "sasl.username .*sasl.mechanism=OAUTHBEARER",
        ),
        (URL | {"sasl.mechanism": "PLAIN"}, "token.endpoint.url .*sasl.mechanism=PLAIN"),
        (URL | {"security.protocol": "SSL"}, "security.protocol=SSL"),
        (
            IDENTITY | {"sasl.oauthbearer.token.endpoint.url": "http://issuer/token"},
            "sasl.oauthbearer.token.endpoint.url .*https://",
        ),
        (
            IDENTITY | {"sasl.oauthbearer.token.endpoint.url": f"https://app:{SECRET}@issuer/"},
            "sasl.oauthbearer.token.endpoint.url .*password",
        ),
        (
            IDENTITY | {"sasl.oauthbearer.token.endpoint.url": "file:///t"},
            "sasl.oauthbearer.client.id .*file",
        ),
        (
            {"sasl.oauthbearer.scope": "x", "sasl.oauthbearer.token.endpoint.url": "file:///t"},
            "sasl.oauthbearer.scope .*file",
        ),
        (
            URL | IDENTITY | {"sasl.oauthbearer.method": "oidc"},
            "sasl.oauthbearer.method",
        ),
        (URL | {"sasl.login.callback.handler.class": "x"}, "sasl.login.callback.handler.class"),
        (URL | {"sasl.oauthbearer.client.ids": "x"}, "'sasl.oauthbearer.client.id'"),
    ],
)
def test_settings_that_are_refused(settings: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message) as refused:
        Security.of(OAUTH | settings)
    assert SECRET not in str(refused.value)


@pytest.mark.parametrize("module", ["com.sun.security.auth.module.LdapLoginModule", "x.JndiLoginModule"])
def test_cve_2025_27818_a_jaas_config_cannot_name_other_modules(module: str) -> None:
    config = {"sasl.jaas.config": f'{module} required user.provider.url="ldap://mallory/x";'}
    with pytest.raises(ValueError, match=f"{module.rpartition('.')[2]}.*OAUTHBEARER"):
        Security.of(OAUTH | URL | config)


def test_cve_2025_27817_an_endpoint_is_https_a_token_file_or_this_machine() -> None:
    for url in (
        "http://169.254.169.254/latest",
        "ftp://x/",
        "jar:file:/x",
        "gopher://x",
        "//x",
        "http://localhost.x/",
    ):
        with pytest.raises(ValueError, match=r"sasl.oauthbearer.token.endpoint.url.*https"):
            token_endpoint(url, "app", SECRET, "")
    for url in (
        "http://localhost/t",
        "http://127.0.0.1:8080/t",
        "http://[::1]/t",
        "https://issuer:8443/t?x=y",
    ):
        token_endpoint(url, "app", SECRET, "")


def test_the_query_of_a_url_is_not_shown() -> None:
    with Endpoint() as made:
        pass
    with pytest.raises(BrokerUnreachable) as error:
        TokenEndpoint(f"{made.url}?key={SECRET}", "app", "x")()
    assert SECRET not in str(error.value)


# A function.


def test_a_function_can_return_the_token() -> None:
    security = Security(has_tls=True, token=lambda: "mine")
    assert security.mechanism == "OAUTHBEARER"
    assert next(rounds_of(security)) == b"n,,\x01auth=Bearer mine\x01\x01"
    security = Security.of(OAUTH, token=lambda: "mine")
    assert next(rounds_of(security)) == b"n,,\x01auth=Bearer mine\x01\x01"
    assert dataclasses.replace(security, has_tls=True).mechanism == "OAUTHBEARER"


@pytest.mark.parametrize("settings", [{"security.protocol": "SSL"}, OAUTH | {"sasl.mechanism": "PLAIN"}])
def test_a_function_without_oauthbearer_is_refused(settings: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="token"):
        Security.of(settings, token=lambda: "mine")


@pytest.mark.parametrize("token", ["", "a b", "a\x01auth=x", "é", "a\nb", "=a"])
def test_a_token_cannot_smuggle_anything(token: str) -> None:
    with pytest.raises(AuthenticationFailed):
        rounds_of(Security(token=lambda: token))


# With the broker.

KEY = ECKey.generate_key("P-256", {"kid": "k"})


def broker(folder: Path) -> SaslExchange:
    async def beside(work: Callable[[], T]) -> T:
        return work()

    keys = folder / "keys.json"
    keys.write_text(json.dumps({"keys": [KEY.as_dict(private=False)]}))
    settings = Settings.of(
        {
            "sasl.enabled.mechanisms": "OAUTHBEARER",
            "sasl.oauthbearer.jwks.endpoint.url": keys.as_uri(),
            "sasl.oauthbearer.expected.issuer": "i",
            "sasl.oauthbearer.expected.audience": "a",
            "semel.oauthbearer.algorithms": "ES256",
        }
    )
    made = Authenticators(settings, lambda *_: None, Clock(), beside, lambda: b"secret")
    asyncio.run(made.start())
    return made.exchange()


def talk(exchange: SaslExchange, security: Security) -> int:
    def send(request: Request, version: int | None) -> Any:
        if isinstance(request, SaslHandshakeRequest):
            return exchange.handshake(request.mechanism, version or 0)
        return asyncio.run(exchange.authenticate(request.auth_bytes, 2))  # type: ignore[attr-defined]

    return authenticate(send, security, "broker")


def token(**claims: Any) -> str:
    content = {"iss": "i", "aud": "a", "sub": "app", "exp": int(time.time()) + 60} | claims
    return jwt.encode({"alg": "ES256", "kid": "k"}, content, KEY)


def test_client_and_broker(endpoint: Endpoint, tmp_path: Path) -> None:
    endpoint.answer = {"access_token": token(), "expires_in": 60}
    settings = OAUTH | IDENTITY | {"sasl.oauthbearer.token.endpoint.url": endpoint.url}
    exchange = broker(tmp_path)
    assert 50_000 < talk(exchange, Security.of(settings)) <= 60_000
    assert exchange.principal == "User:app"


def test_a_token_that_a_broker_rejects_is_not_used_again(endpoint: Endpoint, tmp_path: Path) -> None:
    wrong = token(aud="another")
    endpoint.answer = {"access_token": wrong, "expires_in": 60}
    security = Security(token=endpoint.source())
    with pytest.raises(AuthenticationFailed, match=r"invalid_token.* audience") as failed:
        talk(broker(tmp_path), security)
    assert wrong not in str(failed.value)
    endpoint.answer = {"access_token": token(), "expires_in": 60}
    talk(broker(tmp_path), security)


def test_a_broker_that_refuses_and_then_accepts_is_not_trusted() -> None:
    rounds = rounds_of(Security(token=lambda: "mine"))
    next(rounds)
    assert rounds.send(b'{"status":"invalid_token"}') == b"\x01"
    with pytest.raises(ValueError, match="token"):
        rounds.send(b"")
